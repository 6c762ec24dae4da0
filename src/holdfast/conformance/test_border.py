"""Values that not every store can keep are refused by all engines, in the same way, without a trace."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.dump import dump
from holdfast.conformance.given import StoreClock, claimed, job
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.lifecycle import decide, deliver
from holdfast.core.limits import ACTOR_CHARACTERS, OPTIONS_BYTES, RECORD_BYTES, STORED_PATH_CHARACTERS
from holdfast.core.model import Error, Event, Options, Step, StepState, Where
from holdfast.engines.contract import Engine

SURROGATE = "half a \ud83d character"
NUL = "a\0b"

LARGE = Options(stages=("x" * 1_000,) * (OPTIONS_BYTES // 1_000))

HOSTILE_JOBS: list[dict[str, Any]] = [
    {"options": LARGE},
    {"key": SURROGATE, "digest": "d"},
    {"args": f'["{SURROGATE}"]'},
    {"args": NUL},
    {"type": NUL},
    {"queue": SURROGATE},
    {"run_at": 1 << 63},
    {"expires_at": -(1 << 70)},
    {"priority": 1 << 64},
    {"priority": 1.5},
    {"priority": True},
]


@pytest.mark.parametrize("fields", HOSTILE_JOBS, ids=lambda fields: "-".join(fields))
async def test_a_job_that_cannot_be_kept_is_refused_with_its_whole_call(
    engine: Engine, clock: StoreClock, fields: dict[str, Any]
) -> None:
    before = await dump(engine)

    with pytest.raises(BadValue):
        await engine.insert([job(clock), replace(job(clock), **fields)])

    assert await dump(engine) == before


async def test_an_end_that_cannot_be_kept_is_refused(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    before = await dump(engine)
    now = clock()

    for facts in (
        {"error": Error("ValueError", SURROGATE)},
        {"error": Error("ValueError", NUL)},
        {"error": Error("ValueError", "fine"), "note": {"why": SURROGATE}},
        {"error": Error("ValueError", "fine"), "note": {"why": {1, 2} and object()}},
    ):
        with pytest.raises(BadValue):
            await engine.commit([decide(held, Event.EXHAUST, now, by="w", **facts)])
    with pytest.raises(BadValue):
        await engine.commit([decide(held, Event.COMPLETE, now, by="w", result=SURROGATE)])
    with pytest.raises(BadValue):
        await engine.commit([deliver(held, SURROGATE, "1", now)])

    assert await dump(engine) == before


async def test_a_step_that_cannot_be_kept_is_refused(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    fine = Step(
        job=held.id, epoch=held.epoch, path="a#1", name="a", state=StepState.DONE, result="1", started_at=clock()
    )

    for wrong in ({"path": SURROGATE}, {"result": NUL}, {"error": Error("E", SURROGATE)}, {"started_at": 1 << 63}):
        with pytest.raises(BadValue):
            await engine.record([fine, replace(fine, **wrong)])

    assert await engine.steps(held.id) == []


async def test_a_record_that_cannot_be_kept_is_refused(engine: Engine) -> None:
    for name, value in ((SURROGATE, "1"), ("name", SURROGATE), ("name", NUL)):
        with pytest.raises(BadValue):
            await engine.put_record(name, value)

    assert await engine.records("") == []


async def test_a_limit_below_nothing_is_nothing(engine: Engine, clock: StoreClock) -> None:
    made = job(clock)
    await engine.insert([made])

    assert await engine.claim("w", ["default"], -1) == []
    assert await engine.find(Where(), limit=-1) == []
    assert await engine.history(made.id, limit=-1) == []
    assert await engine.prune(limit=-1) == 0


async def test_what_is_beyond_a_bound_is_refused_and_leaves_no_trace(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    before = await dump(engine)
    now = clock()
    path = "x" * (STORED_PATH_CHARACTERS + 1)
    step = Step(job=held.id, epoch=held.epoch, path=path, name="x", state=StepState.DONE, started_at=now)

    with pytest.raises(BadValue):
        await engine.record([step])
    with pytest.raises(BadValue):
        await engine.commit([decide(held, Event.COMPLETE, now, by="w", result="1", steps=(step,))])
    with pytest.raises(BadValue):
        await engine.commit([decide(held, Event.RELEASE, now, by="w" * (ACTOR_CHARACTERS + 1))])
    with pytest.raises(BadValue):
        await engine.put_record("limits/one", "x" * (RECORD_BYTES + 1))
    with pytest.raises(Invalid):
        await engine.commit([replace(deliver(held, "s", "1", now), version=None)])

    assert await dump(engine) == before


async def test_what_no_store_holds_is_not_found_and_is_no_trouble(engine: Engine, clock: StoreClock) -> None:
    made = job(clock)
    await engine.insert([made])

    for text in (NUL, SURROGATE):
        assert await engine.get([made.id, text]) == [made, None]
        for where in (Where(queue=text), Where(type=text), Where(parent=text)):
            assert await engine.find(where) == []
        assert await engine.find(Where(), after=text) == []
        assert await engine.steps(text) == []
        assert await engine.steps_under(made.id, text) == []
        assert await engine.history(text) == []
        assert await engine.records(text) == []
        assert await engine.ready_types(text) == []
        assert await engine.missing(text, "") == 0
        assert await engine.claim("w", [text], 1) == []
        assert await engine.claim("w", ["default"], 1, [text]) == []
    [held] = await engine.claim("w", [NUL, "default", "default"], 2, [SURROGATE, made.type])
    assert held.id == made.id


async def test_who_asks_for_nothing_is_answered_with_nothing(engine: Engine) -> None:
    assert await engine.insert([]) == []
    assert await engine.commit([]) == []
    assert await engine.record([]) == []
    assert await engine.get([]) == []
    assert await engine.claim("w", [], 1) == []
    assert await engine.turn([], "w", ["default"], 0) == ([], [])
