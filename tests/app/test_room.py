"""Who needs room in a queue: only jobs that are new. What answers for a job that is there already is never shed."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import App, Duplicate, KeyConflict, QueueFull, Unique
from holdfast.core.model import Job, State, Where
from holdfast.core.queue_bounds import depth_of
from holdfast.engines.contract import Engine
from holdfast.jobs import room
from holdfast.jobs.full_queues import declare_bounds

ENGINES = ("memory", "file", "sqlite", "postgres", "redis")

SAME = Unique(by=("args",))
REFUSING = Unique(by=("args",), then="refuse")
REPLACING = Unique(by=("args",), then="replace")


def make_clip(app: App, most_waiting: int, when_full: str = "shed_oldest"):
    app.queue("video", most_waiting=most_waiting, when_full=when_full)

    @app.job(queue="video")
    async def clip(n: int) -> int:
        return n

    return clip


async def states(*runs) -> list[str]:
    return [(await run.status()).state for run in runs]


async def depth(app: App) -> int:
    return depth_of(await (await app.open()).engine.count(), "video")


@pytest.mark.parametrize("options", [{"key": "k"}, {"unique": SAME}], ids=["key", "unique"])
async def test_a_job_that_is_submitted_again_is_not_shed_for_itself(app, options):
    clip = make_clip(app, 1)
    first = await clip.submit(1, **options)

    again = await clip.submit(1, **options)

    assert again.id == first.id
    assert await states(first) == ["available"]


@pytest.mark.parametrize("options", [{"key": "k"}, {"unique": SAME}], ids=["key", "unique"])
async def test_a_job_that_is_there_is_not_shed_for_another_of_the_same_call(app, options):
    clip = make_clip(app, 2)
    first = await clip.submit(1, **options)
    second = await clip.submit(2)

    together = await clip.with_options(**options).submit_many([1, 3]) if "unique" in options else None
    again = together[0] if together else await clip.submit(1, **options)

    assert again.id == first.id
    assert await states(first, second) == ["available", "cancelled" if together else "available"]
    assert await depth(app) == 2


@pytest.mark.parametrize("options", [{"key": "k"}, {"unique": SAME}], ids=["key", "unique"])
async def test_a_full_queue_answers_for_a_job_that_it_has(app, options):
    clip = make_clip(app, 1, "refuse")
    first = await clip.submit(1, **options)

    assert (await clip.submit(1, **options)).id == first.id
    with pytest.raises(QueueFull):
        await clip.submit(2, **options | ({"key": "l"} if "key" in options else {}))


async def test_a_submit_that_is_refused_sheds_nobody(app):
    clip = make_clip(app, 2)
    runs = [await clip.submit(1, key="k"), await clip.submit(2, unique=SAME)]

    with pytest.raises(KeyConflict):
        await clip.submit(3, key="k")
    with pytest.raises(Duplicate):
        await clip.submit(2, unique=REFUSING)

    assert await states(*runs) == ["available", "available"]


async def test_a_job_that_replaces_one_that_waits_needs_no_room(app):
    clip = make_clip(app, 2, "refuse")
    first = await clip.submit(1, unique=SAME)
    await clip.submit(2)

    second = await clip.submit(1, delay="1h", unique=REPLACING)

    assert await states(first, second) == ["cancelled", "scheduled"]
    assert await depth(app) == 2


async def test_a_job_that_replaces_one_that_runs_needs_room(app):
    clip = make_clip(app, 1)
    first = await clip.submit(1, unique=SAME)
    await (await app.open()).engine.claim("w-1", ["video"], 1)
    waiting = await clip.submit(2)

    second = await clip.submit(1, unique=REPLACING)

    assert await states(first, waiting, second) == ["cancelled", "cancelled", "available"]


async def test_the_same_job_twice_in_one_call_needs_one_place(app):
    clip = make_clip(app, 1, "refuse")

    runs = await clip.with_options(unique=SAME).submit_many([1, 1])

    assert runs[0].id == runs[1].id
    assert await depth(app) == 1


async def test_a_full_queue_sheds_nobody_for_a_callers_own_transaction(app):
    clip = make_clip(app, 1)
    first = await clip.submit(1)

    with pytest.raises(QueueFull, match=r"jobs can't be shed in your transaction \(connection=\)"):
        await clip.submit(2, connection=object())

    assert await states(first) == ["available"]


async def test_a_key_that_has_run_out_needs_room_again(app, clock):
    clip = make_clip(app, 1, "refuse")
    await clip.submit(1, key="k", key_for="1m")
    clock.advance(120)

    with pytest.raises(QueueFull):
        await clip.submit(1, key="k", key_for="1m")


# A crowd.

SEATS, MOST = 4, 12


async def crowd(app: App, when_full: str, calls: int) -> None:
    """Many submitters at once, new jobs, keys, unique names and schedules in turn: nobody takes another's place."""
    clip = make_clip(app, MOST, when_full)
    accepted: set[str] = set()
    known: dict[tuple[str, int], str] = {}
    engine = (await app.open()).engine
    await declare_bounds(engine, list(app.registry.bounds.values()), by="w-1")
    await app.schedules.put(every="1h", job=clip.s(0), name="hourly")

    async def submit(kind: str, n: int) -> str:
        if kind == "tick":
            return (await app.schedules.run_now("hourly")).id
        if kind == "key":
            return (await clip.submit(n, key=f"{n}")).id
        return (await (clip.submit(n, unique=SAME) if kind == "unique" else clip.submit(1_000 + n))).id

    async def submitter(seat: int) -> None:
        chance = random.Random(seat)
        for _ in range(calls):
            name = chance.choice(("new", "key", "unique", "tick")), chance.randrange(8)
            stays = name[0] == "key" or (name[0] == "unique" and when_full == "refuse")
            before = known.get(name) if stays else None
            try:
                id = await submit(*name)
            except QueueFull:
                assert before is None, "a job that is there found no room"
            else:
                assert before in (None, id), "another job answered"
                known[name] = id
                accepted.add(id)

    await asyncio.gather(*(submitter(seat) for seat in range(SEATS)))

    jobs = await engine.find(Where(queue="video"), limit=1_000)
    found = Counter(job.state for job in jobs)
    assert {job.id for job in jobs} == accepted, "a refused submit left a job, or an accepted one has none"
    assert found[State.AVAILABLE] <= MOST + SEATS - 1, "the bound was exceeded by more than the submits under way"
    assert found[State.AVAILABLE] >= MOST - (SEATS - 1 if when_full == "shed_oldest" else 0), "too many were shed"
    if when_full == "refuse":
        assert set(found) == {State.AVAILABLE}


@pytest.mark.parametrize("when_full", ["refuse", "shed_oldest"])
async def test_a_crowd_keeps_the_bound_and_each_known_job_answers(app, rounds, when_full):
    await crowd(app, when_full, rounds(12, 60))


async def everybody_is_new(engine: Engine, jobs: Sequence[Job]) -> room.Arrivals:
    return room.Arrivals(jobs, ())


async def always_room(*_: Any, **__: Any) -> list[room.Shed]:
    return []


async def nobody_leaves(*_: Any) -> int:
    return 0


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("bug", "where", "when_full"),
    [
        (everybody_is_new, "room.find_arrivals", "refuse"),
        (always_room, "service.find_room", "refuse"),
        (always_room, "schedules.find_room", "refuse"),
        (nobody_leaves, "room._cancel", "shed_oldest"),
    ],
)
async def test_every_planted_bug_is_caught(app, monkeypatch, bug, where, when_full):
    monkeypatch.setattr(f"holdfast.jobs.{where}", bug)

    with pytest.raises(AssertionError, match="no room|the bound was exceeded"):
        await crowd(app, when_full, 40)
