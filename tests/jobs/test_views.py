"""Views are data: what every kind of caller gets of a job, of a store and of what needs a person."""

import json
from pathlib import Path

import pytest

from holdfast.core.model import State
from holdfast.jobs.ids import find_job
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.job import JobView, facts_of, view_job
from holdfast.jobs.views.overview import Overview, view_store
from holdfast.jobs.views.review import ReviewView, view_reviews
from holdfast.jobs.views.story import describe_entry
from tests.cli.stores import every_state, in_store, presence


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def ids(path: Path) -> dict[State, str]:
    return every_state(path)


def view(path: Path, id: str) -> JobView:
    async def work(jobs: Jobs) -> JobView:
        return await view_job(jobs, await find_job(jobs, id))

    return in_store(path, work)


def test_a_job_is_one_frozen_value_with_all_that_is_kept_of_it(path: Path, ids: dict[State, str]):
    found = view(path, ids[State.REVIEW])

    assert [step.path for step in found.steps] == ["draw#1", "draw#2", "draw#3"]
    assert found.log == ("drawing 1", "drawing 2 \x1b[2J")
    assert [describe_entry(entry, found.now).words for entry in found.history] == [
        "submitted",
        "claimed",
        "failed, needs a person",
    ]
    with pytest.raises(AttributeError):
        found.log = ()  # type: ignore[misc]


def test_what_a_person_reads_holds_nothing_that_a_terminal_obeys(path: Path, ids: dict[State, str]):
    found = view(path, ids[State.REVIEW])

    told = [*facts_of(found.job, found.now).values(), *describe_entry(found.history[-1], found.now).notes]
    assert told
    assert "\x1b" not in "".join(told)


@pytest.mark.parametrize("state", State)
def test_the_shape_of_a_job_is_json_in_every_state(state: State, path: Path, ids: dict[State, str]):
    shape = json.loads(json.dumps(view(path, ids[state]).shape()))

    assert shape["job"]["state"] == state
    assert shape["history"][0]["event"] == "submit"


def test_an_overview_counts_all_and_shows_what_runs(path: Path, ids: dict[State, str]):
    async def work(jobs: Jobs) -> Overview:
        await jobs.engine.beat(presence(await jobs.get(ids[State.ACTIVE]), at=await jobs.engine.now()))
        return await view_store(jobs, "here")

    found = in_store(path, work)

    assert sum(queue.total for queue in found.queues) == len(State)
    assert [worker.worker for worker in found.alive] == ["w-live"]
    assert [(one.stage, one.done, one.total) for one in found.active] == [("draw", 12, 30)]
    assert [job.id for job in found.review] == [ids[State.REVIEW]]


def test_a_review_says_since_when_and_what_can_be_done(path: Path, ids: dict[State, str]):
    async def work(jobs: Jobs) -> tuple[list[ReviewView], int]:
        return await view_reviews(jobs, limit=5)

    (found,), total = in_store(path, work)

    assert total == 1
    assert found.since == view(path, found.job.id).history[-1].at
    assert found.shape()["possible"] == ["cancel", "replay", "resolve", "discard"]
