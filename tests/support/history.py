"""The laws of what a store holds after real processes have worked on it: the histories, and what was really done.

The simulation's laws know every call of every worker; these read only what is left: the store, by its contract, and a
file of effects that the jobs themselves have written. The numbers are those of the simulation's laws. Must not change
the store.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.conformance.dump import Dump, dump
from holdfast.core.model import Entry, Job, Step
from holdfast.engines.contract import Engine
from tests.core.second_copy import EDGES, ENDED

OWNER = frozenset({"complete", "fail", "exhaust", "release", "suspend", "rest"})
"""Events that only the owner brings about."""

COUNTED = frozenset({"fail", "exhaust", "overrun"})
"""Events that cost an attempt."""

CLOCK_SECONDS = 0.05
"""How far the clock of the store may be from that of the effects, on one machine."""

RECORD_EFFECT = """
import json, os, time
from holdfast import current

def effect(what):
    here = current()
    line = {"what": what, "job": here.job_id, "step": here.step, "epoch": here.epoch, "pid": os.getpid(),
            "at": time.time()}
    file = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (json.dumps(line) + "\\n").encode())
    os.close(file)
"""
"""What a test's program begins with, so that its steps can note what they do: outside the store, in one write."""


class Effect(Struct, frozen=True):
    """Something that a step really did."""

    what: str
    job: str
    step: str
    epoch: int
    pid: int
    at: float


class Life(Struct, frozen=True):
    """One job: what the store says of it, and what was done for it."""

    job: Job
    entries: Sequence[Entry]
    steps: Sequence[Step]
    effects: Sequence[Effect]

    @property
    def name(self) -> str:
        return f"{self.job.type} …{self.job.id[-6:]}"

    @property
    def claims(self) -> dict[int, Entry]:
        return {entry.epoch: entry for entry in self.entries if entry.event == "claim"}


