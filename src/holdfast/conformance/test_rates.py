"""Rates of shared limits, limits that are closed, and who hears of room."""

import asyncio
import random

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Another,
    StoreClock,
    claimed,
    commit,
    done,
    inserted,
    taken_over,
)
from holdfast.conformance.limited import (
    SOON,
    admit,
    ask,
    give_back,
    ids,
    is_admitted,
    limited,
    set_limit,
    suspended,
    take,
    uses,
)
from holdfast.core.lifecycle import decide
from holdfast.core.model import (
    Admission,
    Conflict,
    Event,
    Usage,
    Use,
)
from holdfast.core.shared_limits import (
    BUCKET,
    UNIT,
    Bucket,
    Settings,
    closed,
)
from holdfast.engines.contract import Engine
from holdfast.engines.topics import limit_topic, queue_topic

# Rates.


async def test_a_rate_lets_a_burst_start_and_then_refills(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, rate="60/h", burst=3)  # 58 an hour come in
    jobs = [await limited(engine, clock) for _ in range(6)]

    assert ids(await take(engine)) == ids(jobs[:3])
    assert await take(engine) == []
    clock.advance(-(-HOUR // 58) + clock.grain)
    assert ids(await take(engine)) == [jobs[3].id]
    clock.advance(HOUR)
    assert ids(await take(engine)) == ids(jobs[4:])


async def test_a_refused_step_is_told_when_to_ask_again(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, rate="60/h", burst=1)
    held = await claimed(engine, clock)
    assert await is_admitted(engine, ask(held, "a"))

    [answer] = await admit(engine, ask(held, "b"))

    assert isinstance(answer, Admission)
    assert answer.at is not None
    assert clock.is_now(answer.at - MINUTE)
    clock.advance(MINUTE + clock.grain)
    assert await is_admitted(engine, ask(held, "b"))


async def test_units_are_what_a_rate_counts(engine: Engine, clock: StoreClock) -> None:
    hardly_refilled = Settings(burst=100 * UNIT, refill=1, period_ms=DAY)  # a server's clock runs on meanwhile
    await set_limit(engine, settings=hardly_refilled)
    held = await claimed(engine, clock)

    assert await is_admitted(engine, ask(held, "a", units=60 * UNIT))
    assert not await is_admitted(engine, ask(held, "b", units=60 * UNIT))
    assert await is_admitted(engine, ask(held, "c", units=40 * UNIT))
    if clock.settable:  # a server's clock keeps running, and a millionth of a unit comes in at once
        assert not await is_admitted(engine, ask(held, "d", units=0))


async def test_an_estimate_is_corrected_once(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, rate="1000/d", burst=100)
    held = await claimed(engine, clock)
    await admit(engine, ask(held, "a", units=60 * UNIT))

    for _ in range(3):
        await admit(engine, give_back(held, "a", Use("api", -30 * UNIT)))

    [used] = await engine.usage("api")
    assert used.tokens is not None
    assert used.tokens // UNIT == 70
    assert await is_admitted(engine, ask(held, "b", units=70 * UNIT))
    await admit(engine, give_back(held, "b", Use("api", 500 * UNIT)))
    [used] = await engine.usage("api")
    assert used.tokens is not None
    assert used.tokens // UNIT == -500, "debt carries over"


async def test_no_window_ever_sees_more_than_the_rate(engine: Engine, clock: StoreClock) -> None:
    if not clock.settable:
        pytest.skip("a server's clock can't be moved in small steps")
    luck, period = random.Random(7), MINUTE  # noqa: S311
    for number, burst in ((1, 1), (3, 1), (10, 4), (10, 10)):
        key = f"r{number}.{burst}"
        await set_limit(engine, key, rate=f"{number}/m", burst=burst)
        held = await claimed(engine, clock)
        starts: list[int] = []
        for nth in range(200):
            clock.advance(luck.choice((0, 1, 50, period // number, period // 3)))
            if await is_admitted(engine, ask(held, f"s{nth}", key)):
                starts.append(clock.now)
        assert len(starts) > number
        for start in starts:
            assert len([at for at in starts if start <= at < start + period]) <= number


async def test_a_limit_of_calls_and_rate_keeps_both(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=2, rate="10/h", burst=3)
    jobs = [await limited(engine, clock) for _ in range(5)]
    held = await take(engine)
    assert ids(held) == ids(jobs[:2])

    await done(engine, clock, held[0], Event.COMPLETE)
    assert ids(await take(engine)) == [jobs[2].id]
    await done(engine, clock, held[1], Event.COMPLETE)

    assert await take(engine) == []


# Closing.


async def close_until(engine: Engine, until: int, key: str = "api") -> None:
    """What a provider's "slow down" does."""
    await engine.put_record(BUCKET + key, closed(Bucket(), until).text())


async def test_a_closed_limit_lets_nobody_start_and_reopens_gently(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=100)
    held = await claimed(engine, clock)
    jobs = [await limited(engine, clock) for _ in range(20)]
    until = clock.now + MINUTE
    await close_until(engine, until)

    assert await take(engine, 50) == []
    [answer] = await admit(engine, ask(held))
    assert answer == Admission(False, "api", until)
    clock.advance(MINUTE)
    if not clock.settable:
        clock.advance(clock.grain)
        assert await take(engine, 50) != []
        return

    assert ids(await take(engine, 50)) == ids(jobs[:2])
    assert await take(engine, 50) == []
    clock.advance(SECOND)
    assert ids(await take(engine, 50)) == ids(jobs[2:4])
    clock.advance(SECOND)
    assert ids(await take(engine, 50)) == ids(jobs[4:8])
    clock.advance(10 * SECOND)
    assert ids(await take(engine, 50)) == ids(jobs[8:])


async def test_a_limit_that_a_person_opens_is_open_at_once(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=2)
    waiting = await limited(engine, clock)
    await close_until(engine, clock.now + HOUR)
    assert await take(engine) == []

    await engine.put_record(BUCKET + "api", None)

    assert ids(await take(engine)) == [waiting.id]


# Waking, and looking.


async def test_whoever_waits_for_a_key_hears_of_room(engine: Engine, clock: StoreClock, another: Another) -> None:
    await set_limit(engine, at_once=1)
    held = await claimed(engine, clock)
    await admit(engine, ask(held))
    topics = [limit_topic("api")]
    mark = await engine.wait(topics, 0)
    waiter = asyncio.create_task(engine.wait(topics, 30, mark))
    await asyncio.sleep(0)

    await admit(engine, give_back(held))

    async with asyncio.timeout(SOON):
        await waiter


async def test_a_queue_hears_of_room_for_its_jobs(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    held = await claimed(engine, clock, options=uses("api"))
    waiting = await limited(engine, clock)
    assert await take(engine) == []
    topics = [queue_topic("default")]
    mark = await engine.wait(topics, 0)
    waiter = asyncio.create_task(engine.wait(topics, 30, mark))
    await asyncio.sleep(0)

    await done(engine, clock, held, Event.COMPLETE)

    async with asyncio.timeout(SOON):
        await waiter
    assert ids(await take(engine)) == [waiting.id]


async def test_a_wait_for_a_queue_ends_when_a_rate_has_room(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, rate="3600000/h", burst=1)  # about one a millisecond
    first, second = await limited(engine, clock), await limited(engine, clock)
    taken = ids(await take(engine))
    assert taken[:1] == [first.id]
    mark = await engine.wait([queue_topic("default")], 0)

    async with asyncio.timeout(SOON):
        await engine.wait([queue_topic("default")], 30, mark)

    if clock.settable:
        clock.advance(2)
    assert [*taken, *ids(await take(engine))] == [first.id, second.id]


async def test_usage_tells_what_is_held_and_who_waits(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=2)
    held = await claimed(engine, clock)
    await admit(engine, ask(held, "x", "api/b"))
    for _ in range(3):
        await limited(engine, clock, "api/a")
    assert len(await take(engine)) == 2
    await suspended(engine, clock, await claimed(engine, clock), "api/a")

    assert await engine.usage("api") == [Usage("api/a", 2, 2), Usage("api/b", 1, 0)]
    assert await engine.usage("nothing") == []


async def test_available_types_are_told_whether_they_are_limited_or_not(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    await limited(engine, clock, type="test.limited")
    await inserted(engine, clock, type="test.free")

    assert await engine.ready_types("default") == ["test.free", "test.limited"]


async def test_a_refused_change_frees_nothing(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    stale = await claimed(engine, clock)
    held = await taken_over(engine, clock, stale)
    await admit(engine, ask(held))

    answer = await commit(engine, replace(decide(stale, Event.COMPLETE, clock.now, result="1", by="w-1"), frees=True))

    assert isinstance(answer, Conflict)
    other = await claimed(engine, clock)
    assert not await is_admitted(engine, ask(other))
