"""A process that moves a store and is killed at its nth act: `python -m tests.jobs.transfer.killed OLD NEW N`.

It is killed just before that act, which is just after the one before: so each boundary of a move is met.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.engines import engine_for
from holdfast.engines.urls import named
from holdfast.jobs.transfer import move as move_module

PAGE = 3
SECONDS = 60.0


def move_until(old: str, new: str, act: int) -> int:
    """Run such a process to its end; answer with its exit code."""
    command = [sys.executable, "-m", "tests.jobs.transfer.killed", old, new, str(act)]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode


async def _main(old: str, new: str, last: int) -> None:
    move_module.PAGE_JOBS = PAGE
    acts = 0

    def reached() -> None:
        nonlocal acts
        acts += 1
        if acts == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            reached()
            return await write(*args, **kwargs)

        return call

    source: Any = engine_for(old)
    target: Any = engine_for(new)
    for engine in (source, target):
        await engine.open()
        engine.put_record, engine.load = counted(engine.put_record), counted(engine.load)
    await move_module.move(move_module.Side(source, named(old)), move_module.Side(target, named(new)))
    await target.close()
    await source.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
