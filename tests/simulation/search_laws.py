"""The laws of the search: of one job that was cancelled, killed or forked at given points, and of its undo.

Each law gives one line for each time it was broken. Must not run anything.
"""

from collections.abc import Iterator

import msgspec

from holdfast.core.keys import derived_id
from holdfast.core.model import Applied, Event, State, StepState
from holdfast.forking import COPY_ENDED
from tests.simulation.lodge import FAIL, TIMEOUT_SECONDS
from tests.simulation.plot import Plot
from tests.simulation.wire import Store, at_once

GRACE_SECONDS = 30.0
"""How long the undo waits for the word of an owner: shorter than in the product, so that a search takes less time."""

SOON_SECONDS = 3.0
"""How long after a cancel no step begins any more, and the undo does, if the owner lives and heeds it."""

RESCUE_SECONDS = 8.0
"""How long it takes until another worker goes on with what a lost one did, or undoes it; for each lost worker."""

LIMIT_SECONDS = 120.0


def broken(kind: str, here: Plot, store: Store, settled: bool) -> Iterator[str]:
    """The laws that this run has broken."""
    job, undo = at_once(store.engine.get([here.job, derived_id(here.job, "undo")]))
    if not settled:
        yield f"forgotten: the job is {job.state}, its undo {undo and undo.state}, after {LIMIT_SECONDS} s"
        return
    yield from _of_workers(kind, here, store)
    if job.state is State.COMPLETED:
        steps = {one.path: one for one in at_once(store.engine.steps(here.job)) if one.state is StepState.DONE}
        for path in sorted({one.path for one in here.made} - steps.keys() - here.given_up):
            yield f"hole: the job has completed, and {path} was never done"
    if here.cancelled_at is None and job.state is not (State.REVIEW if kind in FAIL else State.COMPLETED):
        yield f"end: nobody cancelled the job, and it is {job.state}: {job.error and job.error.message}"
    if here.cancelled_at is None or job.epoch == 0:
        if here.undone or undo is not None:
            yield f"undone for nothing: {[one.path for one in here.undone]} of a job that is {job.state}"
        return
    steps = {one.path: one for one in at_once(store.engine.steps(here.job))}
    intents = [path.removeprefix("~undo/") for path in steps if path.startswith("~undo/")]
    ended = [one for one in here.undone if one.ended]
    if undo is None or undo.state is not State.COMPLETED:
        yield f"forgotten: the undo is {undo and undo.state}"
    forgotten = {one.path for one in here.made if one.path.startswith("let#")} - {one.path for one in ended}
    if forgotten:
        yield f"forgotten: {sorted(forgotten)} began, and was not undone"
    wanted = [*reversed(intents), ""]
    if [*dict.fromkeys(one.path for one in here.undone)] != wanted:
        yield f"order: undone were {[one.path for one in here.undone]}, to be undone {wanted}"
    for one in here.undone:
        record = steps.get(one.path)
        done = record is not None and record.state is StepState.DONE
        value = msgspec.json.decode(record.result or "null") if done and record is not None else None
        if one.path and one.value != value:
            yield f"value: the undo of {one.path} was given {one.value}, not {value}"
        if one.path and done and one.path not in {made.path for made in here.made}:
            yield f"value: {one.path} is recorded and never began"
    for path in wanted:
        times = sum(one.path == path for one in ended)
        lost = len(here.killed) + len(here.loopless())
        if times > 1 + lost:
            yield f"twice: {path or 'the cleanup'} was undone {times} times, with {lost} lost workers"
    yield from _too_soon_or_late(here)


def _of_workers(kind: str, here: Plot, store: Store) -> Iterator[str]:
    """What a job's code does to its worker: it is counted for what it is, and a worker that has lost a job stops."""
    unlooped = {node.worker.id for node in here.loopless()}
    if unlooped and kind != "ends":
        yield f"ended: a step has ended the event loop of {sorted(unlooped)}"
    for code in here.forks:
        if code != COPY_ENDED:
            yield f"forked: the child went on as a second worker, and ended with {code}"
    for entry in at_once(store.engine.history(here.job)):
        if entry.event == Event.RELEASE and entry.by in unlooped:
            yield f"handed over: the job was released by {entry.by}, whose event loop had ended"
    lapsed = _lapsed_at(here.job, store)
    for one in here.made:
        at = lapsed.get(one.epoch)
        if at is not None and one.began > at + 0.001:
            yield f"stale: {one.path} began in {one.who} {one.began - at:.2f} s after its lease had ended"
    died = dict(here.killed)
    for one in here.made:
        ran = (one.stopped if one.stopped is not None else died.get(one.who, here.world.now)) - one.began
        if kind == "late" and ran > TIMEOUT_SECONDS + 0.01:
            yield f"overtime: {one.path} ran for {ran:.1f} s, and the job's timeout is {TIMEOUT_SECONDS} s"


def _lapsed_at(job: str, store: Store) -> dict[int, float]:
    """When the store wrote each lapse of the job, by epoch. An entry's own time is that of the snapshot before it."""
    return {
        change.job.epoch: act.at
        for act in store.acts
        if act.name == "commit" and act.ok
        for change, answer in zip(act.args[0], act.answer, strict=True)
        if change.event == Event.LAPSE and change.job.id == job and isinstance(answer, Applied)
    }


def _too_soon_or_late(here: Plot) -> Iterator[str]:
    assert here.cancelled_at is not None
    died = dict(here.killed)
    grace = here.cancelled_at + GRACE_SECONDS
    for one in here.made:
        until = min((at for at in (one.stopped, died.get(one.who)) if at is not None), default=here.world.now)
        for undo in here.undone:
            if one.began <= undo.began < until and undo.began < grace:
                yield f"under a step: {undo.path or 'the cleanup'} was undone while {one.path} ran in {one.who}"
            if one.began > undo.began:
                yield f"under a step: {one.path} began after {undo.path or 'the cleanup'} was undone"
        if one.began > here.cancelled_at + SOON_SECONDS:
            yield f"after the cancel: {one.path} began {one.began - here.cancelled_at:.2f} s later"
    first = min(one.began for one in here.undone) if here.undone else here.world.now
    rescue = RESCUE_SECONDS * (len(here.killed) + len(here.loopless()))
    if first > here.cancelled_at + SOON_SECONDS + rescue + sum(here.held):
        yield f"late: the undo began {first - here.cancelled_at:.1f} s after the cancel"
