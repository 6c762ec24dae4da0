"""Submits and acts over HTTP: typed where the app is loaded, refused with a code and what to do."""

import shlex
from typing import Any

import click
import pytest
from msgspec import to_builtins

from holdfast import current, step
from holdfast.cli.main import main
from holdfast.conformance.given import START
from holdfast.core.keys import new_id
from holdfast.core.model import State
from holdfast.core.queue_bounds import QueueBound
from holdfast.jobs.full_queues import declare_bounds
from holdfast.jobs.requests import JobRequest, new_job
from holdfast.jobs.tokens import create_token
from holdfast.jobs.views import comparison
from holdfast.worker.registry import STEPS
from tests.server.api.film import make_app, paint, served, settled


async def test_a_submit_is_typed_and_its_key_makes_it_one_job():
    async with served(make_app()) as (_, client):
        body = {"type": "film", "args": {"brief": {"title": "Sea"}}}
        first = await client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "order-42"})
        again = await client.post("/api/v1/jobs", json={**body, "key": "order-42"})
        other = await client.post("/api/v1/jobs", json={**body, "args": [{"title": "Land"}], "key": "order-42"})

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert first.headers["Location"] == f"/api/v1/jobs/{first.json()['id']}"
    assert first.json()["job"]["name"] == "Sea"
    assert (other.status_code, other.json()["code"]) == (409, "key_conflict")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"type": "film", "args": [{"title": 5}]}, 400, "brief"),
        ({"type": "flim", "args": []}, 404, "did you mean film?"),
        ({"type": "film", "args": [{"title": "x"}], "keey": "a"}, 400, "keey"),
        ({"type": "film", "args": [{"title": "x"}], "at": "soon"}, 400, "at='soon'"),
        ({"type": "film", "args": [{"title": "x"}], "priority": 1_000}, 400, "out of range"),
        ({"args": []}, 400, "type"),
    ],
)
async def test_a_wrong_submit_is_refused_with_what_to_do(body, status, words):
    async with served(make_app()) as (_, client):
        answer = await client.post("/api/v1/jobs", json=body)

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in answer.json()["detail"]
    assert answer.json()["code"]


async def test_without_an_app_arguments_are_stored_as_they_are():
    async with served(make_app(), typed=False) as (_, client):
        id = await client.submit("other.kind", [1, {"a": 2}], queue="video", tags=["x"])
        by_name = await client.post("/api/v1/jobs", json={"type": "film", "args": {"brief": 1}})

        assert await client.look(f"/jobs/{id}/arguments") == [1, {"a": 2}]
        assert (await client.look(f"/jobs/{id}"))["job"]["queue"] == "video"
    assert by_name.status_code == 400


@pytest.mark.parametrize("typed", [True, False])
async def test_a_job_may_be_submitted_with_a_budget_of_its_own(typed):
    app = make_app()
    async with served(app, typed=typed) as (_, client):
        id = await client.submit("film", [{"title": "Sea"}], budget={"usd": 1.5, "tokens": 1_000})
        wrongs: list[dict[str, Any]] = [
            {"budget": {"eur": 1}},
            {"budget": {"usd": -1}},
            {"budget": {"usd": "5"}},
            {"budget": {"usd": 0}},
            {"budget": {}},
            {"budget": 5},
            {"keep_result": "48h"},
            {"needs": ["gpu"]},
        ]
        body = {"type": "film", "args": [{"title": "Sea"}]}
        refused = [await client.post("/api/v1/jobs", json=body | wrong) for wrong in wrongs]
        job = await (await app.open()).get(id)
        schema = (await client.look("/openapi.json"))["components"]["schemas"]["SubmitRequest"]["properties"]["budget"]

    assert job.options.budget == {"usd": 1_500_000, "tokens": 1_000_000_000}
    assert [(one.status_code, one.headers["content-type"]) for one in refused] == [
        (400, "application/problem+json")
    ] * 8
    named = ("'eur'", "usd=-1", "budget", "usd", "budget={}", "budget", "keep_result", "needs")
    for answer, words in zip(refused, named, strict=True):
        assert words in answer.json()["detail"], answer.text
    assert {"type": "object", "additionalProperties": {"type": "number"}} in schema["anyOf"]
    assert schema["examples"] == [{"usd": 5}]


