"""A provider answers with its token alone, once, and no log has the token."""

import logging

from holdfast.core.changes import suspend
from holdfast.core.model import State, Wait, WaitKind
from holdfast.jobs.callbacks import callback_secret, make_token
from holdfast.jobs.service import JobRequest, Jobs
from tests.server.clients import a_server, required


async def waiting(jobs: Jobs) -> tuple[str, str]:
    """A job that waits for its callback, and the token."""
    await jobs.submit([JobRequest(type="film")])
    (job,) = await jobs.engine.claim("w-1", ["default"], 1)
    change = suspend(job, await jobs.engine.now(), by="w-1", waits=(Wait(WaitKind.SIGNAL, "callback"),))
    await jobs.engine.commit([change])
    return job.id, make_token(await callback_secret(jobs.engine), job.id, "callback")


async def test_a_token_answers_without_any_other_permission_and_once(caplog):
    caplog.set_level(logging.INFO, "holdfast.access")
    async with a_server(auth=required()) as (server, client):
        jobs = await server.open()
        id, token = await waiting(jobs)

        first = await client.post(f"/callback/{token}", json={"seconds": 7})
        second = await client.post(f"/callback/{token}", json={"seconds": 8})
        forged = await client.post(f"/callback/{token[:-1]}x", json={"seconds": 7})

        assert (first.status_code, first.json()) == (200, {"status": "accepted"})
        assert second.status_code == 409
        assert "already answered; a callback token works once" in second.text
        assert forged.status_code == 404
        assert id not in forged.text
        job = await jobs.get(id)
        assert (job.state, job.inbox[0].value, job.inbox[0].by) == (State.AVAILABLE, '{"seconds":7}', "callback")
    assert token not in caplog.text
    assert "/callback/{token}" in caplog.text


async def test_an_answer_is_bounded_and_must_be_json():
    async with a_server() as (server, client):
        _, token = await waiting(await server.open())

        large = await client.post(f"/callback/{token}", json="x" * 600_000)
        wrong = await client.post(f"/callback/{token}", content=b"{", headers={"Content-Type": "application/json"})

        assert large.status_code == 413
        assert wrong.status_code == 400
