"""A Redis that restarts, forgets, goes back, or loses connections and replies: nothing twice, and no loss unnoticed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast import App, Settings
from holdfast import step as step_of_job
from holdfast.conformance.dump import dump, presence_of
from holdfast.conformance.given import StoreClock, change, claimed, current, job, step
from holdfast.conformance.victim import work
from holdfast.core.errors import StoreBusy, StoreError, StoreLost
from holdfast.core.model import Applied, Conflict, Event, Presence, State, Where
from holdfast.engines.records import WORKER
from holdfast.engines.redis import RedisEngine
from holdfast.engines.redis.connection import NotConnected, Way, Wire
from holdfast.engines.redis.url import parse_url
from holdfast.engines.redis.write_batches import CALL_WEIGHT
from tests.engines.redis.given import opened
from tests.support.given import until
from tests.support.proxy import Proxy
from tests.support.redis_server import Server, server

CLOCK = StoreClock(settable=False)
PATIENCE_SECONDS = 10.0


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that this test may restart; it keeps what it has."""
    with server() as running:
        yield running


@pytest.fixture
def forgetful_server() -> Iterator[Server]:
    """A server that keeps nothing over a restart."""
    with server(kept=False) as running:
        yield running


async def again(call: Any) -> Any:
    """What a caller does whose store was away for a moment."""

    async def tried() -> Any:
        try:
            return (await call(),)
        except StoreLost:
            raise
        except StoreError:
            return None

    return (await until(tried))[0]


# What was lost is noticed.


