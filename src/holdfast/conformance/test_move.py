"""Moving: a marked store accepts only whole jobs, and keeps them as they were in the other store."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.dump import all_entries, dump
from holdfast.conformance.given import (
    HOUR,
    Another,
    StoreClock,
    applied_to,
    change,
    children,
    claimed,
    current,
    done,
    in_state,
    inserted,
    job,
    signal,
    step,
)
from holdfast.conformance.kinds import NOTHING, Kind
from holdfast.conformance.texts import TEXTS
from holdfast.conformance.victim import work
from holdfast.core.errors import HoldfastError, Invalid, KeyConflict, Moved, NotFound, Refused
from holdfast.core.keys import digest
from holdfast.core.model import Applied, Conflict, Event, Job, Options, Presence, Record, State, Step, StepState
from holdfast.core.moves import MOVED, HeldKey, Mark, Whole
from holdfast.engines.contract import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.records import PAUSE, WORKER
from holdfast.engines.traits import Movable, Transactional

AWAY = Mark(move="m-1", away=True, store="sqlite:////srv/new.db").text()
INTO = Mark(move="m-1", away=False, store="file:/srv/old.json").text()
WRITERS = 6


@pytest.fixture
def store(engine: Engine) -> Any:
    """The engine under test, if its jobs can be moved."""
    if not isinstance(engine, Movable):
        pytest.skip("this engine's jobs can't be moved")
    return engine


async def all_in_order(store: Any, page: int = 1_000) -> list[Job]:
    jobs: list[Job] = []
    while found := await store.in_order(jobs[-1].id if jobs else "", page):
        jobs += found
    return jobs


async def wholes_of(store: Any) -> list[Whole]:
    found: list[Whole] = await store.wholes(await all_in_order(store))
    return found


def by_name(keys: list[HeldKey]) -> list[HeldKey]:
    """Sort keys: each store has its own order."""
    return sorted(keys, key=lambda one: (one.type, one.key))


async def filled(store: Any, source: Any) -> None:
    """Copy everything from one store to another."""
    await store.put_record(MOVED, INTO)
    records = [record for record in await source.all_records() if record.name != MOVED]
    await store.load(await wholes_of(source), await source.keys(), records)
    await store.put_record(MOVED, None)


# Reading for a move.


async def test_jobs_are_read_in_the_order_of_their_insertion(store: Any, clock: StoreClock) -> None:
    jobs = [job(clock, run_at=clock.now - n % 3) for n in range(7)]
    shuffled = [jobs[n] for n in (3, 0, 6, 1, 5, 2, 4)]
    for one in shuffled:
        await store.insert([one])
    await in_state(store, clock, State.COMPLETED)
    await done(store, clock, shuffled[2], Event.CANCEL)

    for page in (1, 2, 3, 100):
        found = await all_in_order(store, page)
        assert [one.id for one in found[:7]] == [one.id for one in shuffled]
        assert len(found) == 8
    assert await store.in_order() == await store.get([one.id for one in found])
    assert await store.in_order(found[-1].id) == []
    with pytest.raises(NotFound):
        await store.in_order("nobody")


async def test_whole_jobs_are_what_is_read_of_each(store: Any, clock: StoreClock) -> None:
    await work(store, clock)
    jobs = await all_in_order(store)
    mixed = [*jobs[3:], *jobs[:3]]

    assert await store.wholes(mixed) == [
        Whole(one, tuple(await all_entries(store, one.id)), tuple(await store.steps(one.id))) for one in mixed
    ]
    assert await store.wholes([]) == []


async def test_keys_are_read_with_what_they_stand_for(store: Any, clock: StoreClock) -> None:
    until = clock.now + HOUR
    first = await inserted(store, clock, key="k-1", digest="d1")
    second = await inserted(store, clock, key="k-1", digest="d2", type="test.other", key_until=until)
    third = await inserted(store, clock, key="k-2", digest="d3")
    held = [
        HeldKey("test.job", "k-1", first.id, "d1"),
        HeldKey("test.job", "k-2", third.id, "d3"),
        HeldKey("test.other", "k-1", second.id, "d2", until),
    ]

    assert by_name(await store.keys()) == held
    walk: list[HeldKey] = []
    while page := await store.keys((walk[-1].type, walk[-1].key) if walk else ("", ""), 1):
        walk += page
    assert walk == await store.keys()


async def test_a_key_that_outlives_its_job_is_read_too(store: Any, clock: StoreClock) -> None:
    options, until = Options(keep_ms=0), clock.now + HOUR
    gone = await in_state(store, clock, State.COMPLETED, key="k", digest="d1", key_until=until, options=options)
    assert await store.prune() == 1

    assert await store.keys() == [HeldKey("test.job", "k", gone.id, "d1", until)]


async def test_a_key_keeps_its_digest_when_arguments_are_edited(store: Any, clock: StoreClock) -> None:
    review = await in_state(store, clock, State.REVIEW, key="k", digest="d1")
    await done(store, clock, review, Event.REPLAY)
    assert (await current(store, review)).digest == digest("test.job", "[0]")

    assert [key.digest for key in await store.keys()] == ["d1"]


async def test_all_records_are_read_the_removed_ones_too(store: Any) -> None:
    await store.put_record("gone", "1")
    removed = await store.put_record("gone", None)
    kept = await store.put_record("kept", "2")
    await store.beat(Presence(worker="w-1"))

    assert await store.all_records() == [removed, kept]
    assert removed.value == ""


# The mark.


async def test_a_marked_store_takes_nothing(store: Any, clock: StoreClock) -> None:
    held = await claimed(store, clock)
    old = await in_state(store, clock, State.COMPLETED, options=Options(keep_ms=0))
    await inserted(store, clock)
    await store.put_record("leader", "1")
    marked = await store.put_record(MOVED, AWAY, 0)
    assert isinstance(marked, Record)
    before = await dump(store)

    acts: list[Callable[[], Awaitable[object]]] = [
        lambda: store.insert([job(clock)]),
        lambda: store.insert([job(clock, key="k"), job(clock)]),
        lambda: store.insert([job(clock, parent=held.id, group="g")], held.lease),
        lambda: store.claim("w-2", ["default"], 9),
        lambda: store.commit([change(clock, held, Event.COMPLETE)]),
        lambda: store.commit([change(clock, held, Event.FAIL, steps=(step(held, "a"),))]),
        lambda: store.commit([signal(clock, held)]),
        lambda: store.record([step(held, "a")]),
        lambda: store.prune(),
        lambda: store.put_record("leader", "2"),
        lambda: store.put_record(PAUSE + "default", "1", 0),
        lambda: store.put_record("leader", None),
    ]
    if isinstance(store, Transactional):
        acts.append(lambda: store.transact(step(held, "a"), _not_filled))
    for act in acts:
        with pytest.raises(Moved, match=r"sqlite:////srv/new\.db"):
            await act()

    assert await dump(store) == before
    assert (await current(store, old)).state is State.COMPLETED
    assert held.id in (await store.beat(Presence(worker="w-1"))).stray[0].job


async def _not_filled(connection: Any) -> list[Step]:
    raise AssertionError("a body must not run if nothing can be recorded")


async def test_it_goes_on_when_the_mark_is_taken_back(store: Any, clock: StoreClock) -> None:
    held = await claimed(store, clock)
    marked = await store.put_record(MOVED, AWAY)
    changed = await store.put_record(MOVED, INTO, marked.version)
    assert isinstance(await store.put_record(MOVED, None, marked.version), Conflict)
    with pytest.raises(Moved):
        await store.record([step(held, "a")])

    await store.put_record(MOVED, None, changed.version)

    await store.record([step(held, "a")])
    assert (await done(store, clock, held, Event.COMPLETE)).state is State.COMPLETED
    assert isinstance(await store.put_record("leader", "1", 0), Record)


async def test_what_was_acknowledged_before_the_mark_is_read_after_it(
    store: Any, another: Another, clock: StoreClock
) -> None:
    seats = [store, await another()] if store.guarantees.shared else [store]
    accepted: list[str] = []
    under_way = asyncio.Event()
    refused = 0

    async def submit(seat: Any) -> None:
        nonlocal refused
        while True:
            new = job(clock)
            try:
                await seat.insert([new])
            except Moved:
                refused += 1
                return
            accepted.append(new.id)
            if len(accepted) >= 4 * WRITERS:
                under_way.set()
            await asyncio.sleep(0)

    async def close() -> list[str]:
        await under_way.wait()
        await seats[-1].put_record(MOVED, AWAY)
        return [one.id for one in await all_in_order(seats[-1])]

    submitting = asyncio.gather(*(submit(seats[n % len(seats)]) for n in range(WRITERS)))
    read = await close()
    await submitting

    assert refused == WRITERS
    assert sorted(read) == sorted(accepted)


# Loading.


async def test_nothing_is_loaded_into_a_store_in_use(store: Any, clock: StoreClock) -> None:
    held = await claimed(store, clock)
    whole = Whole(replace(held, id=job(clock).id, version=1), ())

    with pytest.raises(HoldfastError):
        await store.load([whole])
    with pytest.raises(Refused):
        await store.load([], [HeldKey("t", "k", "j", "d")], [Record("r", "1", 1, 1)])

    assert await store.keys() == []
    assert await store.all_records() == []


async def test_a_filled_store_is_equal_to_the_other(store: Any, clock: StoreClock) -> None:
    source = MemoryEngine(clock)
    told = await work(source, clock)

    await filled(store, source)

    assert replace(await dump(store), workers={}) == replace(told, workers={})
    assert [one.id for one in await all_in_order(store)] == [one.id for one in await all_in_order(source)]
    assert by_name(await store.keys()) == by_name(await source.keys())
    kept = [record for record in await store.all_records() if record.name != MOVED]
    assert kept == await source.all_records()


async def test_loading_again_changes_nothing(store: Any, clock: StoreClock) -> None:
    source = MemoryEngine(clock)
    await work(source, clock)
    await store.put_record(MOVED, INTO)
    wholes, keys, records = await wholes_of(source), await source.keys(), await source.all_records()

    assert await store.load(wholes[:4], keys, records) == 4
    assert await store.load(wholes, keys, records) == len(wholes) - 4
    once = await dump(store), await all_in_order(store), await store.all_records()
    assert await store.load(wholes, keys, records) == 0

    assert (await dump(store), await all_in_order(store), await store.all_records()) == once
    assert [one.id for one in once[1]] == [whole.job.id for whole in wholes]


async def test_a_load_is_whole_or_nothing(store: Any, clock: StoreClock) -> None:
    source = MemoryEngine(clock)
    await work(source, clock)
    wholes = await wholes_of(source)
    await store.put_record(MOVED, INTO)
    broken = [
        replace(wholes[-1], entries=wholes[-1].entries[1:]),
        replace(wholes[-1], entries=()),
        replace(wholes[-1], steps=(step(wholes[0].job),)),
        replace(wholes[-1], job=replace(wholes[-1].job, args="\0")),
    ]

    for last in broken:
        with pytest.raises(Invalid):
            await store.load([*wholes[:-1], last])
    for name in (MOVED, WORKER + "w-1"):
        with pytest.raises(Invalid):
            await store.load(wholes, records=[Record(name, "1", 1, 1)])

    assert await store.in_order() == []
    assert await store.count() == {}


async def test_what_was_loaded_goes_on(store: Any, clock: StoreClock) -> None:
    source = MemoryEngine(clock)
    held = await claimed(source, clock, queue="q")
    await source.record([step(held, "a"), step(held, "b", StepState.STARTED)])
    parent = await claimed(source, clock)
    first, second = await children(source, clock, parent, 2)
    await done(source, clock, first, Event.COMPLETE)
    due = await inserted(source, clock, state=State.SCHEDULED, run_at=clock.now - HOUR, queue="due")
    await filled(store, source)

    # The owner's lease is valid, an older one isn't, and recorded steps stay.
    assert isinstance((await store.record([step(replace(held, epoch=0), "c")]))[0], Conflict)
    [again, ended] = await store.record([step(held, "a", result='"other"'), step(held, "b")])
    assert (again.first, ended.first) == (False, True)
    await done(store, clock, held, Event.RELEASE)
    [taken] = await store.claim("w-9", ["q"], 1)
    assert (taken.id, taken.epoch, taken.version) == (held.id, held.epoch + 1, held.version + 2)
    # The group waits for the one child that hasn't arrived, and counts only that one.
    assert await store.missing(parent.id, "g") == 1
    [answer] = await store.commit([change(clock, second, Event.COMPLETE)])
    assert isinstance(answer, Applied)
    assert answer.missing == 0
    [promoted] = await store.claim("w-9", ["due"], 1)
    assert promoted.id == due.id


async def test_jobs_are_claimed_in_the_order_of_the_other_store(store: Any, clock: StoreClock) -> None:
    source = MemoryEngine(clock)
    jobs = [job(clock, priority=n % 2) for n in range(8)]
    await source.insert([jobs[n] for n in (5, 2, 7, 0, 1, 6, 3, 4)])
    await filled(store, source)
    later = await inserted(store, clock)

    expected = [one.id for one in await source.claim("w-1", ["default"], 9)]
    assert [one.id for one in await store.claim("w-1", ["default"], 9)] == [*expected, later.id]


async def test_keys_hold_as_they_did_in_the_other_store(store: Any, clock: StoreClock) -> None:
    source = MemoryEngine(clock)
    options, until = Options(keep_ms=0), clock.now + HOUR
    gone = await in_state(source, clock, State.COMPLETED, key="gone", digest="d1", key_until=until, options=options)
    assert await source.prune() == 1
    edited = await in_state(source, clock, State.REVIEW, key="edited", digest="d2")
    await done(source, clock, edited, Event.REPLAY)
    await filled(store, source)

    for key, told, holder in (("gone", "d1", gone.id), ("edited", "d2", edited.id)):
        [answer] = await store.insert([job(clock, key=key, digest=told)])
        assert (answer.id, answer.new) == (holder, False)
        with pytest.raises(KeyConflict):
            await store.insert([job(clock, key=key, digest="other")])
    [answer] = await store.insert([job(clock, key="gone", digest="other", created_at=until)])
    assert answer.new


async def test_versions_of_records_do_not_come_back(store: Any, clock: StoreClock) -> None:
    source = MemoryEngine(clock)
    for n in range(5):
        await source.put_record("leader", str(n))
    old = await source.put_record("leader", None)
    pause = await source.put_record(PAUSE + "q", "1")
    assert isinstance(old, Record)
    assert isinstance(pause, Record)
    for _ in range(3):
        await store.put_record(PAUSE + "q", "0")
        own = await store.put_record(PAUSE + "q", None)
    await filled(store, source)

    new = await store.put_record("leader", "x", 0)
    assert new.version > old.version
    [record] = await store.records(PAUSE)
    assert (record.value, record.at) == ("1", pause.at)
    assert record.version > own.version
    await inserted(store, clock, queue="q")
    assert await store.claim("w-1", ["q"], 1) == []


async def test_every_first_entry_is_kept(store: Any, clock: StoreClock) -> None:
    source = MemoryEngine(clock)
    new = await inserted(source, clock)
    [entry] = await source.history(new.id)
    said = replace(entry, by="hand", note={"again": "completed"}, at=entry.at + 5)
    await store.put_record(MOVED, INTO)

    await store.load([Whole(new, (said,))])

    assert await store.history(new.id) == [said]
    assert await store.history(new.id, 1) == []


@pytest.mark.parametrize("name", sorted(TEXTS))
async def test_texts_are_loaded_as_they_are(store: Any, clock: StoreClock, name: str) -> None:
    text = TEXTS[name]
    source = MemoryEngine(clock)
    held = await claimed(source, clock, args=text, key=text[:99], digest=text[:99], type=text[:99] or "t")
    await source.record([step(held, text[:99] + "#", result=text, tries=3)])
    await applied_to(source, signal(clock, held, text[:99], text))
    await done(source, clock, held, Event.COMPLETE, result=text, note={"text": text})
    await source.put_record("r/" + text[:99], text or "1")
    told = await dump(source)

    await filled(store, source)

    assert await dump(store) == told
    assert await store.keys() == await source.keys()


async def test_a_half_filled_store_is_as_it_was_after_a_close(
    store: Any, another: Another, kind: Kind, clock: StoreClock
) -> None:
    if kind.engine.guarantees.durable == NOTHING:
        pytest.skip("this engine promises to keep nothing")
    source = MemoryEngine(clock)
    await work(source, clock)
    held = await claimed(source, clock)
    await store.put_record(MOVED, INTO)
    await store.load(await wholes_of(source), await source.keys(), await source.all_records())
    before = await dump(store)
    await store.close()

    again: Any = await another()

    assert (await current(again, held)).state is State.ACTIVE
    assert await dump(again) == before
    assert await again.load(await wholes_of(source)) == 0
    with pytest.raises(Moved):
        await again.claim("w-2", ["default"], 1)
