"""Moving to and from a Redis store: its indexes after it, what is large, a load that is cut, a mark between calls."""

import asyncio
from typing import Any

import msgspec
import pytest
import redis
from msgspec.structs import replace

from holdfast.conformance.dump import dump
from holdfast.conformance.given import (
    HOUR,
    StoreClock,
    change,
    children,
    claimed,
    done,
    in_state,
    inserted,
    job,
    signal,
)
from holdfast.conformance.given import step as recorded
from holdfast.conformance.victim import work
from holdfast.core.errors import Moved, NotFound, StoreError
from holdfast.core.lifecycle import submit_entry
from holdfast.core.model import Event, Options, Record, State, StepState
from holdfast.core.moves import MOVED, Mark, Whole
from holdfast.engines.redis import RedisEngine
from holdfast.engines.redis.url import parse_url
from holdfast.jobs.transfer.move import Side, move
from tests.engines.redis.given import opened

CLOCK = StoreClock(settable=False)
INTO = Mark(move="m-1", away=False, store="file:/srv/old.json").text()


@pytest.fixture
def other_store(redis_url: str, tmp_path: Any) -> Any:
    url = RedisEngine.scratch(redis_url, tmp_path)
    yield url
    asyncio.run(RedisEngine.scrap(url))


# Its indexes.


def keys_of(url: str) -> dict[str, Any]:
    """All that a store consists of, but for what is its own: its identity and counters, beats, and zeros."""
    place = parse_url(url)
    found: dict[str, Any] = {}
    with redis.Redis(place.host, place.port, place.db) as client:
        for key in sorted(client.keys(f"{place.tag}:*")):
            name = key.decode().removeprefix(f"{place.tag}:")
            match client.type(key):
                case b"hash":
                    value: Any = client.hgetall(key)
                case b"zset":
                    value = client.zrange(key, 0, -1, withscores=True)
                case b"list":
                    value = client.lrange(key, 0, -1)
                case b"set":
                    value = client.smembers(key)
                case _:
                    value = client.get(key)
            if name[:2] == "g:":
                value = {field: number for field, number in value.items() if number != b"0"}
            elif name[:2] == "s:":  # the place of a step counts for its order only
                value = sorted((text[1:13], path, text[:1] + text[13:]) for path, text in value.items())
                value = [one[1:] for one in value]
            elif name[:2] == "j:":
                value[b"h"] = msgspec.msgpack.decode(value[b"h"])
            elif name in ("d", "dv", "dn"):
                value = sorted(str(one) for one in (value.items() if isinstance(value, dict) else value))
                value = [one for one in value if "moved" not in one]
            if value and name not in ("store", "w"):
                found[name] = value
    return found


async def lived(engine: RedisEngine) -> None:
    """Some of everything, and in every index."""
    await work(engine, CLOCK)
    parent = await claimed(engine, CLOCK, queue="parents", key="k-1", digest="d", key_until=CLOCK.now + HOUR)
    first, second, _ = await children(engine, CLOCK, parent, 3)
    await done(engine, CLOCK, first, Event.COMPLETE)
    await engine.commit([signal(CLOCK, second)])
    await engine.record([recorded(parent, "z"), recorded(parent, "a", StepState.FAILED), recorded(parent, "m")])
    for place, priority in enumerate((0, 9, 0, -3)):
        await inserted(engine, CLOCK, priority=priority, queue="line", key=f"p-{place}", digest="d")
    await inserted(engine, CLOCK, state=State.SCHEDULED, run_at=CLOCK.now + HOUR, expires_at=CLOCK.now + 2 * HOUR)
    await inserted(engine, CLOCK, expires_at=CLOCK.now + HOUR, queue="expires")
    await in_state(engine, CLOCK, State.COMPLETED, options=Options(keep_ms=HOUR))
    await engine.insert([job(CLOCK, queue="many") for _ in range(300)])
    await engine.put_record("pause/line", "1")


def test_a_store_that_was_filled_by_a_move_is_the_same_to_the_last_index(redis_store: str, other_store: str, run):
    async def live() -> int:
        source, target = await opened(redis_store), await opened(other_store)
        await lived(source)
        report = await move(Side(source, "old"), Side(target, "new"))
        await source.close()
        await target.close()
        return report.jobs

    assert run(live()) > 320
    filled, was = keys_of(other_store), keys_of(redis_store)
    assert sorted(filled) == sorted(was)
    for name, value in was.items():
        assert filled[name] == value, name
    assert {name[:2] for name in was} >= {
        "o",
        "o:",
        "q:",
        "y:",
        "t:",
        "x",
        "p",
        "c:",
        "g:",
        "k:",
        "ku",
        "h:",
        "f:",
        "s:",
    }


# What is large.


def large(entries: int, steps: int) -> Whole:
    held = job(CLOCK, state=State.ACTIVE, worker="w-1", epoch=entries, version=entries)
    first = submit_entry(replace(held, state=State.AVAILABLE, epoch=0))
    rest = [
        replace(first, version=version, event=Event.CLAIM, after=State.ACTIVE, by="w-1", epoch=version)
        for version in range(2, entries + 1)
    ]
    return Whole(held, (first, *rest), tuple(recorded(held, f"s#{n}") for n in range(steps)))