async def assert_lost(engine: RedisEngine, says: str) -> None:
    """Every further call is refused, with one line that says what happened and what now."""
    for call in (
        lambda: engine.insert([job(CLOCK)]),
        lambda: engine.claim("w-1", ["default"], 1),
        lambda: engine.find(Where()),
        lambda: engine.beat(Presence(worker="w-1")),
        lambda: engine.now(),
        lambda: engine.wait(["queue:default"], 0.1),
    ):
        with pytest.raises(StoreLost) as caught:
            await again(call)
        assert says in str(caught.value)
        assert "restart this process" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_comes_back_empty_is_noticed(forgetful_server: Server, run, how: signal.Signals, caplog: Any):
    async def live() -> None:
        engine = await opened(forgetful_server.url)
        await work(engine, CLOCK)
        await asyncio.to_thread(forgetful_server.restart, how)
        await assert_lost(engine, "it is empty")
        assert int(str(forgetful_server.ask("DBSIZE"))) == 0  # and nothing was written
        await engine.close()
        await engine.open()  # accepted
        await engine.insert([job(CLOCK)])
        await engine.close()

    run(live())
    assert [
        record.levelname for record in caplog.records if "the store lost acknowledged writes" in record.getMessage()
    ] == ["CRITICAL"]


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_store_that_was_flushed_under_our_hands_is_noticed(redis_store: str, run, made_anew: bool):
    async def live() -> None:
        engine = await opened(redis_store)
        held = await claimed(engine, CLOCK)
        await RedisEngine.scrap(redis_store)
        if made_anew:
            other = await opened(redis_store)
            await other.insert([job(CLOCK)])
            await other.close()
        with pytest.raises(StoreLost, match="another store has its name now" if made_anew else "it was emptied"):
            await engine.commit([change(CLOCK, held, Event.COMPLETE)])
        await assert_lost(engine, "the store lost acknowledged writes")
        await engine.close()

    run(live())


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary and its replica, in step."""
    with server() as primary, server("--replicaof", f"127.0.0.1 {primary.port}", kept=False) as replica:
        end = time.monotonic() + PATIENCE_SECONDS
        while "master_link_status:up" not in str(replica.ask("INFO", "replication")):
            assert time.monotonic() < end
            time.sleep(0.05)
        yield primary, replica


async def in_step(primary: Server, replica: Server) -> None:
    """Wait until the replica has all that was written so far."""

    async def same() -> bool:
        primary.ask("PING")
        return primary.ask("HGET", "{holdfast}:store", "seq") == replica.ask("HGET", "{holdfast}:store", "seq")

    await until(same)


def test_a_failover_to_a_replica_in_step_goes_on(pair: tuple[Server, Server], run):
    primary, replica = pair

    async def live() -> None:
        with Proxy(primary.port) as proxy:
            engine = await opened(proxy.through(primary.url))
            held = await claimed(engine, CLOCK)
            before = await dump(engine)
            await in_step(primary, replica)
            replica.ask("REPLICAOF", "NO", "ONE")
            proxy._to = replica.port
            proxy.cut()
            assert await again(lambda: dump(engine)) == before
            assert isinstance((await engine.commit([change(CLOCK, held, Event.COMPLETE)]))[0], Applied)
            await engine.close()

    run(live())


@pytest.mark.parametrize("others", [0, 30])
def test_a_failover_to_a_stale_replica_is_noticed(pair: tuple[Server, Server], run, others: int):
    """Also when somebody who saw less was faster and has written more since than was lost."""
    primary, replica = pair

    async def live() -> None:
        with Proxy(primary.port) as proxy, Proxy(primary.port) as elsewhere:
            engine = await opened(proxy.through(primary.url))
            other = await opened(elsewhere.through(primary.url))
            held = await claimed(engine, CLOCK)
            await other.find(Where())
            await in_step(primary, replica)
            replica.ask("REPLICAOF", "NO", "ONE")  # cut off: from here on it is behind
            for n in range(5):
                await engine.record([step(held, f"lost-{n}")])
            for one in (proxy, elsewhere):
                one._to = replica.port
                one.cut()
            for _ in range(others):
                await again(lambda: other.insert([job(CLOCK)]))
            await assert_lost(engine, "it is 5 writes behind what we have seen")
            assert await again(lambda: other.steps(held.id)) == []
            await other.close()
            await engine.close()

    run(live())


def test_a_worker_that_notices_a_loss_runs_no_further_step(forgetful_server: Server, run):
    """Its jobs may be running elsewhere under the same epoch, so that no fence would hold it back."""

    async def live() -> None:
        app = App(forgetful_server.url, settings=Settings(beat_seconds=0.2, lease_seconds=1))
        begun, went_on = asyncio.Event(), []

        @step_of_job(name="go_on")
        async def go_on(n: int) -> int:
            went_on.append(n)
            await asyncio.sleep(0.05)
            return n

        @app.job
        async def long() -> None:
            for n in range(1_000):
                await go_on(n)
                begun.set()

        async with app.worker(at_once=1):
            await long.submit()
            await begun.wait()
            await asyncio.to_thread(forgetful_server.restart, signal.SIGKILL)

            async def lost() -> bool:
                return app.engine._store.lost is not None  # type: ignore[attr-defined]

            await until(lost)
            count = len(went_on)
            await asyncio.sleep(2)
            assert len(went_on) <= count + 1
            assert int(str(forgetful_server.ask("DBSIZE"))) == 0
        await app.close()

    run(live())


FILM = """
    import asyncio, os, sys, time
    from holdfast import App, Settings, step
    app = App(os.environ["HOLDFAST_URL"], settings=Settings(beat_seconds=0.3, lease_seconds=3))

    @step
    async def draw(n: int) -> int:
        print("draws", os.getpid(), flush=True)
        await asyncio.sleep(0.1)
        return n

    @app.job
    async def film() -> None:
        for n in range(10_000):
            await draw(n)

    @app.job
    def stubborn() -> None:
        print("draws", os.getpid(), flush=True)
        time.sleep(60)

    if __name__ == "__main__":
        for _ in range(4):
            app.sync.submit({"film": film, "stubborn": stubborn}[sys.argv[1]])
