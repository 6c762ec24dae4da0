"""Arguments and results over 64 KiB: a worker over HTTP and whoever asks for a result get them whole."""

from holdfast import App
from tests.server.ojs.given import a_client

LONG = "wave " * 40_000


async def test_a_worker_gets_large_arguments_and_a_caller_a_large_result():
    async with a_client() as client:
        submitted = (await client.post("/jobs", {"type": "echo", "args": [LONG]}))["job"]
        [claimed] = (await client.post("/jobs/fetch", {"queues": ["default"], "worker_id": "w"}))["jobs"]
        await client.post("/workers/ack", {"job_id": claimed["id"], "result": LONG})
        result = await client.get(f"/jobs/{claimed['id']}/result")

    assert submitted["id"] == claimed["id"]
    assert claimed["args"] == [LONG]
    assert result["result"] == LONG


async def test_the_large_result_of_a_python_worker_is_shown_whole(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    app = App(url)

    @app.job
    async def echo(text: str) -> str:
        return text * 2

    async with app.worker():
        run = await echo.submit(LONG)
        await run.result(timeout=20)
    await app.close()
    async with a_client(url) as client:
        job = (await client.get(f"/jobs/{run.id}"))["job"]
        result = (await client.get(f"/jobs/{run.id}/result"))["result"]
        [many] = (await client.post("/jobs/results", {"ids": [run.id]}))["results"]

    assert job["args"] == [LONG]
    assert job["result"] == result == many["result"] == LONG * 2
