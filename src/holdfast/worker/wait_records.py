"""The records of a job's waits: what they ask for, until when, which signals they refused, which were given up.

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
        """Signals that didn't match what the job waited for, for the history."""
        self._refusals: dict[str, dict[str, Any]] = {}
        """The last refused signal of each name: which, from whom, and why. The wait's record has this."""

    def note_given_up(self, path: str) -> None:
        """Note that the job's own code has given up this wait."""
        self._given_up[path] = None

    def note_refusal(self, signal: Signal, error: Invalid, inbox: tuple[Signal, ...]) -> None:
        """Note a signal that doesn't match what the job waits for, for the history and the wait's record."""
        name, by = signal.name, signal.by or "nobody"
        self.refused.append(f"{name} from {by}: {error}")
        there = {one.version for one in inbox}
        before = [one for one in self._refusals.get(name, {}).get("signals", ()) if one in there]
        self._refusals[name] = {"signals": [*before, signal.version], "by": by, "why": str(error)}

    def open_given_up(self) -> list[Step]:
        """Return the records that still ask for what the job gave up."""
        known = [record for path in self._given_up if (record := self._known.get(path)) is not None]
        return [
            one
            for one in known
            if one.state is StepState.STARTED and record_info(one).keys() & {"name", WITHDRAWN} == {"name"}
        ]

    def make_withdrawn(self) -> list[Step]:
        """Return records after which nobody answers what the job gave up, although it keeps running.

        They can be reverted: only a suspend makes the code's decision final.
        """
        return [self._make_asked(one.path, {**record_info(one), WITHDRAWN: True}) for one in self.open_given_up()]

    def make_asked(self, pending: list[PendingWait[Any]]) -> list[Step]:
        """Return the records of these waits that aren't written yet."""
        known = {path: record_info(record) for path, record in self._known.items()}
        asked = []
        for one in [one for one in pending if one.path and not one.is_given_up]:
            refused = self._refusals.get(one.wait.name) or known.get(one.path, {}).get("refused")
            asked.append((one.path, {**one.info, "until": one.end, **({"refused": refused} if refused else {})}))
        return [self._make_asked(path, info) for path, info in asked if known.get(path) != info]

    def make_all(self, pending: list[PendingWait[Any]]) -> list[Step]:
        """Return the records to write with a suspend: of the pending waits, and of those that the job has given up."""
        asked = {one.path for one in pending if not one.is_given_up}
        given_up = [path for path in self._given_up if path not in asked and not self._is_needed(path)]
        dropped = [self._journal.wait_record(path, StepState.DONE, {"dropped": True}) for path in given_up]
        return self.make_asked(pending) + dropped

    def undelivered_paths(self) -> tuple[str, ...]:
        """Return waits that the job gave up although their records hold a signal. They make room for new records."""
        records = [self._known.get(path) for path in self._given_up if not self._is_needed(path)]
        return tuple(one.path for one in records if one is not None and "signal" in record_info(one))

    def _is_needed(self, path: str) -> bool:
        """Whether the record of a wait that was given up is the last to hold a signal. Then it answers the wait after
        all, when the code runs again.
        """
        record = self._known.get(path)
        info = {} if record is None else record_info(record)
        return "signal" in info and self._journal.inbox.is_only_recorded(info["signal"])

    def _make_asked(self, path: str, info: dict[str, Any]) -> Step:
        """Return the record of a wait. It keeps the time when the wait was first asked for."""
        record, before = self._journal.wait_record(path, StepState.STARTED, info), self._known.get(path)
        return record if before is None else replace(record, started_at=before.started_at)