@pytest.mark.parametrize("when_full", ["refuse", "shed_oldest"])
async def test_without_an_app_the_bounds_of_the_store_count(when_full):
    app = make_app()
    async with served(app, typed=False) as (_, client):
        await declare_bounds(app.engine, [QueueBound("video", 1, when_full)], by="w-1")
        body = {"type": "film", "args": [], "queue": "video"}
        first = await client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "one"})
        again = await client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "one"})
        other = await client.post("/api/v1/jobs", json=body)
        remote = [to_builtins(new_job(JobRequest(type="film", queue="video"), new_id(START, 1), START))]
        inserted = await client.post("/api/v1/store/insert", json=remote)
        counts = await app.engine.count()

    assert first.status_code == 201
    assert first.json()["id"] == again.json()["id"]
    assert counts["video", State.AVAILABLE] == 1
    if when_full == "refuse":
        assert [(answer.status_code, answer.json()["code"]) for answer in (other, inserted)] == [
            (429, "queue_full")
        ] * 2
    else:
        assert (other.status_code, inserted.status_code, counts["video", State.CANCELLED]) == (201, 200, 2)


async def test_a_question_is_shown_with_its_form_refused_if_it_does_not_fit_and_answered():
    app = make_app()
    async with served(app) as (_, client), app.worker():
        id = await client.submit("approve", ["the cut"])
        await settled(app, id)
        [question] = (await client.look(f"/review/{id}"))["questions"]
        wrong = await client.post(f"/api/v1/jobs/{id}/answer", json={"value": {"ok": "perhaps"}})
        done = await client.act(f"/jobs/{id}/answer", value={"ok": True}, name=question["name"])

        assert [field["name"] for field in question["fields"]] == ["ok", "note"]
        assert question["schema"]["required"] == ["ok"]
        assert wrong.status_code == 400
        assert "ok" in wrong.json()["detail"]
        assert done["words"].startswith("Answered")


async def test_a_job_in_review_is_replayed_with_checked_arguments_resolved_or_discarded():
    app = make_app()
    async with served(app) as (_, client), app.worker():
        ids = [await client.submit("broken", [number]) for number in (1, 2, 3)]
        for id in ids:
            assert await settled(app, id) == "review"
        inbox = await client.look("/review")
        wrong = await client.post(f"/api/v1/jobs/{ids[0]}/replay", json={"args": ["x"]})
        await client.act(f"/jobs/{ids[0]}/replay", args=[9], reason="other number")
        await client.act(f"/jobs/{ids[1]}/resolve", result=5, reason="by hand")
        await client.act(f"/jobs/{ids[2]}/discard", reason="not needed")
        twice = await client.post(f"/api/v1/jobs/{ids[2]}/discard", json={})

        assert inbox["total"] == 3
        assert inbox["lines"][0]["words"] == "ValueError: no 3"
        assert wrong.status_code == 400
        assert await client.look(f"/jobs/{ids[1]}/result") == 5
        story = (await client.look(f"/jobs/{ids[1]}/story"))["entries"]
        assert "reason: by hand" in story[0]["notes"]
        assert (twice.status_code, twice.json()["code"]) == (409, "not_allowed")


async def test_queues_workers_and_limits_are_changed_by_whoever_asks():
    app = make_app()
    app.limit("openai", at_once=3)
    async with served(app) as (_, client), app.worker():
        id = await client.submit("film", [{"title": "x"}])
        await settled(app, id)
        await client.act("/queues/default/pause", reason="provider is down")
        [queue] = (await client.look("/queues"))["queues"]
        missing = await client.post("/api/v1/queues/deflaut/pause", json={})
        [worker] = (await client.look("/workers"))["workers"]
        await client.act(f"/workers/{worker['id']}/quiet", reason="old machine")
        quiet = (await client.look(f"/workers/{worker['id']}"))["worker"]
        limit = await client.act("/limits/openai/set", at_once=1)

        assert queue["bar"]["pause_words"].endswith("provider is down")
        assert [act["name"] for act in queue["acts"]] == ["resume"]
        assert missing.status_code == 404
        assert "did you mean default?" in missing.json()["detail"]
        assert quiet["is_quiet"]
        assert limit["at_once"] == 1
        assert (await client.look("/limits/openai"))["at_once"] == 1
        assert (await client.get("/api/v1/limits/nobody")).status_code == 404
        await client.act(f"/workers/{worker['id']}/resume")
        await client.act("/queues/default/resume")


async def test_a_cancel_says_why():
    app = make_app()
    async with served(app) as (_, client):
        id = await client.submit("film", [{"title": "x"}], delay="1h")
        done = await client.act(f"/jobs/{id[-8:]}/cancel", reason="too late")

        assert done["job"]["state"] == "cancelled"
        assert (await client.look(f"/jobs/{id}"))["acts"] == []


