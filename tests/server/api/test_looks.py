"""Pages over HTTP: an overview, a search, one job."""

import pytest
from msgspec.structs import replace

from holdfast import chain, group
from holdfast.core.changes import complete
from holdfast.core.keys import new_id
from holdfast.core.model import Presence, Running, RunningItem, Step, StepState, Where
from holdfast.core.searches import Page
from holdfast.jobs.lost_workers import decide_loss, read_past
from tests.server.api.film import make_app, served, settled
from tests.support.given import until


async def test_a_finished_job_has_its_sentence_stages_items_story_and_cost():
    app = make_app()
    async with served(app) as (_, client), app.worker():
        id = await client.submit("film", [{"title": "The Lighthouse", "scenes": 4}])
        assert await settled(app, id) == "completed"
        page = await client.look(f"/jobs/{id}")
        timeline = await client.look(f"/jobs/{id}/timeline")
        steps = await client.look(f"/jobs/{id}/steps", limit=3)
        rest = await client.look(f"/jobs/{id}/steps", after=steps["next"])
        step = await client.look(f"/jobs/{id}/step", path=steps["steps"][0]["path"])

    assert page["job"]["name"] == "The Lighthouse"
    assert page["sentence"].startswith("Completed in")
    assert "$2.00" in page["sentence"]
    assert [stage["name"] for stage in page["stages"]] == ["paint"]
    [tab] = page["items"]
    assert (tab["done"], tab["total"], [cell["state"] for cell in tab["cells"]]) == (4, 4, ["done"] * 4)
    assert [entry["event"] for entry in page["story"] if entry["version"]] == ["complete", "claim", "submit"]
    cost = {"stage": "paint", "spent": {"usd": 2.0}, "words": "$2.00", "share": 1.0}
    assert page["cost"][0] == {**cost, "wasted": {}, "wasted_share": 0.0}
    assert page["result"]["json"] == [f"image {number}" for number in range(4)]
    assert len(timeline["bars"]) == 4
    assert timeline["bands"][0]["how"] == "completed"
    assert (len(steps["steps"]), len(rest["steps"]), rest["next"]) == (3, 1, None)
    assert step["spent"] == {"usd": 0.5}


async def test_a_search_finds_by_state_queue_type_key_and_id():
    app = make_app()
    async with served(app) as (_, client):
        ids = [await client.submit("film", [{"title": f"f{n}"}], key=f"k{n}", delay="1h") for n in range(5)]
        other = await client.submit("broken", [1], queue="video")

        async def found(**query):
            return [job["id"] for job in (await client.look("/jobs", **query))["jobs"]]

        assert await found() == [other, *reversed(ids)]
        assert await found(order="oldest", limit=2) == ids[:2]
        assert await found(queue="video") == [other]
        assert await found(type="film", state=["scheduled", "active"]) == [*reversed(ids)]
        assert await found(key="k3") == [ids[3]]
        assert await found(id=other[-8:]) == [other]
        assert await found(id="00000000") == []
        page = await client.look("/jobs", limit=2, type="film")
        assert [job["id"] for job in page["jobs"]] == [ids[4], ids[3]]
        assert page["sentence"].startswith("2+ jobs: type film")
        assert await found(limit=2, type="film", after=page["next"]) == [ids[2], ids[1]]
        assert (await client.look("/jobs", queue="vidoe"))["hint"].endswith("did you mean video?")


async def test_a_search_starts_at_a_time():
    app = make_app()
    async with served(app) as (_, client):
        id = await client.submit("film", [{"title": "x"}])
        created = (await client.look(f"/jobs/{id}"))["job"]["created_at"]

        assert [job["id"] for job in (await client.look("/jobs", at=created))["jobs"]] == [id]
        assert (await client.look("/jobs", at="2020-01-01T00:00:00Z"))["jobs"] == []
        oldest = await client.look("/jobs", at="2020-01-01T00:00:00Z", order="oldest")
        assert [job["id"] for job in oldest["jobs"]] == [id]


async def test_counts_by_state_are_given_only_where_they_are_true():
    app = make_app()
    async with served(app) as (_, client):
        await client.submit("film", [{"title": "x"}], key="k")
        await client.submit("broken", [1], queue="video")

        async def counted(**query):
            return {one["state"]: one["jobs"] for one in (await client.look("/jobs", **query))["states"] if one["jobs"]}

        assert await counted() == {"available": 2}
        assert await counted(queue="video", state="review") == {"available": 1}
        assert await counted(type="film") == await counted(key="k") == await counted(id="00000000") == {}


