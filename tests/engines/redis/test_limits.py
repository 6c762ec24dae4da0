"""What only a Redis store can show of shared limits: its arithmetic, its keys, and that no call grows."""

import random
import re
from collections import Counter

import msgspec
import redis

from holdfast.conformance.given import DAY, StoreClock, change, claimed, done, job
from holdfast.core.model import Ask, Event, Options, Use
from holdfast.core.shared_limits import BUCKET, BUCKET_KEPT_MS, LIMIT, MOST_UNITS, UNIT, Settings
from holdfast.engines.contract import Engine
from holdfast.engines.redis import engine as redis_engine
from holdfast.engines.redis.scripts import script
from holdfast.engines.redis.url import parse_url
from tests.engines.redis.given import opened

CLOCK = StoreClock(settable=False)
UNUSABLE = ('{"burst":1,"refill":1e999}', '{"burst":0,"period_ms":0}', '{"burst":1e40}', "[", '{"at_once":"1"}')
LIMITED = Options(limits=(Use("api"),))


def raw(url: str) -> "redis.Redis":
    """A connection of the test's own."""
    place = parse_url(url)
    return redis.Redis(place.host, place.port, place.db)


async def set_limit(engine: Engine, name: str, settings: Settings) -> None:
    """Write a limit's settings."""
    await engine.put_record(LIMIT + name, msgspec.json.encode(settings).decode())


