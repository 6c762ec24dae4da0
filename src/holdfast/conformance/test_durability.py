"""Durability: acknowledged work exists after a close and after a kill, and other engines see it at once."""

import asyncio
import os
import subprocess
import sys
from signal import SIGKILL

import msgspec
import pytest

from holdfast.conformance.dump import Dump, dump
from holdfast.conformance.given import (
    HOUR,
    Another,
    StoreClock,
    applied_to,
    change,
    claimed,
    commit,
    current,
    done,
    in_state,
    inserted,
    job,
    signal,
    step,
)
from holdfast.conformance.kinds import NOTHING, Kind
from holdfast.conformance.victim import work
from holdfast.core.errors import KeyConflict
from holdfast.core.model import Conflict, Error, Event, Record, State
from holdfast.engines.contract import Engine

VICTIM_SECONDS = 60.0


@pytest.fixture
def lasting(kind: Kind) -> None:
    """Skip engines that keep nothing."""
    if kind.engine.guarantees.durable == NOTHING:
        pytest.skip("this engine promises to keep nothing")


@pytest.fixture
def shared(kind: Kind) -> None:
    """Skip engines whose store only one process can use."""
    if not kind.engine.guarantees.shared:
        pytest.skip("this engine's store is for one process at a time")


async def test_an_engine_may_be_closed_twice(engine: Engine, clock: StoreClock) -> None:
    await inserted(engine, clock)

    await engine.close()
    await engine.close()


@pytest.mark.usefixtures("lasting")
async def test_who_asks_whether_a_store_is_there_makes_none(
    kind: Kind, url: str, another: Another, clock: StoreClock
) -> None:
    looker = kind.at(url, clock)
    assert [await looker.is_there() for _ in range(2)] == [False, False]

    engine = await another()
    await inserted(engine, clock)
    assert await looker.is_there()

    await engine.close()
    assert await looker.is_there()


@pytest.mark.usefixtures("lasting")
async def test_an_empty_store_stays_empty(engine: Engine, another: Another, clock: StoreClock) -> None:
    await engine.close()

    assert await dump(await another()) == Dump({}, {}, [], {}, {}, {}, [], {})


@pytest.mark.usefixtures("lasting")
async def test_all_is_there_after_a_close(engine: Engine, another: Another, clock: StoreClock) -> None:
    before = await work(engine, clock)
    await engine.close()

    again = await another()

    assert await dump(again) == before


@pytest.mark.usefixtures("lasting")
async def test_a_store_goes_on_where_it_was_left(engine: Engine, another: Another, clock: StoreClock) -> None:
    first, second = job(clock), job(clock, state=State.SCHEDULED, run_at=clock.now - HOUR)
    await engine.insert([second, first])
    old = await in_state(engine, clock, State.COMPLETED, key="k", digest="d1")
    record = await engine.put_record("leader", "1")
    await engine.put_record("leader", None)
    await engine.close()

    again = await another()

    assert [each.id for each in await again.claim("w-2", ["default"], 9)] == [second.id, first.id]
    assert (await again.insert([job(clock, key="k", digest="d1")]))[0].id == old.id
    with pytest.raises(KeyConflict):
        await again.insert([job(clock, key="k", digest="d2")])
    renewed = await again.put_record("leader", "2", 0)
    assert isinstance(renewed, Record)
    assert renewed.version > record.version


@pytest.mark.usefixtures("lasting")
async def test_a_lease_outlives_a_close_or_is_broken_by_the_book(
    engine: Engine, another: Another, clock: StoreClock
) -> None:
    held = await claimed(engine, clock)
    await engine.record([step(held, "a")])
    await engine.close()

    again = await another()
    now = await current(again, held)

    if engine.guarantees.shared or now == held:
        assert now == held
        assert await again.claim("w-2", [held.queue], 1) == []
        assert (await done(again, clock, held, Event.COMPLETE)).epoch == held.epoch
    else:
        # Only the process that is gone could hold it, so its lease may be broken, as upkeep would have done.
        assert (now.state, now.version, now.epoch) == (State.AVAILABLE, held.version + 1, held.epoch)
        assert (await again.history(held.id))[-1].event == Event.LAPSE
        assert isinstance(await commit(again, change(clock, held, Event.COMPLETE)), Conflict)
    assert [kept.path for kept in await again.steps(held.id)] == ["a"]


@pytest.mark.usefixtures("lasting")
async def test_every_text_outlives_a_close(engine: Engine, another: Another, clock: StoreClock, text: str) -> None:
    held = await claimed(engine, clock, args=text, key=text[:200], group=text[:200])
    await engine.record([step(held, text[:200] + "#", result=text), step(held, "b", error=Error("E", text), tries=2)])
    await applied_to(engine, signal(clock, held, text[:200], text))
    await done(engine, clock, held, Event.COMPLETE, result=text, note={"text": text})
    await engine.put_record("r/" + text[:99], text or "1")
    before = await dump(engine)
    await engine.close()

    assert await dump(await another()) == before


@pytest.mark.usefixtures("lasting")
async def test_the_order_of_insertion_outlives_a_close(engine: Engine, another: Another, clock: StoreClock) -> None:
    due = clock.now
    jobs = [job(clock, run_at=due) for _ in range(6)]
    shuffled = [jobs[n] for n in (3, 0, 5, 1)]
    await engine.insert(shuffled)
    await engine.close()

    again = await another()
    await again.insert([jobs[4], jobs[2]])

    wanted = [each.id for each in (*shuffled, jobs[4], jobs[2])]
    assert [each.id for each in await again.claim("w-1", ["default"], 9)] == wanted


@pytest.mark.usefixtures("lasting")
async def test_all_is_there_after_a_kill(kind: Kind, url: str, another: Another) -> None:
    # pytest may have extended the path; the victim must find the engine's module where we found it.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    victim = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "holdfast.conformance.victim", kind.text(url)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        timeout=VICTIM_SECONDS,
        check=False,
    )
    assert victim.returncode == -SIGKILL, victim.stderr.decode()
    told = msgspec.json.decode(victim.stdout, type=Dump)
    assert told.jobs

    assert await dump(await another()) == told


@pytest.mark.usefixtures("shared")
async def test_what_one_engine_wrote_another_sees_at_once(engine: Engine, another: Another, clock: StoreClock) -> None:
    other = await another()

    told = await work(engine, clock)
    assert await dump(other) == told

    told = await work(other, clock, key="order-43")
    assert await dump(engine) == told


@pytest.mark.usefixtures("shared")
async def test_a_job_may_go_from_engine_to_engine(engine: Engine, another: Another, clock: StoreClock) -> None:
    other = await another()
    held = await claimed(engine, clock)
    await done(other, clock, held, Event.RELEASE)
    [again] = await engine.claim("w-2", [held.queue], 1)

    assert (await done(other, clock, again, Event.COMPLETE)).epoch == 2


@pytest.mark.usefixtures("shared")
async def test_one_engine_may_close_while_another_works(engine: Engine, another: Another, clock: StoreClock) -> None:
    other = await another()
    held = await claimed(other, clock)

    await other.close()

    assert (await done(engine, clock, held, Event.COMPLETE)).state is State.COMPLETED
