"""Races: calls that start together, on threads and loops of their own, and proof that they ran at the same time.

Must not wait for luck: during a race each thread gives up its turn at every call and return of a function, so that
even an engine whose calls take microseconds is seen in the middle of them.
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
"""How many rounds are run in any case: one overlap alone proves little."""

ROUNDS_LIMIT = 200
"""How many rounds a race gets until calls have overlapped. An engine that is never seen racing fails its test."""

RACE_SECONDS = 60.0
"""How long one round may take, so that a deadlock is told and not waited for."""


class Lap(Generic[T]):
    """One racer's calls: the answers, and when each call began and ended."""

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
    """Let each engine's racer run on a thread and loop of its own, all from one barrier. Answers in their order."""
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
    """Whether calls of two racers were under way at the same time."""
    times = sorted((began, ended, seat) for seat, lap in enumerate(laps) for began, ended in lap.times)
    return any(later[0] < earlier[1] and later[2] != earlier[2] for earlier, later in pairwise(times))


async def until_raced(one_round: Callable[[int], Awaitable[Sequence[Lap[T]]]]) -> None:
    """Run rounds, each of which checks its own law, until calls have overlapped."""
    raced = False
    for number in range(ROUNDS_LIMIT):
        raced = overlapped(await one_round(number)) or raced
        if raced and number + 1 >= ROUNDS:
            return
    raise AssertionError(f"in {ROUNDS_LIMIT} rounds no two calls overlapped: nothing was raced, so nothing was shown")


@contextmanager
def _giving_way() -> Iterator[None]:
    usual = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: time.sleep(0))
    try:
        yield
    finally:
        sys.setprofile(usual)
