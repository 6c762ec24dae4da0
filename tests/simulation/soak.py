"""Seeds without end, on all cores: from a random one on, for a time or until somebody stops it.

Must not judge: what a seed breaks is told by `run`.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from random import SystemRandom

import tests.simulation.bugs
import tests.simulation.bugs_limits
import tests.simulation.bugs_order  # noqa: F401
from tests.simulation.planting import planted
from tests.simulation.run import command, play

SEEDS_A_PIECE = 20
SQLITE_PIECES = 10
"""Every so-manieth piece runs on SQLite."""

TOLD_SECONDS = 60.0
"""How often it says how far it has come."""

Failed = list[tuple[int, list[str]]]


def soak(minutes: float, first: int | None = None, bug: str | None = None) -> int:
    """Run seeds for so many minutes, 0 for ever; 1 when a law was broken. Ctrl-C or SIGTERM ends it in peace."""
    first = SystemRandom().randrange(1_000_000_000) if first is None else first
    cores = os.cpu_count() or 1
    print(
        f"seeds from {first} on, {cores} at once, {f'for {minutes:g} minutes' if minutes else 'for ever'}", flush=True
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end = time.monotonic() + minutes * 60 if minutes else float("inf")
    done = failed = 0
    say_at = time.monotonic() + TOLD_SECONDS
    with ProcessPoolExecutor(cores, get_context("spawn"), _quiet) as pool, suppress(KeyboardInterrupt):
        pieces = _pieces(first)
        under_way: dict[Future[Failed], tuple[int, str]] = {}
        try:
            while time.monotonic() < end or under_way:
                while len(under_way) < cores * 2 and time.monotonic() < end:
                    piece = next(pieces)
                    under_way[pool.submit(run_piece, *piece, bug)] = piece
                finished, _ = wait(under_way, timeout=TOLD_SECONDS, return_when=FIRST_COMPLETED)
                for one in finished:
                    _, engine = under_way.pop(one)
                    done += SEEDS_A_PIECE
                    for seed, broken in one.result():
                        failed += 1
                        print(f"seed {seed} on {engine}", *broken, command(seed, engine, bug), sep="\n", flush=True)
                if time.monotonic() > say_at:
                    say_at = time.monotonic() + TOLD_SECONDS
                    print(f"{done} seeds, {failed} failed", flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    print(f"{done} seeds from {first} on: {f'{failed} failed' if failed else 'every law holds'}", flush=True)
    return int(failed > 0)


def _pieces(first: int) -> Iterator[tuple[int, str]]:
    for number in count():
        yield first + number * SEEDS_A_PIECE, "sqlite" if number % SQLITE_PIECES == SQLITE_PIECES - 1 else "memory"


def run_piece(first: int, engine: str, bug: str | None) -> Failed:
    """Run some seeds, in a process of its own; those that broke a law, and which."""
    with planted(bug):
        played = [(seed, play(seed, engine).broken) for seed in range(first, first + SEEDS_A_PIECE)]
    return [(seed, broken) for seed, broken in played if broken]


def _quiet() -> None:
    """Ctrl-C is for who watches, not for who works."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
