"""A server's `/metrics`: the store's numbers and its own, for a token that may read."""

from holdfast.conformance.given import StoreClock, job
from tests.server.clients import a_server, required


async def test_a_server_shows_the_store_and_what_it_did_itself():
    async with a_server() as (server, client):
        assert (await client.get("/metrics")).status_code == 200
        jobs = await server.open()
        await jobs.engine.insert([job(StoreClock(settable=True), type="film")])
        await jobs.pause("video")

        answer = await client.get("/metrics")

    lines = answer.text.splitlines()
    assert answer.headers["content-type"] == "text/plain"
    assert 'holdfast_jobs{queue="default",state="available"} 1' in lines
    assert 'holdfast_jobs_submitted_total{type="film",queue="default"} 1' in lines
    assert 'holdfast_queue_paused{queue="video"} 1' in lines
    assert "holdfast_store_up 1" in lines


async def test_a_server_that_needs_a_token_shows_no_numbers_without_one():
    async with a_server(auth=required()) as (_, client):
        assert (await client.get("/metrics")).status_code == 401
