"""What happens to a job whose worker is lost or releases it: back to its queue, or to review.

Must not judge which worker is lost (`upkeep` and `worker` do). How many losses or releases a job had in a row is read
from its history and the epochs of its records; nothing is stored for it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.changes import Cargo, abandon, lapse
from holdfast.core.lifecycle import WORKERS_LOST, lost_event
from holdfast.core.model import Change, Entry, Error, Event, Job, Running, RunningItem, Step, StepState, Time
from holdfast.core.outcome import doubt_text, failed_with, failures_of, in_doubt
from holdfast.core.spending import reconciled
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import CHILD_PATH
from holdfast.jobs.questions import WAIT_PATH
from holdfast.jobs.service import history_of
from holdfast.jobs.status import progress_records

WAITS = (WAIT_PATH, CHILD_PATH)
"""The paths under which waits are recorded."""

EXCUSED = "excused"
"""The key in a lapse's note that says why the loss doesn't count as a recovery."""

CUT = "cut"
"""The key in a loss's note for the steps that it cut off, each with the milliseconds for which it had run."""

SILENT_FOR = "silent_ms"
"""The key in a loss's note for how long the worker had been silent when its loss was noticed."""

ALIVE = "its worker is alive"
"""How the reason of a loss ends whose worker has heartbeats, but whose stage shows no progress."""

UNNOTICED = "ended without notice"
"""How a loss is told whose worker's process was seen to end."""

CUT_OFF = "code in its worker stopped the event loop (sys.exit or loop.stop() in a task or a callback?)"
"""The reason of a loss that the worker itself reports, because it can't go on."""

Loss = Literal["died", "silent", "stale", "store"]
"""Why a job was taken from its worker: the worker died, it was silent, it lives but its stage shows no progress, or
the store was unreachable.
"""

HANDED_OVER = "steps"
"""The key in a release's note for the number of recorded steps. Only a job that had started has it."""

SILENCED = (
    "a step that holds Python's GIL for longer than the lease stops its worker's heartbeats: "
    "run such a step with isolate='process'"
)
"""A likely reason when several workers in a row go silent while they run a job, and nobody saw a process die."""

BREAKS_THE_ROW = frozenset({Event.FAIL, Event.OVERRUN, Event.LAPSE, Event.REPLAY})
"""Ends of a lease that restart the count of releases. Each has its own limit, or was a person's decision."""


class Past(Struct, frozen=True):
    """A job's records and its history."""

    records: Sequence[Step]
    history: Sequence[Entry]

    @property
    def steps(self) -> list[Step]:
        """The records of the job's own steps."""
        return [step for step in self.records if not step.path.startswith("~")]


async def read_past(engine: Engine, job: str) -> Past:
    """Read a job's records, then its history."""
    return Past(await engine.steps(job), await history_of(engine, job))


def decide_loss(
    job: Job,
    past: Past,
    now: Time,
    *,
    by: str,
    why: str,
    running: Running | None = None,
    recovery: bool = True,
    silent: bool = False,
    silent_ms: int | None = None,
    drops: Collection[str] = (),
) -> Change:
    """Take a job from a lost worker: back to the queue, or to review. The note says which steps survived.

    `running` is the worker's last report about the job. `recovery=False` if the store was unreachable meanwhile, which
    is no worker's fault. `silent` if nobody saw the worker die and only its heartbeats stopped, `silent_ms` how long
    ago the last of them was. `drops` are effects whose intent was written and that never started.
    """
    progressed = has_progressed(past)
    done = sum(step.state is StepState.DONE for step in past.steps)
    survived = f"{done} recorded {'step' if done == 1 else 'steps'}"
    note: dict[str, Any] = {"lost": job.worker or "", "why": why, "survived": survived}
    if running is not None and running.stage:
        note["stage"] = running.stage
    if running is not None:
        running = replace(running, items=_not_recorded(running.items, past))
        if running.items:
            note[CUT] = {one.path: max(0, now - one.since) for one in running.items}
    if silent_ms is not None:
        note[SILENT_FOR] = silent_ms
    if not recovery:
        note[EXCUSED] = "the store was unreachable, so this doesn't count as a recovery"
    elif silent and job.recoveries and not progressed:  # the first time, it may have been the machine
        note["hint"] = SILENCED
    doubts = in_doubt(step for step in past.steps if step.path not in drops)
    event = lost_event(job, progressed=progressed, recovery=recovery, in_doubt=bool(doubts))
    if job.options.envelope and not progressed and job.attempt + job.recoveries > job.options.retry.retries:
        event = Event.ABANDON  # the Open Job Spec counts a lost worker as an attempt
    error: Error | None = None
    if doubts:
        failures = failures_of(past.records)
        causes = [failed_with(failures[path]) for path in doubts if path in failures]
        error = Error("EffectInDoubt", doubt_text(job.id, doubts, next(iter(causes), "")))
        note["in_doubt"] = doubts
    elif event is Event.ABANDON:
        text = f"{job.recoveries + 1} workers in a row were lost while they ran this job: {why}"
        error = Error(WORKERS_LOST, f"{text}; {SILENCED}" if silent else text)
    if running is not None and running.spending is not None:
        running = replace(running, spending=reconciled(running.spending, past.records))
    cargo = Cargo(steps=progress_records(job, running, now), drops=tuple(drops), note=note)
    if error is not None:
        return abandon(job, now, by=by, error=error, **cargo)
    return lapse(job, now, by=by, progressed=progressed, recovery=recovery, **cargo)


def _not_recorded(items: Iterable[RunningItem], past: Past) -> tuple[RunningItem, ...]:
    """Return the steps that the lost worker ran last and did not record: the loss has cut them off."""
    recorded = {step.path for step in past.steps if step.state is not StepState.STARTED}
    return tuple(one for one in items if one.path not in recorded)


def noticed_after(note: Mapping[str, Any]) -> int | None:
    """For how many milliseconds a dead worker had been silent when its loss was noted; None if none died."""
    silent = note.get(SILENT_FOR)
    return silent if isinstance(silent, int) and not str(note.get("why", "")).endswith(ALIVE) else None


def loss_of(note: Mapping[str, Any]) -> Loss:
    """Why a worker was lost, given the note of that loss."""
    why = str(note.get("why", ""))
    if EXCUSED in note:
        return "store"
    if why.endswith(ALIVE):
        return "stale"
    return "died" if why == CUT_OFF or UNNOTICED in why else "silent"


def has_progressed(past: Past) -> bool:
    """Whether a step was recorded, or a wait started or answered, since the last recovery. The count then restarts."""
    counted = (entry for entry in past.history if entry.event == Event.LAPSE and EXCUSED not in entry.note)
    return _newest(past) > max((entry.epoch for entry in counted), default=0)


def releases_in_a_row(past: Past) -> int:
    """Count the releases in a row of a started job without a new step, or a wait started or answered."""
    newest, row = _newest(past), 0
    for entry in reversed(past.history):
        if entry.event in BREAKS_THE_ROW or (entry.event == Event.RELEASE and entry.epoch <= newest):
            break
        row += entry.event == Event.RELEASE and HANDED_OVER in entry.note
    return row


def _newest(past: Past) -> int:
    """Return the epoch of the newest record that counts as progress."""
    counted = (one.epoch for one in past.records if one.path[0] != "~" or one.path.startswith(WAITS))
    return max(counted, default=0)
