"""What only a Redis store can show: its URL and server, its keys, one call an act, news, a cluster, least rights."""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from msgspec.structs import replace
from redis.exceptions import MovedError

from holdfast import App, Settings, step
from holdfast.conformance.given import StoreClock, change, children, claimed, current, done, job
from holdfast.conformance.given import step as recorded
from holdfast.conformance.victim import work
from holdfast.core.errors import Invalid, StoreError, StoreForeign, StoreFull, StoreUnwritable
from holdfast.core.lifecycle import submit_entry
from holdfast.core.model import PAGE_LIMIT, Error, Event, Options, Presence, Record, State, Step, StepState, Where
from holdfast.core.moves import MOVED, HeldKey, Mark, Whole
from holdfast.engines import engine_for
from holdfast.engines.records import WORKER
from holdfast.engines.redis import RedisEngine, rows
from holdfast.engines.redis.connection import Way
from holdfast.engines.redis.reads import PAGE
from holdfast.engines.redis.url import parse_url
from holdfast.engines.redis.write_batches import CALL_WEIGHT, Part
from holdfast.engines.topics import job_topic, queue_topic
from holdfast.engines.urls import named
from holdfast.jobs.service import Jobs
from holdfast.upkeep.keeper import EXPIRE_BATCH, Keeper
from tests.engines.redis.given import opened
from tests.support.given import until
from tests.support.redis_server import Server, cluster, server

CLOCK = StoreClock(settable=False)
ROW_BEFORE_TRIES = tuple[int, str, int, int | None, Error | None, str | None]
"""How a step's record was read before its number of tries was in it."""
PATIENCE_SECONDS = 10.0
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "redis.md"


@pytest.mark.parametrize("error", [None, Error("E", "oops")])
def test_a_record_with_its_number_of_tries_is_read_by_an_older_worker(error):
    one = Step(
        job="j",
        epoch=2,
        path="draw#1",
        name="draw",
        state=StepState.DONE,
        result="1",
        error=error,
        started_at=3,
        tries=4,
    )
    text = rows.step_row(one)
    epoch, name, started_at, finished_at, _, result = msgspec.json.decode(text, type=ROW_BEFORE_TRIES)
    assert (epoch, name, started_at, finished_at, result) == (2, "draw", 3, None, "1")
    assert rows.step_of("j", "draw#1", b"d" + b"0" * 12 + text.encode()) == one
    # What it writes itself is read as one try.
    mine = msgspec.json.encode((2, "draw", 3, None, error, "1"))
    assert rows.step_of("j", "draw#1", b"d" + b"0" * 12 + mine) == replace(one, tries=1)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that this test may set up as it likes."""
    with server() as running:
        yield running


def raw(url: str) -> "redis.Redis":
    """A connection of the test's own."""
    place = parse_url(url)
    return redis.Redis(place.host, place.port, place.db)


@step
async def double(n: int) -> int:
    return 2 * n


def test_who_lost_its_node_asks_the_urls_and_the_last_one_in_turn():
    way = Way(parse_url("redis://home:1/0"))
    home, owner = ("home", 1), ("owner", 2)
    way.start_over(home)
    assert way.to == home
    way.follow(MovedError("5 owner:2"))
    asked = []
    for _ in range(4):
        way.start_over(way.to)
        asked.append(way.to)
    assert asked == [home, owner, home, owner]
    way.start_over(home)
    assert way.to == owner, "who was asking another node knows nothing of this one"


# URLs.


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://host/0?app=a b", "app='a b'"),
        ("redis://host/0?app={x}", "app='{x}'"),
        ("redis://host/0?app=", "app=''"),
        ("redis://host/0?app=" + "a" * 51, "at most 50"),
        ("redis://host/zero", "isn't a database number"),
        ("redis://host/0?decode_responses=1", "unknown option 'decode_responses'"),
        ("redis://host/0#x", "can't contain '#'"),
        ("redis://host:port/0", "is not a valid URL"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_before_anything_is_opened(url: str, says: str):
    with pytest.raises(Invalid, match=re.escape(says)):
        engine_for(url)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "valkeys"])
def test_four_schemes_name_this_engine(scheme: str):
    engine = engine_for(f"{scheme}://host:1234/2?app=video")

    assert isinstance(engine, RedisEngine)
    assert (engine._url.port, engine._url.db, engine._url.tag) == (1234, 2, "{video}")
    assert engine._url.tls == (scheme in ("rediss", "valkeys"))