async def test_a_lost_worker_stays_visible_with_what_it_lost():
    app = make_app()
    async with served(app) as (_, client):
        jobs, id = await app.open(), await client.submit("film", [{"title": "x"}])
        engine = jobs.engine
        [job] = await engine.claim("w-lost", ["default"], 1)
        running = Running(id, job.epoch, stage="paint", items=(RunningItem("paint#x", await engine.now()),))
        await engine.beat(Presence("w-lost", queues=("default",), slots=2, running=(running,)))
        assert [one["state"] for one in (await client.look("/workers"))["workers"]] == ["alive"]
        past = await read_past(engine, id)
        await engine.commit([decide_loss(job, past, await engine.now(), by="w-2", why="it died", running=running)])
        await engine.beat(Presence("w-lost", leaving=True))
        workers, overview = await client.look("/workers"), await client.look("/overview")
        worker = await client.look("/workers/w-lost")
        signed_off = Presence("w-ends", queues=("default",))
        await engine.beat(signed_off)
        await client.look("/workers")
        await engine.beat(replace(signed_off, leaving=True))
        later = await client.look("/workers")

    [line] = workers["workers"]
    assert (line["id"], line["state"], [one["job"] for one in line["running"]]) == ("w-lost", "gone", [id])
    assert line["sentence"].endswith("UTC, with 1 job.")
    assert workers["sentence"].endswith("1 lost in the last hour.")
    assert [(one["id"], one["state"]) for one in overview["workers"]] == [("w-lost", "gone")]
    assert sum(overview["finished"]["lost"]) == 1
    assert [one["id"] for one in worker["jobs"]] == [id]
    assert [one["id"] for one in later["workers"]] == ["w-lost"], "one that signed off was not lost"


async def test_a_worker_that_was_lost_before_anybody_looked_is_in_sight_too():
    app = make_app()
    async with served(app) as (_, client):
        jobs, id = await app.open(), await client.submit("film", [{"title": "x"}])
        engine = jobs.engine
        [job] = await engine.claim("w-lost", ["default"], 1)
        past = await read_past(engine, id)
        await engine.commit([decide_loss(job, past, await engine.now(), by="w-2", why="it died", running=None)])
        await engine.claim("w-2", ["default"], 1)
        await engine.beat(Presence("w-2", queues=("default",), slots=2))
        await client.submit("film", [{"title": "y"}])
        [doubtful] = await engine.claim("w-doubt", ["default"], 1)
        begun = Step(
            job=doubtful.id,
            epoch=doubtful.epoch,
            path="send#1",
            name="send",
            state=StepState.STARTED,
            started_at=await engine.now(),
        )
        await engine.record([begun])
        past = await read_past(engine, doubtful.id)
        await engine.commit([decide_loss(doubtful, past, await engine.now(), by="w-2", why="it died")])

        overview, worker = await client.look("/overview"), await client.look("/workers/w-lost")
        again = await client.look("/overview")

    seen = {one["id"]: (one["state"], one["words"].rpartition(", ")[2]) for one in overview["workers"]}
    assert seen.pop("w-2")[0] == "alive"
    assert seen == {"w-lost": ("gone", "with 1 job"), "w-doubt": ("gone", "with 1 job")}
    assert sum(overview["finished"]["lost"]) == 2
    assert [one["id"] for one in worker["jobs"]] == [id]
    assert again["workers"] == overview["workers"]


async def test_a_workers_page_says_what_it_runs_and_what_it_ran_by_name():
    app = make_app()
    async with served(app) as (_, client):
        engine = (await app.open()).engine
        ids = [await client.submit("film", [{"title": title}]) for title in ("Ebb", "Leeward", "Mooring")]
        [mine] = await engine.claim("w-1", ["default"], 1)
        [other] = await engine.claim("w-2", ["default"], 1)
        [held] = await engine.claim("w-1", ["default"], 1)
        now = await engine.now()
        await engine.commit([complete(mine, now, by="w-1", result="1"), complete(other, now, by="w-2", result="2")])
        await engine.beat(Presence("w-1", queues=("default",), slots=2, running=(Running(held.id, held.epoch),)))

        page, line = await client.look("/workers/w-1"), (await client.look("/workers"))["workers"][0]

    assert [one["id"] for one in page["ran"]] == [mine.id]
    assert [one["id"] for one in page["jobs"]] == [held.id]
    [running] = line["running"]
    assert running == page["worker"]["running"][0]
    assert (running["job"], running["name"]) == (
        held.id,
        {ids[0]: "Ebb", ids[1]: "Leeward", ids[2]: "Mooring"}[held.id],
    )


async def test_holdfasts_own_worker_and_queue_are_left_out():
    app = make_app()
    async with served(app) as (_, client):
        engine = (await app.open()).engine
        await engine.beat(Presence("s-own", queues=("holdfast.own",), slots=8))
        await engine.beat(Presence("w-1", queues=("default",), slots=2))
        pages = [await client.look(path) for path in ("/overview", "/workers")]
        queues, frame = await client.look("/queues"), await client.look("/navigation")

    assert [[one["id"] for one in page["workers"]] for page in pages] == [["w-1"], ["w-1"]]
    assert all("0 of 2 slots" in page["sentence"] for page in pages)
    assert [one["bar"]["name"] for one in queues["queues"]] == ["default"]
    assert frame["workers"] == 1


