"""The cost of killing a worker with kill -9 while another one is alive: on any shared store, with default settings.

The workers and the caller that waits for the result are separate processes: `python killing.py worker|caller URL
FOLDER`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import check_floor, print_figure

from holdfast import App, step
from holdfast.core.model import StepState

ITEMS, KILLED_AT = 30, 12
WAIT_SECONDS = 60.0
"""How long one kill may take in total."""


def recovery(kills: int, url_in: Callable[[Path], str], floor_seconds: float) -> bool:
    """Kill the worker in the middle of 30 items, with another one alive, and measure the seconds to the next item."""
    waits: list[float] = []
    again = 0
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for _ in range(kills):
            folder = Path(tempfile.mkdtemp(dir=name))
            wait, repeated = recover_once(url_in(folder), folder)
            waits.append(wait)
            again += repeated
    fine = check_floor(
        f"next item after kill -9, the slowest of {kills}", [max(waits)], floor_seconds, "s", at_most=True
    )
    fine &= check_floor("recorded items that ran again", [again], 0, "", at_most=True)
    print_figure(f"next item after kill -9, {kills} kills", waits, "s")
    return fine


def recover_once(url: str, folder: Path) -> tuple[float, int]:
    """Kill once. Return the seconds to the next start, and how many recorded items were started again."""
    made: list[subprocess.Popen[str]] = []

    def process(role: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, role, url, str(folder)]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return made[-1]

    try:
        for worker in [process("worker"), process("worker")]:
            assert worker.stdout is not None
            assert worker.stdout.readline(), "a worker didn't start"
        caller = process("caller")
        assert caller.stdout is not None
        id = caller.stdout.readline().strip()
        end = time.monotonic() + WAIT_SECONDS
        while len(starts := _starts(folder)) < KILLED_AT:
            assert time.monotonic() < end, f"{len(starts)} of {KILLED_AT} items after {WAIT_SECONDS:g} s"
            time.sleep(0.005)
        pid = starts[-1][2]
        os.kill(pid, signal.SIGKILL)
        killed = time.time()
        caller.wait(WAIT_SECONDS)
        assert not caller.returncode, f"the job of {url} didn't complete"
    finally:
        for one in made:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()
    recorded = asyncio.run(_recorded(url, id))
    after = [(at, n) for at, n, who in _starts(folder) if who != pid]
    return min(at for at, _ in after) - killed, sum(n < recorded for _, n in after)


def _starts(folder: Path) -> list[tuple[float, int, int]]:
    """Return when each item was started, which item, and by which process."""
    marks = folder / "marks"
    lines = marks.read_text().splitlines() if marks.exists() else []
    return [(float(at), int(n), int(pid)) for at, n, pid in map(str.split, lines)]


async def _recorded(url: str, job: str) -> int:
    """Return how many items the first worker recorded. They run one after another, so these were the first ones."""
    app = App(url)
    await app.open()
    steps = await app.engine.steps(job)
    await app.close()
    return sum(one.epoch == 1 and one.state is StepState.DONE for one in steps)


def play(role: str, url: str, folder: str) -> None:
    """Run a worker until it is killed, or a caller that waits for the result."""
    app = App(url)

    @step(name="draw")
    async def draw(n: int) -> int:
        with (Path(folder) / "marks").open("a") as marks:
            marks.write(f"{time.time()} {n} {os.getpid()}\n")
        await asyncio.sleep(0.05)
        return n

    @app.job
    async def film(count: int) -> int:
        return len(await draw.map(range(count), at_once=1))

    async def work() -> None:
        async with app.worker():
            print("ready", flush=True)
            await asyncio.sleep(10 * WAIT_SECONDS)

    if role == "worker":
        asyncio.run(work())
    else:
        run = app.sync.submit(film, ITEMS)
        print(run.id, flush=True)
        run.result(WAIT_SECONDS)


if __name__ == "__main__":
    play(*sys.argv[1:])