def test_two_apps_on_one_server_have_two_names():
    """A name is kept as where a store's jobs were moved to: it must not lead to another app's."""
    first, second = (named(f"redis://ada:secret@host:6379/0?app={app}&ssl_keyfile=key") for app in ("video", "audio"))
    assert (first, second) == ("redis://host:6379/0?app=video", "redis://host:6379/0?app=audio")


def test_a_password_is_never_shown(run):
    async def live() -> str:
        with pytest.raises(StoreError) as caught:
            await opened("redis://somebody:se%2Fcret@127.0.0.1:1/0")
        return str(caught.value)

    told = run(live())
    assert "cret" not in told
    assert "127.0.0.1:1" in told
    assert "\n" not in told


# The server.


def test_a_server_that_throws_keys_away_is_refused(own_server: Server, run):
    own_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    run(run_and_close(own_server.url))  # without a limit nothing is thrown away
    own_server.ask("CONFIG", "SET", "maxmemory", "100mb")

    with pytest.raises(StoreForeign, match="maxmemory-policy is allkeys-lru.*set maxmemory-policy noeviction"):
        run(opened(own_server.url))


async def run_and_close(url: str) -> None:
    await (await opened(url)).close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"appendonly": "yes"}, ""),
        ({"appendonly": "yes", "appendfsync": "no"}, "appendfsync is no: a power cut can lose"),
        ({"appendonly": "no", "save": ""}, "a restart of the server loses every job; set appendonly yes"),
        ({"appendonly": "no", "save": "60 1"}, "loses every write since its last snapshot; set appendonly yes"),
    ],
)
def test_what_can_be_lost_is_said_once_at_open(
    own_server: Server, run, caplog: pytest.LogCaptureFixture, settings: dict[str, str], says: str
):
    for name, value in settings.items():
        own_server.ask("CONFIG", "SET", name, value)

    with caplog.at_level(logging.WARNING, "holdfast"):
        run(run_and_close(own_server.url))

    told = [record.getMessage() for record in caplog.records if record.name == "holdfast.redis"]
    assert len(told) == bool(says)
    assert says in "".join(told)


def test_a_full_server_says_so_and_writes_nothing(own_server: Server, run):
    async def live() -> None:
        engine = await opened(own_server.url)
        now = await engine.now()
        late = [job(CLOCK, expires_at=now - 10 + n, queue="late") for n in range(3)]
        await engine.insert(late)
        first = await engine.find(Where(expires_before=now - 10))
        before = await work(engine, CLOCK)
        own_server.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreFull, match="nothing was written; raise maxmemory"):
            await engine.insert([job(CLOCK)])
        assert len(await engine.find(Where())) == len(before.jobs)
        assert [one.id for one in first] == [late[0].id]
        ids, expired = sorted(one.id for one in late), Where(expires_before=now, queue="late")
        assert [one.id for one in await engine.find(expired)] == ids, "what is there can be read"
        assert [one.id for one in await engine.find(expired, after=ids[0], limit=1)] == ids[1:2]
        own_server.ask("CONFIG", "SET", "maxmemory", "0")
        await engine.insert([job(CLOCK)])
        await engine.close()

    run(live())


def test_many_who_open_an_empty_store_at_once_make_it_once(redis_store: str, run):
    async def live() -> set[str]:
        engines = await asyncio.gather(*(opened(redis_store) for _ in range(8)))
        ids = {engine._store.given()[0] for engine in engines}
        await asyncio.gather(*(engine.close() for engine in engines))
        return ids

    assert len(run(live())) == 1


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda raw, key: raw.set(key, "mine"), "holds another type of value"),
        (lambda raw, key: raw.hset(key, "mine", "1"), "keys with this prefix belong to another program"),
        (
            lambda raw, key: raw.hset(
                key, mapping={"id": "x", "format": 9, "oldest": 9, "gen": 1, "seq": 0, "run": "r"}
            ),
            "newer Holdfast",
        ),
    ],
)
def test_keys_that_are_not_ours_or_newer_are_refused_and_left_alone(redis_store: str, run, made: Any, says: str):
    place = parse_url(redis_store)
    key = f"{place.tag}:store"
    with raw(redis_store) as client:
        made(client, key)
        before = client.dump(key)

        with pytest.raises(StoreForeign, match=says):
            run(opened(redis_store))

        assert client.dump(key) == before
        assert client.keys(f"{place.tag}:*") == [key.encode()]


