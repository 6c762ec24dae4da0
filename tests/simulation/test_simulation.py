"""The seeded simulation: every law holds in every run, every run can be repeated, and every planted bug is found.

`make soak` runs seeds without end, from a random one on. A failing seed prints the one command that replays it.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

import tests.simulation.bugs
import tests.simulation.bugs_limits
import tests.simulation.bugs_order  # noqa: F401
from holdfast.core.model import Event
from tests.simulation.plan import BLOWS, Plan, draw_plan, drowsy, hasty, limited, orderly
from tests.simulation.planting import BUGS, planted
from tests.simulation.run import ROOT, command, play
from tests.simulation.shapes import SHAPES

MEMORY_ITEMS, SQLITE_ITEMS = 12, 4
SEEDS_AN_ITEM, SEEDS_OF_SQLITE, SEEDS_OF_SLEEP, SEEDS_OF_HASTE = (50, 150), (25, 50), (60, 100), (20, 100)
SEEDS_OF_LIMITS, SEEDS_OF_ORDER = (40, 150), (12, 100)
"""How many seeds each item runs, without --soak and with it: 700 in all, or 2,000. Of all planted bugs, the one that is
hardest to see shows itself within 70."""

CAUGHT_WITHIN, TRIED_WITHIN = 400, 200
"""In how many seeds a planted bug must have shown itself, and all that can happen must have happened."""

TOLD = 3
"""How many failing seeds of one item are told in full."""

KNOWN: dict[str, str] = {}
"""Bugs of the product that are found and not yet repaired: what the broken law says, and what is wrong and where."""


def broken_by(seed: int, engine: str = "memory", alter: Callable[[Plan], Plan] | None = None) -> list[str]:
    """The laws that a seed breaks, but for what is known; with its plan, or with what is made of it."""
    plan = None if alter is None else alter(draw_plan(seed, engine, SHAPES))
    return [line for line in play(seed, engine, plan=plan).broken if not any(re.search(known, line) for known in KNOWN)]


def run_seeds(seeds: range, engine: str) -> None:
    """Run seeds; the message has what each of those that failed broke, and how to replay it."""
    failed = [
        "\n".join([f"seed {seed} on {engine}", *broken, command(seed, engine)])
        for seed in seeds
        if (broken := broken_by(seed, engine))
    ]
    assert not failed, f"{len(failed)} of {len(seeds)} seeds failed\n" + "\n\n".join(failed[:TOLD])


@pytest.mark.parametrize("item", range(MEMORY_ITEMS))
def test_every_law_holds_whatever_goes_wrong(item, rounds):
    seeds = rounds(*SEEDS_AN_ITEM)
    run_seeds(range(item * seeds, (item + 1) * seeds), "memory")


@pytest.mark.parametrize("item", range(SQLITE_ITEMS))
def test_every_law_holds_on_sqlite_too(item, rounds):
    seeds = rounds(*SEEDS_OF_SQLITE)
    run_seeds(range(item * seeds, (item + 1) * seeds), "sqlite")


def test_every_law_holds_while_keepers_sleep_and_workers_come_back(rounds):
    broken = {seed: lines for seed in range(rounds(*SEEDS_OF_SLEEP)) if (lines := broken_by(seed, alter=drowsy))}
    assert not broken


def test_every_law_holds_while_short_waits_are_cut_off_and_signals_come(rounds):
    broken = {seed: lines for seed in range(rounds(*SEEDS_OF_HASTE)) if (lines := broken_by(seed, alter=hasty))}
    assert not broken


@pytest.mark.parametrize(("engine", "item"), [("memory", 0), ("memory", 1), ("memory", 2), ("sqlite", 0)])
def test_every_law_holds_where_jobs_and_steps_share_limits(engine, item, rounds):
    seeds = rounds(*SEEDS_OF_LIMITS)
    numbers = range(item * seeds, (item + 1) * seeds)
    broken = {seed: lines for seed in numbers if (lines := broken_by(seed, engine, alter=limited))}
    assert not broken, f"replay: python -m tests.simulation {min(broken)} --plan limited --engine {engine} --story"


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_every_law_holds_where_jobs_take_turns_are_unique_or_come_by_the_clock(engine, rounds):
    seeds = range(rounds(*SEEDS_OF_ORDER))
    broken = {seed: lines for seed in seeds if (lines := broken_by(seed, engine, alter=orderly))}
    assert not broken, f"replay: python -m tests.simulation {min(broken)} --plan orderly --engine {engine} --story"


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_a_seed_gives_the_same_run_in_every_python(engine):
    seeds = [str(seed) for seed in range(8)]

    def hashes(hash_seed: str, order: list[str]) -> list[str]:
        command = [sys.executable, "-m", "tests.simulation", "--hash", "--engine", engine, *order]
        told = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return told.stdout.split()

    first = hashes("1", seeds)

    assert len(set(first)) == len(seeds)
    assert first == hashes("4242", seeds[::-1])[::-1]


ANSWERS = ("submit unknown", "cancel ok", "cancel refused", "signal ok", "result ok", "replay ok", "stale record")
TRIED = 5
"""How often each event, fault and answer must have happened."""


def test_every_event_and_every_fault_is_tried():
    wanted = {*(f"event {event}" for event in Event), *(f"fault {kind}" for kind in BLOWS), *ANSWERS}
    happened: Counter[str] = Counter()
    for seed in range(TRIED_WITHIN):
        happened += play(seed).happened
        if all(happened[what] >= TRIED for what in wanted):
            return

    pytest.fail(f"not tried {TRIED} times: {sorted(what for what in wanted if happened[what] < TRIED)}")


@pytest.mark.parametrize("bug", [None, "a record is not fenced"])
def test_a_soak_runs_seeds_for_a_time_and_tells_how_to_replay_one_that_fails(bug):
    command = [sys.executable, "-m", "tests.simulation", "--soak", "0.001", *(["0", "--bug", bug] if bug else [])]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    seeds = re.search(r"^(\d+) seeds from (\d+) on: ", told.stdout, re.MULTILINE)
    assert seeds is not None, told.stderr
    assert int(seeds[1]) > 0
    assert told.stdout.startswith(f"seeds from {seeds[2]} on, ")
    if bug is not None:
        assert told.returncode == 1
        assert re.search(
            r"^replay: \S+ -m tests.simulation \d+ --bug 'a record is not fenced' --story$", told.stdout, re.M
        )
    else:
        assert told.returncode == 0, told.stdout


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    with planted(bug):
        for seed in range(CAUGHT_WITHIN):
            if any(line.startswith(BUGS[bug].caught_by) for line in broken_by(seed, alter=BUGS[bug].plan)):
                return

    pytest.fail(f"{CAUGHT_WITHIN} seeds did not show that {bug}")