async def test_a_replay_is_previewed_and_steps_are_run_again_in_a_new_run_that_is_compared(monkeypatch):
    here = paint.__module__  # other tests have steps of this name, too
    monkeypatch.setitem(STEPS, "paint", {here: STEPS["paint"][here]})
    app = make_app()
    async with served(app) as (_, client), app.worker():
        broken = await client.submit("broken", [1])
        assert await settled(app, broken) == "review"
        plan = await client.act(f"/jobs/{broken}/replay/preview", args=[2])
        film = await client.submit("film", [{"title": "Sea", "scenes": 2}])
        assert await settled(app, film) == "completed"
        early = await client.post(f"/api/v1/jobs/{film}/replay/preview", json={})
        made = await client.act(f"/jobs/{film}/rerun", steps=["paint#1"], feedback="too dark", reason="look again")
        forked = await client.act(f"/jobs/{film}/fork", args=[{"title": "Sea", "scenes": 3}])
        wrong = await client.post(f"/api/v1/jobs/{film}/fork", json={"args": ["x"]})
        misfit = await client.post(f"/api/v1/jobs/{film}/rerun", json={"steps": ["paint#1"], "args": ["x"]})
        for one in (made, forked):
            assert await settled(app, one["job"]["id"]) == "completed"
        compared = await client.look(f"/jobs/{film}/compare", other=made["job"]["id"])
        told = (await (await app.open()).history(made["job"]["id"]))[1]

        told_from = (await client.look(f"/jobs/{made['job']['id']}"))["made_from"]
        unmade = (await client.look(f"/jobs/{film}"))["made_from"]
    assert (told_from["how"], told_from["job"], unmade) == ("rerun", film, None)
    assert told_from["words"] == f"A rerun of {film[-8:]} at paint 0: look again."
    assert {step["name"] for step in compared["steps"]} == {"paint 0", "paint 1"}
    assert plan["words"].startswith("replay of broken")
    assert early.status_code == 409
    assert made["words"].startswith("Made ")
    assert (told.by, told.note["reason"]) == ("http", "look again")
    assert wrong.status_code == 400
    assert misfit.status_code == 400
    assert "number" in misfit.json()["detail"]
    assert compared["same_result"]


async def test_two_runs_are_compared_page_by_page_and_what_differs_comes_first():
    app = make_app()
    async with served(app) as (_, client), app.worker():
        short = await client.submit("film", [{"title": "Sea", "scenes": 3}])
        long = await client.submit("film", [{"title": "Sea", "scenes": 5}])
        for one in (short, long):
            assert await settled(app, one) == "completed"
        first = await client.look(f"/jobs/{short}/compare", other=long, limit=3)
        last = await client.look(f"/jobs/{short}/compare", other=long, limit=3, after=first["next"])
        wrong = await client.get(f"/api/v1/jobs/{short}/compare", params={"other": long, "after": "paint#none"})
        many = await client.get(f"/api/v1/jobs/{short}/compare", params={"other": long, "limit": 501})

    assert [step["relation"] for step in first["steps"]] == ["only in the second", "only in the second", "same"]
    assert [step["relation"] for step in last["steps"]] == ["same", "same"]
    assert len({step["path"] for step in (*first["steps"], *last["steps"])}) == 5
    assert (first["same"], first["total"], last["next"], last["note"]) == (3, 5, None, "")
    assert first["note"] == "steps 1 to 3 of 5, those that differ first; for more, add after=NEXT"
    assert (wrong.status_code, many.status_code) == (400, 400)
    assert "neither run has this step" in wrong.json()["detail"]


async def test_a_page_of_a_comparison_ends_when_its_results_are_long(monkeypatch):
    monkeypatch.setattr(comparison, "PAGE_CHARACTERS", 30)  # of two results in each pair
    app = make_app()
    async with served(app) as (_, client), app.worker():
        one, other = [await client.submit("film", [{"title": "Sea", "scenes": 3}]) for _ in range(2)]
        for id in (one, other):
            assert await settled(app, id) == "completed"
        pages = [await client.look(f"/jobs/{one}/compare", other=other)]
        while pages[-1]["next"] is not None and len(pages) < 9:
            pages.append(await client.look(f"/jobs/{one}/compare", other=other, after=pages[-1]["next"]))

    assert [len(page["steps"]) for page in pages] == [1, 1, 1]


