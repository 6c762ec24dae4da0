"""Who hears what this process does with a store: hooks, metrics and traces. Must not know any store."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from holdfast.core.model import LEASE_LOST, Applied, Change, Conflict, Error, Inserted, Job, Spending
from holdfast.core.spending import Amounts, SpendKind, settled_since

StepOutcome = Literal["ran", "replayed", "failed"]
"""What a call of a step came to: its body ran and succeeded, a record answered it, or it failed after its last try."""


Act = Literal["insert", "claim", "turn", "commit", "record", "admit", "beat"]
"""What a process asks of a store. A `turn` commits and claims in one act."""


class Observer(Protocol):
    """Hears what a call has stored, before the call returns. Must not raise and must be quick. Called on any thread."""

    def heard_inserts(self, jobs: Sequence[Job]) -> None:
        """These new jobs are in the store."""

    def heard_claims(self, jobs: Sequence[Job]) -> None:
        """A worker here has claimed these jobs."""

    def heard_changes(self, changes: Sequence[Change]) -> None:
        """These changes are in the store."""

    def heard_fenced(self, number: int) -> None:
        """The store has refused so many writes of this process, because their leases were lost."""

    def heard_step(self, job: Job, step: str, outcome: StepOutcome) -> None:
        """A job that runs here has called a step of this name."""

    def heard_spending(self, job: Job, kind: SpendKind, amounts: Amounts) -> None:
        """A job that runs here, or that was taken from a lost worker, has spent or saved so much more."""

    def heard_act(self, act: Act, seconds: float) -> None:
        """The store has answered an act of this process after so long. Acts that fail aren't heard of."""


class Tracer(Protocol):
    """Follows jobs from their submit to their steps, across processes. Must not raise and must be quick."""

    def sending(self, jobs: Sequence[Job]) -> AbstractContextManager[Sequence[Job]]:
        """Surround an insert. Gives the jobs to insert instead: their `meta` may carry the trace."""

    def processing(self, job: Job) -> AbstractContextManager[Callable[[str, Error | None], None]]:
        """Surround a run of a job. Gives what to call at its end, with its outcome and error."""

    def running(self, job: Job, step: str, path: str, tries: int) -> AbstractContextManager[Callable[[Error], None]]:
        """Surround one try of a step. Gives what to call if it fails."""


class Observed:
    """What can be observed: an engine. It hears of its own calls only, not of other processes."""

    observers: tuple[Observer, ...] = ()
    tracer: Tracer | None = None

    def observe(self, observer: Observer) -> None:
        """Let an observer hear of every insert and every change from now on."""
        if observer not in self.observers:
            self.observers = (*self.observers, observer)

    def observe_like(self, other: "Observed") -> None:
        """Let whoever observes another engine observe this one, too: an App has changed its store."""
        for observer in other.observers:
            self.observe(observer)
        self.tracer = other.tracer

    def announce(self, changes: Sequence[Change]) -> None:
        """Tell the observers that these changes are in the store."""
        for observer in self.observers if changes else ():
            observer.heard_changes(changes)

    def announce_answers(self, changes: Sequence[Change], answers: Sequence[Applied | Conflict]) -> None:
        """Tell the observers of the changes that the store has accepted, and how many it has fenced off."""
        pairs = zip(changes, answers, strict=True)
        self.announce([change for change, answer in pairs if isinstance(answer, Applied)])
        self.announce_refusals(answers)

    def announce_refusals(self, answers: Sequence[object]) -> None:
        """Tell the observers how many of these answers refuse a write whose lease was lost."""
        fenced = sum(isinstance(answer, Conflict) and answer.reason == LEASE_LOST for answer in answers)
        for observer in self.observers if fenced else ():
            observer.heard_fenced(fenced)

    def announce_step(self, job: Job, step: str, outcome: StepOutcome) -> None:
        """Tell the observers of a step that a job has called here."""
        for observer in self.observers:
            observer.heard_step(job, step, outcome)

    def announce_spending(self, job: Job, before: Spending, after: Spending) -> None:
        """Tell the observers what became of a job's money between two reports about it."""
        for kind, amounts in settled_since(before, after).items() if self.observers else ():
            for observer in self.observers:
                observer.heard_spending(job, kind, amounts)

    def announce_act(self, act: Act, began: float) -> None:
        """Tell the observers that the store has answered an act that began at this `time.perf_counter()`."""
        seconds = time.perf_counter() - began
        for observer in self.observers:
            observer.heard_act(act, seconds)

    def announce_claims(self, jobs: Sequence[Job]) -> None:
        """Tell the observers that these jobs were claimed."""
        for observer in self.observers if jobs else ():
            observer.heard_claims(jobs)

    def announce_inserts(self, jobs: Sequence[Job], answers: Sequence[Inserted]) -> None:
        """Tell the observers of the jobs that are new in the store."""
        new = [job for job, answer in zip(jobs, answers, strict=True) if answer.new]
        for observer in self.observers if new else ():
            observer.heard_inserts(new)
