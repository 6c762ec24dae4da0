"""History: one entry for each version, without gaps, that says what was decided, whatever happened to the job."""

from itertools import pairwise

from holdfast.conformance.dump import all_entries
from holdfast.conformance.given import (
    SECOND,
    StoreClock,
    applied_to,
    change,
    claimed,
    commit,
    current,
    job,
    signal,
    step,
)
from holdfast.core.lifecycle import entry_of, submit_entry
from holdfast.core.model import Applied, Change, Conflict, Entry, Event, Job, Presence, State
from holdfast.engines.contract import Engine

CLAIMED_BY = "w-1"

# A job's path through every event that doesn't end it: each line continues where the one before ended.
LONG_LIFE = (
    Event.CLAIM,
    Event.RELEASE,
    Event.CLAIM,
    Event.SUSPEND,
    Event.ACTIVATE,
    Event.CLAIM,
    Event.REST,
    Event.PROMOTE,
    Event.CLAIM,
    Event.FAIL,
    Event.PROMOTE,
    Event.CLAIM,
    Event.LAPSE,
    Event.CLAIM,
    Event.OVERRUN,
    Event.PROMOTE,
    Event.CLAIM,
    Event.EXHAUST,
    Event.REPLAY,
    Event.CLAIM,
    Event.ABANDON,
)
ENDS = (Event.RESOLVE, Event.DISCARD, Event.CANCEL)


async def live(engine: Engine, clock: StoreClock, head: Job, event: Event) -> tuple[Job, Entry | None]:
    """Make one event happen. Return the job after it, and the expected entry (None for a claim)."""
    if event is Event.CLAIM:
        [held] = await engine.claim(CLAIMED_BY, [head.queue], 1)
        return held, None
    due = {"run_at": clock.now - SECOND} if event in (Event.FAIL, Event.REST, Event.OVERRUN) else {}
    decided = change(clock, head, event, note={"n": head.version}, **due)
    return await applied_to(engine, decided), entry_of(decided, head.version + 1)


async def test_every_way_leaves_one_entry_for_each_version(engine: Engine, clock: StoreClock) -> None:
    for end in ENDS:
        head = job(clock, queue=f"life-{end}")
        await engine.insert([head])
        wanted: list[Entry | None] = [submit_entry(head)]
        for event in (*LONG_LIFE, end):
            head, entry = await live(engine, clock, head, event)
            wanted.append(entry)

        entries = await engine.history(head.id)

        assert [entry.version for entry in entries] == list(range(1, head.version + 1))
        assert [entry.event for entry in entries] == [Event.SUBMIT, *LONG_LIFE, end]
        assert [entry for entry, said in zip(entries, wanted, strict=True) if said not in (None, entry)] == []
        assert_it_is_a_chain(entries)


def assert_it_is_a_chain(entries: list[Entry]) -> None:
    """Assert that each entry starts where the one before ended, and that epochs grow only with claims."""
    for before, after in pairwise(entries):
        assert after.before == before.after
        assert after.epoch == before.epoch + (after.event == Event.CLAIM)


async def test_signals_and_promotions_by_a_claim_leave_no_gap(engine: Engine, clock: StoreClock) -> None:
    head = job(clock, state=State.SCHEDULED, run_at=clock.now - 1)
    await engine.insert([head])
    await applied_to(engine, signal(clock, head))
    [held] = await engine.claim(CLAIMED_BY, ["default"], 1)
    await applied_to(engine, signal(clock, held))
    await applied_to(engine, change(clock, held, Event.COMPLETE))

    entries = await engine.history(head.id)

    assert [(entry.version, entry.event) for entry in entries] == [
        (1, "submit"),
        (2, "signal"),
        (3, "promote"),
        (4, "claim"),
        (5, "signal"),
        (6, "complete"),
    ]
    assert_it_is_a_chain(entries)


async def test_what_is_refused_leaves_no_entry(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await applied_to(engine, change(clock, held, Event.RELEASE))
    before = await engine.history(held.id)

    for event in (Event.COMPLETE, Event.SUSPEND, Event.CANCEL):
        assert isinstance(await commit(engine, change(clock, held, event)), Conflict)

    assert await engine.history(held.id) == before


async def test_what_makes_no_version_leaves_no_entry(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    before = await engine.history(held.id)

    await engine.record([step(held, "a")])
    await engine.beat(Presence(worker=CLAIMED_BY, queues=(held.queue,)))
    await engine.insert([job(clock, parent=held.id)], held.lease)

    assert await engine.history(held.id) == before


async def test_a_history_is_read_in_pages(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    for n in range(5):
        await applied_to(engine, signal(clock, await current(engine, held), value=str(n)))
    whole = await engine.history(held.id)
    assert len(whole) == 7

    assert await engine.history(held.id, limit=3) == whole[:3]
    assert await engine.history(held.id, after=3, limit=2) == whole[3:5]
    assert await engine.history(held.id, after=5) == whole[5:]
    assert await engine.history(held.id, after=7) == []
    for page in (1, 2, 3):
        assert await all_entries(engine, held.id, page) == whole


async def test_nobody_has_no_history(engine: Engine, clock: StoreClock) -> None:
    assert await engine.history(job(clock).id) == []


async def test_a_note_comes_back_as_it_was_given(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    note = {"lost": "w-7", "n": 2**53, "half": 0.5, "yes": True, "none": None, "deep": {"list": [1, "zwölf", []]}}
    decided: Change = change(clock, held, Event.LAPSE, note=note)

    assert await commit(engine, decided) == Applied(held.version + 1)

    assert (await engine.history(held.id))[-1].note == note
