"""What remote apps may do to a store, scope by scope: no record is written past the act that checks it."""

import json
from contextlib import asynccontextmanager

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.keys import new_id
from holdfast.core.model import Job, State
from holdfast.jobs.schedules import find_schedule
from holdfast.jobs.tokens import create_token
from tests.server.api.film import make_app, served


@asynccontextmanager
async def with_tokens(**scopes: str):
    """A server with a token for each name, and its client's headers by name."""
    app = make_app()
    async with served(app) as (_, client):
        engine = (await app.open()).engine
        made = {name: await create_token(engine, name, words.split(","), by="test") for name, words in scopes.items()}
        yield engine, client, {name: {"Authorization": f"Bearer {text}"} for name, (text, _) in made.items()}


FLOW = Job(
    id=new_id(1, 1), type="holdfast.flow", queue="default", args="", digest="", created_at=0, state=State.AVAILABLE
)


def nightly(type: str = "film", **more: object) -> list[object]:
    return ["nightly", {"job": {"type": type, **more}, "cron": "0 3 * * *"}]


async def test_a_token_to_act_can_neither_write_a_record_nor_submit_through_a_schedule():
    async with with_tokens(actor="act") as (engine, client, headers):
        record = await client.post("/api/v1/store/put_record", json=["schedule/x", "{}", 0], headers=headers["actor"])
        put = await client.post("/api/v1/store/put_schedule", json=nightly(), headers=headers["actor"])
        cron = await client.post(
            "/ojs/v1/cron", json={"name": "x", "expression": "* * * * *", "job_template": {}}, headers=headers["actor"]
        )

        assert await engine.records("schedule/") == []
    assert record.status_code == 403
    assert (put.status_code, put.json()["scope"]) == (403, "submit")
    assert cron.status_code == 403


async def test_a_schedule_is_checked_and_noted_under_the_name_of_the_token():
    async with with_tokens(clerk="act,submit", reader="read") as (engine, client, headers):

        async def put(given: object) -> int:
            answer = await client.post("/api/v1/store/put_schedule", json=given, headers=headers["clerk"])
            return answer.status_code

        assert await put(nightly("holdfast.bulk")) == 409
        assert await put(nightly(args="{not json")) == 400
        assert await put(["nightly", {"job": {"type": "film"}, "cron": "never"}]) == 400
        assert await put(nightly(args='[ {"title": "Sea"} ]', options={"budget_root": "x"})) == 200
        shown = await client.get("/api/v1/schedules/nightly", headers=headers["reader"])
        nothing = await client.get("/api/v1/schedules/nobody", headers=headers["reader"])
        _, found = await find_schedule(engine, "nightly")
    assert found.definition.job.args == '[{"title":"Sea"}]'
    assert found.definition.job.options.budget_root == ""
    assert [change.by for change in found.changes] == ["clerk"]
    assert (shown.json()["name"], shown.json()["type"], nothing.status_code) == ("nightly", "film", 404)


async def test_who_may_only_submit_submits_and_reads_nothing_but_the_time():
    async with with_tokens(clerk="submit") as (engine, client, headers):
        time = await client.post("/api/v1/store/now", json=[], headers=headers["clerk"])
        assert time.status_code == 200
        job = replace(FLOW, type="film", id=new_id(time.json(), 2), args='[{"title":"Sea"}]')
        put = await client.post("/api/v1/store/insert", content=msgspec.json.encode([job]), headers=headers["clerk"])
        read = await client.post("/api/v1/store/get", json=[[job.id]], headers=headers["clerk"])
        nobody = await client.post("/api/v1/store/now", json=[])

        assert (await engine.get([job.id]))[0] is not None
    assert (put.status_code, read.status_code, read.json()["scope"], nobody.status_code) == (200, 403, "read", 401)


async def test_an_act_on_many_jobs_needs_the_scope_of_the_same_act_on_one():
    async with with_tokens(reviewer="review,read", actor="act,read", clerk="submit") as (_, client, headers):

        async def ask(name: str, act: str, path: str = "/api/v1/bulk") -> int:
            body = {"act": act, "where": {"type": "film"}}
            return (await client.post(path, json=body, headers=headers[name])).status_code

        acts = ("replay", "resolve", "discard", "cancel")
        assert [await ask("reviewer", act) for act in acts] == [404, 404, 404, 403]
        assert [await ask("actor", act) for act in acts] == [403, 403, 403, 404]
        assert [await ask("clerk", act) for act in ("replay", "cancel")] == [403, 403]
        previews = [await ask(name, "replay", "/api/v1/bulk/preview") for name in ("reviewer", "actor", "clerk")]
    assert previews == [200, 200, 403]


async def test_records_of_tokens_and_of_the_store_itself_are_refused_instead_of_hidden():
    async with with_tokens(reader="read") as (_, client, headers):
        codes = [
            (await client.post("/api/v1/store/records", json=[prefix], headers=headers["reader"])).status_code
            for prefix in ("token/", "", "blobs", "callback", "limit/", "on/")
        ]

    assert codes == [409, 409, 409, 409, 200, 200]


async def test_a_queues_bound_is_set_and_reset_over_http():
    async with served(make_app()) as (_, client):
        wrong = await client.post("/api/v1/queues/video/set", json={"most_waiting": -1})
        done = await client.act("/queues/video/set", most_waiting=50, reason="disk")
        again = await client.act("/queues/video/reset")
        twice = await client.post("/api/v1/queues/video/reset", json={})

    assert wrong.status_code == 400
    assert done["words"] == "video: at most 50 may wait."
    assert again["words"] == "video: no bound."
    assert twice.status_code == 404


@pytest.mark.parametrize(
    "flow",
    [
        {"kind": "chain", "calls": [{"type": "holdfast.bulk"}], "steps": [{}], "result": [[0, 1]]},
        {"kind": "chain", "calls": [{"type": "film"}], "steps": [{"after": [[0, 1]]}], "result": [[0, 1]]},
        {"kind": "chain", "calls": [{"type": "film"}], "steps": [{"call": 1}], "result": [[0, 1]]},
        {"kind": "chain", "calls": [{"type": "film"}], "steps": [{"args": {"a": 1}}], "result": [[0, 1]]},
        {"kind": "chain", "calls": [{"type": "film"}], "steps": [{"takes": "input"}], "result": [[0, 1]]},
        {"kind": "chain", "calls": [{"type": "film"}], "steps": [{"args": [{"~result_of": "x"}]}], "result": [[0, 1]]},
        {"kind": "chain", "calls": [{"type": "film", "key": "a"}], "steps": [{}], "result": [[0, 1]]},
        {"kind": "chain", "calls": [{"type": "film", "options": {"budget_root": "x"}}], "steps": [{}], "result": []},
        {"kind": "chain", "calls": [{"type": "not a type\n"}], "steps": [{}], "result": [[0, 1]]},
        {"kind": "circle"},
    ],
)
@pytest.mark.parametrize("depth", [0, 1])
async def test_a_flow_that_does_not_hold_together_or_reaches_beyond_itself_is_refused(flow, depth):
    async with with_tokens(clerk="submit") as (engine, client, headers):
        if depth:
            step = {"args": [flow]}
            flow = {"kind": "group", "calls": [{"type": "holdfast.flow"}], "steps": [step], "result": [[0, 1]]}
        job = replace(FLOW, args=json.dumps([flow]))
        answer = await client.post("/api/v1/store/insert", content=msgspec.json.encode([job]), headers=headers["clerk"])

        assert await engine.count() == {}
    assert answer.status_code in (400, 409), answer.text
