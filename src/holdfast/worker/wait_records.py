"""The records of a job's waits: what they ask, until when they wait, which signals they refused, which were given up.

Must not write them (`suspension`).
"""

from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import Invalid
from holdfast.core.model import Signal, Step, StepState
from holdfast.jobs.questions import WITHDRAWN
from holdfast.worker.journal import Journal
from holdfast.worker.pending_wait import PendingWait
from holdfast.worker.records import record_info


class WaitRecords:
    """Makes the records of one attempt's waits. On the worker's loop."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known = journal.records.waits
        self._given_up: dict[str, None] = {}
        self.refused: list[str] = []
        """Signals that did not fit what the job waited for, for the history."""
        self._refusals: dict[str, dict[str, Any]] = {}
        """The last of them under each name: which, from whom, and why it did not fit. The wait's record says that."""

    def note_given_up(self, path: str) -> None:
        """The job's own code has given up this wait."""
        self._given_up[path] = None

    def note_refusal(self, signal: Signal, error: Invalid, inbox: tuple[Signal, ...]) -> None:
        """A signal does not fit what the job waits for: the history and the record of the wait say so."""
        name, by = signal.name, signal.by or "nobody"
        self.refused.append(f"{name} from {by}: {error}")
        there = {one.version for one in inbox}
        before = [one for one in self._refusals.get(name, {}).get("signals", ()) if one in there]
        self._refusals[name] = {"signals": [*before, signal.version], "by": by, "why": str(error)}

    def open_given_up(self) -> list[Step]:
        """The records that still ask for what the job gave up."""
        known = [record for path in self._given_up if (record := self._known.get(path)) is not None]
        return [
            one
            for one in known
            if one.state is StepState.STARTED and record_info(one).keys() & {"name", WITHDRAWN} == {"name"}
        ]

    def make_withdrawn(self) -> list[Step]:
        """Records after which nobody answers what the job gave up, though it runs on.

        They say so in a way that can be taken back: only a suspend settles what the job's code has decided.
        """
        return [self._make_asked(one.path, {**record_info(one), WITHDRAWN: True}) for one in self.open_given_up()]

    def make_asked(self, pending: list[PendingWait[Any]]) -> list[Step]:
        """The records of what these waits ask, as far as they are not written yet."""
        known = {path: record_info(record) for path, record in self._known.items()}
        asked = []
        for one in [one for one in pending if one.path and not one.is_given_up]:
            refused = self._refusals.get(one.wait.name) or known.get(one.path, {}).get("refused")
            asked.append((one.path, {**one.info, "until": one.end, **({"refused": refused} if refused else {})}))
        return [self._make_asked(path, info) for path, info in asked if known.get(path) != info]

    def make_all(self, pending: list[PendingWait[Any]]) -> list[Step]:
        """The records that go with a suspend: of what the waits ask, and of those that the job has given up."""
        asked = {one.path for one in pending if not one.is_given_up}
        given_up = [path for path in self._given_up if path not in asked and not self._is_needed(path)]
        dropped = [self._journal.wait_record(path, StepState.DONE, {"dropped": True}) for path in given_up]
        return self.make_asked(pending) + dropped

    def undelivered_paths(self) -> tuple[str, ...]:
        """Waits that the job gave up and whose records hold a signal all the same: they make room for new records."""
        records = [self._known.get(path) for path in self._given_up if not self._is_needed(path)]
        return tuple(one.path for one in records if one is not None and "signal" in record_info(one))

    def _is_needed(self, path: str) -> bool:
        """Whether the record of a wait that was given up is the last to hold a signal: then it answers the wait after
        all, when the code runs again.
        """
        record = self._known.get(path)
        info = {} if record is None else record_info(record)
        return "signal" in info and self._journal.inbox.is_only_recorded(info["signal"])

    def _make_asked(self, path: str, info: dict[str, Any]) -> Step:
        """The record of what a wait asks. It was asked when it was first asked."""
        record, before = self._journal.wait_record(path, StepState.STARTED, info), self._known.get(path)
        return record if before is None else replace(record, started_at=before.started_at)