async def test_attempts_are_counted_as_they_were():
    app = make_app()
    async with served(app) as (_, client), app.worker():
        id = await client.submit("broken", [1])
        assert await settled(app, id) == "review"
        facts = {one["name"]: one["words"] for one in (await client.look(f"/jobs/{id}"))["facts"]}

    assert facts["Attempts"] == "1 failed"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"stat": "review"}, "did you mean state?"),
        ({"state": "broken"}, "state"),
        ({"limit": "0"}, "limit"),
        ({"at": "soon"}, "not a time"),
        ({"error": "x"}, "add state=review"),
        ({"queue": "NO"}, "queue"),
        ({"after": "zz"}, "after='zz': give the `next` of the page before"),
        ({"parent": "xx"}, "parent='xx': give a job's whole id"),
    ],
)
async def test_a_wrong_search_is_refused(query, words):
    async with served(make_app()) as (_, client):
        answer = await client.get("/api/v1/jobs", params=query)

    assert answer.status_code == 400
    assert words in answer.json()["detail"]


async def test_the_error_text_is_searched_only_in_review():
    app = make_app()
    async with served(app) as (_, client), app.worker():
        ids = [await client.submit("broken", [number]) for number in (1, 2)]
        for id in ids:
            await settled(app, id)
        found = await client.look("/jobs", state="review", error="NO 2")
        by_id = [await client.look("/jobs", id=id, state="review", error="no 2") for id in ids]
        before = await client.look("/jobs", state="review", error="no", at="2020-01-01T00:00:00Z")
        elsewhere = await client.get("/api/v1/jobs", params={"id": ids[1], "error": "no 2"})

    assert [job["id"] for job in found["jobs"]] == [ids[1]]
    assert [[job["id"] for job in one["jobs"]] for one in by_id] == [[], [ids[1]]]
    assert before["jobs"] == []
    assert elsewhere.status_code == 400


async def test_a_search_for_an_error_among_jobs_of_another_type_is_bounded(monkeypatch):
    monkeypatch.setattr("holdfast.jobs.views.pages.search.ERRORS_READ", 20)
    async with served(make_app()) as (server, client):
        engine = (await server.open()).engine
        searches = 0

        async def search(where: Where, after: str, limit: int) -> Page:
            nonlocal searches
            searches += 1
            return Page(jobs=(), next=new_id(searches, 0), scanned=10, is_cut=True)

        monkeypatch.setattr(engine, "search", search)
        found = await client.look("/jobs", state="review", type="rare", error="no")

    assert (searches, found["scanned"], found["has_scanned_out"]) == (2, 20, True)
    assert found["next"] == new_id(2, 0)


async def test_a_page_of_jobs_counts_the_store_once_and_only_where_counts_are_shown(monkeypatch):
    async with served(make_app()) as (server, client):
        engine = (await server.open()).engine
        counts, count = 0, engine.count

        async def counted() -> object:
            nonlocal counts
            counts += 1
            return await count()

        monkeypatch.setattr(engine, "count", counted)
        await client.look("/jobs")
        assert counts == 1
        await client.look("/jobs", key="order-42")

    assert counts == 1


async def test_a_flow_is_shown_with_its_jobs_and_the_steps_to_come():
    app = make_app()
    async with served(app) as (_, client), app.worker():
        run = await chain(group(app.s("approve", "one"), app.s("approve", "two")), app.s("broken")).submit()
        jobs = await app.open()

        async def both_ask() -> bool:
            return len(await jobs.questions()) == 2

        await until(both_ask)
        tree = await client.look(f"/jobs/{run.id}/tree")

    *asking, last = tree["parts"]
    assert (tree["name"], tree["state"]) == ("chain", "pending")
    assert [(one["type"], one["state"]) for one in asking] == [("approve", "pending")] * 2
    assert (last["type"], last["id"], last["is"]) == ("broken", None, "not started yet")


async def test_the_overview_counts_and_says_what_needs_a_person():
    app = make_app()
    async with served(app) as (_, client), app.worker():
        await settled(app, await client.submit("broken", [1]))
        await settled(app, await client.submit("approve", ["it"]))
        page = await client.look("/overview")

    assert page["sentence"].startswith("2 need you")
    assert [need["kind"] for need in page["needs"]] == ["question", "failure"]
    assert {one["state"]: one["jobs"] for one in page["states"] if one["jobs"]} == {"pending": 1, "review": 1}


async def test_pages_of_an_empty_store_say_so():
    async with served(make_app()) as (_, client):
        for path in ("overview", "jobs", "review", "queues", "workers", "schedules", "limits", "budgets"):
            assert (await client.look(f"/{path}"))["sentence"]
        assert len((await client.look("/lifecycle"))["events"]) == 18
        assert (await client.look("/navigation"))["app"]
        missing = await client.get("/api/v1/jobs/0192f3a4-5b6c-7d8e-9f01-23456789abcd")

    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
