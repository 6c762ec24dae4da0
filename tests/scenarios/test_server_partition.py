"""A worker is cut off from the store's server by the network itself: it fences itself before another one goes on.

It lives in a network namespace of its own, at the other end of a virtual cable. Needs root and `ip`.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import postgres_server, redis_server
from tests.support.given import wait_until
from tests.support.history import RECORD_EFFECT, Effect, broken_laws, effects_in
from tests.support.servers import ServerProcess
from tests.support.worker_processes import Stage, owner, presence

PROGRAM = (
    RECORD_EFFECT
    + """
import asyncio, logging, os
from holdfast import App, Settings, step
app = App(os.environ["TEST_URL"], settings=Settings(**eval(os.environ["TEST_SETTINGS"])))

@step
async def draw(n: int) -> int:
    effect("begin")
    await asyncio.sleep(0.02)
    effect("end")
    return n

async def later(n):
    await asyncio.sleep(n * 0.1)  # by the clock alone: no step waits for another one's record
    return await draw(n)

@app.job
async def film(n: int) -> int:
    while not os.path.exists("ready"):
        await asyncio.sleep(0.01)
    return len(await asyncio.gather(*(later(m) for m in range(n))))

if __name__ == "__main__":
    logging.basicConfig(level="INFO", filename=f"log-{os.getpid()}")
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 4))
"""
)

LEASE_SECONDS = 3.0
FENCE_SECONDS = LEASE_SECONDS * 0.8
SETTINGS = (
    f"dict(beat_seconds=0.3, lease_seconds={LEASE_SECONDS}, look_seconds=0.2, upkeep_seconds=0.5, poll_seconds=1.0)"
)
STEPS = 40

ON_THEIR_WAY = {"both ways": 0, "replies only": 3}
"""How many records may reach the store after the cut: what one connection sends before it waits for its reply."""


class Cable:
    """A network namespace that a virtual cable leads to. Cut it, and heal it."""

    def __init__(self) -> None:
        number = os.getpid() % 10_000
        self.name, self._here, self._there = f"holdfast-{number}", f"hf{number}a", f"hf{number}b"
        net = f"10.213.{number % 250}"
        self.near, self._far = f"{net}.1", f"{net}.2"

    def lay(self) -> None:
        """Make it. Raises where that isn't allowed."""
        _ip("netns", "add", self.name)
        _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there, "netns", self.name)
        _ip("addr", "add", f"{self.near}/30", "dev", self._here)
        _ip("link", "set", self._here, "up")
        _ip("-n", self.name, "addr", "add", f"{self._far}/30", "dev", self._there)
        _ip("-n", self.name, "link", "set", self._there, "up")

    def remove(self) -> None:
        """Take it away, with what is left of it."""
        subprocess.call(["ip", "netns", "del", self.name], stderr=subprocess.DEVNULL)
        subprocess.call(["ip", "link", "del", self._here], stderr=subprocess.DEVNULL)

    def cut(self, how: str) -> None:
        """Cut both ways, or let only what goes to the worker get lost."""
        if how == "both ways":
            _ip("link", "set", self._here, "down")
        else:
            _ip("route", "add", "blackhole", f"{self._far}/32")

    def heal(self, how: str) -> None:
        if how == "both ways":
            _ip("link", "set", self._here, "up")
        else:
            _ip("route", "del", "blackhole", f"{self._far}/32")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and `ip` (iproute2)")
    cable = Cable()
    try:
        cable.lay()
    except subprocess.CalledProcessError as error:
        cable.remove()
        pytest.skip(f"a network namespace can't be made here: {error.stderr.strip()}")
    yield cable
    cable.remove()


@contextlib.contextmanager
def far_postgres(near: str) -> Iterator[ServerProcess]:
    with postgres_server.server(f"listen_addresses=127.0.0.1,{near}", "synchronous_commit=on") as running:
        with (running.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {near}/30 trust\n")
        os.kill(running.pid, signal.SIGHUP)
        yield running


def far_redis(near: str) -> contextlib.AbstractContextManager[ServerProcess]:
    return redis_server.server("--bind", "127.0.0.1", near, "--protected-mode", "no")


@pytest.fixture(params=[far_postgres, far_redis])
def far_server(cable: Cable, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server that the other end of the cable may use."""
    with request.param(cable.near) as running:
        yield running


@pytest.mark.parametrize("how", ["both ways", "replies only"])
def test_a_worker_that_is_cut_off_stops_by_itself_before_another_goes_on(
    cable: Cable, far_server: ServerProcess, tmp_path: Path, how: str
):
    stage = Stage(tmp_path, PROGRAM, far_server.url)
    there = stage.url.replace("127.0.0.1", cable.near)
    try:
        victim = stage.worker(SETTINGS, url=there, within=("ip", "netns", "exec", cable.name))
        run = stage.submit("film", STEPS)
        assert owner(stage, run) is victim
        other = stage.worker(SETTINGS)
        (tmp_path / "ready").touch()
        wait_until(lambda: len(effects_in(tmp_path / "effects")) >= 10)

        cut_at = time.time()
        cable.cut(how)
        wait_until(lambda: began(tmp_path, 2), 30)
        healed_at = time.time()
        cable.heal(how)

        assert stage.do(run.result(40)) == STEPS
        wait_until(lambda: not presence(stage, victim).running, 30)
        first, second = began(tmp_path, 1), began(tmp_path, 2)
        last = max(one.at for one in first)
        assert len(first) < STEPS, "not for want of steps"
        assert last > cut_at, "it went on for a while, not knowing"
        assert last < cut_at + FENCE_SECONDS + 0.2, "and then stopped by itself"
        assert last < min(one.at for one in second), "before another one began"
        print(
            f"{how}: cut off, it began its last step after {last - cut_at:.2f} s; the other one went on after", end=""
        )
        print(f" {min(one.at for one in second) - cut_at:.2f} s; healed after {healed_at - cut_at:.2f} s")

        lapse = next(entry for entry in stage.history(run) if entry.event == "lapse")
        assert f"-{victim.pid}-" in lapse.note["lost"]
        lost = {one.step for one in first if one.at > cut_at}
        kept = {step.path: step.epoch for step in stage.do(stage.app.engine.steps(run.id)) if step.path in lost}
        assert set(kept) == lost
        arrived = sum(epoch == 1 for epoch in kept.values())
        print(f"{how}: {arrived} of its {len(kept)} steps since then reached the store")
        assert arrived <= ON_THEIR_WAY[how]
        assert 2 in kept.values(), "what it did while it was cut off is not in the store, but what the other one did"
        log = (tmp_path / f"log-{victim.pid}").read_text()
        assert re.search(rf"job {run.id} \(\w+\) lost its lease \(epoch 1\) after .* and was stopped here", log), log
        assert "Traceback" not in log
        assert stage.do(broken_laws(stage.app.engine, tmp_path / "effects")) == []

        another = stage.submit("film", 3)
        assert stage.do(another.result(20)) == 3
        assert (victim.poll(), other.poll()) == (None, None)
    finally:
        stage.close()


def began(folder: Path, epoch: int) -> list[Effect]:
    return [one for one in effects_in(folder / "effects") if (one.what, one.epoch) == ("begin", epoch)]
