"""Small things that a client of the specification relies on."""

from typing import Any

import pytest

from holdfast.server.ojs.vocabulary import read_duration
from tests.server.ojs.given import a_client, fetched, submitted
from tests.server.ojs.test_reservations import Clock, Upkeep


@pytest.mark.parametrize(
    ("one", "other"), [([1], [1.0]), ([{"n": [2.0]}], [{"n": [2]}]), ([1e3], [1000]), ([-0.0], [0])]
)
@pytest.mark.parametrize("keys", [{"keys": ["args"]}, {"args_keys": ["n"], "keys": ["type", "args"]}])
async def test_equal_numbers_are_equal_however_they_are_written(one: Any, other: Any, keys: dict[str, Any]):
    async with a_client() as client:
        body = {"type": "a.b", "options": {"unique": {**keys, "on_conflict": "reject"}}}
        await client.post("/jobs", {**body, "args": one})

        assert (await client.send("POST", "/jobs", {**body, "args": other})).status_code == 409


async def test_different_numbers_are_different():
    async with a_client() as client:
        body = {"type": "a.b", "options": {"unique": {"keys": ["args"]}}}
        for args in ([1], [1.5], [True], ["1"], [[1]]):
            assert (await client.send("POST", "/jobs", {**body, "args": args})).status_code == 201


@pytest.mark.parametrize(
    ("text", "expected"), [("1s", 1_000), ("1.5s", 1_500), ("250ms", 250), ("5m", 300_000), ("2h", 7_200_000)]
)
def test_a_duration_may_be_a_number_and_a_unit(text: str, expected: int):
    assert read_duration("initial_interval", text) == expected


async def test_after_a_timeout_the_delay_is_told():
    clock = Clock()
    async with a_client(clock=clock) as client:
        upkeep = Upkeep(client, clock)
        await upkeep.look()
        retry = {"max_attempts": 3, "initial_interval": "7s", "jitter": False}
        id = await submitted(client, queue="q", timeout_ms=3_000, retry=retry)
        await fetched(client, "q")

        await upkeep.advance(4_000)

        job = (await client.get(f"/jobs/{id}"))["job"]
        assert (job["state"], job["retry_delay_ms"]) == ("retryable", 7_000)


@pytest.mark.parametrize("way", ["purge", "bulk"])
async def test_a_deletion_of_ended_jobs_says_that_they_stay(way: str):
    async with a_client() as client:
        id = await submitted(client)
        await fetched(client)
        await client.post("/workers/ack", {"job_id": id})

        if way == "purge":
            body: dict[str, Any] = {"states": ["completed"], "confirm": True}
            answer = (await client.send("DELETE", "/admin/queues/default/jobs", body)).json()
        else:
            body = {"filter": {"state": "completed"}, "confirm": True}
            answer = await client.post("/admin/jobs/bulk/delete", body)

        assert (answer["matched"], answer["succeeded"], answer["failed"]) == (1, 0, 1)
        assert "isn't removed early" in answer["errors"][0]["error"]
        assert (await client.get(f"/jobs/{id}"))["job"]["state"] == "completed"


async def test_checkpoints_have_the_paths_of_the_kit_for_python_too():
    async with a_client() as client:
        id = await submitted(client)
        await fetched(client)
        saved = {"state": {"page": 3}, "step_index": 2, "metadata": {"attempt": 1}}

        await client.post(f"/checkpoints/{id}", saved)
        found = await client.get(f"/checkpoints/{id}/resume")

        assert found.items() >= {**saved, "job_id": id, "sequence": 1}.items()
        assert (await client.get(f"/jobs/{id}/checkpoint"))["state"] == {"page": 3}
        await client.delete(f"/checkpoints/{id}")
        assert (await client.send("GET", f"/checkpoints/{id}/resume")).status_code == 404


async def test_a_job_says_how_often_it_was_replayed():
    async with a_client() as client:
        id = await submitted(client, retry={"max_attempts": 1})
        for expected in (1, 2):
            await fetched(client)
            await client.post("/workers/nack", {"job_id": id, "error": {"code": "x", "message": "no"}})
            await client.post(f"/dead-letter/{id}/retry", {})

            assert (await client.get(f"/jobs/{id}"))["job"]["meta"] == {"ojs.replay_count": expected}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"temperature": 2.1}, "AGENT_INVALID_PARAMETER"),
        ({"temperature": "hot"}, "AGENT_INVALID_PARAMETER"),
        ({"token_budget": -1}, "AGENT_INVALID_PARAMETER"),
        ({"delegation_depth": 10}, "AGENT_MAX_DELEGATION_DEPTH"),
        ({"delegation_depth": 3, "max_delegation_depth": 3}, "AGENT_MAX_DELEGATION_DEPTH"),
        ({"delegation_depth": 2, "max_delegation_depth": 3, "temperature": 2}, None),
        ({"delegation_depth": 0, "max_delegation_depth": 0}, None),
    ],
)
async def test_what_an_agent_cannot_be_is_refused(fields: dict[str, Any], code: str | None):
    async with a_client() as client:
        body = {"type": "ai.agent", "args": [], **{f"ext_agent_{name}": value for name, value in fields.items()}}

        answer = await client.send("POST", "/jobs", body)

        if code is None:
            assert answer.json()["job"].items() >= body.items()
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
