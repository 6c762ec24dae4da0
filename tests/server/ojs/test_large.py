"""Large values over the Open Job Spec: a worker gets the values, whatever the store keeps in their place."""

from pathlib import Path

from holdfast import App
from tests.server.ojs.given import a_client, fetched, submitted

LARGE = "x" * 200_000


async def test_a_worker_gets_large_arguments_and_a_caller_a_large_result(tmp_path: Path):
    async with a_client(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        id = await submitted(client, args=[LARGE])

        assert (await client.get(f"/jobs/{id}"))["job"]["args"] == [LARGE]
        assert (await fetched(client))["args"] == [LARGE]
        await client.post("/workers/ack", {"job_id": id, "result": LARGE})
        assert (await client.get(f"/jobs/{id}/result"))["result"] == LARGE


async def test_what_a_python_worker_made_is_read_in_full(tmp_path: Path):
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.job
    async def grow(text: str) -> str:
        return text * 200_000

    async with app.worker():
        run = await grow.submit("x")
        await run.result(timeout=60)
    await app.close()
    async with a_client(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        assert (await client.get(f"/jobs/{run.id}/result"))["result"] == LARGE
        assert (await client.get(f"/jobs/{run.id}"))["job"]["result"] == LARGE
        (found,) = (await client.post("/jobs/results", {"ids": [run.id]}))["results"]
        assert found["result"] == LARGE


async def test_a_workflow_with_many_jobs_can_be_read(tmp_path: Path):
    async with a_client(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        jobs = [{"type": "a.b", "args": ["y" * 1_000]} for _ in range(300)]
        id = (await client.post("/workflows", {"type": "group", "name": "g", "jobs": jobs}))["id"]

        assert (await client.get(f"/workflows/{id}"))["workflow"]["jobs_total"] == 300
        assert [one["id"] for one in (await client.get("/workflows"))["workflows"]] == [id]
