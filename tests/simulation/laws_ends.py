"""The laws of effects that happen once, of undoing, and of parents and children: what follows from a job's end."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from holdfast.core.keys import derived_id
from holdfast.core.model import StepState
from tests.simulation.callers import OK, REFUSED
from tests.simulation.check import SETTLED, UNDO, Run, law
from tests.simulation.lives import Life
from tests.simulation.scene import Undo

UNDO_PATH = "~undo/"
UNDO_GRACE_SECONDS = 60.0
GIVEN_UP = frozenset({"cancelled", "discarded"})


@law
def an_effect_that_happens_once_does(run: Run) -> Iterator[str]:
    """What is marked so runs again only as often as a person has said so."""
    again = Counter(said.job for said in run.said if said.kind == "again" and said.outcome != REFUSED)
    runs = Counter((effect.job, effect.path) for effect in run.effects if effect.path.startswith("pay#"))
    for (job, path), times in runs.items():
        if times > 1 + again[job]:
            yield f"once: {path} of {job[-6:]} ran {times} times, and a person said so {again[job]} times"


@law
def what_was_given_up_is_undone(run: Run) -> Iterator[str]:
    """There is one undo for each job that was given up and may have made something, and it takes all of that back."""
    parents = {life.job.parent for life in run.lives.values() if life.job.type != UNDO}
    for id, life in run.lives.items():
        undo = run.lives.get(derived_id(id, "undo"))
        made = life.entries[-1].before == "active" or life.job.type == "lodge" or id in parents
        made = made or any(path.startswith(UNDO_PATH) for path in life.steps)
        made = made and life.job.epoch > 0 and life.job.type != UNDO
        if (life.job.state in GIVEN_UP and made) != (undo is not None):
            yield f"undo: {life.name} is {life.job.state}, and its undo is {undo and undo.job.state}"
        if undo is None:
            continue
        if undo.made[1] is not life.made[life.job.version]:
            yield f"undo: that of {life.name} did not come with its end"
        yield from _undone(run, life, undo)


def _undone(run: Run, life: Life, undo: Life) -> Iterator[str]:
    runs = [one for one in run.stage.scene.undos if one.job == life.job.id]
    ended = [one for one in runs if one.ended is not None]
    intents = [path.removeprefix(UNDO_PATH) for path in life.steps if path.startswith(UNDO_PATH)]
    if undo.job.state == "completed" and undo.entries[-1].event == "complete":
        wanted = [*reversed(intents), *([""] if life.job.type == "lodge" else [])]
        order = list(dict.fromkeys(one.path for one in ended))
        if sorted(order) != sorted(wanted):
            yield f"undo: of {life.name} {order} was taken back, and {wanted} was made"
        elif [*dict.fromkeys(one.path for one in runs)] != wanted:
            yield f"undo: {life.name} was taken back in the order {order}"
    for one in runs:
        step = life.steps.get(one.path)
        done = step is not None and step.state is StepState.DONE
        wanted_value = msgspec.json.decode(step.result or "null") if done and step is not None else None
        if one.path and one.value != wanted_value:
            yield f"undo: {one.path} of {life.name} was given {one.value}, not {wanted_value}"
        yield from _too_soon(run, life, one)


def _too_soon(run: Run, life: Life, undo: Undo) -> Iterator[str]:
    """Nothing is taken back while its owner may still make more, or not for long enough."""
    end = life.made[life.job.version]
    if undo.began - end.at >= UNDO_GRACE_SECONDS or run.plan.jumps:
        return
    for effect in run.effects:
        if effect.job == life.job.id and effect.began > undo.began:
            yield f"undo: {effect.path} of {life.name} began after {undo.path or 'the cleanup'} was taken back"


@law
def a_parent_waits_for_its_children(run: Run) -> Iterator[str]:
    for id, life in run.lives.items():
        if life.job.type != "clan" or life.entries[-1].event != "complete":
            continue
        end = life.made[life.job.version]
        for child in run.lives.values():
            if child.job.parent != id or child.job.type == UNDO:
                continue
            settled = [entry for entry in child.entries if entry.after in SETTLED]
            first = child.made.get(settled[0].version) if settled else None
            if first is None or first.number > end.number:
                yield f"S23: {life.name} was complete before its child {child.name}"


@law
def a_timer_around_a_wait_is_never_forgotten(run: Run) -> Iterator[str]:
    """A job that waits under a timer of its own keeps its slot."""
    for life in run.lives.values():
        for entry in life.entries:
            if life.job.type == "hurry" and entry.event in ("suspend", "rest"):
                yield f"timers: {life.name} gave up its slot under a timer: {dict(entry.note)}"


@law
def who_waits_for_another_job_is_woken_by_its_end(run: Run) -> Iterator[str]:
    """And by nothing else: its code doesn't run to look."""
    for life in run.lives.values():
        awaited = None
        for entry in life.entries if life.job.type == "ally" else ():
            if entry.event == "suspend":
                (awaited,) = entry.note["waits"]
            elif entry.event == "activate" and awaited is not None and awaited.startswith("job "):
                other = run.lives[awaited.removeprefix("job ")]
                settled = [one for one in other.entries if one.after in SETTLED]
                first = other.made.get(settled[0].version) if settled else None
                if first is None or first.number > life.made[entry.version].number:
                    yield f"S23: {life.name} was woken before {other.name}, for which it waits, had settled"


@law
def children_end_with_their_parent(run: Run) -> Iterator[str]:
    """After a cancel was answered, none of the job's children is claimed any more."""
    for said in run.said:
        if said.kind != "cancel" or said.outcome != OK or said.until is None:
            continue
        for child in run.lives.values():
            if child.job.parent != said.job or child.job.type == UNDO:
                continue
            late = [t for t in child.tenures.values() if t.claim is not None and t.claim.at > said.until]
            if late:
                yield f"S24: {child.name} was claimed after the cancel of its parent"
