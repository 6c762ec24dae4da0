"""Ticks: each fires at most once, whatever leaders and clocks do, and exactly once if a worker lived through it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import DAY, HOUR, MINUTE, SECOND, START, StoreClock
from holdfast.core.errors import QueueFull, StoreError
from holdfast.core.lifecycle import decide
from holdfast.core.model import Conflict, Event, Job, Options, Presence, Record, State, Where
from holdfast.core.queue_bounds import QueueBound
from holdfast.core.schedules import SCHEDULE, TICKS_AT_ONCE, Definition, Schedule, Template, iso, next_tick
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs.full_queues import declare_bounds
from holdfast.jobs.schedules import (
    declare_schedules,
    find_schedule,
    pause_schedule,
    put_schedule,
    remove_schedule,
    resume_schedule,
    run_schedule,
)
from holdfast.jobs.service import Jobs
from holdfast.upkeep import scheduling
from holdfast.upkeep.scheduling import Scheduling

REPORT = Template(type="report", args='["daily"]')
MINUTELY = Definition(job=REPORT, every_ms=MINUTE)


class Play:
    """A store in memory, its clock, and leaders that look when they are told to."""

    def __init__(self) -> None:
        self.clock = StoreClock(settable=True)
        self.steady = 0.0
        self.engine = MemoryEngine(self.clock)
        self.jobs = Jobs(self.engine)
        self.misfit: str | None = None
        self.workers: dict[str, Presence] = {}
        self.leader = self.another()

    def another(self, engine: Any = None, worker: str = "w-1") -> Scheduling:
        return Scheduling(engine or self.engine, worker, lambda type, args: self.misfit, steady=lambda: self.steady)

    def starts(self, worker: str = "w-1", *names: str) -> None:
        self.workers[worker] = Presence(worker, started_at=self.clock.now, types=("report",), schedules=names)

    def passes(self, milliseconds: int, *, jumps: bool = False) -> None:
        self.clock.advance(milliseconds)
        self.steady += 0 if jumps else milliseconds / 1_000

    async def declare(self, definition: Definition = MINUTELY, name: str = "quarter", worker: str = "w-1") -> None:
        self.starts(worker, name)
        await declare_schedules(self.engine, {name: definition}, by=worker)

    async def look(self, leader: Scheduling | None = None) -> float:
        return await (leader or self.leader).look(self.workers)

    async def fired(self) -> list[str]:
        """The ticks of all jobs, by their ids."""
        return [job.options.meta.get("tick", "run") for job in await self.engine.find(Where())]

    async def schedule(self, name: str = "quarter") -> Schedule:
        return (await find_schedule(self.engine, name))[1]

    async def ends(self, job: Job) -> None:
        [held] = await self.engine.claim("w-1", [job.queue], 1) if job.state is State.AVAILABLE else [job]
        await self.engine.commit([decide(held, Event.COMPLETE, self.clock.now, by="w-1", result="1")])


def played(test: Callable[[Play], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test(Play()))

    del run.__wrapped__  # pytest must not ask for a fixture
    return run


def tick(number: int, every: int = MINUTE) -> str:
    return iso(START + number * every)


# A tick fires once.


@played
async def test_a_tick_submits_one_job_that_says_where_it_comes_from(play: Play) -> None:
    await play.declare(replace(MINUTELY, job=replace(REPORT, queue="q", priority=3, options=Options(meta={"a": "b"}))))
    assert await play.look() == 1.0
    assert await play.fired() == []

    play.passes(MINUTE)
    await play.look()
    await play.look()

    [job] = await play.engine.find(Where())
    assert job.options.meta == {"a": "b", "schedule": "quarter", "tick": tick(1)}
    assert (job.type, job.args, job.queue, job.priority, job.state) == ("report", '["daily"]', "q", 3, State.AVAILABLE)
    one = await play.schedule()
    assert (one.tick, one.job, one.after, one.runs) == (START + MINUTE, job.id, START + MINUTE, 1)


@played
async def test_it_wakes_in_time_for_the_next_tick(play: Play) -> None:
    await play.declare()
    play.passes(MINUTE - 250)
    assert await play.look() == 0.25


@played
async def test_many_leaders_fire_each_tick_once(play: Play) -> None:
    await play.declare()
    leaders = [play.another(worker=f"w-{n}") for n in range(8)]
    for _ in range(5):
        play.passes(MINUTE)
        await asyncio.gather(*(play.look(one) for one in leaders))

    assert await play.fired() == [tick(n) for n in range(1, 6)]


@played
async def test_a_tick_fires_once_also_after_its_job_was_pruned(play: Play) -> None:
    await play.declare(replace(MINUTELY, job=replace(REPORT, options=Options(keep_ms=0))))
    play.passes(MINUTE)
    await play.look()
    [job] = await play.engine.find(Where())
    await play.ends(job)
    play.passes(1)
    assert await play.engine.prune() == 1

    for leader in (play.leader, play.another(worker="w-2")):
        await play.look(leader)

    assert await play.fired() == []


class LostReplies(MemoryEngine):
    """A store whose answers to firing get lost."""

    async def put_record(self, *args: Any, **named: Any) -> Record | Conflict:
        await super().put_record(*args, **named)
        raise StoreError("the answer was lost")


@played
async def test_a_lost_answer_fires_nothing_twice(play: Play) -> None:
    await play.declare()
    lossy = LostReplies(play.clock)
    lossy._tables = play.engine._tables
    leader = play.another(lossy)
    await play.look(leader)
    play.passes(MINUTE)
    for _ in range(3):
        try:
            await play.look(leader)
        except StoreError:
            pass

    assert await play.fired() == [tick(1)]


# Who lived through it.


@played
async def test_a_tick_is_on_time_if_a_worker_lived_through_it_however_late_a_leader_looks(play: Play) -> None:
    await play.declare()
    play.passes(5 * MINUTE + 1)
    await play.look()

    assert await play.fired() == [tick(n) for n in range(1, 6)]


@played
async def test_more_ticks_on_time_than_fire_at_once_follow_in_their_order(play: Play) -> None:
    await play.declare(replace(MINUTELY, every_ms=SECOND))
    play.passes(250 * SECOND)
    for number in (TICKS_AT_ONCE, 2 * TICKS_AT_ONCE, 250):
        wait = await play.look()
        assert await play.fired() == [tick(n, SECOND) for n in range(1, number + 1)]
        assert (wait == 0) == (number < 250)


async def missed(play: Play, rule: str) -> list[str]:
    """What fires when a worker starts after five ticks without one, and lives through a sixth."""
    await play.declare(replace(MINUTELY, missed=rule))
    play.workers.clear()
    play.passes(5 * MINUTE + SECOND)
    await play.look()
    assert await play.fired() == [], "nobody lives who declares it"
    play.starts("w-2", "quarter")
    await play.look()
    play.passes(MINUTE)
    await play.look()
    await play.look(play.another())
    return await play.fired()


@played
async def test_missed_ticks_are_skipped_unless_somebody_wants_them(play: Play) -> None:
    assert await missed(play, "skip") == [tick(6)]


@played
async def test_missed_ticks_fire_once_together(play: Play) -> None:
    assert await missed(play, "once") == [tick(5), tick(6)]


@played
async def test_all_missed_ticks_fire(play: Play) -> None:
    assert await missed(play, "all") == [tick(n) for n in range(1, 7)]


@played
async def test_a_long_absence_is_made_up_for_within_a_bound(play: Play) -> None:
    await play.declare(replace(MINUTELY, missed="all"))
    play.workers.clear()
    play.passes(2 * DAY)
    play.starts("w-2", "quarter")
    await play.look()

    fired = await play.fired()
    assert len(fired) == TICKS_AT_ONCE
    assert fired[-1] == tick(2 * DAY // MINUTE)


@played
async def test_a_schedule_that_was_put_needs_a_worker_that_knows_its_job(play: Play) -> None:
    await put_schedule(play.engine, "quarter", replace(MINUTELY, job=Template(type="other")), by="ann")
    play.starts("w-1")
    play.passes(MINUTE + SECOND)
    await play.look()
    assert await play.fired() == []

    play.workers["w-2"] = Presence("w-2", started_at=play.clock.now, types=None)
    play.passes(MINUTE)
    await play.look()
    assert await play.fired() == [tick(2)]


# Overlap.


async def overlapping(play: Play, rule: str) -> list[Job]:
    """Three ticks while the first job runs."""
    await play.declare(replace(MINUTELY, overlap=rule))
    for _ in range(3):
        play.passes(MINUTE)
        await play.look()
        await play.engine.claim("w-1", ["default"], 5)
    return await play.engine.find(Where())


@played
async def test_jobs_may_overlap(play: Play) -> None:
    assert len(await overlapping(play, "allow")) == 3


@played
async def test_ticks_are_skipped_while_the_last_job_runs(play: Play) -> None:
    [job] = await overlapping(play, "skip")
    assert (await play.schedule()).skipped == 2
    await play.ends(job)
    play.passes(MINUTE)
    await play.look()
    assert await play.fired() == [tick(1), tick(4)]


@played
async def test_one_tick_waits_for_the_end_of_the_last_job(play: Play) -> None:
    [job] = await overlapping(play, "wait")
    one = await play.schedule()
    assert (one.waiting, one.skipped) == (START + 2 * MINUTE, 1)
    await play.look()
    assert len(await play.fired()) == 1

    await play.ends(job)
    play.passes(SECOND)
    await play.look(play.another(worker="w-2"))

    assert await play.fired() == [tick(1), tick(2)]
    assert (await play.schedule()).waiting is None


@played
async def test_a_tick_that_waits_is_in_the_heap_once_however_often_it_is_looked_at(play: Play) -> None:
    engine = Counting(play.clock)
    play.engine, leader = engine, play.another(engine)
    await play.declare(replace(MINUTELY, overlap="wait"))
    engine.written = 0
    for _ in range(4 * 60):
        play.passes(SECOND)
        before = engine.written
        await play.look(leader)
        assert engine.written - before <= 1

    assert engine.written == 4
    assert len(leader._heap) == 1


@played
async def test_a_tick_that_waits_and_no_longer_fits_is_told_once(play: Play) -> None:
    [job] = await overlapping(play, "wait")
    play.misfit = "its arguments don't fit the job report any more"
    await play.ends(job)
    for _ in range(3):
        play.passes(SECOND)
        await play.look()

    [entry] = await play.engine.records(SCHEDULE + "quarter")
    one = await play.schedule()
    assert (one.waiting, one.skipped, one.error) == (None, 2, play.misfit)
    play.passes(SECOND)
    await play.look()
    assert await play.engine.records(SCHEDULE + "quarter") == [entry]


@played
async def test_the_next_tick_cancels_the_last_job(play: Play) -> None:
    jobs = await overlapping(play, "cancel_previous")
    ticks = [job for job in jobs if job.type == "report"]
    assert [job.state for job in ticks] == [State.CANCELLED, State.CANCELLED, State.ACTIVE]
    history = await play.engine.history(ticks[0].id)
    assert history[-1].note["reason"] == "the next tick of schedule quarter replaces it"


# Full queues.


async def bounded(play: Play, when_full: str, **fields: Any) -> list[Job]:
    """Four ticks of a schedule whose queue holds two jobs."""
    await declare_bounds(play.engine, [QueueBound("default", 2, when_full)], by="w-1")
    await play.declare(replace(MINUTELY, **fields))
    for _ in range(4):
        play.passes(MINUTE)
        await play.look()
    return await play.engine.find(Where(type="report"))


@played
async def test_a_tick_into_a_full_queue_is_skipped_and_says_so(play: Play) -> None:
    jobs = await bounded(play, "refuse")
    assert await play.fired() == [tick(1), tick(2)]
    one = await play.schedule()
    assert one.skipped == 2
    assert one.error.startswith("queue default is full: 2 jobs wait, and at most 2 may; a tick submitted no job")

    await play.ends(jobs[0])
    play.passes(MINUTE)
    await play.look()
    assert await play.fired() == [tick(1), tick(2), tick(5)]
    assert (await play.schedule()).error == ""


@played
async def test_a_tick_into_a_queue_that_sheds_makes_room_for_itself(play: Play) -> None:
    jobs = await bounded(play, "shed_oldest")
    assert [job.state for job in jobs] == [State.CANCELLED, State.CANCELLED, State.AVAILABLE, State.AVAILABLE]
    one = await play.schedule()
    assert (one.skipped, one.error) == (0, "")


@played
async def test_of_several_ticks_as_many_fire_as_there_is_room_for(play: Play) -> None:
    await declare_bounds(play.engine, [QueueBound("default", 2)], by="w-1")
    await play.declare()
    play.passes(5 * MINUTE)
    await play.look()

    assert await play.fired() == [tick(1), tick(2)]
    assert (await play.schedule()).skipped == 3


@played
async def test_many_schedules_at_one_moment_keep_the_bound_of_their_queue(play: Play) -> None:
    await declare_bounds(play.engine, [QueueBound("default", 5)], by="w-1")
    await declare_schedules(play.engine, {f"s-{n}": MINUTELY for n in range(20)}, by="w-1")
    play.starts("w-1", *(f"s-{n}" for n in range(20)))
    play.passes(MINUTE)
    await play.look()

    assert len(await play.fired()) == 5


@played
async def test_a_tick_that_replaces_a_job_that_waits_needs_no_room(play: Play) -> None:
    await declare_bounds(play.engine, [QueueBound("default", 1)], by="w-1")
    await play.declare(replace(MINUTELY, overlap="cancel_previous"))
    for _ in range(3):
        play.passes(MINUTE)
        await play.look()

    jobs = await play.engine.find(Where(type="report"))
    assert [job.state for job in jobs] == [State.CANCELLED, State.CANCELLED, State.AVAILABLE]


@played
async def test_a_schedule_that_a_person_runs_needs_room(play: Play) -> None:
    await bounded(play, "refuse")
    with pytest.raises(QueueFull, match="queue default is full: 2 jobs wait, and at most 2 may"):
        await run_schedule(play.engine, "quarter", by="ann")

    await declare_bounds(play.engine, [QueueBound("default", 2, "shed_oldest")], by="w-1")
    await run_schedule(play.engine, "quarter", by="ann")
    assert await play.fired() == [tick(1), tick(2), "run"]
    assert (await play.engine.count())["default", State.AVAILABLE] == 2


# Clocks.


@played
async def test_ticks_that_a_clock_jumped_over_are_missed(
    play: Play,
) -> None:
    await play.declare()
    await play.look()
    play.passes(10 * HOUR + SECOND, jumps=True)
    await play.look()
    assert await play.fired() == []

    play.passes(MINUTE)
    await play.look()
    assert await play.fired() == [tick(601)]


@played
async def test_a_clock_that_goes_back_fires_nothing_twice(play: Play) -> None:
    await play.declare()
    play.passes(2 * MINUTE)
    await play.look()
    play.passes(-HOUR, jumps=True)
    for _ in range(10):
        play.passes(MINUTE)
        await play.look()
        await play.look(play.another())

    assert await play.fired() == [tick(1), tick(2)]
    await resume_schedule(play.engine, "quarter", by="ann")
    play.passes(MINUTE)
    await play.look()
    assert len(await play.fired()) == 3, "a person may let it fire at once"


@pytest.mark.parametrize("has_schedules", [True, False])
def test_a_clock_that_jumps_is_one_clear_line_where_there_are_schedules(
    caplog: pytest.LogCaptureFixture, has_schedules: bool
) -> None:
    async def play() -> None:
        stage = Play()
        if has_schedules:
            await stage.declare(MINUTELY)
        await stage.look()
        stage.passes(HOUR, jumps=True)
        await stage.look()
        stage.passes(-2 * HOUR, jumps=True)
        await stage.look()

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    told = [record.getMessage() for record in caplog.records]
    if not has_schedules:
        assert told == []
        return
    ahead, back = told
    assert ahead.startswith("the store's clock jumped ahead by 1 h: the ticks in between count as missed")
    assert back.startswith("the store's clock went back by 2 h: no tick fires twice")


@played
async def test_jitter_delays_the_job_and_not_the_tick(play: Play) -> None:
    await play.declare(replace(MINUTELY, jitter_ms=30 * SECOND))
    delays = set()
    for _ in range(10):
        play.passes(MINUTE)
        await play.look()
        job = (await play.engine.find(Where()))[-1]
        assert job.run_at is not None
        delays.add(job.run_at - play.clock.now)

    assert len(delays) > 5
    assert all(0 <= delay <= 30 * SECOND for delay in delays)


@played
async def test_a_moment_fires_once_and_never_again(play: Play) -> None:
    await put_schedule(play.engine, "launch", Definition(job=REPORT, at=START + HOUR), by="ann")
    play.starts()
    for _ in range(3):
        play.passes(HOUR)
        await play.look()

    assert await play.fired() == [iso(START + HOUR)]


@played
async def test_a_moment_that_nobody_lived_through_is_told_once(play: Play) -> None:
    await put_schedule(play.engine, "launch", Definition(job=REPORT, at=START + HOUR), by="ann")
    play.passes(2 * HOUR)
    await play.look()
    assert len((await play.schedule("launch")).changes) == 1, "nobody lives who could have fired it"
    play.starts()
    for _ in range(3):
        play.passes(SECOND)
        await play.look()
        await play.look(play.another())

    assert await play.fired() == []
    _, change = (await play.schedule("launch")).changes
    assert change.what.startswith(f"missed at {iso(START + HOUR)}: no worker that could fire it was running")


@played
async def test_a_declared_moment_that_has_passed_is_told_when_a_worker_starts(play: Play) -> None:
    past = {"launch": Definition(job=REPORT, at=START - HOUR)}
    [line] = await declare_schedules(play.engine, past, by="w-1")
    assert line == f"schedule launch: {iso(START - HOUR)} is in the past, so it never fires; give a later time"

    assert await declare_schedules(play.engine, past, by="w-2") == []


@played
async def test_cron_goes_by_its_zone(play: Play) -> None:
    await play.declare(Definition(job=REPORT, cron="0 9 * * *", tz="Europe/Berlin"))
    for _ in range(48):
        play.passes(HOUR)
        await play.look()

    first = datetime.fromtimestamp(START / 1_000, UTC)
    assert [datetime.fromisoformat(text).hour for text in await play.fired()] == [7, 7], first


# Changes.


@played
async def test_a_deploy_with_another_timing_starts_anew_and_one_with_other_arguments_goes_on(play: Play) -> None:
    await play.declare()
    play.passes(30 * SECOND)
    await declare_schedules(play.engine, {"quarter": replace(MINUTELY, job=replace(REPORT, args="[2]"))}, by="w-2")
    play.passes(30 * SECOND)
    await play.look()
    [job] = await play.engine.find(Where())
    assert job.args == "[2]"

    await declare_schedules(play.engine, {"quarter": replace(MINUTELY, every_ms=HOUR)}, by="w-3")
    play.passes(MINUTE)
    await play.look()
    assert len(await play.fired()) == 1
    play.passes(HOUR)
    await play.look()
    assert (await play.fired())[1:] == [iso(START + MINUTE + HOUR)]


@played
async def test_a_pause_beats_code_and_its_ticks_are_not_made_up_for(play: Play) -> None:
    await play.declare(replace(MINUTELY, missed="all"))
    await play.look()
    await pause_schedule(play.engine, "quarter", by="ann", reason="wrong")
    play.passes(3 * MINUTE)
    await play.look()
    await play.declare(replace(MINUTELY, missed="all", overlap="skip"), worker="w-2")
    await play.look()
    assert await play.fired() == []

    await resume_schedule(play.engine, "quarter", by="ann")
    play.passes(MINUTE)
    await play.look()
    assert await play.fired() == [tick(4)]
    assert [change.what.partition(":")[0] for change in (await play.schedule()).changes] == [
        "code", "paused", "code", "resumed",
    ]  # fmt: skip


@played
async def test_run_now_leaves_the_ticks_as_they_are(play: Play) -> None:
    await play.declare()
    await play.look()
    play.passes(SECOND)
    first, second = [await run_schedule(play.engine, "quarter", by="ann") for _ in range(2)]
    assert first != second
    play.passes(MINUTE)
    await play.look()
    assert sorted(await play.fired()) == [tick(1), "run", "run"]


@played
async def test_a_removed_schedule_is_silent_and_one_made_again_has_new_ids(play: Play) -> None:
    await play.declare()
    play.passes(MINUTE)
    await play.look()
    assert await remove_schedule(play.engine, "quarter") is True
    play.passes(MINUTE)
    await play.look()
    assert len(await play.fired()) == 1

    await play.declare(Definition(job=REPORT, cron="* * * * *"))
    play.passes(MINUTE)
    await play.look()
    assert len(await play.fired()) == 2


@played
async def test_arguments_that_no_longer_fit_are_told_and_stop_no_other_schedule(play: Play) -> None:
    play.misfit = "its arguments don't fit the job report any more"
    await play.declare()
    await play.declare(name="second", worker="w-2")
    play.passes(MINUTE)
    await play.look()
    assert await play.fired() == []
    assert (await play.schedule()).error == play.misfit

    play.misfit = None
    play.passes(MINUTE)
    await play.look()
    assert await play.fired() == [tick(2), tick(2)]
    assert (await play.schedule()).error == ""


@played
async def test_a_schedule_that_cannot_be_read_stops_no_other(play: Play) -> None:
    await play.engine.put_record(SCHEDULE + "broken", "{")
    await play.engine.put_record(SCHEDULE + "zone", (await zoned(play, "Mars/Olympus")).text())
    await play.declare()
    play.passes(MINUTE)
    await play.look()
    assert await play.fired() == [tick(1)]


async def zoned(play: Play, tz: str) -> Schedule:
    await put_schedule(play.engine, "zone", Definition(job=REPORT, cron="* * * * *"), by="ann")
    one = await play.schedule("zone")
    return replace(one, definition=replace(one.definition, tz=tz))


# What it costs.


class Counting(MemoryEngine):
    """A store that counts its reads and writes of schedules."""

    read = 0
    written = 0

    async def put_record(self, name: str, *args: Any, **named: Any) -> Record | Conflict:
        self.written += name.startswith(SCHEDULE)
        return await super().put_record(name, *args, **named)

    async def records(self, prefix: str) -> list[Record]:
        found = await super().records(prefix)
        self.read += sum(record.name.startswith(SCHEDULE) for record in found)
        return found


@played
async def test_only_what_has_changed_is_read_again(play: Play) -> None:
    engine = Counting(play.clock)
    play.starts()
    play.workers["w-1"] = replace(play.workers["w-1"], schedules=None)
    await declare_schedules(engine, {f"s-{n}": replace(MINUTELY, every_ms=DAY) for n in range(200)}, by="w-1")
    leader = play.another(engine)
    await play.look(leader)
    engine.read = 0
    for _ in range(20):
        play.passes(SECOND)
        await play.look(leader)
    assert engine.read == 0

    await pause_schedule(engine, "s-7", by="ann")
    engine.read = 0
    await play.look(leader)
    assert 0 < engine.read < 30, "only those whose names begin alike"
    play.passes(DAY)
    await play.look(leader)
    assert len(await engine.find(Where())) == 199


@played
async def test_a_change_that_nobody_noted_is_found_in_the_end(play: Play) -> None:
    await play.declare()
    await play.look()
    record, one = await find_schedule(play.engine, "quarter")
    await play.engine.put_record(record.name, replace(one, after=START + DAY).text(), record.version)
    play.passes(round(scheduling.REREAD_SECONDS * 1_000))
    await play.look()
    assert await play.fired() == []
    assert next_tick(await play.schedule(), UTC, START + DAY) == START + DAY + MINUTE
