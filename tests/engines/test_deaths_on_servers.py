"""Who is taken for dead on a server, by real connections and real deaths: the dead within a beat, the living never."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast import App, Settings
from holdfast.core.errors import StoreError
from holdfast.core.model import Presence, State
from holdfast.engines import engine_for
from holdfast.engines.postgres.url import parse_url
from holdfast.engines.records import WORKER
from tests.support import postgres_server, redis_server
from tests.support.given import until
from tests.support.servers import ServerProcess

SERVERS = ("postgres", "redis")
LEASE_MS = 6_000

BEATING = """
    import asyncio, os, sys, time
    from holdfast.core.model import Presence
    from holdfast.engines import engine_for
    engine = engine_for(sys.argv[1])
    async def main():
        await engine.open()
        await engine.beat(Presence(worker="w-victim", pid=os.getpid(), lease_ms=int(sys.argv[3])))
        if sys.argv[2] == "fork" and os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        print("beats", flush=True)
        while True:
            await asyncio.sleep(0.5)
            await engine.beat(Presence(worker="w-victim", pid=os.getpid(), lease_ms=int(sys.argv[3])))
    asyncio.run(main())
"""


@pytest.fixture(params=SERVERS)
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store on a server."""
    return str(request.getfixturevalue(f"{request.param}_store"))


@asynccontextmanager
async def beating(url: str, folder: Path, way: str, lease_ms: int = 15_000) -> AsyncIterator["subprocess.Popen[str]"]:
    """A process that has begun to beat. With the way "fork" a child of it lives on."""
    (folder / "beating.py").write_text(textwrap.dedent(BEATING))
    victim = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "beating.py", url, way, str(lease_ms)],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert victim.stdout is not None
    try:
        assert await asyncio.to_thread(victim.stdout.readline) == "beats\n"
        yield victim
    finally:
        with suppress(ProcessLookupError):
            os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
        victim.stdout.close()


async def is_gone(engine: Any) -> bool:
    """Whether the store shows the victim as dead."""
    records = await engine.records(f"{WORKER}w-victim")
    return bool(records) and '"gone":true' in records[0].value


@pytest.mark.parametrize("way", ["plain", "fork"])
def test_a_killed_worker_is_seen_dead_after_one_missed_beat_though_its_child_lives(
    store_url: str, run, tmp_path: Path, way: str
):
    async def watch() -> float:
        engine = engine_for(store_url)
        await engine.open()
        await engine.beat(Presence(worker="w-watch"))
        async with beating(store_url, tmp_path, way) as victim:
            assert not await is_gone(engine)
            victim.kill()
            began = time.monotonic()
            await until(lambda: is_gone(engine))
            took = time.monotonic() - began
        await engine.close()
        return took

    assert 1.0 < run(watch()) < 4.0


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("beats", [True, False], ids=["a-worker", "who-only-looks"])
def test_who_has_just_started_sees_at_once_who_is_dead(store_url: str, run, tmp_path: Path, beats: bool):
    """A worker that a supervisor starts again after a kill doesn't wait for the lease of the one before; and whoever
    types `holdfast workers` isn't told that the dead live.
    """
    age = "select extract(epoch from clock_timestamp() - pg_postmaster_start_time()) * 1000 > $1::int"

    async def watch() -> float:
        raw = await asyncpg.connect(parse_url(store_url).dsn)
        await until(lambda: raw.fetchval(age, LEASE_MS))  # until then, everybody might just be coming back
        await raw.close()
        async with beating(store_url, tmp_path, "plain", LEASE_MS) as victim:
            victim.kill()
            victim.wait()
        began = time.monotonic()
        engine = engine_for(store_url)
        await engine.open()
        if beats:
            await engine.beat(Presence(worker="w-watch"))
        await until(lambda: is_gone(engine))
        await engine.close()
        return time.monotonic() - began

    assert run(watch()) < LEASE_MS / 1_000


@pytest.mark.parametrize("store_url", ["redis"], indirect=True)
def test_a_worker_that_is_only_late_is_not_gone(store_url: str, run):
    async def watch() -> None:
        engine, other = engine_for(store_url), engine_for(store_url)
        await engine.open()
        await other.open()
        await engine.beat(Presence(worker="w-victim", beat_ms=100))
        await asyncio.sleep(0.5)
        assert not await is_gone(other)  # its connection is there
        await engine.close()
        assert await is_gone(other)
        await other.close()

    run(watch())


# A restart of the server.


def late_on_postgres(app: App, is_away: Callable[[], bool]) -> None:
    """Keep an App's lasting connection from coming back for as long as this is so."""
    late = app.engine._liveness  # type: ignore[attr-defined]
    connected = late._connected

    async def slowly() -> Any:
        if late._db.is_closed() and is_away():
            raise StoreError("the network is slow")
        return await connected()

    late._connected = slowly


def late_on_redis(app: App, is_away: Callable[[], bool]) -> None:
    """As on Postgres."""
    late = app.engine._beats  # type: ignore[attr-defined]
    connected = late.connected

    async def slowly() -> None:
        if late._connection is None and is_away():
            raise ConnectionError("the network is slow")
        await connected()

    late.connected = slowly


RESTARTS: dict[str, tuple[Callable[[], AbstractContextManager[ServerProcess]], Callable[..., None], signal.Signals]] = {
    "postgres": (postgres_server.server, late_on_postgres, signal.SIGQUIT),
    "redis": (redis_server.server, late_on_redis, signal.SIGKILL),
}
"""For each server: one of its own, how to be late, and the signal that is a crash."""


@pytest.mark.parametrize("name", SERVERS)
def test_a_restart_of_the_server_under_four_live_workers_declares_none_dead(name: str, run):
    """The signs of life of all are gone at once, and one of the four takes two seconds longer to come back."""
    server, make_late, crash = RESTARTS[name]
    settings = Settings(beat_seconds=0.3, lease_seconds=6, look_seconds=0.1, upkeep_seconds=0.2)
    done = asyncio.Event()

    async def live(running: ServerProcess) -> None:
        apps = [App(running.url, settings=settings) for _ in range(4)]
        for app in apps:

            @app.job(name="hold")
            async def hold(n: int) -> int:
                await done.wait()
                return n

        runs = [await hold.submit(n) for n in range(4)]
        workers = [app.worker(at_once=1) for app in apps]
        for worker in workers:
            await worker.__aenter__()

        async def all_held() -> bool:
            return (await apps[0].engine.count()).get(("default", State.ACTIVE)) == 4

        back_at = 0.0
        make_late(apps[3], lambda: time.monotonic() < back_at)
        await until(all_held)
        await asyncio.sleep(1)  # everybody has seen everybody
        for how in (running.STOPS[0], crash):
            back_at = time.monotonic() + 3
            await asyncio.to_thread(running.restart, how)
            await asyncio.sleep(4)
        done.set()
        for n, one in enumerate(runs):
            assert await one.result(20) == n
            assert [entry.event for entry in await one.history()] == ["submit", "claim", "complete"]
        for worker in workers:
            await worker.__aexit__(None, None, None)
        for app in apps:
            await app.close()

    with server() as running:
        run(live(running))
