"""Functions that the tests of isolation run in other processes, most of which behave badly."""

import asyncio
import ctypes
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import BaseModel

from holdfast import current, progress, step
from holdfast.core.errors import Invalid

log = logging.getLogger("isolated")


@dataclass
class Scene:
    number: int
    at: datetime


class Film(BaseModel):
    title: str
    scenes: list[Scene]


class Refused(Exception):
    """An error with a constructor of its own."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{why} ({code})")
        self.code = code


# What works.


@step
async def shifted(film: Film, *, hours: int = 1) -> Film:
    await asyncio.sleep(0)
    scenes = [Scene(scene.number, scene.at + timedelta(hours=hours)) for scene in film.scenes]
    return Film(title=film.title.upper(), scenes=scenes)


@step(isolate="process")
def shown(value):
    return repr(value)


@step
def whose() -> int:
    return os.getpid()


def plain(text: str) -> str:
    return text[::-1]


def looked_at() -> dict[str, object]:
    here = current()
    return {
        "job": here.job_id,
        "attempt": here.attempt,
        "epoch": here.epoch,
        "deadline": here.deadline,
        "step": here.step,
        "key": here.idempotency_key,
    }


async def nested(text: str) -> str:
    return str(await asyncio.to_thread(lambda: f"{current().job_id} {whose() == os.getpid()} {text}"))


def told(times: int) -> None:
    for n in range(times):
        progress(n + 1, times, f"part {n + 1}")
        log.info("line %d", n + 1)


def told_in_time(entered: str) -> None:
    """Says two words at once, and then is busy: the second must not wait for the end."""
    progress(1, 2)
    progress(2, 2)
    waits_for(entered)


def noisy() -> str:
    """Writes all over the standard streams, and starts a program that does so too."""
    print("x" * 100_000)
    os.write(1, b"\0\0\0\4nope" * 1_000)
    subprocess.run([sys.executable, "-c", "import os; os.write(1, b'y' * 1000); os.write(2, b'z' * 1000)"], check=True)
    return "heard"


def waits_for(path: str) -> str:
    """Ends when a file is there."""
    while not Path(path).exists():
        time.sleep(0.005)
    return "came"


def handed_over(entered: str, path: str) -> int:
    """Says that it runs, then waits for the other file."""
    write_pid(entered)
    waits_for(path)
    return os.getpid()


def write_pid(path: str) -> None:
    """Whole or not at all, so that a reader never sees half of it."""
    Path(f"{path}.new").write_text(str(os.getpid()))
    os.replace(f"{path}.new", path)


# What dies.


def segfaults() -> None:
    ctypes.string_at(0)


def exits(code: int) -> None:
    os._exit(code)


def leaves(code: int) -> None:
    sys.exit(code)


def is_killed(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(30)


def hangs_up() -> None:
    os.closerange(3, 10_000)
    time.sleep(30)


def grows(megabytes: int) -> int:
    return len(bytearray(megabytes << 20))


def forks_and_dies() -> None:
    """Dies while a copy of it, made by a fork, lives on."""
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,)).start()
    os.kill(os.getpid(), signal.SIGKILL)


# What doesn't end.


def matches(entered: str) -> None:
    """In C, and holding on to the interpreter."""
    write_pid(entered)
    re.match(r"(a+)+$", "a" * 64 + "b")


def counts() -> int:
    return sum(range(10**12))


def joins() -> None:
    thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
    thread.start()
    thread.join()


def leaves_a_thread() -> int:
    threading.Thread(target=time.sleep, args=(60,)).start()
    return os.getpid()


def leaves_a_daemon() -> int:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return os.getpid()


def starts_a_program(entered: str) -> None:
    """As a step that runs ffmpeg."""
    program = subprocess.Popen(["sleep", "60"])
    Path(f"{entered}.program").write_text(str(program.pid))
    write_pid(entered)
    program.wait()


async def awaits(entered: str) -> None:
    write_pid(entered)
    await asyncio.sleep(60)


# What fails.


def fails(kind: str) -> None:
    if kind == "value":
        raise ValueError("the prompt is empty")
    if kind == "own":
        raise Refused(402, "no credit")
    if kind == "invalid":
        raise Invalid("give a prompt")
    if kind == "stop":
        raise StopIteration("enough")
    if kind == "unknown":
        raise type("Strange", (Exception,), {"__module__": "elsewhere"})("odd")
    if kind == "timeout":
        raise TimeoutError("the provider was too slow")


def wrong_result() -> int:
    return "not a number"  # type: ignore[return-value]


def floods(lines: int) -> None:
    for n in range(lines):
        progress(n, lines)
        log.info("line %d", n)


def inner() -> object:
    def hidden() -> None: ...

    return hidden


taken = plain


def plain_again(text: str) -> str:
    return text


shadowed, plain_again = plain_again, None  # type: ignore[assignment]