"""


@pytest.mark.parametrize(("kind", "processes"), [("film", 1), ("film", 2), ("stubborn", 1)])
def test_a_worker_process_whose_store_is_flushed_stops_its_jobs_and_ends_with_its_own_code(
    own_server: Server, tmp_path: Path, kind: str, processes: int
):
    (tmp_path / "film.py").write_text(textwrap.dedent(FILM))
    env = {**os.environ, "HOLDFAST_URL": own_server.url}
    subprocess.run([sys.executable, "film.py", kind], cwd=tmp_path, env=env, check=True, timeout=30)
    command = [sys.executable, "-m", "holdfast.cli", "worker", "film:app", "--at-once", "2"]
    worker = subprocess.Popen(
        [*command, "--processes", str(processes)],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert worker.stdout is not None
    try:
        seen: set[str] = set()
        while len(seen) < processes:
            line = worker.stdout.readline()
            assert line, "it ended before it ran a job"
            seen |= {line} if line.startswith("draws") else set()
        own_server.ask("FLUSHALL")
        _, told = worker.communicate(timeout=30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)

    assert worker.returncode == 3, told
    lines = told.splitlines()
    assert lines[-1].startswith("holdfast: redis://"), told
    assert "the store lost acknowledged writes: it was emptied; this process writes nothing more" in lines[-1]
    assert sum(line.startswith("holdfast: ") for line in lines) == processes
    assert sum("its store is lost; it claims no more jobs" in line for line in lines) == processes, "loudly, and once"
    assert "can't claim" not in told
    assert "Traceback" not in told
    assert own_server.ask("DBSIZE") == "0", "and nothing was written"


def test_a_worker_inside_a_program_stops_and_says_so_once(own_server: Server, run, caplog: pytest.LogCaptureFixture):
    async def live() -> None:
        app = App(own_server.url, settings=Settings(beat_seconds=0.2, lease_seconds=2, look_seconds=0.1))
        begun, stopped = asyncio.Event(), asyncio.Event()

        @app.job
        async def long() -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()

        await long.submit()
        async with asyncio.timeout(PATIENCE_SECONDS), app.worker(at_once=1) as worker:
            await begun.wait()  # its only slot is taken: a beat is what finds out
            own_server.ask("FLUSHALL")
            assert isinstance(await worker.until_lost(), StoreLost)
            await stopped.wait()

            async def still() -> bool:
                return not worker.is_busy()

            await until(still)
            said = len(caplog.records)
            await asyncio.sleep(1)
            assert {one.levelname for one in caplog.records[said:]} <= {"DEBUG", "INFO"}, "not again and again"
        assert worker.lost is not None
        await app.close()

    run(live())
    told = [one for one in caplog.records if "its store is lost; it claims no more jobs" in one.getMessage()]
    assert [(one.levelname, "stops its running jobs (1)" in one.getMessage()) for one in told] == [("CRITICAL", True)]
    assert own_server.ask("DBSIZE") == "0"


# Restarts and lost connections.


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_keeps_its_file_loses_nothing_when_it_is_killed(own_server: Server, run, how: signal.Signals):
    async def live() -> None:
        engine = await opened(own_server.url)
        before = await work(engine, CLOCK)
        await asyncio.to_thread(own_server.restart, how)
        assert await again(lambda: dump(engine)) == before
        await engine.insert([job(CLOCK)])
        await engine.close()

    run(live())


def test_nothing_is_asked_before_the_greeting_is_answered(redis_url: str, run):
    """Until then nobody knows which server a connection leads to, and what is asked may name the one before it."""

    async def live() -> None:
        greeted: list[asyncio.Task[Any]] = []

        async def greet(wire: Wire) -> None:
            greeted.append(asyncio.ensure_future(wire.call("ECHO", "second")))
            await wire.ask("ECHO", "a greeting")
            await wire.ask("ECHO", "and another")
            sent.append(wire.calls)

        sent: list[int] = []
        place = parse_url(redis_url)
        wire = Wire(place, Way(place), greet)
        assert await wire.call("ECHO", "first") == b"first"
        assert sent == [3], "CLIENT ID and the greeting"
        assert await greeted[0] == b"second"
        await wire.close()

    run(live())


def test_callers_share_one_attempt_to_connect(redis_url: str, run, monkeypatch: pytest.MonkeyPatch):
    """Where a server accepts and says nothing, each attempt takes long: one after another they would wait for ever."""
    tried: list[Way] = []

    async def in_vain(place: Any, way: Way) -> Any:
        tried.append(way)
        await asyncio.sleep(0.05)
        raise NotConnected("no answer in time")

    async def live() -> None:
        place = parse_url(redis_url)
        wire = Wire(place, Way(place), lambda _: asyncio.sleep(0))
        monkeypatch.setattr("holdfast.engines.redis.connection.connect", in_vain)
        told = await asyncio.gather(*(wire.call("PING") for _ in range(20)), return_exceptions=True)
        assert [type(one) for one in told] == [NotConnected] * 20
        assert len(tried) == 1
        monkeypatch.undo()
        assert await wire.call("ECHO", "again") == b"again"
        await wire.close()

    run(live())


def test_what_named_the_server_before_is_refused_and_no_loss(redis_store: str, run):
    async def live() -> None:
        engine = await opened(redis_store)
        await engine.insert([job(CLOCK)])
        store = engine._store
        id, generation, acts, word = store.given()
        lost = [b"lost", id.encode(), str(generation).encode(), str(acts).encode()]
        with pytest.raises(StoreBusy, match="the server changed; nothing was written; try again"):
            store.note_answer(lost, Wire(engine._url, Way(engine._url), store.greet), (id, generation - 1, acts, word))
        assert await engine.count() == {("default", State.AVAILABLE): 1}
        with pytest.raises(StoreLost, match="it is 2 writes behind what we have seen"):
            store.note_answer(lost, engine._looks, (id, generation, acts + 2, word))
        await engine.close()

    run(live())


def test_killed_connections_come_back_and_nothing_is_lost_or_twice(own_server: Server, run):
    async def live() -> None:
        app = App(own_server.url, settings=Settings(beat_seconds=0.2, lease_seconds=2))
        ran: Counter[int] = Counter()

        @app.job
        async def noted(n: int) -> int:
            ran[n] += 1
            await asyncio.sleep(0.01)
            return n

        runs = await noted.submit_many([(n,) for n in range(150)])
        async with app.worker(at_once=8):
            for _ in range(6):
                await asyncio.sleep(0.15)
                with redis.Redis("127.0.0.1", own_server.port) as client:
                    assert client.client_kill_filter(_type="normal", skipme=True)
                    client.client_kill_filter(_type="pubsub")
            for n, one in enumerate(runs):
                assert await again(lambda one=one: one.result(20)) == n
        for one in runs:
            events = [entry.event for entry in await one.history()]
            assert events.count("complete") == 1, events
        assert await app.engine.count() == {("default", State.COMPLETED): 150}
        await app.close()

    run(live())


def test_only_those_hear_of_trouble_whose_own_call_had_it(redis_store: str, run, monkeypatch: pytest.MonkeyPatch):
    """What several callers ask for goes in several calls; one of them finds a busy server, the others are done."""

    async def live() -> None:
        engine = await opened(redis_store)
        script, calls = engine._script, []

        async def busy_at_first(wire: Wire, name: str, *words: Any) -> Any:
            calls.append(name)
            if name in ("insert", "commit") and calls.count(name) == 2:
                raise redis.exceptions.BusyLoadingError("LOADING")
            return await script(wire, name, *words)

        monkeypatch.setattr(engine, "_script", busy_at_first)
        jobs = [job(CLOCK) for _ in range(200)]
        told = await asyncio.gather(*(engine.insert([one]) for one in jobs), return_exceptions=True)
        there = await engine.get([one.id for one in jobs])
        refused = [isinstance(one, StoreBusy) and "nothing was written" in str(one) for one in told]
        assert refused == [one is None for one in there]
        assert 0 < sum(refused) <= CALL_WEIGHT
        held = await engine.claim("w-1", ["default"], 60)
        calls.clear()
        with pytest.raises(StoreError, match="only a part of it was written; check, then repeat it"):
            await engine.commit([change(CLOCK, one, Event.COMPLETE) for one in held])
        await engine.close()

    run(live())


def test_a_server_that_takes_no_more_clients_says_so(own_server: Server, run):
    async def live() -> None:
        engine = await opened(own_server.url)
        await engine.insert([job(CLOCK)])
        own_server.ask("CONFIG", "SET", "maxclients", 1)
        with pytest.raises(StoreBusy, match="max number of clients reached; raise maxclients or run fewer processes"):
            await opened(own_server.url)
        await engine.insert([job(CLOCK)])
        await engine.close()

    run(live())


def test_who_last_beat_before_a_restart_is_excused(own_server: Server, run):
    async def live() -> list[bool]:
        engine, other = await opened(own_server.url), await opened(own_server.url)
        await engine.beat(Presence(worker="w-1"))
        told = [presence_of(one) for one in await other.records(WORKER)]
        await asyncio.to_thread(own_server.restart)
        told += [presence_of(one) for one in await again(lambda: other.records(WORKER))]
        await again(lambda: engine.beat(Presence(worker="w-1")))
        told += [presence_of(one) for one in await other.records(WORKER)]
        await engine.close()
        await other.close()
        return [one.store_away for one in told]

    assert run(live()) == [False, True, False]


# Replies that were lost after the act.


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_an_act_whose_reply_was_lost_may_be_repeated(redis_url: str, redis_store: str, run, lost: str):
    async def live() -> None:
        port = int(redis_url.rpartition(":")[2].partition("/")[0])
        with Proxy(port) as proxy:
            engine = await opened(proxy.through(redis_store))
            held = await claimed(engine, CLOCK)
            # Each script once before: else what is lost is only the answer that the server doesn't know it yet.
            await engine.record([step(held, "first")])
            await engine.commit([change(CLOCK, await claimed(engine, CLOCK), Event.COMPLETE)])
            other = await claimed(engine, CLOCK)

            async def twice(call: Any) -> Any:
                (proxy.lose_reply if lost == "reply" else proxy.lose_request)()
                with pytest.raises(StoreError):
                    await call()
                assert proxy.disarm()
                return await call()

            new = job(CLOCK, queue="q")
            [inserted] = await twice(lambda: engine.insert([new]))
            assert (inserted.id, inserted.new) == (new.id, lost == "request")
            [recorded] = await twice(lambda: engine.record([step(held)]))
            assert recorded.first
            [ended] = await twice(lambda: engine.commit([change(CLOCK, held, Event.COMPLETE)]))
            assert isinstance(ended, Conflict if lost == "reply" else Applied)
            assert (await current(engine, held)).state is State.COMPLETED
            assert [one.event for one in await engine.history(held.id)] == ["submit", "claim", "complete"]
            taken = await twice(lambda: engine.claim("w-9", ["q"], 1))
            answer = await engine.beat(Presence(worker="w-9"))
            assert [one.id for one in taken] == ([] if lost == "reply" else [new.id])
            assert [lease.job for lease in answer.stray] == [new.id]
            await twice(lambda: engine.beat(Presence(worker="w-1")))
            assert other.id in {one.id for one in await engine.find(Where(states=(State.ACTIVE,)))}
            await engine.close()

    run(live())


def test_a_server_that_hangs_is_given_up_and_found_again(
    redis_url: str, redis_store: str, run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("holdfast.engines.redis.connection.CALL_SECONDS", 0.3)

    async def live() -> None:
        port = int(redis_url.rpartition(":")[2].partition("/")[0])
        with Proxy(port) as proxy:
            engine = await opened(proxy.through(redis_store))
            await engine.insert([job(CLOCK)])
            proxy.hold()
            with pytest.raises(StoreError, match="may or may not have been stored"):
                await engine.insert([job(CLOCK)])
            proxy.release()
            await again(lambda: engine.insert([job(CLOCK)]))
            await engine.close()

    run(live())
