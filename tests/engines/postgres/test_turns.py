"""Turns on Postgres: the ends of jobs by their numbers, big turns one after another, and how the others are told."""

import asyncio
import time
from collections import Counter
from typing import Any

import asyncpg
import pytest

from holdfast.conformance.given import StoreClock, applied_to, change, claimed, job, signal, taken_over
from holdfast.core.model import LEASE_LOST, Applied, Change, Conflict, Event, Job
from holdfast.engines.postgres import PostgresEngine, liveness
from holdfast.engines.postgres import write_batches as batches_module
from holdfast.engines.postgres.liveness import short
from holdfast.engines.postgres.url import parse_url
from holdfast.engines.postgres.write_batches import WriteBatches
from holdfast.engines.topics import job_topic, queue_topic
from tests.engines.postgres.given import opened

CLOCK = StoreClock(settable=False)
PATIENCE_SECONDS = 10.0


def ends(held: list[Job]) -> list[Change]:
    """Completions of one moment, by the worker that holds the jobs."""
    now = CLOCK.now
    return [change(CLOCK, one, Event.COMPLETE, by="w-1", at=now) for one in held]


# Numbers.


def test_the_numbers_of_jobs_are_known_for_as_long_as_they_are_held_here(postgres_store: str, run):
    async def held_and_not() -> None:
        engine = await opened(postgres_store)
        ended, signalled, released, failed, cancelled = [await claimed(engine, CLOCK) for _ in range(5)]
        assert set(engine._batches.numbers) == {one.id for one in (ended, signalled, released, failed, cancelled)}
        await engine.turn(ends([ended]), "w-1", ["none"], 1)
        await applied_to(engine, signal(CLOCK, signalled))
        await applied_to(engine, change(CLOCK, released, Event.RELEASE))
        await applied_to(engine, change(CLOCK, failed, Event.FAIL))
        await applied_to(engine, change(CLOCK, cancelled, Event.CANCEL))
        assert set(engine._batches.numbers) == {signalled.id}
        await engine.close()

    run(held_and_not())


def test_without_their_numbers_jobs_end_all_the_same(postgres_store: str, run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batches_module, "NUMBERS_KEPT", 3)

    async def forgotten() -> None:
        engine = await opened(postgres_store)
        held = [await claimed(engine, CLOCK) for _ in range(6)]
        assert set(engine._batches.numbers) == {one.id for one in held[4:]}, "those before were too many to be kept"
        assert await engine.commit(ends(held)) == [Applied(3)] * 6
        await engine.close()

    run(forgotten())


def test_a_turn_of_completions_tells_of_each_what_became_of_it(postgres_store: str, run):
    async def mixed() -> None:
        engine = await opened(postgres_store)
        plain, signalled, lost, last = held = [await claimed(engine, CLOCK) for _ in range(4)]
        await applied_to(engine, signal(CLOCK, signalled))
        other = await taken_over(engine, CLOCK, lost)
        await engine.insert([job(CLOCK, queue="next")])
        answers, [came] = await engine.turn(ends(held), "w-1", ["next"], 5)
        assert answers[0] == answers[3] == Applied(3)
        assert answers[1] == Applied(4)
        assert isinstance(answers[2], Conflict)
        assert (answers[2].reason, answers[2].epoch) == (LEASE_LOST, other.epoch)
        assert came.queue == "next"
        stories = [[entry.event for entry in await engine.history(one.id)] for one in (plain, signalled, last)]
        assert stories == [
            ["submit", "claim", "complete"],
            ["submit", "claim", "signal", "complete"],
            ["submit", "claim", "complete"],
        ]
        await engine.close()

    run(mixed())


def test_a_number_that_is_somebody_else_s_completes_nothing(postgres_store: str, run):
    """As after a failover to a standby that lagged: the job is gone, and its number was given to another one."""

    async def gone_back() -> None:
        engine = await opened(postgres_store)
        ours, theirs = await claimed(engine, CLOCK), await claimed(engine, CLOCK, "w-2")
        engine._batches.numbers[ours.id] = engine._batches.numbers[theirs.id]
        [answer], _ = await engine.turn(ends([ours]), "w-1", ["none"], 1)
        assert isinstance(answer, Conflict)
        assert await engine.get([ours.id, theirs.id]) == [ours, theirs]
        await engine.close()

    run(gone_back())


