"""A pipeline with steps, children and waits in several worker processes on a server, while everything around it fails.

Afterwards the history checker (`tests/support/history.py`) reads every job's history, steps and counts from the store,
and the effects that the steps have written: nothing lost, nothing twice.
"""

import asyncio
import contextlib
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.conformance.dump import dump
from holdfast.core.codec import canonical
from holdfast.core.errors import StoreError
from holdfast.core.model import State
from holdfast.jobs.service import JobRequest
from tests.scenarios.films import LEASE_SECONDS, PROGRAM, SETTINGS
from tests.support import postgres_server, redis_server
from tests.support.given import wait_until
from tests.support.history import broken_laws, effects_in
from tests.support.proxy import Proxy
from tests.support.servers import ServerProcess
from tests.support.worker_processes import Stage

FILMS = 20
"""So many at least; while faults go on, one more every moment."""

PACE_SECONDS = 0.12
WORKERS = 3
HEAL_SECONDS = 60.0
"""How long after the last fault everything must be done."""


SERVERS: dict[str, Callable[[], contextlib.AbstractContextManager[ServerProcess]]] = {
    "postgres": lambda: postgres_server.server("synchronous_commit=on"),
    "redis": lambda: redis_server.server("--appendfsync", "always"),
}
"""Each keeps what it has acknowledged. A Redis that syncs every second may lose that second when it is killed."""


class Set:
    """A server of its own, a proxy before it, and a stage with workers behind that."""

    def __init__(self, folder: Path, running: ServerProcess, proxy: Proxy) -> None:
        self.server, self.proxy = running, proxy
        self.stage = Stage(folder, PROGRAM, proxy.through(running.url))
        self.chance = random.Random(7)
        self.told: set[str] = set()
        for _ in range(WORKERS):
            self.stage.worker(SETTINGS)

    def restart(self) -> None:
        """Stop the server in each way that it may be told to, and start it again."""
        for how in self.server.STOPS:
            self.server.restart(how)
            time.sleep(0.4)

    def lose_replies(self) -> None:
        for _ in range(15):
            self.proxy.lose_reply(self.chance.randrange(1, 12))
            time.sleep(0.03)
        self.proxy.disarm()

    def delay(self) -> None:
        self.proxy.delay = 0.05
        time.sleep(0.5)
        self.proxy.delay = 0.0

    def hold(self) -> None:
        """Nothing comes through for longer than a lease."""
        self.proxy.hold()
        time.sleep(LEASE_SECONDS * 1.3)
        self.proxy.release()

    def at_work(self) -> subprocess.Popen[str]:
        """A worker that has just begun a step."""

        def look() -> subprocess.Popen[str] | None:
            begun = [one.pid for one in effects_in(self.stage.folder / "effects")[-1:] if one.what == "begin"]
            return next((one for one in self.stage.workers if one.pid in begun and one.poll() is None), None)

        return wait_until(look)

    def kill_worker(self) -> None:
        victim = self.at_work()
        victim.kill()
        self.stage.worker(SETTINGS)

    def stop_worker(self) -> None:
        """Stop a worker for longer than its lease, then let it go on."""
        victim = self.at_work()
        victim.send_signal(signal.SIGSTOP)
        time.sleep(LEASE_SECONDS * 1.5)
        victim.send_signal(signal.SIGCONT)

    async def submit(self, enough: asyncio.Event) -> list[str]:
        """Films, one after another, each with a key and asked for until the store has said yes; their ids."""
        ids: list[str] = []
        while not enough.is_set() or len(ids) < FILMS:
            order = JobRequest(type="film", args=canonical([len(ids)]), key=f"film-{len(ids)}")
            for _ in range(300):
                try:
                    (new,) = await (await self.stage.app.open()).submit([order])
                    break
                except StoreError as error:
                    self.told.add(str(error))
                    await asyncio.sleep(0.1)
            else:
                raise AssertionError(f"not accepted: {self.told}")
            ids.append(new.id)
            await asyncio.sleep(PACE_SECONDS)
        return ids

    async def settled(self, ids: list[str]) -> None:
        """Wait until every job in the store has settled, with a bound."""
        end = time.monotonic() + HEAL_SECONDS
        while True:
            try:
                found = await self.stage.app.engine.get(ids)
                if all(one is not None and one.state in (State.COMPLETED, State.REVIEW) for one in found):
                    return
            except StoreError:
                pass
            assert time.monotonic() < end, Counter(one and one.state for one in found)
            await asyncio.sleep(0.1)


@pytest.fixture(params=SERVERS)
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Set]:
    with SERVERS[request.param]() as running, Proxy(running.port) as proxy:
        scene = Set(tmp_path, running, proxy)
        try:
            yield scene
        finally:
            scene.stage.close()


FAULTS: dict[str, list[Callable[[Set], Any]]] = {
    "the server": [Set.restart, lambda scene: scene.server.crash()],
    "the connections": [
        lambda scene: scene.server.terminate(),
        Set.lose_replies,
        lambda scene: scene.proxy.cut(),
        Set.delay,
        Set.lose_replies,
    ],
    "the workers": [Set.kill_worker, Set.stop_worker, Set.kill_worker],
    "the network": [Set.hold, Set.kill_worker],
}


@pytest.mark.parametrize("what", FAULTS)
def test_nothing_is_lost_and_nothing_is_twice_whatever_fails(scene: Set, what: str, rounds: Callable[[int, int], int]):
    async def live() -> tuple[list[str], list[str]]:
        enough = asyncio.Event()
        asked = asyncio.ensure_future(scene.submit(enough))
        await asyncio.sleep(0.5)
        for _ in range(rounds(1, 10)):
            for fault in FAULTS[what]:
                await asyncio.to_thread(fault, scene)
                await asyncio.sleep(0.4)
        enough.set()
        ids = await asked
        began = time.monotonic()
        await scene.settled(ids)
        print(f"{what}: all settled {time.monotonic() - began:.1f} s after the last fault")
        return ids, await broken_laws(scene.stage.app.engine, scene.stage.folder / "effects")

    ids, told = scene.stage.runner.run(live())

    assert told == []
    assert not [text for text in scene.told if "\n" in text]
    films = len(set(ids))
    assert films == len(ids)
    engine = scene.stage.app.engine
    jobs = scene.stage.do(engine.get(ids))
    assert [job.result for job in jobs] == [str(6 + 2 * (2 * n + 1)) for n in range(films)]
    assert scene.stage.do(engine.count()) == {("default", State.COMPLETED): 3 * films}, "each film has its two clips"
    ended = Counter((one.job, one.step) for one in effects_in(scene.stage.folder / "effects") if one.what == "end")
    assert len(ended) == films * (4 + 2 + 2 * 2)
    again = sum(times - 1 for times in ended.values())
    histories = scene.stage.do(dump(engine)).history.values()
    lapses = ["excused" in entry.note for entries in histories for entry in entries if entry.event == "lapse"]
    print(f"{what}: {films} films; {len(lapses)} lapses, {sum(lapses)} of them excused")
    print(f"{what}: {again} of {len(ended)} steps were done again: they were under way, and their worker lost")
    if what in ("the server", "the connections"):
        assert all(lapses), "who is silent because the store was away is not counted as lost"
        assert lapses or not again
    if what == "the workers":
        assert lapses, "who is killed or stopped in a step loses its job"
    assert sum(one.poll() is None for one in scene.stage.workers) == WORKERS, "no worker gave up"
    logs = [path.read_text() for path in scene.stage.folder.glob("log-*")]
    assert not [text for text in logs if "Traceback" in text]