async def test_a_step_says_what_was_rejected_which_code_made_it_and_what_can_be_done_with_it():
    keys = []

    @step(name="sketch")
    async def sketch(scene: str) -> str:
        keys.append(current().idempotency_key)
        return f"{scene} {len(keys)}"

    @step(name="publish", effect="once", key=lambda scene: "film")
    async def publish(scene: str) -> str:
        return scene

    app = make_app()

    @app.job
    async def poster(scene: str) -> str:
        return await publish(await sketch(scene))

    async with served(app) as (_, client), app.worker():
        id = await client.submit("poster", ["sea"])
        assert await settled(app, id) == "completed"
        first, published = (await client.look(f"/jobs/{id}/steps"))["steps"]
        effect = await client.look(f"/jobs/{id}/step", path=published["path"])
        before = await client.look(f"/jobs/{id}/step", path=first["path"])
        again = before["acts"][0]["path"]
        refused = await client.post(again, json={"steps": [published["path"]]})
        given = {"steps": [first["path"]], "feedback": "too dark", "allow": [published["path"]]}
        made = (await client.act(again.removeprefix("/api/v1"), **given))["job"]["id"]
        assert await settled(app, made) == "completed"
        after = await client.look(f"/jobs/{made}/step", path=first["path"])

    assert (before["rejected"], before["is_effect"], before["key"]) == (None, False, keys[0])
    assert [act["name"] for act in before["acts"]] == ["rerun", "fork"]
    assert before["code"] == after["code"]
    assert len(before["code"]) >= 8
    assert effect["is_effect"]
    assert refused.status_code == 409
    assert after["key"] == keys[1] != keys[0]
    assert after["rejected"]["feedback"] == "too dark"
    assert after["rejected"]["result"]["json"] == "sea 1"


async def test_an_effect_in_doubt_after_a_rerun_is_told_with_the_key_that_the_provider_got():
    keys = []
    app = make_app()

    @step(name="announce", effect="once", key=lambda scene: "film")
    async def announce(scene: str) -> str:
        keys.append(current().idempotency_key)
        if len(keys) > 1:
            raise TimeoutError("no answer")
        return scene

    @app.job(retries=0)
    async def poster(scene: str) -> str:
        return await announce(scene)

    async with served(app) as (_, client), app.worker():
        id = await client.submit("poster", ["sea"])
        assert await settled(app, id) == "completed"
        made = (await client.act(f"/jobs/{id}/rerun", steps=["announce"], allow=["announce"]))["job"]["id"]
        assert await settled(app, made) == "review"
        (doubt,) = (await client.look(f"/review/{made}"))["review"]["doubts"]

    assert doubt["key"] == keys[1] != keys[0]


async def test_jobs_in_review_come_in_groups_and_a_group_is_previewed_with_its_plan():
    app = make_app()
    async with served(app) as (_, client), app.worker():
        none = await client.look("/review/groups")
        for number in range(3):
            assert await settled(app, await client.submit("broken", [number])) == "review"
        found = await client.look("/review/groups")
        (group,) = found["groups"]
        plan = await client.act("/bulk/preview", act="replay", where=group["where"])
        discard = await client.act("/bulk/preview", act="discard", where=group["where"])

    assert (none["groups"], none["sentence"]) == ([], "No job is in review.")
    assert found["sentence"] == "3 jobs in review, in 1 group."
    assert (group["type"], group["step"], group["error"], group["count"]) == (
        "broken",
        "(the job's own code)",
        "ValueError",
        3,
    )
    assert group["first"] <= group["last"]
    assert plan["total"] == 3
    assert "0 failed steps run again" in plan["plan"]
    assert discard["plan"] == ""


@pytest.mark.parametrize("where", [{"tag": "old"}, {"error": "ValueError"}, {"step": "(the job's own code)"}])
async def test_an_act_on_many_jobs_selects_by_tag_error_and_failed_step(where):
    app = make_app()
    async with served(app) as (_, client), app.worker():
        ids = [await client.submit("broken", [number], tags=["old"]) for number in range(2)]
        for id in ids:
            assert await settled(app, id) == "review"
        await client.submit("film", [{"title": "other"}], delay="1h")
        preview = await client.act("/bulk/preview", act="resolve", where=where, result=7)
        started = await client.act("/bulk", 202, act="resolve", where=where, result=7)
        assert await settled(app, started["id"]) == "completed"
        results = [await client.look(f"/jobs/{id}/result") for id in ids]

    assert (preview["total"], preview["is_least"]) == (2, False)
    assert results == [7, 7]


EVERY_STATE = "--state scheduled --state available --state pending --state active --state retryable"
FIRST, SECOND = "0192f3a4-5b6c-7d8e-9f01-000000000001", "0192f3a4-5b6c-7d8e-9f01-000000000002"


