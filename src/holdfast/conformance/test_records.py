"""Small records: compare-and-set, versions that are never used again, exact names, and jobs that go with a record."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import Another, StoreClock, claimed, current, job
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.model import NEW_JOBS_LIMIT, OUTRUN, Change, Conflict, Job, Options, Presence, Record, State, Where
from holdfast.core.spending import Amounts, SpendKind
from holdfast.engines.contract import Engine
from holdfast.engines.observers import Act, StepOutcome
from holdfast.engines.records import WORKER


async def put(engine: Engine, name: str, value: str | None, expected: int | None = None) -> Record:
    """Write a record that must be accepted."""
    answer = await engine.put_record(name, value, expected)
    assert isinstance(answer, Record), answer
    return answer


async def test_a_record_is_kept_as_it_was_written(engine: Engine, clock: StoreClock) -> None:
    record = await put(engine, "leader", '{"who":"w-1"}')

    assert (record.name, record.value, record.version) == ("leader", '{"who":"w-1"}', 1)
    assert clock.is_now(record.at)
    assert await engine.records("leader") == [record]


async def test_every_write_makes_a_higher_version(engine: Engine, clock: StoreClock) -> None:
    first = await put(engine, "leader", "1")
    second = await put(engine, "leader", "1")
    third = await put(engine, "leader", "2", second.version)

    assert first.version < second.version < third.version
    assert await engine.records("") == [third]


async def test_who_expects_another_version_writes_nothing(engine: Engine, clock: StoreClock) -> None:
    first = await put(engine, "leader", "1")
    second = await put(engine, "leader", "2", first.version)

    for expected in (first.version, second.version + 1, 0):
        for value in ("3", None):
            assert await engine.put_record("leader", value, expected) == Conflict(
                "leader", OUTRUN, version=second.version
            )

    assert await engine.records("") == [second]


async def test_zero_expects_that_there_is_none(engine: Engine, clock: StoreClock) -> None:
    assert await engine.put_record("leader", "1", 7) == Conflict("leader", OUTRUN, version=0)

    record = await put(engine, "leader", "1", 0)

    assert await engine.put_record("leader", "2", 0) == Conflict("leader", OUTRUN, version=record.version)


async def test_a_version_never_comes_back_not_even_after_a_removal(engine: Engine, clock: StoreClock) -> None:
    old = await put(engine, "leader", "1")
    await put(engine, "leader", None, old.version)
    assert await engine.records("") == []
    assert await engine.put_record("leader", "2", old.version) == Conflict("leader", OUTRUN, version=0)

    new = await put(engine, "leader", "2", 0)

    assert new.version > old.version
    # A caller with the old version must not mistake the new record for its own.
    assert await engine.put_record("leader", "3", old.version) == Conflict("leader", OUTRUN, version=new.version)


async def test_removing_twice_does_no_harm(engine: Engine, clock: StoreClock) -> None:
    await put(engine, "leader", "1")
    await put(engine, "leader", None)
    await put(engine, "leader", None)

    assert await engine.records("") == []
    assert (await put(engine, "leader", "2", 0)).value == "2"


async def test_records_are_found_by_the_letters_of_their_names(engine: Engine, clock: StoreClock) -> None:
    names = ["A/x", "a", "a/x", "a/y", "a%/x", "a_/x", "ab/x", "b/ä", "b/z"]
    for name in reversed(names):
        await put(engine, name, "1")

    async def found(prefix: str) -> list[str]:
        return [record.name for record in await engine.records(prefix)]

    assert await found("") == sorted(names)
    assert await found("a/") == ["a/x", "a/y"]
    assert await found("a_") == ["a_/x"]
    assert await found("a%") == ["a%/x"]
    assert await found("A") == ["A/x"]
    assert await found("b/ä") == ["b/ä"]
    assert await found("c") == []


async def test_one_record_changes_no_other(engine: Engine, clock: StoreClock) -> None:
    left, right = await put(engine, "left", "1"), await put(engine, "right", "1")

    await put(engine, "left", "2", left.version)
    await put(engine, "left", None)

    assert await engine.records("") == [right]


async def test_a_presence_is_not_for_others_to_write(engine: Engine, clock: StoreClock) -> None:
    await engine.beat(Presence(worker="w-1"))

    for value in ("{}", None):
        with pytest.raises(Invalid):
            await engine.put_record(WORKER + "w-1", value)

    assert [record.name for record in await engine.records("")] == [WORKER + "w-1"]


async def test_an_empty_text_is_refused(engine: Engine) -> None:
    with pytest.raises(Invalid):
        await engine.put_record("leader", "")

    assert await engine.records("") == []


# Jobs that go with a record.

RACERS = 16


async def test_jobs_are_inserted_with_their_record(engine: Engine, clock: StoreClock) -> None:
    first, second = job(clock, queue="q"), job(clock, queue="q")

    answer = await engine.put_record("tick", "1", 0, [first, second])

    assert isinstance(answer, Record)
    assert await engine.records("") == [answer]
    assert await engine.find(Where(queue="q")) == sorted((first, second), key=lambda one: one.id)
    assert (await engine.count())["q", State.AVAILABLE] == 2
    assert [(one.event, one.version, one.after) for one in await engine.history(first.id)] == [
        ("submit", 1, State.AVAILABLE)
    ]
    assert {one.id for one in await engine.claim("w-1", ["q"], 5)} == {first.id, second.id}


async def test_a_conflict_inserts_nothing(engine: Engine, clock: StoreClock) -> None:
    held = await put(engine, "tick", "1")

    for expected in (0, held.version + 1):
        answer = await engine.put_record("tick", "2", expected, [job(clock)])
        assert answer == Conflict("tick", OUTRUN, version=held.version)

    assert await engine.records("") == [held]
    assert await engine.find(Where()) == []
    assert dict(await engine.count()) == {}


async def test_of_many_who_expect_the_same_version_one_inserts_its_jobs(
    another: Another, engine: Engine, clock: StoreClock
) -> None:
    engines = [engine, await another()] if engine.guarantees.shared else [engine]
    for tick in range(3):
        held = await put(engine, "tick", f"{tick}")
        jobs = [job(clock, queue=f"q-{tick}") for _ in range(RACERS)]

        answers = await asyncio.gather(
            *(
                engines[n % len(engines)].put_record("tick", f"by {n}", held.version, [new])
                for n, new in enumerate(jobs)
            )
        )

        won = [n for n, answer in enumerate(answers) if isinstance(answer, Record)]
        assert len(won) == 1
        assert await engine.find(Where(queue=f"q-{tick}")) == [jobs[won[0]]]
        assert [record.value for record in await engine.records("tick")] == [f"by {won[0]}"]


async def test_nobody_sees_a_record_without_its_jobs(another: Another, engine: Engine, clock: StoreClock) -> None:
    reader = await another() if engine.guarantees.shared else engine
    missing: list[str] = []
    is_over = False

    async def look() -> None:
        while not is_over:
            for record in await reader.records("tick"):
                ids = record.value.split(",")
                found = zip(ids, await reader.get(ids), strict=True)
                missing.extend(id for id, one in found if one is None)
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    for _ in range(20):
        jobs = [job(clock), job(clock)]
        await engine.put_record("tick", ",".join(one.id for one in jobs), None, jobs)
    is_over = True
    await asyncio.wait_for(looking, 30)

    assert missing == []


async def test_a_job_that_exists_is_left_as_it_is(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    fresh = job(clock)
    again = replace(fresh, options=Options(keep_ms=0))

    await engine.put_record("tick", "1", 0, [replace(held, state=State.AVAILABLE, epoch=0, version=1), fresh, again])

    assert await current(engine, held) == held
    assert await current(engine, fresh) == fresh
    assert len(await engine.history(held.id)) == 2
    assert [one.event for one in await engine.history(fresh.id)] == ["submit"]
    assert dict(await engine.count()) == {(held.queue, State.ACTIVE): 1, (fresh.queue, State.AVAILABLE): 1}


async def test_a_record_can_be_removed_together_with_new_jobs(engine: Engine, clock: StoreClock) -> None:
    held, new = await put(engine, "tick", "1"), job(clock)

    await engine.put_record("tick", None, held.version, [new])

    assert await engine.records("") == []
    assert await engine.find(Where()) == [new]


async def test_as_many_jobs_go_with_a_record_as_with_a_change(engine: Engine, clock: StoreClock) -> None:
    jobs = [job(clock) for _ in range(NEW_JOBS_LIMIT)]

    await engine.put_record("tick", "1", 0, jobs)

    assert [one.id for one in await engine.find(Where())] == sorted(one.id for one in jobs)
    with pytest.raises(Invalid):
        await engine.put_record("tick", "2", None, [job(clock) for _ in range(NEW_JOBS_LIMIT + 1)])


async def test_a_job_that_cannot_be_stored_leaves_the_record_unwritten(engine: Engine, clock: StoreClock) -> None:
    parent = await claimed(engine, clock)
    for bad, error in (
        (job(clock, args="\0"), BadValue),
        (job(clock, options=Options(meta={"a": "\ud800"})), BadValue),
        (job(clock, key="k"), Invalid),
        (job(clock, parent=parent.id), Invalid),
    ):
        with pytest.raises(error):
            await engine.put_record("tick", "1", 0, [job(clock), bad])

    assert await engine.records("") == []
    assert await engine.find(Where()) == [parent]


async def test_observers_hear_of_the_jobs_that_go_with_a_record(engine: Engine, clock: StoreClock) -> None:
    heard: list[str] = []

    class Ear:
        def heard_inserts(self, jobs: Sequence[Job]) -> None:
            heard.extend(one.id for one in jobs)

        def heard_claims(self, jobs: Sequence[Job]) -> None: ...

        def heard_changes(self, changes: Sequence[Change]) -> None: ...

        def heard_fenced(self, number: int) -> None: ...

        def heard_step(self, job: Job, step: str, outcome: StepOutcome) -> None: ...

        def heard_spending(self, job: Job, kind: SpendKind, amounts: Amounts) -> None: ...

        def heard_act(self, act: Act, seconds: float) -> None: ...

    engine.observe(Ear())
    first, second = job(clock), job(clock)

    await engine.put_record("tick", "1", 0, [first])
    await engine.put_record("tick", "2", 0, [second])

    assert heard == [first.id]


async def test_jobs_that_go_with_a_record_wake_those_who_wait_for_their_queue(
    engine: Engine, clock: StoreClock
) -> None:
    mark = await engine.wait(["queue:q"], 0.01)
    waiting = asyncio.create_task(engine.wait(["queue:q"], 30, mark))
    await asyncio.sleep(0.05)

    await engine.put_record("tick", "1", 0, [job(clock, queue="q")])

    await asyncio.wait_for(waiting, 10)
