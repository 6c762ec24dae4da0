"""The jobs for the Postgres benchmarks, and the separate processes that run or submit them.

    python postgres_work.py URL worker 200              a worker with this many slots
    python postgres_work.py URL submitters 1000 8       this many single submits, by this many callers

A process prints "ready", starts at a line on its stdin, and ends with its stdin, so it never outlives its parent.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from holdfast import App, step
from holdfast.engines.postgres.liveness import Liveness

READY_SECONDS = 60.0
STOP_SECONDS = 30.0


class Statements:
    """Counts the statements that this process has sent, as the driver reports them."""

    def __init__(self) -> None:
        self.sent = Counter[str]()

    def count(self) -> None:
        """Count from now on, on every new connection."""
        connect = asyncpg.connect

        async def counted(*args: Any, **named: Any) -> Any:
            db = await connect(*args, **named)
            db.add_query_logger(self._one)
            return db

        asyncpg.connect = counted

    def _one(self, query: Any) -> None:
        self.sent[query.query] += 1


STATEMENTS = Statements()
BEGAN: list[float] = []


def began() -> None:
    """Report when the first job of this process started."""
    if not BEGAN:
        BEGAN.append(time.time())
        print("began", BEGAN[0], flush=True)


@step(name="one")
async def one(n: int) -> int:
    """A step that does nothing."""
    return n


async def noop(n: int) -> None:
    """A job that does nothing."""
    began()


async def moment(n: int) -> float:
    """Return when it ran."""
    return time.time()


async def walk(count: int) -> int:
    """Run steps one after another."""
    began()
    for n in range(count):
        await one(n)
    return count


async def spread(count: int) -> int:
    """Run steps, a hundred at once."""
    began()
    return len(await one.map(range(count), at_once=100))


async def statements(count: int) -> float:
    """Return the statements per step. Those rarer than every tenth step are heartbeats and upkeep."""
    before = STATEMENTS.sent.copy()
    for n in range(count):
        await one(n)
    return sum(times for times in (STATEMENTS.sent - before).values() if times > count / 10) / count


def work(url: str) -> tuple[App, dict[str, Any]]:
    """Return an App with these jobs."""
    app = App(url)
    return app, {job.__name__: app.job(job) for job in (noop, moment, walk, spread, statements)}


class Elsewhere:
    """A separate process, seen from here."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout

    async def hear(self, word: str) -> float:
        """Return the number after the next such word; 0 if there is none."""
        while line := (await self._out.readline()).decode().split():
            if line[0] == word:
                return float(line[1]) if len(line) > 1 else 0.0
        raise RuntimeError(f"a process ended before it printed {word!r}")

    def say(self, word: str) -> None:
        """Send it a line."""
        self._in.write(f"{word}\n".encode())

    async def end(self) -> dict[str, float]:
        """Let it stop normally; return what else it printed."""
        self._in.close()
        async with asyncio.timeout(STOP_SECONDS):
            rest, _ = await self._process.communicate()
        lines = [line.split() for line in rest.decode().splitlines()]
        return {line[0]: float(line[1]) for line in lines if len(line) == 2}

    async def kill(self) -> None:
        """Kill it if it still runs."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def elsewhere(url: str, *words: str | int, processes: int = 1) -> AsyncIterator[list[Elsewhere]]:
    """Start processes that are ready to begin; kill what is left of them at the end."""
    made: list[Elsewhere] = []
    try:
        for _ in range(processes):
            command = [sys.executable, __file__, url, *map(str, words)]
            pipe = asyncio.subprocess.PIPE
            made.append(Elsewhere(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)))
        async with asyncio.timeout(READY_SECONDS):
            await asyncio.gather(*(process.hear("ready") for process in made))
        yield made
    finally:
        await asyncio.gather(*(process.kill() for process in made))


# In the process itself.


async def line() -> str:
    """Return the next line of stdin; empty at its end."""
    return await asyncio.to_thread(sys.stdin.readline)


async def run_worker(app: App, at_once: int) -> None:
    """Run jobs until stdin ends; answer every line with the number of statements sent so far."""
    await app.open()
    print("ready", flush=True)
    await line()
    async with app.worker(at_once=at_once):
        while await line():
            print("sent", STATEMENTS.sent.total(), flush=True)
    await app.close()


async def run_submitters(app: App, submit: Any, count: int, at_once: int) -> None:
    """Submit single jobs, each with its own call."""

    async def some(count: int) -> None:
        for n in range(count):
            await submit(n)

    async def all_at_once(count: int) -> None:
        each: Sequence[Awaitable[None]] = [some(count) for _ in range(at_once)]
        await asyncio.gather(*each)

    await all_at_once(1)  # connections and plans are created at the first use
    print("ready", flush=True)
    await line()
    print("began", time.time(), flush=True)
    await all_at_once(count // at_once)
    print("ended", time.time(), flush=True)
    await app.close()


def main() -> None:
    """Run one role."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("role", choices=("worker", "submitters"))
    parser.add_argument("numbers", type=int, nargs="+")
    parser.add_argument("--counted", action="store_true", help="count the statements")
    parser.add_argument("--silent", action="store_true", help="send no NOTIFY")
    given = parser.parse_args()
    if given.counted:
        STATEMENTS.count()
    if given.silent:
        Liveness.tell = Liveness.ring  # type: ignore[method-assign, assignment]
    app, jobs = work(given.url)
    if given.role == "worker":
        asyncio.run(run_worker(app, *given.numbers))
    else:
        asyncio.run(run_submitters(app, jobs["noop"].submit, *given.numbers))


if __name__ == "__main__":
    main()