@pytest.mark.parametrize(
    ("act", "where", "more", "command"),
    [
        ("cancel", {"queue": "video"}, {}, "holdfast cancel --queue video"),
        ("cancel", {}, {}, f"holdfast cancel {EVERY_STATE}"),
        ("cancel", {"type": "film", "state": ["review"]}, {}, "holdfast cancel --type film --state review"),
        ("cancel", {"queue": "video", "tag": "old"}, {}, ""),
        ("cancel", {"error": "ValueError"}, {}, ""),
        ("cancel", {"ids": [FIRST, SECOND]}, {}, f"holdfast cancel {FIRST} {SECOND}"),
        ("cancel", {"ids": [FIRST], "state": ["active"]}, {}, ""),
        ("replay", {"type": "film", "state": ["review"]}, {}, "holdfast replay --type film"),
        ("replay", {"step": "draw it"}, {"reason": "it's up"},
         "holdfast replay --failed-in 'draw it' --reason 'it'\"'\"'s up'"),
        ("replay", {}, {}, ""),
        ("discard", {"error": "ValueError"}, {}, "holdfast discard --error ValueError"),
        ("resolve", {"type": "film"}, {"result": ["a b"]}, "holdfast resolve --type film --result '[\"a b\"]'"),
        ("resolve", {"ids": [FIRST, SECOND]}, {}, ""),
    ],
)  # fmt: skip
async def test_the_command_of_a_preview_does_the_same_or_there_is_none(act, where, more, command):
    async with served(make_app()) as (_, client):
        preview = await client.act("/bulk/preview", act=act, where=where, **more)

    assert preview["command"] == command
    if command:
        _, verb, *options = shlex.split(command)
        found = main.get_command(click.Context(main), verb)
        assert found is not None
        assert found.make_context(verb, options).params["reason"] == more.get("reason", "")


async def test_an_act_on_many_jobs_is_previewed_and_done_by_a_worker():
    app = make_app()
    async with served(app) as (_, client):
        for number in range(7):
            await client.submit("film", [{"title": f"f{number}"}], delay="1h")
        await client.submit("broken", [1], delay="1h")
        where = {"type": "film", "state": ["scheduled"]}
        preview = await client.act("/bulk/preview", act="cancel", where=where)
        nothing = await client.post("/api/v1/bulk", json={"act": "discard", "where": {"queue": "none"}})
        started = await client.act("/bulk", 202, act="cancel", where=where, reason="wrong year")
        async with app.worker():
            assert await settled(app, started["id"]) == "completed"
        done = await client.look(f"/bulk/{started['id']}")
        left = await client.look("/jobs", state="scheduled")

    assert (preview["total"], preview["is_least"], len(preview["sample"])) == (7, False, 5)
    assert preview["sentence"].startswith("Cancel 7 jobs (")
    assert preview["command"] == "holdfast cancel --type film --state scheduled"
    assert nothing.status_code == 404
    assert (done["state"], done["done"], done["refused"]) == ("completed", 7, 0)
    assert [job["type"] for job in left["jobs"]] == ["broken"]


@pytest.mark.parametrize(
    ("act", "state", "scopes", "may_start", "may_stop"),
    [
        ("replay", "review", ["review"], True, True),
        ("cancel", "scheduled", ["act"], True, True),
        ("replay", "review", ["act"], False, True),  # it may cancel any job
        ("cancel", "scheduled", ["review"], False, False),
        ("cancel", "scheduled", ["submit", "read", "work", "admin"], False, False),
        ("replay", "review", ["submit", "read", "work", "admin"], False, False),
    ],
)
async def test_whoever_may_start_an_act_on_many_jobs_may_stop_it(act, state, scopes, may_start, may_stop):
    app = make_app()
    async with served(app) as (_, client):
        ids = [await client.submit("broken", [number], delay="1h" if act == "cancel" else None) for number in range(2)]
        if act == "replay":
            async with app.worker():
                assert [await settled(app, id) for id in ids] == ["review"] * 2
        engine = (await app.open()).engine
        owner, _ = await create_token(engine, "owner", ["act", "review"], by="test")
        other, _ = await create_token(engine, "other", scopes, by="test")

        async def asked(token, path, **body):
            answer = await client.post(f"/api/v1{path}", json=body, headers={"Authorization": f"Bearer {token}"})
            return answer.status_code, answer.json()

        where = {"type": "broken", "state": [state]}
        began, _ = await asked(other, "/bulk", act=act, where=where)
        _, started = await asked(owner, "/bulk", act=act, where=where)
        path = next(one["path"] for one in started["acts"]).removeprefix("/api/v1")
        stopped, answer = await asked(other, path, reason="wrong ones")

    assert (began == 202, stopped == 200) == (may_start, may_stop)
    if may_stop:
        assert answer["state"] == "cancelled"
    else:
        assert (stopped, answer["code"]) == (403, "forbidden")
