"""Fairness: in one queue and priority, a key's next job starts after at most one job of every other waiting key."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable

import pytest
from msgspec import json

from holdfast.conformance.given import HOUR, MINUTE, Another, StoreClock, claimed, current, done, inserted, job
from holdfast.conformance.limited import admit, ask, give_back, set_limit, suspended
from holdfast.core.fairness import FAIR, TURN_KEPT_MS
from holdfast.core.model import Event, Inserted, Job, Options, State, Use
from holdfast.core.shared_limits import LIMIT, settings_from
from holdfast.engines.contract import Engine
from holdfast.engines.records import PAUSE

MOST_CLAIMS = 2_000
"""A claim that never ends must not hang the suite."""


def fair(key: str, *limits: str) -> Options:
    """The options of a job with a fair key, and perhaps limits."""
    return Options(fair=key, limits=tuple(Use(one) for one in limits))


async def insert_all(engine: Engine, clock: StoreClock, *keys: str, **fields: object) -> list[Job]:
    """A job for each of these keys, in this order; without a fair key where it is empty."""
    jobs = [job(clock, **{"run_at": clock.now, "options": fair(key)} | fields) for key in keys]
    for start in range(0, len(jobs), engine.insert_at_once):
        part = jobs[start : start + engine.insert_at_once]
        assert await engine.insert(part) == [Inserted(one.id, True) for one in part]
    return jobs


async def take(engine: Engine, limit: int, *types: str, queues: tuple[str, ...] = ("default",)) -> list[Job]:
    """Claim jobs, of any type if none is named."""
    return await engine.claim("w-1", queues, limit, types or None)


async def drain(engine: Engine, limits: Iterable[int] = (1,), *types: str) -> list[Job]:
    """Claim until nothing is left; of so many jobs at a time, in turn."""
    sizes, started = list(limits), list[Job]()
    for number in range(MOST_CLAIMS):
        held = await take(engine, sizes[number % len(sizes)], *types)
        if not held:
            return started
        started += held
    raise AssertionError("claims don't come to an end")


def keys_of(jobs: Iterable[Job]) -> str:
    """Their keys as one text; a dot for a job without one."""
    return "".join(one.options.fair or "." for one in jobs)


def check_turns(started: list[Job]) -> None:
    """The bound: between two starts of a key that had a job waiting, every other key starts at most once."""
    waiting = Counter(one.options.fair for one in started)
    since: dict[str, Counter[str]] = {key: Counter() for key in waiting}
    for one in started:
        key = one.options.fair
        for other, seen in since.items():
            if other != key and waiting[other]:
                seen[key] += 1
                assert seen[key] <= 1, f"{key!r} starts twice before {other!r}: {keys_of(started)}"
        waiting[key] -= 1
        since[key] = Counter()


# The order.


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_keys_take_turns(engine: Engine, clock: StoreClock, size: int) -> None:
    await insert_all(engine, clock, *"aaaabbc")

    assert keys_of(await drain(engine, [size])) == "abcabaa"


async def test_within_a_key_the_usual_order_holds(engine: Engine, clock: StoreClock) -> None:
    late = await inserted(engine, clock, options=fair("a"), run_at=clock.now)
    early = [await inserted(engine, clock, options=fair("a"), run_at=clock.now - HOUR) for _ in range(3)]

    assert [one.id for one in await drain(engine, [2])] == [*(one.id for one in early), late.id]


async def test_a_lower_priority_waits_for_the_higher_one(engine: Engine, clock: StoreClock) -> None:
    low = await insert_all(engine, clock, *"ab", priority=-1)
    high = await insert_all(engine, clock, *"aab", priority=3)

    started = await drain(engine, [2])

    assert [one.id for one in started] == [one.id for one in (high[0], high[2], high[1], *low)]


async def test_each_priority_has_its_own_round(engine: Engine, clock: StoreClock) -> None:
    await insert_all(engine, clock, *"aabbz")
    low = ""
    for _ in range(3):
        await insert_all(engine, clock, "z", priority=5)
        assert keys_of(await take(engine, 1)) == "z"
        low += keys_of(await take(engine, 1))

    assert low == "abz"


async def test_jobs_without_a_key_are_one_key_together(engine: Engine, clock: StoreClock) -> None:
    await insert_all(engine, clock, *["", "", "", "a", "a", "b"])

    assert keys_of(await drain(engine)) == ".ab.a."


async def test_queues_and_keys_of_the_same_name_are_apart(engine: Engine, clock: StoreClock) -> None:
    await insert_all(engine, clock, *"ab", queue="one")
    await insert_all(engine, clock, *"ab", queue="two")

    assert keys_of(await take(engine, 1, queues=("one",))) == "a"
    assert keys_of(await take(engine, 1, queues=("two",))) == "a"
    assert keys_of(await take(engine, 2, queues=("one", "two"))) == "bb"


async def test_keys_may_have_any_letters(engine: Engine, clock: StoreClock) -> None:
    keys = sorted(["a", "ab", "a b", "ä", "a/b", "é\U0001f600", ">", '"', "\x01", "~", "{x}", "\U0010ffff"])
    await insert_all(engine, clock, *[key for key in keys for _ in range(2)])

    assert [one.options.fair for one in await drain(engine, [5])] == [*keys, *keys]


# The bound.


async def test_one_key_with_many_jobs_delays_nobody(engine: Engine, clock: StoreClock) -> None:
    rare = [f"rare-{number}" for number in range(40)]
    await insert_all(engine, clock, *["many"] * 600, *rare, *rare[:10])

    started = await drain(engine, [7, 1, 30])

    assert len(started) == 650
    check_turns(started)


async def test_the_bound_holds_with_random_keys_and_arrivals(engine: Engine, clock: StoreClock) -> None:
    dice = random.Random(16)  # noqa: S311 (a test)
    for _ in range(3):
        weighted = ["many"] * 20 + [f"k{number}" for number in range(12)] + [""]
        await insert_all(engine, clock, *dice.choices(weighted, k=60), type="one")
        await insert_all(engine, clock, *dice.choices(weighted, k=30), type="two")
        check_turns([one for _ in range(8) for one in await take(engine, dice.choice([1, 2, 5]), "one", "two")])
    check_turns(await drain(engine, [3, 1], "one", "two"))


async def test_the_bound_holds_across_types(engine: Engine, clock: StoreClock) -> None:
    await insert_all(engine, clock, *"aaaaaa", type="one")
    await insert_all(engine, clock, *"aabbc", type="two")
    await insert_all(engine, clock, *"bbbb", type="three")

    started = await drain(engine, [1, 2], "one", "two")

    assert "three" not in {one.type for one in started}
    check_turns(started)


async def test_workers_that_know_other_types_starve_nobody(engine: Engine, clock: StoreClock) -> None:
    await insert_all(engine, clock, *"jjjjjj", type="one")
    await insert_all(engine, clock, *"iikk", type="two")

    turns = [keys_of(await take(engine, 1, type)) for _ in range(4) for type in ("one", "two")]

    assert turns[0::2] == ["j"] * 4
    assert turns[1::2] == ["i", "k", "i", "k"]


async def test_several_claimers_share_one_round(engine: Engine, clock: StoreClock, another: Another) -> None:
    await insert_all(engine, clock, *["many"] * 60, *[f"k{number}" for number in range(20)])
    others = [engine, *[await another() for _ in range(2 if engine.guarantees.shared else 0)]]
    claims = [claimer.claim(f"w-{number}", ["default"], 3) for number in range(10) for claimer in others]

    started = [one for held in await asyncio.gather(*claims) for one in held]

    assert len({one.id for one in started}) == len(started) == 30 * len(others) - max(0, 30 * len(others) - 80)
    counts = Counter(one.options.fair for one in started)
    assert all(counts[f"k{number}"] == 1 for number in range(min(20, len(started) - 2)) if len(started) >= 22)
    assert counts["many"] <= len(started) - 20 + 1


async def test_a_new_key_waits_for_one_job_of_each_other(engine: Engine, clock: StoreClock) -> None:
    await insert_all(engine, clock, *"bbbbbdddddd")
    assert keys_of(await take(engine, 3)) == "bdb"

    await insert_all(engine, clock, *"ac")

    assert keys_of(await drain(engine))[:4] in ("cdab", "dacb", "dabc", "cdba")


# Together with everything else.


async def test_retried_and_promoted_jobs_take_their_key_s_turn(engine: Engine, clock: StoreClock) -> None:
    [first, *_] = await insert_all(engine, clock, *"aab")
    await insert_all(engine, clock, "b", state=State.SCHEDULED, run_at=clock.now + MINUTE)
    [held] = await take(engine, 1)
    assert held.id == first.id
    await done(engine, clock, held, Event.RELEASE)
    clock.advance(2 * MINUTE)

    started = await drain(engine)

    assert keys_of(started) == "baba"
    assert first.id in {one.id for one in started}


async def test_cancelled_and_expired_jobs_have_no_turn(engine: Engine, clock: StoreClock) -> None:
    jobs = await insert_all(engine, clock, *"abca")
    await done(engine, clock, await current(engine, jobs[1]), Event.CANCEL)

    assert keys_of(await drain(engine)) == "aca"


async def test_a_paused_queue_hands_out_nothing(engine: Engine, clock: StoreClock) -> None:
    await insert_all(engine, clock, *"aab")
    assert keys_of(await take(engine, 1)) == "a"
    await engine.put_record(PAUSE + "default", "{}")
    assert await take(engine, 3) == []
    await engine.put_record(PAUSE + "default", None)

    assert keys_of(await drain(engine)) == "ba"


async def test_keys_take_turns_behind_a_shared_limit(engine: Engine, clock: StoreClock) -> None:
    await engine.put_record(LIMIT + "api", json.encode(settings_from("api", at_once=2)).decode())
    for key in "aaaabbc":
        await insert_all(engine, clock, key, options=fair(key, "api"))
    started: list[Job] = []
    for _ in range(MOST_CLAIMS):
        held = await take(engine, 5)
        assert len(held) <= 2
        started += held
        for one in held:
            await done(engine, clock, one, Event.COMPLETE)
        if not held:
            break

    assert keys_of(started) == "abcabaa"


async def test_a_key_without_room_gives_its_turn_away(engine: Engine, clock: StoreClock) -> None:
    await engine.put_record(LIMIT + "customer", json.encode(settings_from("customer", at_once=1)).decode())
    for key in "aaabb":
        await insert_all(engine, clock, key, options=fair(key, f"customer/{key}"))
    plain = await insert_all(engine, clock, *["", "c", "c"])

    held = await take(engine, 10)

    assert Counter(keys_of(held)) == Counter(".abcc")
    assert plain[0].id in {one.id for one in held}
    check_turns([one for one in held if not one.options.limits])


async def test_a_round_goes_on_after_the_store_was_opened_again(
    engine: Engine, clock: StoreClock, another: Another
) -> None:
    if not engine.guarantees.shared:
        pytest.skip("one process has this store to itself")
    await insert_all(engine, clock, *"aaabbb")
    assert keys_of(await take(engine, 1)) == "a"

    other = await another()

    assert keys_of(await other.claim("w-2", ["default"], 3)) == "bab"
    assert len(await engine.records(FAIR)) == 1


async def test_a_queue_without_fair_keys_keeps_no_round(engine: Engine, clock: StoreClock) -> None:
    jobs = await insert_all(engine, clock, "", "", "")

    assert [one.id for one in await drain(engine, [2])] == [one.id for one in jobs]
    assert await engine.records(FAIR) == []


async def test_the_types_of_fair_jobs_are_listed(engine: Engine, clock: StoreClock) -> None:
    await insert_all(engine, clock, *"ab", type="two.job")
    await insert_all(engine, clock, "", type="one.job")

    assert await engine.ready_types("default") == ["one.job", "two.job"]


async def test_a_round_that_nobody_continues_for_a_day_is_forgotten(engine: Engine, clock: StoreClock) -> None:
    await insert_all(engine, clock, "a", "b")
    await take(engine, 1)
    assert len(await engine.records(FAIR)) == 1

    clock.advance(TURN_KEPT_MS + HOUR)
    await engine.prune()

    assert await engine.records(FAIR) == []
    assert keys_of(await take(engine, 1)) == "b"


async def test_the_claim_that_wakes_a_job_with_a_fair_key_also_takes_it(engine: Engine, clock: StoreClock) -> None:
    await set_limit(engine, at_once=1)
    holder = await claimed(engine, clock)
    await admit(engine, ask(holder))
    waiting = await claimed(engine, clock, queue="default", options=fair("a"))
    await suspended(engine, clock, waiting)
    assert await take(engine, 1) == []

    await admit(engine, give_back(holder))

    assert [one.id for one in await take(engine, 1)] == [waiting.id]
