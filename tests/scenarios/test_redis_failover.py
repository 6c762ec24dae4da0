"""A stale replica takes over under worker processes: who saw more says so and stops, and what remains is whole."""

import asyncio
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast import App
from holdfast.conformance.dump import Dump, dump
from holdfast.core.codec import canonical
from holdfast.core.errors import StoreError, StoreLost
from holdfast.core.model import State
from holdfast.jobs.service import JobRequest
from tests.scenarios.films import LEASE_SECONDS, PROGRAM, SETTINGS
from tests.support.given import wait_until
from tests.support.history import Effect, broken, effects_in
from tests.support.proxy import Proxy
from tests.support.redis_server import Server, server
from tests.support.worker_processes import Stage, presence

LOST = "the store lost acknowledged writes"
FILMS = 24
LOST_FILMS = 8
"""How many of them are submitted after the replica was cut off."""

PATIENCE_SECONDS = 20.0


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary and its replica."""
    with (
        server("--repl-diskless-sync-delay", "0") as primary,
        server("--replicaof", f"127.0.0.1 {primary.port}") as replica,
    ):
        wait_until(lambda: "master_link_status:up" in str(replica.ask("INFO", "replication")), PATIENCE_SECONDS)
        yield primary, replica


def test_who_saw_more_than_the_new_primary_stops_and_what_remains_is_whole(pair: tuple[Server, Server], tmp_path: Path):
    primary, replica = pair
    with Proxy(primary.port) as proxy:
        stage = Stage(tmp_path, PROGRAM, proxy.through(primary.url))
        after = App(stage.url)
        try:
            both = [stage.worker(SETTINGS) for _ in range(2)]
            saw_more = [one.pid for one in both]
            saw_less = stage.worker(SETTINGS)
            stage.do(submit(stage.app, FILMS - LOST_FILMS))
            wait_until(lambda: {one.pid for one in done(tmp_path)} == {*saw_more, saw_less.pid})

            # One worker sees nothing of what the replica has not.
            saw_less.send_signal(signal.SIGSTOP)
            time.sleep(0.2)  # what it had sent is on its way
            seen = acts(primary)
            wait_until(lambda: acts(replica) >= seen, PATIENCE_SECONDS)
            replica.ask("REPLICAOF", "NO", "ONE")
            lost = stage.do(submit(stage.app, FILMS))[-LOST_FILMS:]
            wait_until(lambda: [one for one in done(tmp_path) if one.job in lost])
            for _ in range(2):  # who beats again has had the answer to its last beat, which tells how far the store is
                since = time.time() * 1_000
                wait_until(lambda since=since: all(presence(stage, one).beat_at > since for one in both))  # type: ignore[misc]
            gone = acts(primary) - acts(replica)

            proxy._to = replica.port
            proxy.cut()
            failed_over_at = time.time()
            saw_less.send_signal(signal.SIGCONT)

            with pytest.raises(StoreLost, match=LOST):
                stage.do(asked_again(stage.app))
            wait_until(lambda: all(LOST in log(tmp_path, pid) for pid in saw_more), PATIENCE_SECONDS)
            told_at = time.time()

            # Processes that are started now take the store as it is, and who gives a key gets what was lost once more.
            stage.worker(SETTINGS)
            ids = stage.do(submit(after, FILMS))
            store = stage.do(settled(after, ids))

            effects = effects_in(tmp_path / "effects")
            known = [one for one in effects if is_known(store, one)]
            unknown = [one for one in effects if not is_known(store, one)]
            assert broken(store, known) == []
            assert unknown, "work was lost"
            assert {one.pid for one in unknown} <= set(saw_more), "but not that of who saw less"
            assert [store.jobs[id].result for id in ids] == [str(6 + 2 * (2 * n + 1)) for n in range(FILMS)]
            assert store.counts == {"default/completed": 3 * FILMS}
            late = max(one.at for one in effects if one.what == "begin" and one.pid in saw_more)
            assert late < failed_over_at + LEASE_SECONDS, "who saw more begins nothing once its lease is over"
            assert LOST not in log(tmp_path, saw_less.pid)
            assert saw_less.poll() is None
            assert [one for one in known if one.pid == saw_less.pid and one.at > told_at], "who saw less goes on"
            assert not [path.name for path in tmp_path.glob("log-*") if "Traceback" in path.read_text()]
            print(f"{gone} acts lost, with {len(unknown)} effects; told {told_at - failed_over_at:.1f} s after", end="")
            print(f" the failover; last step of who saw more {late - failed_over_at:+.2f} s")
        finally:
            stage.runner.run(after.close())
            stage.close()


def acts(running: Server) -> int:
    """How many writing acts a server's store counts."""
    return int(str(running.ask("HGET", "{holdfast}:store", "seq")))


def done(folder: Path) -> list[Effect]:
    return [one for one in effects_in(folder / "effects") if one.what == "end"]


def log(folder: Path, pid: int) -> str:
    return (folder / f"log-{pid}").read_text()


def is_known(store: Dump, effect: Effect) -> bool:
    """Whether the store knows that this process had this job at that epoch: what only the old primary knew is lost."""
    return any(
        (entry.event, entry.epoch) == ("claim", effect.epoch) and f"-{effect.pid}-" in entry.by
        for entry in store.history.get(effect.job, ())
    )


async def submit(app: App, films: int) -> Sequence[str]:
    """Ask for the first so many films, each with a key; their ids."""
    orders = [JobRequest(type="film", args=canonical([n]), key=f"film-{n}") for n in range(films)]
    return [one.id for one in await (await app.open()).submit(orders)]


async def asked_again(app: App) -> None:
    """Look until the answer is that the store was lost; at first it may be away."""
    for _ in range(100):
        try:
            await app.engine.count()
        except StoreLost:
            raise
        except StoreError:
            pass
        await asyncio.sleep(0.1)


async def settled(app: App, ids: Sequence[str]) -> Dump:
    """What is there when all have settled."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while {one and one.state for one in await app.engine.get(ids)} - {State.COMPLETED, State.REVIEW}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return await dump(app.engine)
