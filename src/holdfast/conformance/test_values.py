"""Values come back byte for byte: texts of any alphabet and size, 64-bit numbers, and None distinct from empty."""

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import (
    HOUR,
    StoreClock,
    applied_to,
    change,
    claimed,
    commit,
    current,
    done,
    inserted,
    signal,
    step,
)
from holdfast.core.model import (
    Applied,
    Error,
    Event,
    Job,
    Options,
    Record,
    Recorded,
    Retry,
    State,
    Step,
    StepState,
    Wait,
    WaitKind,
)
from holdfast.engines.contract import Engine

MAX, MIN = 2**63 - 1, -(2**63)


async def test_arguments_come_back_byte_for_byte(engine: Engine, clock: StoreClock, text: str) -> None:
    new = await inserted(engine, clock, args=text, digest=text[:64])

    assert await current(engine, new) == new
    [held] = await engine.claim("w-1", ["default"], 1)
    assert held.args == text


async def test_results_and_errors_come_back_byte_for_byte(engine: Engine, clock: StoreClock, text: str) -> None:
    held = await claimed(engine, clock)
    failed = await done(engine, clock, held, Event.EXHAUST, error=Error(text[:99], text, text))
    assert failed.error == Error(text[:99], text, text)

    resolved = await done(engine, clock, failed, Event.RESOLVE, result=text)

    assert resolved.result == text
    assert resolved.error is None


async def test_steps_come_back_byte_for_byte(engine: Engine, clock: StoreClock, text: str) -> None:
    held = await claimed(engine, clock)
    steps = [
        step(held, "a", result=text, name=text[:99]),
        step(held, text[:200] + "#", result=""),
        step(held, "b", StepState.FAILED, error=Error("E", text)),
    ]

    await engine.record(steps)

    assert await engine.steps(held.id) == steps


async def test_signals_and_waits_come_back_byte_for_byte(engine: Engine, clock: StoreClock, text: str) -> None:
    held = await claimed(engine, clock)
    waits = (Wait(WaitKind.SIGNAL, text[:200], clock.now + HOUR), Wait(WaitKind.STOPPED, text[:200]))
    waiting = await done(engine, clock, held, Event.SUSPEND, waits=waits)
    assert waiting.waits == waits

    woken = await applied_to(engine, signal(clock, waiting, text[:200], text))

    assert [(got.name, got.value) for got in woken.inbox] == [(text[:200], text)]


async def test_edited_arguments_come_back_byte_for_byte(engine: Engine, clock: StoreClock, text: str) -> None:
    review = await done(engine, clock, await claimed(engine, clock), Event.EXHAUST)

    assert (await done(engine, clock, review, Event.REPLAY, args=(text, "d"))).args == text


async def test_small_documents_come_back_byte_for_byte(engine: Engine, clock: StoreClock, text: str) -> None:
    value = text or '""'
    record = await engine.put_record("r/" + text[:99], value)

    assert isinstance(record, Record)
    assert (record.name, record.value) == ("r/" + text[:99], value)
    assert await engine.records("r/" + text[:99]) == [record]


async def test_names_and_notes_come_back_byte_for_byte(engine: Engine, clock: StoreClock, text: str) -> None:
    name = text[:200]
    held = await claimed(engine, clock, key=name, group=name)
    note = {"text": text, name: [name]}

    # `decide` cuts long notes; a store keeps whatever it gets.
    assert await commit(engine, replace(change(clock, held, Event.RELEASE, by=name), note=note)) == Applied(3)

    entry = (await engine.history(held.id))[-1]
    assert (entry.by, entry.note) == (name, note)
    assert (held.key, held.group) == (name, name)


# Extremes.

LOADED = Options(
    retry=Retry(
        retries=MAX,
        strategy="linear",
        initial_ms=MAX,
        factor=1.0000000000000002,
        cap_ms=MAX,
        jitter=False,
        never=("ValueError", "a.*"),
    ),
    timeout_ms=MAX,
    keep_ms=MAX,
    tags=("", "ä", "two words"),
    meta={"": "empty", "k": "", "ü": "„“"},
)


