"""The checker on trial: it passes a sound life, and each way to break it breaks the law that is meant for it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.dump import Dump, dump
from holdfast.conformance.given import StoreClock, children, claimed, done, step
from holdfast.core.model import Event
from holdfast.engines.memory import MemoryEngine
from tests.support.history import Effect, broken

ONE = "draw#1"


def sound() -> tuple[Dump, list[Effect], str]:
    """A job whose first worker was lost after its first step; its child; and what was done for it."""

    async def live() -> tuple[Dump, list[Effect], str]:
        clock = StoreClock(settable=True)
        engine = MemoryEngine(clock)
        await engine.open()
        first = await claimed(engine, clock, "w-1", queue="default")
        await engine.record([step(first, ONE)])
        await done(engine, clock, first, Event.LAPSE)
        clock.advance(1_000)
        [second] = await engine.claim("w-2", ["default"], 1)
        [child] = await children(engine, clock, second, 1)
        await done(engine, clock, child, Event.COMPLETE, by=child.worker)
        await engine.record([step(second, "draw#2")])
        await done(engine, clock, second, Event.COMPLETE, by="w-2")
        at = clock.now / 1_000
        effects = [
            Effect("begin", first.id, ONE, 1, 7, at - 1.2),
            Effect("end", first.id, ONE, 1, 7, at - 1.1),
            Effect("begin", first.id, "draw#2", 1, 7, at - 1.05),
            Effect("begin", first.id, "draw#2", 2, 8, at),
            Effect("end", first.id, "draw#2", 2, 8, at),
        ]
        return await dump(engine), effects, first.id

    return asyncio.run(live())


def test_a_sound_life_breaks_no_law():
    store, effects, _ = sound()
    assert broken(store, effects) == []


def _of(store: Dump, id: str, **fields: Any) -> Dump:
    return replace(store, jobs=store.jobs | {id: replace(store.jobs[id], **fields)})


def _entries(store: Dump, id: str, edit: Callable[[list[Any]], list[Any]]) -> Dump:
    return replace(store, history=store.history | {id: edit(list(store.history[id]))})


def _steps(store: Dump, id: str, edit: Callable[[list[Any]], list[Any]]) -> Dump:
    return replace(store, steps=store.steps | {id: edit(list(store.steps[id]))})


CRIMES: dict[str, tuple[str, Callable[[Dump, list[Effect], str], tuple[Dump, list[Effect]]]]] = {
    "an entry is missing": ("S3", lambda s, e, id: (_entries(s, id, lambda h: h[:2] + h[3:]), e)),
    "an entry is there twice": ("S3", lambda s, e, id: (_entries(s, id, lambda h: [*h, h[-1]]), e)),
    "a state nobody led to": ("S3", lambda s, e, id: (_of(s, id, state="review"), e)),
    "an epoch that nobody claimed": ("S5", lambda s, e, id: (_of(s, id, epoch=3), e)),
    "the first owner ends it": (
        "S7",
        lambda s, e, id: (_entries(s, id, lambda h: [*h[:-1], replace(h[-1], by="w-1")]), e),
    ),
    "an attempt too many": ("S16", lambda s, e, id: (_of(s, id, attempt=2), e)),
    "a record twice": ("S9", lambda s, e, id: (_steps(s, id, lambda steps: [*steps, steps[0]]), e)),
    "a record is lost": ("S10", lambda s, e, id: (_steps(s, id, lambda steps: steps[1:]), e)),
    "a recorded step runs again": ("S10", lambda s, e, id: (s, [*e, replace(e[0], epoch=2, at=e[-1].at)])),
    "a step runs twice at one epoch": ("S11", lambda s, e, id: (s, [*e, e[0]])),
    "a record of what nobody did": ("S2", lambda s, e, id: (s, [*e[:-1]])),
    "a zombie begins": ("S10z", lambda s, e, id: (s, [*e, replace(e[0], step="draw#3", at=e[-1].at + 1)])),
    "a job that has worked is gone": ("S1", lambda s, e, id: (s, [*e, replace(e[0], job="other")])),
    "a wrong count": ("S35", lambda s, e, id: (replace(s, counts=s.counts | {"default/completed": 7}), e)),
    "a child that never arrived": (
        "S23",
        lambda s, e, id: (replace(s, missing=dict.fromkeys(s.missing, 1)), e),
    ),
}


@pytest.mark.parametrize("name", CRIMES)
def test_every_crime_is_told_by_its_law(name: str):
    law, commit = CRIMES[name]
    store, effects, id = sound()

    told = broken(*commit(store, effects, id))

    assert any(text.startswith(f"{law}:") for text in told), told
