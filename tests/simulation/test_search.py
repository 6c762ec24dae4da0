"""Every order of steps, a cancel, a kill and the undo: nothing is forgotten, and nothing undone under a running step.

So it is whatever the job's own code does: it cancels, exits, ends the event loop, dies, blocks, times out and forks.
Forks are real ones, of the whole simulated world; forks beside threads and servers are tried in tests/scenarios.

With --soak every second strike is tried at every point, and two workers are killed. A failing schedule prints the one
command that repeats it.
"""

from typing import Any

import pytest
from msgspec.structs import replace

import holdfast.jobs.consequences
import holdfast.worker.undo
from holdfast.core.model import State
from holdfast.forking import OwnLoop
from holdfast.upkeep.snapshot import Snapshots
from holdfast.worker import execution, settling
from holdfast.worker.cancellation import Watch
from holdfast.worker.leases import Leases
from holdfast.worker.undo import _Undo
from holdfast.worker.worker import Worker
from tests.simulation.lodge import KINDS
from tests.simulation.plot import CANCEL, FORK, KILL
from tests.simulation.search import command, search

STRIDES = dict.fromkeys(KINDS, 7) | {"line": 1, "slow": 5, "ends": 11}
"""Without --soak, what strikes last strikes in most of them at every seventh point only."""

PARTS = 2
FEWEST = 140
"""How many schedules each part has at least: some 5,000 in all."""

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
    searched = run_all(search(kind, (CANCEL, KILL, KILL), stride=KILLS_STRIDE))

    print(f"{kind}, two kills: {searched} schedules")


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_anywhere_costs_the_job_nothing_and_its_child_is_ended(kind, engine, rounds):
    outcomes = list(search(kind, (FORK,), engine=engine, stride=rounds(1 if engine == "memory" else 2, 1)))

    run_all(outcomes)
    assert sum(outcome.forks for outcome in outcomes) >= 3  # at some points the store acts, and no job could fork


def test_a_fork_and_a_kill_or_a_cancel_go_together(rounds):
    for strikes in ((FORK, KILL), (FORK, CANCEL)):
        run_all(search("line", strikes, stride=rounds(9, 1)))


# The search sees what it looks for.


def at_once(undo_job: Any) -> Any:
    def impatient(job: Any, type: str, now: int) -> Any:
        return replace(undo_job(job, type, now), state=State.AVAILABLE, run_at=now, waits=())

    return impatient


def only_recorded(undo_of: Any) -> Any:
    async def nothing() -> None: ...

    return lambda self, intent, record: nothing if record is None else undo_of(self, intent, record)


def never(announce_stopped: Any) -> Any:
    async def silent(*args: Any, **named: Any) -> None: ...

    return silent


def all_but_exceptions(is_stop: Any) -> Any:
    return lambda self, raised: not isinstance(raised, Exception)


def exits_too(is_stop: Any) -> Any:
    return lambda self, raised: isinstance(raised, SystemExit) or is_stop(self, raised)


def nothing(act: Any) -> Any:
    return lambda self: None


def always(act: Any) -> Any:
    return lambda self, *args: True


def only_told(is_dead: Any) -> Any:
    return lambda self, presence, look: False


def without_limit(within: Any) -> Any:
    return lambda limit, work, attempt: work(attempt)


STRUCK = (CANCEL, KILL)
BUGS: dict[str, tuple[Any, str, Any, str, str, tuple[str, ...]]] = {
    "code that is cancelled from inside vanishes": (Watch, "is_stop", all_but_exceptions, "hole", "cut", STRUCK),
    "the undo doesn't wait for the owner": (
        holdfast.jobs.consequences,
        "undo_job",
        at_once,
        "under a step",
        "slow",
        STRUCK,
    ),
    "what may have happened is forgotten": (_Undo, "_undo_of", only_recorded, "forgotten", "line", STRUCK),
    "the oldest is undone first": (holdfast.worker.undo, "reversed", lambda _: list, "order", "line", STRUCK),
    "an owner doesn't say that it stopped": (settling, "announce_stopped", never, "late", "line", STRUCK),
    "sys.exit in a step ends the worker": (Watch, "is_stop", exits_too, "ended", "exits", STRUCK),
    "a worker whose loop ends hands its jobs over": (Worker, "_note_cut", nothing, "handed over", "ends", STRUCK),
    "the dead are believed in": (Snapshots, "is_dead", only_told, "forgotten", "dies", STRUCK),
    "the fence never closes": (Leases, "may_start", always, "stale", "blocks", STRUCK),
    "a step that its caller cuts off has failed": (Watch, "is_stopped", nothing, "end", "hurried", STRUCK),
    "the job's timeout is not heeded": (
        execution,
        "run_within",
        without_limit,
        "overtime",
        "late",
        STRUCK,
    ),
    "a forked child goes on": (OwnLoop, "leave_behind", nothing, "forked", "line", (FORK,)),
}
"""What each spoils, and where; the law that sees it; the kind of job and the strikes that show it."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, monkeypatch):
    place, name, spoil, law, kind, strikes = BUGS[bug]
    monkeypatch.setattr(place, name, spoil(getattr(place, name, None)), raising=False)

    found = (line for outcome in search(kind, strikes, stride=5) for line in outcome.broken)
    assert any(line.startswith(law) for line in found), f"no schedule shows that {bug}"