@pytest.mark.parametrize("number", [MAX, MIN, 0, 2**53 + 1, -1])
async def test_numbers_keep_all_their_64_bits(engine: Engine, clock: StoreClock, number: int) -> None:
    new = await inserted(
        engine,
        clock,
        state=State.SCHEDULED,
        priority=number,
        created_at=number,
        run_at=number,
        key="k",
        key_until=number,
        expires_at=number,
        options=LOADED,
    )
    assert await current(engine, new) == new
    assert (await engine.history(new.id))[0].at == number

    decided = change(clock, new, Event.CANCEL, at=number, result=None, note={"n": number})
    odd = replace(decided.job, attempt=abs(number) >> 1, recoveries=MAX, finished_at=number, prune_at=number)
    after = await applied_to(engine, replace(decided, job=odd))

    assert after == replace(odd, version=2)
    assert (await engine.history(new.id))[-1].note == {"n": number}


async def test_priorities_are_compared_over_all_their_range(engine: Engine, clock: StoreClock) -> None:
    wanted = [await inserted(engine, clock, priority=number) for number in (MAX, MAX - 1, 2**53 + 1, 2**53, 0, -1, MIN)]

    assert [held.priority for held in await engine.claim("w-1", ["default"], 9)] == [each.priority for each in wanted]


async def test_nothing_is_told_from_empty(engine: Engine, clock: StoreClock) -> None:
    full = await claimed(engine, clock, key="", group="", digest="", args="", options=Options(tags=("",)))
    bare = await claimed(engine, clock, key=None, group=None)
    assert (full.key, full.group, full.args) == ("", "", "")
    assert (bare.key, bare.group) == (None, None)

    for held, result in ((full, ""), (bare, None)):
        assert (await done(engine, clock, held, Event.COMPLETE, result=result)).result == result


async def test_an_empty_key_is_a_key(engine: Engine, clock: StoreClock) -> None:
    first = await inserted(engine, clock, key="", digest="d")
    again = replace(first, id=first.id[:-1] + ("0" if first.id[-1] != "0" else "1"))

    [answer] = await engine.insert([again])

    assert (answer.id, answer.new) == (first.id, False)


async def test_a_step_without_an_end_is_told_from_one_at_zero(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    steps: list[Step] = [
        step(held, "a", StepState.STARTED, started_at=0),
        step(held, "b", result=None, started_at=MIN, finished_at=0),
        step(held, "c", result="null", started_at=MAX, finished_at=MAX),
    ]

    await engine.record(steps)

    assert await engine.steps(held.id) == steps


async def test_how_often_a_step_was_tried_comes_back(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    begun = step(held, "a", StepState.STARTED)
    steps = [
        step(held, "a", tries=4),
        step(held, "b", StepState.FAILED, tries=2),
        step(held, "c", result=None, tries=MAX),
        step(held, "d"),
        step(held, "e", StepState.FAILED, error=Error("", ""), tries=3),
    ]

    await engine.record([begun])
    answers = await engine.record(steps)

    assert [answer.step for answer in answers if isinstance(answer, Recorded)] == steps
    assert await engine.steps(held.id) == steps
    assert [one.tries for one in steps] == [4, 2, MAX, 1, 3]


async def test_the_tries_of_the_record_that_stands_are_told(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    first = step(held, "a", tries=3)
    await engine.record([first])

    [answer] = await engine.record([step(held, "a", tries=5)])

    assert answer == Recorded(first, False)


async def test_the_tries_of_a_step_that_goes_with_a_change_come_back(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    carried = step(held, "a", tries=7)

    await done(engine, clock, held, Event.COMPLETE, steps=(carried,))

    assert await engine.steps(held.id) == [carried]


async def test_names_may_be_as_long_as_they_may(engine: Engine, clock: StoreClock) -> None:
    long: Job = await inserted(engine, clock, queue="q" * 128, type="t" * 255, key="k" * 4_096)

    [held] = await engine.claim("w" * 100, ["q" * 128], 1)

    assert held == replace(long, state=State.ACTIVE, version=2, epoch=1, worker="w" * 100, claimed_at=held.claimed_at)
