"""Every order of steps, a cancel, a kill and the undo: nothing is forgotten, and nothing undone under a running step.

With --soak every second strike is tried at every point, and two workers are killed. A failing schedule prints the one
command that repeats it.
"""

from typing import Any

import pytest
from msgspec.structs import replace

import holdfast.jobs.family
import holdfast.worker.blame
import holdfast.worker.loop
import holdfast.worker.undo
from holdfast.core.model import State
from tests.simulation.search import KINDS, command, search

STRIDES = {"line": 1, "fails": 3, "slow": 2, "together": 3, "cut": 3}
"""Without --soak, what strikes last strikes in most of them at every second or third point only."""

PARTS = 2
FEWEST = 250
"""How many schedules each part has at least: some 3,000 in all."""

KILLS_STRIDE = 11
"""With --soak, at every how-manieth point the second kill strikes: all of them would be a hundred thousand."""


def run_all(outcomes: Any) -> int:
    """Check all of them; how many there were."""
    searched = 0
    for outcome in outcomes:
        assert not outcome.broken, "\n".join([*outcome.broken, command(outcome)])
        searched += 1
    return searched


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_forgotten_and_nothing_undone_under_a_running_step(kind, part, rounds):
    searched = run_all(search(kind, stride=rounds(STRIDES[kind], 1), part=(part, PARTS)))

    print(f"{kind}, part {part}: {searched} schedules")
    assert searched >= FEWEST


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_when_two_workers_are_killed(kind, request):
    if not request.config.getoption("--soak"):
        pytest.skip("takes minutes: with --soak")
    searched = run_all(search(kind, 2, stride=KILLS_STRIDE))

    print(f"{kind}, two kills: {searched} schedules")


# The search sees what it looks for.


def at_once(undo_job: Any) -> Any:
    def impatient(job: Any, type: str, now: int) -> Any:
        return replace(undo_job(job, type, now), state=State.AVAILABLE, run_at=now, waits=())

    return impatient


def only_recorded(undo_of: Any) -> Any:
    async def nothing() -> None: ...

    return lambda self, intent, record: nothing if record is None else undo_of(self, intent, record)


def never(say_stopped: Any) -> Any:
    async def silent(*args: Any, **named: Any) -> None: ...

    return silent


def all_but_exceptions(is_stop: Any) -> Any:
    return lambda self, raised: not isinstance(raised, Exception)


BUGS = {
    "code that is cancelled from inside vanishes": (
        holdfast.worker.blame.Watch,
        "is_stop",
        all_but_exceptions,
        "hole",
        "cut",
    ),
    "the undo doesn't wait for the owner": (holdfast.jobs.family, "undo_job", at_once, "under a step", "slow"),
    "what may have happened is forgotten": (holdfast.worker.undo._Undo, "_undo_of", only_recorded, "forgotten", "line"),
    "the oldest is undone first": (holdfast.worker.undo, "reversed", lambda _: list, "order", "line"),
    "an owner doesn't say that it stopped": (holdfast.worker.loop, "say_stopped", never, "late", "line"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, monkeypatch):
    place, name, spoil, law, kind = BUGS[bug]
    monkeypatch.setattr(place, name, spoil(getattr(place, name, None)), raising=False)

    found = (line for outcome in search(kind, stride=5) for line in outcome.broken)
    assert any(line.startswith(law) for line in found), f"no schedule shows that {bug}"