# Big and small ones.


def test_big_turns_go_one_after_another_and_small_ones_pass_them_by(
    postgres_store: str, run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batches_module, "BIG_TURN", 3)
    turn = WriteBatches._run_turn
    under_way, most = Counter[str](), Counter[str]()

    async def crowd() -> None:
        small_is_done = asyncio.Event()

        async def watched(self: WriteBatches, changes: list[Change], *more: Any) -> Any:
            kind = "big" if len(changes) >= 3 else "small"
            under_way[kind] += 1
            most[kind] = max(most[kind], under_way[kind])
            try:
                if kind == "big":
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await small_is_done.wait()
                return await turn(self, changes, *more)
            finally:
                under_way[kind] -= 1
                if kind == "small":
                    small_is_done.set()

        engine = await opened(postgres_store)
        held = [await claimed(engine, CLOCK) for _ in range(7)]
        monkeypatch.setattr(WriteBatches, "_run_turn", watched)
        turns = [engine.turn(ends(part), "w-1", ["none"], 1) for part in (held[:3], held[3:6], held[6:])]
        told = await asyncio.gather(*turns)
        assert [answer for answers, _ in told for answer in answers] == [Applied(3)] * 7
        assert most == {"big": 1, "small": 1}
        await engine.close()

    run(crowd())


# Telling the others.


class Listener:
    """Somebody else who listens to what a store tells of its jobs and of the rest."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, float]] = []
        self._came = asyncio.Event()

    async def begin(self, url: str) -> None:
        place = parse_url(url)
        self._db = await asyncpg.connect(place.dsn)
        for channel in (f"holdfast_{place.schema}", f"holdfast_{place.schema}:jobs"):
            await self._db.add_listener(channel, self._hear)

    def _hear(self, db: object, pid: int, channel: str, payload: object) -> None:
        kind = "jobs" if channel.endswith(":jobs") else "rest"
        self.heard.append((kind, str(payload).partition(" ")[2], time.monotonic()))
        self._came.set()

    async def until(self, number: int) -> None:
        """Wait for so many notifications."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.heard) < number:
                self._came.clear()
                await self._came.wait()

    async def close(self) -> None:
        await self._db.close()


async def tell(engine: PostgresEngine, *topics: str) -> None:
    async def now() -> None:
        engine._liveness.tell(topics)

    await engine._loop_thread.call(now)


def test_much_is_told_at_once_and_whole_then_the_next_waits_but_for_other_news(
    postgres_store: str, run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(liveness, "BUSY_SECONDS", 1.0)

    async def busy() -> None:
        engine, listener = await opened(postgres_store), Listener()
        await listener.begin(postgres_store)
        many = [job_topic(f"job-{n}") for n in range(2_000)]
        await tell(engine, *many)
        await listener.until(3)
        said = "".join(topics for _, topics, _ in listener.heard)
        assert {said[at : at + 8] for at in range(0, len(said), 8)} == set(map(short, many))
        assert [kind for kind, _, _ in listener.heard] == ["jobs"] * 3
        await tell(engine, job_topic("one more"), queue_topic("default"))
        await listener.until(5)
        assert [(kind, topics) for kind, topics, _ in listener.heard[3:]] == [
            ("rest", short(queue_topic("default"))),
            ("jobs", short(job_topic("one more"))),
        ]
        first, *_, last = [at for _, _, at in listener.heard]
        assert last - first > 0.9, "it waits for as long as there was much to tell"
        await listener.close()
        await engine.close()

    run(busy())


def test_too_much_is_told_as_everything(postgres_store: str, run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(liveness, "PAYLOADS", 2)

    async def crowd() -> None:
        engine, listener = await opened(postgres_store), Listener()
        await listener.begin(postgres_store)
        await tell(engine, *[job_topic(f"job-{n}") for n in range(2 * liveness.PAYLOAD_TOPICS + 1)])
        await listener.until(1)
        assert [(kind, topics) for kind, topics, _ in listener.heard] == [("jobs", "*")]
        await listener.close()
        await engine.close()

    run(crowd())