def effects_in(path: Path) -> list[Effect]:
    """What a file of effects tells."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Effect) for line in lines]


async def broken_laws(engine: Engine, effects: Path) -> list[str]:
    """Every law that the store and the effects break, in words; none if all is well."""
    return broken(await dump(engine), effects_in(effects))


def broken(store: Dump, effects: Sequence[Effect]) -> list[str]:
    """See broken_laws."""
    done: defaultdict[str, list[Effect]] = defaultdict(list)
    for one in effects:
        done[one.job].append(one)
    lives = [Life(job, store.history[id], store.steps[id], done.pop(id, [])) for id, job in store.jobs.items()]
    told = [f"S1: job {id} has worked and isn't there" for id in done]
    told += [text for life in lives for law in LAWS for text in law(life)]
    return told + list(counted(store)) + list(arrived(store))


def no_gaps(life: Life) -> Iterator[str]:
    versions = [entry.version for entry in life.entries]
    if versions != list(range(1, life.job.version + 1)):
        yield f"S3: {life.name} is at version {life.job.version}, its history has {versions}"


def in_the_table(life: Life) -> Iterator[str]:
    state = None
    for entry in life.entries:
        if entry.before != state:
            yield f"S3: {life.name}: {entry.event} begins at {entry.before}, not {state}"
        if state in ENDED:
            yield f"S4: {life.name}: {entry.event} after {state}"
        if entry.event == "submit":
            fits = entry.version == 1 and entry.after in ("available", "scheduled", "pending")
        elif entry.event == "signal":
            fits = entry.after == state
        else:
            fits = entry.after in EDGES.get((entry.event, str(state)), "").split()
        if not fits:
            yield f"S3: {life.name}: {entry.event} led from {state} to {entry.after}"
        state = entry.after
    if life.job.state != state:
        yield f"S3: {life.name} is {life.job.state}, its history ends at {state}"
    if (life.job.state == "active") != (life.job.worker is not None):
        yield f"S8: {life.name} is {life.job.state}, owned by {life.job.worker}"


def one_owner_at_a_time(life: Life) -> Iterator[str]:
    epoch, owner = 0, ""
    for entry in life.entries:
        if entry.event == "claim":
            epoch, owner = epoch + 1, entry.by
        if entry.epoch != epoch:
            yield f"S5: {life.name}: {entry.event} at epoch {entry.epoch}, after {epoch} claims"
        if entry.event in OWNER and entry.by != owner:
            yield f"S7: {life.name}: {entry.event} by {entry.by}, owned by {owner}"
    if life.job.epoch != epoch:
        yield f"S5: {life.name} is at epoch {life.job.epoch}, after {epoch} claims"


def attempts_are_counted(life: Life) -> Iterator[str]:
    attempt = 1
    for entry in life.entries:
        attempt = 1 if entry.event == "replay" else attempt + (entry.event in COUNTED)
        error = str(entry.note.get("error", ""))
        if entry.event in ("fail", "exhaust") and "Store" in error:
            yield f"S16: {life.name}: {entry.event} because the store didn't answer: {error}"
    if life.job.attempt != attempt:
        yield f"S16: {life.name}: attempt {life.job.attempt}, not {attempt}"


def recorded_once(life: Life) -> Iterator[str]:
    for path, times in Counter(step.path for step in life.steps).items():
        if times > 1:
            yield f"S9: {life.name}: {path} is recorded {times} times"
    for step in life.steps:
        if step.epoch not in life.claims:
            yield f"S9: {life.name}: {step.path} was recorded at epoch {step.epoch}, which nobody had"


def never_again_once_recorded(life: Life) -> Iterator[str]:
    records = {step.path: step for step in life.steps if step.state == "done"}
    begun = [one for one in life.effects if one.what == "begin"]
    for (step, epoch), times in Counter((one.step, one.epoch) for one in begun).items():
        if times > 1:
            yield f"S11: {life.name}: {step} began {times} times at epoch {epoch}"
    for one in begun:
        record = records.get(one.step)
        if record is not None and one.epoch > record.epoch:
            yield f"S10: {life.name}: {one.step} began at epoch {one.epoch}, recorded at {record.epoch}"
        if life.job.state == "completed" and record is None:
            yield f"S10: {life.name}: {one.step} was done, and isn't recorded"
        if record is not None and not any(
            (other.what, other.step, other.epoch) == ("end", one.step, record.epoch) for other in life.effects
        ):
            yield f"S2: {life.name}: {one.step} is recorded at epoch {record.epoch}, where nobody did it"


def no_zombie_begins(life: Life) -> Iterator[str]:
    """Whoever lost a job begins no step once another one has it."""
    for one in life.effects:
        after = life.claims.get(one.epoch + 1)
        late = 0.0 if after is None else one.at - after.at / 1_000
        if one.what == "begin" and late > CLOCK_SECONDS:
            yield f"S10z: {life.name}: {one.step} began at epoch {one.epoch}, {late:.2f} s after the next claim"


def counted(store: Dump) -> Iterator[str]:
    recount = Counter(f"{job.queue}/{job.state}" for job in store.jobs.values())
    if store.counts != recount:
        yield f"S35: the store counts {store.counts}, and holds {dict(recount)}"


def arrived(store: Dump) -> Iterator[str]:
    missing: Counter[str] = Counter()
    for job in store.jobs.values():
        if job.parent is not None:
            missing[f"{job.parent}/{job.group or ''}"] += not job.arrived
            if job.parent not in store.jobs:
                yield f"S2: nobody is the parent of {job.type} …{job.id[-6:]}"
            if job.state in ENDED and not job.arrived:
                yield f"S23: {job.type} …{job.id[-6:]} has ended and its parent doesn't know"
    if dict(missing) != {name: number for name, number in store.missing.items() if name in missing}:
        yield f"S23: {dict(missing)} children are out, the store says {store.missing}"


LAWS: tuple[Callable[[Life], Iterator[str]], ...] = (
    no_gaps,
    in_the_table,
    one_owner_at_a_time,
    attempts_are_counted,
    recorded_once,
    never_again_once_recorded,
    no_zombie_begins,
)
