"""Pages over HTTP: an overview, a search, one job."""

import pytest

from tests.server.api.film import make_app, served, settled


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
    assert page["cost"][0] == {"stage": "paint", "spent": {"usd": 2.0}, "words": "$2.00", "share": 1.0}
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

    assert [job["id"] for job in found["jobs"]] == [ids[1]]


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