def test_products_that_no_double_holds_are_divided_exactly(redis_store: str):
    """Units are millionths, so that a rate times a period is far beyond 2^53."""
    luck, most = random.Random(11), MOST_UNITS * UNIT
    found = re.search(r"  local function times_by.*?\n  end\n", script("admit").text, re.DOTALL)
    assert found is not None
    lua = found[0] + (
        "local told = {} for place = 1, #ARGV, 3 do "
        "local quotient, rest = times_by(tonumber(ARGV[place]), tonumber(ARGV[place + 1]), tonumber(ARGV[place + 2])) "
        "told[#told + 1] = string.format('%.0f %.0f', quotient, rest) end return told"
    )
    waits = [(luck.randint(1, most), luck.choice((1_000, 60_000, DAY)), luck.randint(1, most)) for _ in range(500)]
    waits = [(missing, period, max(refill, missing // 1_000)) for missing, period, refill in waits]
    fills = [(luck.randint(0, period), luck.randint(1, most), period) for period in (1_000, 60_000, DAY) * 100]

    with raw(redis_store) as client:
        told = client.eval(lua, 0, *(number for one in (*waits, *fills) for number in one))

    assert [tuple(map(int, text.split())) for text in told] == [divmod(a * b, c) for a, b, c in (*waits, *fills)]


def test_jobs_with_limits_leave_no_key_behind(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await set_limit(engine, "api", Settings(at_once=2))
        await engine.insert([job(CLOCK, options=replace_keep(LIMITED)) for _ in range(7)])
        for _ in range(4):
            for held in await engine.claim("w-1", ["default"], 9):
                asks = [Ask(job=held.id, epoch=held.epoch, path="a", uses=(Use("other"),))]
                await engine.admit(asks)
                ended = change(CLOCK, held, Event.COMPLETE)
                await engine.commit([msgspec.structs.replace(ended, frees=True)])
        assert await engine.prune() == 7
        assert await engine.claim("w-1", ["default"], 9) == []
        await engine.close()

    run(live())
    tag = parse_url(redis_store).tag
    with raw(redis_store) as client:
        names = Counter(key.decode().removeprefix(f"{tag}:").partition(":")[0] for key in client.keys(f"{tag}:*"))
    assert names == {"store": 1, "d": 1, "dv": 1, "dn": 1}


def replace_keep(options: Options) -> Options:
    """The same, for jobs that are pruned at once."""
    return msgspec.structs.replace(options, keep_ms=0)


def test_a_changed_limit_is_looked_at_under_every_key_however_many_there_are(redis_store: str, run, monkeypatch):
    monkeypatch.setattr(redis_engine, "RECHECKED_AT_ONCE", 10)

    async def live() -> None:
        engine = await opened(redis_store)
        await set_limit(engine, "api", Settings(at_once=1))
        keys = [f"api/{n:03}" for n in range(70)]
        await engine.insert([job(CLOCK, options=Options(limits=(Use(key),))) for key in keys for _ in range(2)])
        first = [held for _ in range(3) for held in await engine.claim("w-1", ["default"], 100)]
        assert Counter(held.options.limits[0].key for held in first) == Counter(keys)

        await set_limit(engine, "api", Settings(at_once=2))

        second = [held for _ in range(3) for held in await engine.claim("w-1", ["default"], 100)]
        assert Counter(held.options.limits[0].key for held in second) == Counter(keys)
        assert [used.held for used in await engine.usage("api")] == [2] * 70
        await engine.close()

    run(live())


def test_keys_with_room_for_other_types_keep_no_key_from_being_looked_at(redis_store: str, run):
    """One call looks at a few keys, and first at those that are new. The claim goes on while there are any of these."""

    async def live() -> None:
        engine = await opened(redis_store)
        foreign = [job(CLOCK, type="foreign", options=Options(limits=(Use(f"api/{n:03}"),))) for n in range(120)]
        await engine.insert(foreign)
        assert await engine.claim("w-1", ["default"], 9, ["mine"]) == []
        mine = job(CLOCK, type="mine", options=Options(limits=(Use("api/zzz"),)))
        await engine.insert([mine])

        assert [held.id for held in await engine.claim("w-1", ["default"], 9, ["mine"])] == [mine.id]
        claims = [await engine.claim("w-1", ["default"], 50, ["foreign"]) for _ in range(4)]
        assert {held.id for claim in claims for held in claim} == {one.id for one in foreign}
        await engine.close()

    run(live())


def test_stale_permits_of_a_large_limit_are_found_little_by_little(redis_store: str, run):
    many = 300

    async def live() -> None:
        engine = await opened(redis_store)
        await set_limit(engine, "api", Settings(at_once=many))
        held = await claimed(engine, CLOCK)
        for n in range(0, many, 50):
            asks = [Ask(job=held.id, epoch=held.epoch, path=f"p{m}", uses=(Use("api"),)) for m in range(n, n + 50)]
            answers, _ = await engine.admit(asks)
            assert all(answer.admitted for answer in answers)
        other = await claimed(engine, CLOCK)
        [refused], _ = await engine.admit([Ask(job=other.id, epoch=other.epoch, path="a", uses=(Use("api"),))])
        assert not refused.admitted

        await done(engine, CLOCK, held, Event.COMPLETE)  # and doesn't say that it had permits

        [answer], _ = await engine.admit([Ask(job=other.id, epoch=other.epoch, path="a", uses=(Use("api"),))])
        assert answer.admitted
        await engine.close()

    run(live())


def test_a_bucket_that_is_full_again_is_forgotten_and_no_other(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await set_limit(engine, "quick", Settings(burst=UNIT, refill=UNIT, period_ms=1_000))
        await set_limit(engine, "slow", Settings(burst=UNIT, refill=1, period_ms=DAY))
        held = await claimed(engine, CLOCK)
        for key in ("quick/a", "slow"):
            await engine.admit([Ask(job=held.id, epoch=held.epoch, path=key, uses=(Use(key),))])
        assert [record.name for record in await engine.records(BUCKET)] == [f"{BUCKET}quick/a", f"{BUCKET}slow"]
        await engine.prune()
        assert len(await engine.records(BUCKET)) == 2

        await engine.shift_clock(BUCKET_KEPT_MS + 60_000)
        await engine.prune()

        assert [record.name for record in await engine.records(BUCKET)] == [f"{BUCKET}slow"]
        await engine.close()

    run(live())


def test_settings_that_would_keep_the_server_busy_for_ever_limit_nobody(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        held = await claimed(engine, CLOCK)
        for nth, text in enumerate(UNUSABLE):
            await engine.put_record(f"{LIMIT}api", text)
            await engine.put_record(f"{BUCKET}api", '{"tokens":-5,"at":1}')
            [answer], _ = await engine.admit([Ask(job=held.id, epoch=held.epoch, path=f"p{nth}", uses=(Use("api"),))])
            assert answer.admitted, text
        await engine.close()

    run(live())