def test_a_large_job_is_loaded_and_read_in_portions_of_a_bearable_size(
    redis_store: str, run, monkeypatch: pytest.MonkeyPatch
):
    whole, small = large(1_300, 700), [large(3, 2) for _ in range(120)]
    sizes: list[int] = []
    script = RedisEngine._script

    async def sized(self: RedisEngine, wire: Any, name: str, *words: Any) -> Any:
        if name == "load":
            sizes.append(sum(1 + len(part[3]) for part in map(msgspec.msgpack.decode, words)))
        return await script(self, wire, name, *words)

    async def live() -> None:
        engine = await opened(redis_store)
        await engine.put_record(MOVED, INTO)
        monkeypatch.setattr(RedisEngine, "_script", sized)
        assert await engine.load([small[0], whole, *small[1:]]) == 121
        found = await engine.in_order()
        assert await engine.wholes(found) == [small[0], whole, *small[1:]]
        await engine.close()

    run(live())
    assert len(sizes) > 15
    assert max(sizes) <= 51


def test_a_load_that_is_cut_anywhere_is_repeated_and_nothing_is_there_twice(
    redis_store: str, run, monkeypatch: pytest.MonkeyPatch
):
    wholes = [large(3, 2), large(120, 130), *(large(2, 1) for _ in range(60))]
    script = RedisEngine._script

    async def live() -> None:
        engine = await opened(redis_store)
        await engine.put_record(MOVED, INTO)
        new = 0
        for last in range(1, 20):
            calls = 0

            async def cut(self: RedisEngine, wire: Any, name: str, *words: Any, last: int = last) -> Any:
                nonlocal calls
                calls += name == "load"
                answer = await script(self, wire, name, *words)
                if calls == last:
                    raise StoreError("the answer was lost")
                return answer

            monkeypatch.setattr(RedisEngine, "_script", cut)
            try:
                new = await engine.load(wholes)
                break
            except StoreError:
                monkeypatch.setattr(RedisEngine, "_script", script)
                there = await engine.in_order()
                # Those that are there are there whole, and are the first ones.
                assert await engine.wholes(there) == wholes[: len(there)]
        assert last > 4
        assert new == 0
        assert await engine.wholes(await engine.in_order()) == wholes
        assert await engine.count() == {("default", State.ACTIVE): len(wholes)}
        await engine.close()

    run(live())


def test_pages_go_over_gaps_that_pruned_jobs_left(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        ids = [job(CLOCK).id for _ in range(700)]
        kept = [n for n in range(700) if n % 97 == 0 or 260 < n < 270]
        options = {n: Options(keep_ms=None if n in kept else 0) for n in range(700)}
        for start in range(0, 700, 100):
            page = range(start, start + 100)
            await engine.insert([job(CLOCK, id=ids[n], options=options[n]) for n in page])
            held = await engine.claim("w-1", ["default"], 100)
            await engine.commit([change(CLOCK, one, Event.COMPLETE) for one in held])
        assert await engine.prune() == 700 - len(kept)

        for size in (1, 7, 1_000):
            found: list[str] = []
            while page_found := await engine.in_order(found[-1] if found else "", size):
                found += [one.id for one in page_found]
            assert found == [ids[n] for n in kept]
        with pytest.raises(NotFound):
            await engine.in_order(ids[1])
        await engine.close()

    run(live())


# The mark.


def test_who_is_answered_is_there_when_the_mark_comes_between_two_calls(
    redis_store: str, run, monkeypatch: pytest.MonkeyPatch
):
    script = RedisEngine._script

    async def live() -> None:
        engine = await opened(redis_store)
        calls, are_in, is_marked = 0, asyncio.Semaphore(0), asyncio.Event()

        async def marked(self: RedisEngine, wire: Any, name: str, *words: Any) -> Any:
            nonlocal calls
            if name != "insert":
                return await script(self, wire, name, *words)
            calls += 1
            if calls == 3:
                for _ in range(2):
                    await are_in.acquire()
                await script(self, self._looks, "put_record", MOVED, 1, INTO, "")
                is_marked.set()
            elif calls > 3:
                await is_marked.wait()
            answer = await script(self, wire, name, *words)
            are_in.release()
            return answer

        monkeypatch.setattr(RedisEngine, "_script", marked)
        groups = [[job(CLOCK) for _ in range(30)] for _ in range(6)]
        answers = await asyncio.gather(*(engine.insert(jobs) for jobs in groups), return_exceptions=True)

        taken = [one for jobs, answer in zip(groups, answers, strict=True) if isinstance(answer, list) for one in jobs]
        refused = [answer for answer in answers if not isinstance(answer, list)]
        assert taken
        assert refused
        assert all(isinstance(answer, Moved) for answer in refused)
        assert sorted(one.id for one in await engine.in_order()) == sorted(one.id for one in taken)
        await engine.close()

    run(live())


def test_the_mark_holds_for_turns_too(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        held = await claimed(engine, CLOCK)
        mark = await engine.put_record(MOVED, INTO)
        assert isinstance(mark, Record)
        before = await dump(engine)
        with pytest.raises(Moved):
            await engine.turn([change(CLOCK, held, Event.COMPLETE)], "w-1", ["default"], 4)
        assert await dump(engine) == before
        await engine.put_record(MOVED, None, mark.version)
        [answer], _ = await engine.turn([change(CLOCK, held, Event.COMPLETE)], "w-1", ["default"], 4)
        assert answer.version == held.version + 1
        await engine.close()

    run(live())
