"""Who hears what this process has written to a store: the hooks of an App. Must not know any store."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.model import Applied, Change, Conflict, Inserted, Job


class Observer(Protocol):
    """Hears what a call has stored, before the call returns. Must not raise and must be quick. Called on any thread."""

    def heard_inserts(self, jobs: Sequence[Job]) -> None:
        """These new jobs are in the store."""

    def heard_claims(self, jobs: Sequence[Job]) -> None:
        """A worker here has claimed these jobs."""

    def heard_changes(self, changes: Sequence[Change]) -> None:
        """These changes are in the store."""


class Observed:
    """What can be observed: an engine. It hears of its own calls only, not of other processes."""

    observers: tuple[Observer, ...] = ()

    def observe(self, observer: Observer) -> None:
        """Let an observer hear of every insert and every change from now on."""
        if observer not in self.observers:
            self.observers = (*self.observers, observer)

    def announce(self, changes: Sequence[Change]) -> None:
        """Tell the observers that these changes are in the store."""
        for observer in self.observers if changes else ():
            observer.heard_changes(changes)

    def announce_answers(self, changes: Sequence[Change], answers: Sequence[Applied | Conflict]) -> None:
        """Tell the observers of the changes that the store has accepted."""
        pairs = zip(changes, answers, strict=True)
        self.announce([change for change, answer in pairs if isinstance(answer, Applied)])

    def announce_claims(self, jobs: Sequence[Job]) -> None:
        """Tell the observers that these jobs were claimed."""
        for observer in self.observers if jobs else ():
            observer.heard_claims(jobs)

    def announce_inserts(self, jobs: Sequence[Job], answers: Sequence[Inserted]) -> None:
        """Tell the observers of the jobs that are new in the store."""
        new = [job for job, answer in zip(jobs, answers, strict=True) if answer.new]
        for observer in self.observers if new else ():
            observer.heard_inserts(new)
