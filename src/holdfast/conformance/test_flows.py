"""Flows and events: what several callers submit at the same moment is submitted once, by derived ids and by keys."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import StoreClock, change, current
from holdfast.conformance.race import RACERS, Lap, run_race, until_raced
from holdfast.core.errors import LeaseLost
from holdfast.core.events import event_key, event_meta
from holdfast.core.flows import Kind
from holdfast.core.model import Event, Job, Options, Where
from holdfast.engines.contract import Engine
from holdfast.jobs.flows import FlowRun, Layer, flow_call, layered_flow, load_flow, makes_next, request_of
from holdfast.jobs.job_calls import JobCall
from holdfast.jobs.requests import JobRequest
from holdfast.jobs.service import Jobs

MEMBERS = 6
"""How many jobs of a chord end at the same moment."""

DRAW, JOIN = JobCall(type="draw"), JobCall(type="join", is_open=True)


async def begun(engine: Engine, clock: StoreClock, kind: Kind, number: int, first: int) -> tuple[FlowRun, list[Job]]:
    """Return a flow that its worker holds: `first` equal jobs, which their workers hold, and one that comes after."""
    queue = f"flow-{kind}-{number}"
    layers = [Layer(calls=(replace(DRAW, queue=queue),) * first, is_list=kind == "chord"), Layer(calls=(JOIN,))]
    jobs = Jobs(engine)
    await jobs.submit([flow_call(layered_flow(kind, layers), JobCall(type="", queue=queue)).request(clock.now)])
    [held] = await engine.claim("w-flow", [queue], 1)
    run = await load_flow(engine, held)
    await submit_steps(engine, clock, run, range(first))
    return run, await engine.claim("w-1", [queue], first)


async def submit_steps(engine: Engine, clock: StoreClock, run: FlowRun, places: range) -> None:
    """Submit these steps, as the flow's own attempt does."""
    ids, groups = [run.id_of(place) for place in places], [run.group_of(place) for place in places]
    requests = [request_of(run, place, clock.now) for place in places]
    await Jobs(engine).submit(requests, run.job.lease, ids=ids, groups=groups, now=clock.now)


async def members_of(engine: Engine, run: FlowRun) -> Counter[str]:
    return Counter(one.type for one in await engine.find(Where(parent=run.job.id)))


async def test_what_follows_in_a_chain_is_submitted_once_by_the_end_before_it_and_by_the_flow(
    engines: list[Engine], clock: StoreClock
) -> None:
    async def one_round(number: int) -> list[Lap[Any]]:
        run, [last] = await begun(engines[0], clock, "chain", number, 1)
        make = await makes_next(engines[0], last)
        assert make is not None
        end = replace(change(clock, last, Event.COMPLETE), inserts=make(clock.now))

        async def racer(seat: int, engine: Engine, lap: Lap[Any]) -> None:
            await lap.call(submit_steps(engine, clock, run, range(1, 2)) if seat else engine.commit([end]))

        laps = run_race(engines, racer)

        assert await members_of(engines[0], run) == {"draw": 1, "join": 1}
        assert (await current(engines[0], last)).state == "completed"
        return laps

    await until_raced(one_round)


async def test_the_callback_of_a_chord_is_submitted_once_when_its_last_jobs_end_together(
    engines: list[Engine], clock: StoreClock
) -> None:
    async def one_round(number: int) -> list[Lap[Any]]:
        run, held = await begun(engines[0], clock, "chord", number, MEMBERS)

        async def racer(seat: int, engine: Engine, lap: Lap[Any]) -> None:
            for member in held[seat::RACERS]:
                await lap.call(engine.commit([change(clock, member, Event.COMPLETE)]))
            if await engine.missing(run.job.id, run.group) == 0:  # several may see it
                await lap.call(submit_steps(engine, clock, run, range(MEMBERS, MEMBERS + 1)))

        laps = run_race(engines, racer)

        assert await members_of(engines[0], run) == {"draw": MEMBERS, "join": 1}
        return laps

    await until_raced(one_round)


async def test_a_worker_that_lost_a_flow_submits_nothing_more_of_it(engine: Engine, clock: StoreClock) -> None:
    run, [last] = await begun(engine, clock, "chain", 0, 1)
    await engine.commit([change(clock, run.job, Event.RELEASE), change(clock, last, Event.COMPLETE)])

    with pytest.raises(LeaseLost):
        await submit_steps(engine, clock, run, range(1, 2))

    assert await members_of(engine, run) == {"draw": 1}


async def test_each_subscribed_job_is_submitted_once_for_an_event_that_many_emit(
    engines: list[Engine], clock: StoreClock
) -> None:
    async def one_round(number: int) -> list[Lap[Any]]:
        meta, key = event_meta("order.paid", f"evt-{number}", 1), event_key("order.paid", f"evt-{number}")
        options = Options(meta=meta)
        requests = [JobRequest(type=type, args="[42]", key=key, options=options) for type in ("send", "book")]

        async def racer(seat: int, engine: Engine, lap: Lap[Any]) -> None:
            for _ in range(2):
                await lap.call(Jobs(engine).submit(requests, now=clock.now))

        laps = run_race(engines, racer)

        ids = {tuple(one.id for one in answer) for lap in laps for answer in lap.answers}
        assert len(ids) == 1, "everybody gets the same jobs"
        assert sum(one.new for lap in laps for answer in lap.answers for one in answer) == len(requests)
        found = [one for one in await engines[0].find(Where()) if one.key == key]
        assert Counter(one.type for one in found) == {"send": 1, "book": 1}
        return laps

    await until_raced(one_round)
