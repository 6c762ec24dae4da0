"""The lives of the jobs of a run, put together from the store's dump and from the list of its acts.

The dump tells what the store says happened; the acts tell when, in the world's time, and who asked. Must not judge.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.conformance.dump import Dump
from holdfast.core.model import Applied, Conflict, Entry, Event, Job, Record, Recorded, Step, StepState
from tests.simulation.wire import Act

OWNER = frozenset({"complete", "fail", "exhaust", "release", "suspend", "rest"})
"""Events that only the owner brings about."""

DROPS_FAILED = (Event.FAIL, Event.OVERRUN, Event.REPLAY)
"""Events after which failed steps run again."""


@dataclass
class Tenure:
    """One lease: who had it, from which act to which, and what ended it."""

    epoch: int
    worker: str
    claim: Act | None
    end: Act | None = None
    event: str = ""

    def covers(self, act: Act) -> bool:
        """Whether this act happened while the lease was current."""
        if self.claim is None or act.number <= self.claim.number:
            return False
        return self.end is None or act.number < self.end.number


@dataclass
class Kept:
    """One step record that the store accepted, or refused. `owned` if it was written in an owner's name."""

    act: Act
    step: Step
    first: bool
    owned: bool = True


@dataclass
class Life:
    """One job: its row, its history, its leases, and the records that were kept for it, in order."""

    job: Job
    entries: list[Entry]
    made: dict[int, Act]
    steps: dict[str, Step]
    tenures: dict[int, Tenure] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    refused: list[Kept] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.job.type} {self.job.id[-6:]}"

    def records_of(self, path: str) -> list[Kept]:
        return [kept for kept in self.kept if kept.step.path == path]

    def standing(self, path: str, before: Act) -> Step | None:
        """The finished record of a step as it stood just before an act."""
        step = None
        for kept in self.records_of(path):
            if kept.act.number < before.number and kept.step.state is not StepState.STARTED:
                step = kept.step if step is None else step
                if step.state is StepState.FAILED and self._dropped(kept.act, before):
                    step = None
        return step

    def _dropped(self, since: Act, before: Act) -> bool:
        return any(
            since.number < act.number < before.number
            for entry in self.entries
            if entry.event in DROPS_FAILED and (act := self.made.get(entry.version)) is not None
        )

    def note_of(self, tenure: Tenure) -> Mapping[str, Any]:
        """What the history tells about the end of a lease."""
        ends = (entry for entry in self.entries if entry.epoch == tenure.epoch and entry.event == tenure.event)
        return next((entry.note for entry in ends), {})


def lives_of(dump: Dump, acts: list[Act]) -> dict[str, Life]:
    """The life of each job that the store holds."""
    made: defaultdict[str, dict[int, Act]] = defaultdict(dict)
    kept: defaultdict[str, list[Kept]] = defaultdict(list)
    refused: defaultdict[str, list[Kept]] = defaultdict(list)
    for act in acts:
        if not act.ok:
            continue
        match act.name:
            case "insert":
                for job, inserted in zip(act.args[0], act.answer, strict=True):
                    if inserted.new:
                        made[job.id].setdefault(1, act)
            case "put_record":
                for job in act.args[3] if len(act.args) > 3 and isinstance(act.answer, Record) else ():
                    made[job.id].setdefault(1, act)
            case "claim":
                for job in act.answer:
                    made[job.id].setdefault(job.version, act)
            case "commit":
                for change, answer in zip(act.args[0], act.answer, strict=True):
                    if isinstance(answer, Applied):
                        made[change.job.id].setdefault(answer.version, act)
                        for step in change.steps:
                            kept[step.job].append(Kept(act, step, True, change.event in OWNER))
                        for new in change.inserts:
                            made[new.id].setdefault(1, act)
            case "record" | "admit":
                steps, answers = (act.args[0], act.answer) if act.name == "record" else (act.args[1], act.answer[1])
                for step, answer in zip(steps, answers, strict=True):
                    if isinstance(answer, Recorded):
                        kept[step.job].append(Kept(act, step, answer.first))
                    elif isinstance(answer, Conflict):
                        refused[step.job].append(Kept(act, step, False))
    return {
        id: _with_tenures(
            Life(
                job,
                dump.history[id],
                made[id],
                {step.path: step for step in dump.steps[id]},
                kept=kept[id],
                refused=refused[id],
            )
        )
        for id, job in dump.jobs.items()
    }


def _with_tenures(life: Life) -> Life:
    current: Tenure | None = None
    for entry in life.entries:
        act = life.made.get(entry.version)
        if entry.event == Event.CLAIM:
            current = life.tenures[entry.epoch] = Tenure(entry.epoch, entry.by, act)
        elif current is not None and entry.before == "active" and entry.after != "active":
            current.end, current.event = act, entry.event
            current = None
    return life


def tokens_in(value: Any) -> list[str]:
    """The tokens of effects in a result, in order."""
    if isinstance(value, list):
        return [token for one in value for token in tokens_in(one)]
    return [value] if isinstance(value, str) and value[:1] == "e" and value[1:].isdigit() else []
