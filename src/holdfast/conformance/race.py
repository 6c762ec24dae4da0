"""Races: calls that start together, each on its own thread and loop, and proof that they ran at the same time.

Must not depend on luck: during a race each thread yields at every call and return of a function, so that even calls
that take microseconds overlap.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Generic, TypeVar

from holdfast.engines.contract import Engine

T = TypeVar("T")

RACERS = 4
ROUNDS = 5
"""How many rounds to run in any case: a single overlap proves little."""

ROUNDS_LIMIT = 200
"""How many rounds a race gets until calls have overlapped. An engine whose calls never overlap fails its test."""

RACE_SECONDS = 60.0
"""How long one round may take, so that a deadlock is reported."""


class Lap(Generic[T]):
    """One racer's calls: the answers, and when each call started and ended."""

    def __init__(self) -> None:
        self.answers: list[T] = []
        self.times: list[tuple[float, float]] = []

    async def call(self, calling: Awaitable[T]) -> T:
        """Make one call and note its times."""
        began = time.perf_counter()
        answer = await calling
        self.times.append((began, time.perf_counter()))
        self.answers.append(answer)
        return answer


Racer = Callable[[int, Engine, Lap[T]], Awaitable[object]]


def run_race(engines: Sequence[Engine], racer: Racer[T]) -> list[Lap[T]]:
    """Run each engine's racer on its own thread and loop, all from one barrier. Return their laps in order."""
    laps: list[Lap[T]] = [Lap() for _ in engines]
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(engines), timeout=RACE_SECONDS)

    async def run(seat: int) -> None:
        barrier.wait()
        with _giving_way():
            await racer(seat, engines[seat], laps[seat])

    def start(seat: int) -> None:
        try:
            asyncio.run(run(seat))
        except BaseException as error:
            barrier.abort()
            errors.append(error)

    threads = [threading.Thread(target=start, args=(seat,), daemon=True) for seat in range(len(engines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RACE_SECONDS)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a racer hangs"
    return laps


def overlapped(laps: Sequence[Lap[T]]) -> bool:
    """Return whether calls of two racers overlapped."""
    times = sorted((began, ended, seat) for seat, lap in enumerate(laps) for began, ended in lap.times)
    return any(later[0] < earlier[1] and later[2] != earlier[2] for earlier, later in pairwise(times))


async def until_raced(one_round: Callable[[int], Awaitable[Sequence[Lap[T]]]]) -> None:
    """Run rounds, each of which checks its own law, until calls have overlapped."""
    raced = False
    for number in range(ROUNDS_LIMIT):
        raced = overlapped(await one_round(number)) or raced
        if raced and number + 1 >= ROUNDS:
            return
    raise AssertionError(f"no two calls overlapped in {ROUNDS_LIMIT} rounds, so this race proves nothing")


@contextmanager
def _giving_way() -> Iterator[None]:
    usual = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: time.sleep(0))
    try:
        yield
    finally:
        sys.setprofile(usual)