# Keys.


def test_every_key_has_the_hash_tag_and_none_ends_by_itself(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await work(engine, CLOCK)
        await engine.close()

    with raw(redis_store) as client:
        others = set(client.keys("*"))
        run(live())
        ours = set(client.keys("*")) - others
        assert len(ours) > 20
        assert {key.partition(b":")[0].decode() for key in ours} == {parse_url(redis_store).tag}
        assert {client.ttl(key) for key in ours} == {-1}


def test_what_is_pruned_leaves_no_key_behind(redis_store: str, run):
    at_once = Options(keep_ms=0)

    async def live() -> None:
        engine = await opened(redis_store)
        for n in range(30):
            key = f"order-{n}" if n % 2 else None
            parent = await claimed(engine, CLOCK, options=at_once, key=key, expires_at=CLOCK.now + 60_000)
            await engine.record([recorded(parent, "a"), recorded(parent, "b")])
            for child in await children(engine, CLOCK, parent, 2):
                await engine.commit([change(CLOCK, child, Event.CANCEL)])
            await done(engine, CLOCK, await current(engine, parent), Event.COMPLETE)
        assert await engine.prune() == 30
        for one in await engine.find(Where(states=(State.CANCELLED,))):  # their children have no time to leave
            assert one.prune_at is None
        await engine.close()

    run(live())
    tag = parse_url(redis_store).tag
    with raw(redis_store) as client:
        names = Counter(key.decode().removeprefix(f"{tag}:").partition(":")[0] for key in client.keys(f"{tag}:*"))
    assert names == {"store": 1, "j": 60, "i": 1, "c": 31, "o": 2}


def test_a_crowd_of_children_waits_for_its_parent_without_being_looked_at_again(redis_store: str, run):
    """Ended children whose parent lives are set aside; each prune after that has nothing to walk over."""

    async def live() -> None:
        engine = await opened(redis_store)
        parent = await claimed(engine, CLOCK, options=Options(keep_ms=0))
        crowd = [job(CLOCK, parent=parent.id, group="g", queue="crowd", options=Options(keep_ms=0)) for _ in range(350)]
        await engine.insert(crowd, parent.lease)
        held = await engine.claim("w-1", ["crowd"], 400)
        await engine.commit([change(CLOCK, one, Event.COMPLETE) for one in held])
        assert await engine.prune() == 0
        with raw(redis_store) as client:
            assert client.zcard(f"{parse_url(redis_store).tag}:p") == 0
        await done(engine, CLOCK, await current(engine, parent), Event.COMPLETE)
        assert await engine.prune() == 351
        assert await engine.count() == {}
        with raw(redis_store) as client:
            assert client.keys(f"{parse_url(redis_store).tag}:o*") == []
        await engine.close()

    run(live())


# One call an act.


class Counted:
    """Counts the commands that an engine's wires send."""

    def __init__(self, engine: RedisEngine) -> None:
        self._wires = (engine._acts, engine._looks, engine._beats)
        self._before = self._sum()

    def _sum(self) -> int:
        return sum(wire.calls for wire in self._wires)

    def __call__(self) -> int:
        before, self._before = self._before, self._sum()
        return self._before - before


def test_an_act_is_one_command(redis_store: str, run):
    async def live() -> list[tuple[str, int]]:
        engine = await opened(redis_store)
        await claimed(engine, CLOCK)  # all connections are made, and all scripts known
        await engine.beat(Presence(worker="w-1"))
        counted, costs = Counted(engine), []
        few = CALL_WEIGHT // 2
        await engine.insert([job(CLOCK) for _ in range(few)])
        costs.append(("insert", counted()))
        held = await engine.claim("w-1", ["default"], few)
        costs.append(("claim", counted()))
        await engine.record([recorded(one) for one in held])
        await engine.record([recorded(one, "b") for one in held])
        counted()
        await engine.record([recorded(one, "c") for one in held])
        costs.append(("record", counted()))
        await engine.commit([change(CLOCK, held[0], Event.RELEASE)])
        counted()
        await engine.commit([change(CLOCK, one, Event.COMPLETE, steps=(recorded(one, "d"),)) for one in held[1:]])
        costs.append(("commit", counted()))
        await engine.beat(Presence(worker="w-1"))
        costs.append(("beat", counted()))
        await engine.close()
        return costs

    assert run(live()) == [(act, 1) for act in ("insert", "claim", "record", "commit", "beat")]


def test_a_walk_over_what_expired_costs_each_job_once(redis_store: str, run, monkeypatch: pytest.MonkeyPatch):
    """Not all of them again for every page. What counts is what the server looks at: a page a call."""
    many, told = 3_000, []

    async def live() -> None:
        engine = await opened(redis_store)
        look = engine._look

        async def looked(name: str, *words: Any) -> Any:
            answer = await look(name, *words)
            told.append((name, len(answer)))
            return answer

        async def walked(where: Where) -> list[str]:
            return [one.id async for one in Jobs(engine).walk(where)]

        now = await engine.now()
        jobs = [job(CLOCK, expires_at=now - n) for n in range(many)]
        living = [job(CLOCK, expires_at=now + 3_600_000 + n) for n in range(300)]
        for start in range(0, many, 500):
            await engine.insert(jobs[start : start + 500])
        await engine.insert(living)
        late = sorted(one.id for one in jobs)
        monkeypatch.setattr(engine, "_look", looked)
        monkeypatch.setattr(engine, "_read", None)  # what is listed whole
        counted = Counted(engine)
        assert await walked(Where(expires_before=now)) == late
        pages = many // PAGE
        assert counted() <= 2 * pages + 10, "once into order, and once along it"
        assert max(size for _, size in told) <= PAGE + 1
        assert await walked(Where(expires_before=now, newest_first=True)) == late[::-1]
        assert counted() <= pages + 10, "in order already"
        assert await walked(Where(expires_before=now - many // 2)) == sorted(one.id for one in jobs[many // 2 :])
        monkeypatch.undo()

        for start in range(PAGE_LIMIT + 50, many, 500):  # the keeper gets more than a page of them
            held = [one for one in await engine.get(late[start : start + 500]) if one is not None]
            await engine.commit([change(CLOCK, one, Event.EXPIRE) for one in held])
        keeper = Keeper(engine, "w-1", lease_seconds=15, look_seconds=1, upkeep_seconds=1)
        for _ in range((PAGE_LIMIT + 50) // EXPIRE_BATCH + 1):
            await keeper.tidy()
        assert await engine.count() == {("default", State.DISCARDED): many, ("default", State.AVAILABLE): len(living)}
        assert await walked(Where(expires_before=now)) == []
        await engine.close()

    run(live())
    with raw(redis_store) as client:
        tag = parse_url(redis_store).tag
        assert (client.zcard(f"{tag}:x"), client.zcard(f"{tag}:xi")) == (300, 0)


def test_callers_who_come_together_share_a_call(redis_store: str, run, monkeypatch: pytest.MonkeyPatch):
    async def live() -> int:
        engine = await opened(redis_store)
        held = [await claimed(engine, CLOCK) for _ in range(40)]
        await engine.record([recorded(held[0], "first")])
        counted, in_calls, came = Counted(engine), engine._batches._in_calls, list[Any]()

        async def once_all_are_here(name: str, parts: Iterable[Part]) -> list[Any]:
            parts = list(parts)
            came.extend(asked for asked, _ in parts)
            async with asyncio.timeout(10):
                while sum(came) + len(engine._batches._records.waiting) < len(held):  # noqa: ASYNC110 (other threads)
                    await asyncio.sleep(0.001)
            return await in_calls(name, parts)

        monkeypatch.setattr(engine._batches, "_in_calls", once_all_are_here)
        await asyncio.gather(*(engine.record([recorded(one)]) for one in held))
        await engine.close()
        return counted()

    assert run(live()) <= 4


def test_one_callers_conflict_is_not_the_others(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        holder = job(CLOCK, key="k")
        await engine.insert([holder])
        answers = await asyncio.gather(
            *(engine.insert([job(CLOCK, key="k" if n == 7 else None)]) for n in range(20)), return_exceptions=True
        )
        assert [type(answer).__name__ for answer in answers] == ["KeyConflict" if n == 7 else "list" for n in range(20)]
        await engine.close()

    run(live())


def test_a_script_that_the_server_forgot_is_sent_again(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        held = await claimed(engine, CLOCK)
        with raw(redis_store) as client:
            client.script_flush()
        await engine.record([recorded(held)])
        assert len(await engine.steps(held.id)) == 1
        await engine.close()

    run(live())


# News.


def test_nobody_hears_what_it_does_not_wait_for(redis_store: str, run):
    async def live() -> None:
        engine, other = await opened(redis_store), await opened(redis_store)
        await engine.wait([queue_topic("q")], 0)
        heard: list[str] = []
        engine._news._heard = heard.extend
        await other.insert([job(CLOCK, queue="elsewhere")])
        held = await claimed(other, CLOCK)
        await done(other, CLOCK, held, Event.COMPLETE)
        await other.insert([job(CLOCK, queue="q")])

        async def is_heard() -> bool:
            return bool(heard)

        await until(is_heard)
        assert heard == [queue_topic("q")]
        await engine.close()
        await other.close()

    run(live())


def test_news_are_heard_again_after_the_connection_was_lost(redis_store: str, run):
    async def live() -> None:
        engine, other = await opened(redis_store), await opened(redis_store)
        held = await claimed(other, CLOCK)
        mark = await engine.wait([job_topic(held.id)], 0)
        mark = await engine.wait([job_topic(held.id)], 0, mark)
        with raw(redis_store) as client:
            client.client_kill_filter(_type="pubsub")

        async def hears() -> bool:
            return job_topic(held.id) in engine._news.hears

        await engine.wait([job_topic(held.id)], 5, mark)  # told that something may have been missed
        await until(hears)
        mark = await engine.wait([job_topic(held.id)], 0, 10**9)
        waiting = asyncio.create_task(engine.wait([job_topic(held.id)], 30, mark))
        await asyncio.sleep(0.05)
        await done(other, CLOCK, held, Event.COMPLETE)
        async with asyncio.timeout(2):
            await waiting
        await engine.close()
        await other.close()

    run(live())


def test_an_idle_worker_sends_at_most_two_commands_a_second(own_server: Server, run):
    app = App(own_server.url)

    @app.job
    async def nothing() -> None: ...

    async def live() -> float:
        async with app.worker(at_once=8):
            await nothing.submit()
            await asyncio.sleep(2)
            with raw(own_server.url) as client:
                before, began = sent(client), time.monotonic()
                await asyncio.sleep(10)
                after = sent(client)
            rate = (after - before) / (time.monotonic() - began)
        await app.close()
        return rate

    assert run(live()) <= 2.0


def sent(client: "redis.Redis") -> int:
    """How many commands were sent by clients: those that scripts run are counted too, so only ours at the door are."""
    stats: dict[str, Any] = client.info("commandstats")
    ours = ("evalsha", "eval", "client|list", "subscribe", "ping", "hello")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ours)


# A cluster.


def test_a_store_lives_on_one_node_of_a_cluster_and_every_node_leads_there(run):
    async def live(nodes: list[Server]) -> None:
        urls = [f"{node.url}?app=app-{n}" for n, node in enumerate(nodes)]
        for n in range(12):  # several apps, whose slots are on different nodes
            engine = await opened(f"{nodes[n % 3].url}?app=app-{n}")
            await work(engine, CLOCK)
            await engine.close()
        used = [node for node in nodes if int(str(node.ask("DBSIZE"))) > 0]
        assert len(used) > 1
        app = App(urls[0], settings=Settings(beat_seconds=0.2, lease_seconds=2))
        other = App(f"{nodes[2].url}?app=app-0", settings=Settings(beat_seconds=0.2, lease_seconds=2))

        @app.job
        async def doubled(n: int) -> list[int]:
            return await double.map(range(n))

        async with app.worker(at_once=4):
            began = time.monotonic()
            run = await other.run((await doubled.submit(5)).id)
            assert await run.result(10) == [0, 2, 4, 6, 8]
            assert time.monotonic() - began < 3  # woken, not found by looking
            present = await other.engine.records(WORKER)
            assert len(present) == 1
            assert '"gone":true' not in present[0].value
        await app.close()
        await other.close()

    with cluster() as nodes:
        run(live(nodes))


# Rights.


def least_rights() -> list[list[str]]:
    """The guide's ACL commands, as words: for every server, and what newer ones need besides."""
    found = re.findall(r"^ACL SETUSER (.+?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return [rules.replace("\\\n", " ").split() for rules in found]


SINCE_7 = {"ssubscribe", "sunsubscribe", "spublish", "client|setinfo"}
"""What Redis 6.2 doesn't know, or 7.0 doesn't yet: a rule that names one is refused as a whole."""


def test_the_rights_for_every_server_name_nothing_that_an_old_one_does_not_know():
    first, second = least_rights()
    assert first[0] == second[0]
    assert not SINCE_7 & {rule[1:] for rule in first}
    assert {rule[1:] for rule in second[1:]} == SINCE_7 - {"client|setinfo"}


@pytest.mark.parametrize("commands", [1, 2], ids=["an old server", "a new one"])
def test_a_worker_needs_no_more_rights_than_the_guide_names(own_server: Server, run, commands: int):
    [user, *rules], *more = least_rights()[:commands]
    [password] = [rule[1:] for rule in rules if rule.startswith(">")]
    with raw(own_server.url) as client:
        client.execute_command("ACL", "SETUSER", user, *rules)
        for words in more:
            client.execute_command("ACL", "SETUSER", *words)
        client.acl_log_reset()
        url = own_server.url.replace("redis://", f"redis://{user}:{password}@")
        app = App(url, settings=Settings(beat_seconds=0.2, lease_seconds=2, upkeep_seconds=0.2, look_seconds=0.1))

        @app.job(keep="1ms")
        async def doubled(n: int) -> list[int]:
            return await double.map(range(n))

        async def live() -> None:
            async with app.worker(at_once=4):
                for one in await doubled.submit_many([(3,) for _ in range(10)]):
                    with suppress(LookupError):  # it may have left already
                        assert await one.result(10) == [0, 2, 4]
                await asyncio.sleep(1)
            await work(app.engine, CLOCK)
            await app.engine.prune()
            await moved_away(app.engine)  # type: ignore[arg-type]
            await app.close()

        run(live())
        asked = {entry["object"] for entry in client.acl_log()}
        # To say what can be lost, and what the driver says of itself: asked for, refused, and gone on without.
        assert asked <= {"config|get", "client|setinfo"}, asked
        for command in (("SET", "{other}:x", "1"), ("FLUSHALL",), ("KEYS", "*")):
            limited = redis.Redis("127.0.0.1", own_server.port, username=user, password=password)
            with limited, pytest.raises(redis.exceptions.NoPermissionError):
                limited.execute_command(*command)


async def moved_away(engine: RedisEngine) -> None:
    """All that a move asks of a store, on both sides."""
    marked = await engine.put_record(MOVED, Mark(move="m-1", away=False, store="elsewhere").text())
    wholes, keys = await engine.wholes(await engine.in_order()), await engine.keys()
    assert await engine.keys((keys[0].type, keys[0].key)) == keys[1:]
    records = [record for record in await engine.all_records() if record.name != MOVED]
    new = [Whole(replace(one.job, id=job(CLOCK).id, version=1, key=None), ()) for one in wholes]
    new = [replace(one, entries=(submit_entry(one.job),)) for one in new]
    assert await engine.load(new, [HeldKey("t", "k", "j", "d")], records) == len(new)
    assert isinstance(marked, Record)
    await engine.put_record(MOVED, None, marked.version)


def test_missing_rights_are_one_clear_line(own_server: Server, run):
    own_server.ask("ACL", "SETUSER", "guest", "on", ">guest", "~*", "+info", "+client|id", "+select", "+auth", "+hello")

    with pytest.raises(StoreUnwritable, match="ACL rights listed in the Redis guide"):
        run(opened(own_server.url.replace("redis://", "redis://guest:guest@")))
    own_server.ask("ACL", "SETUSER", "half", "on", ">half", "~*", "&*", "+@all", "-lrem", "-hincrby")

    async def insert() -> None:
        engine = await opened(own_server.url.replace("redis://", "redis://half:half@"))
        try:
            await engine.insert([job(CLOCK)])
        finally:
            await engine.close()

    with pytest.raises(StoreUnwritable, match="ACL rights listed in the Redis guide"):
        run(insert())
    with pytest.raises(StoreUnwritable, match="check the user and the password"):
        run(opened(own_server.url.replace("redis://", "redis://guest:wrong@")))
