"""What an attempt spends: the amounts that its code reports with `spend()`, and what became of them.

Must not write anything: a step's amounts are recorded with the step (`journal`), and the totals with the heartbeat and
the end of the lease (`progress`).
"""

import threading
from collections.abc import Iterator

from msgspec import json
from msgspec.structs import replace

from holdfast.core.model import Spending, Step, StepState
from holdfast.core.spending import SPENT_PATH, Amounts, added, amounts_in


class Ledger:
    """The amounts of one attempt. Safe from any thread of the job, and from the heartbeat's thread."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._lock = threading.Lock()
        self._running: dict[str, Amounts] = {}
        """What the steps that run now have spent in this try, by path."""
        self._recorded: dict[str, Amounts] = {}
        """What earlier leases recorded, by path: what is asked for again is saved."""
        self._total = Spending()
        self._saves = True

    # What earlier leases spent.

    def load(self, before: Spending) -> None:
        """Take over the totals of the lease before this one. After a wait or a release, nothing counts as saved."""
        with self._lock:
            self._total = replace(before, kept=self._total.kept, in_flight={}, waited=0)
            self._saves = before.waited != self._epoch - 1

    def load_step(self, record: Step) -> None:
        """Take over what a recorded step has spent."""
        amounts = amounts_in(record)
        with self._lock:
            self._recorded[record.path.removeprefix(SPENT_PATH)] = amounts
            self._total = replace(self._total, kept=added(self._total.kept, amounts))

    def note_answered(self, path: str) -> None:
        """Note that a record answered a call that would have cost money again."""
        if not self._recorded:
            return
        with self._lock:
            amounts = self._recorded.pop(path, None)
            if amounts and self._saves:
                self._total = replace(self._total, saved=added(self._total.saved, amounts))

    # What this one spends.

    def spend(self, path: str, amounts: Amounts) -> None:
        """Note that code in this step has spent something; outside steps, the path is empty."""
        with self._lock:
            if path:
                self._running[path] = added(self._running.get(path, {}), amounts)
            else:
                self._total = replace(self._total, loose=added(self._total.loose, amounts))

    def waste(self, path: str) -> None:
        """Note that a try of a step failed: what it spent is not kept."""
        with self._lock:
            amounts = self._running.pop(path, None)
            if amounts:
                self._total = replace(self._total, wasted=added(self._total.wasted, amounts))

    def records_of(self, step: Step) -> Iterator[Step]:
        """Yield the record of what a finished step has spent, to be written together with the step's own."""
        if step.state is not StepState.DONE:
            self.waste(step.path)
            return
        with self._lock:
            amounts = self._running.pop(step.path, None)
            if not amounts:
                return
            self._total = replace(self._total, kept=added(self._total.kept, amounts))
        text = json.encode(amounts).decode()
        yield replace(step, path=SPENT_PATH + step.path, name=SPENT_PATH[:-1], result=text)

    def waste_loose(self) -> None:
        """Note that the attempt failed: what its code spent between steps is not kept."""
        with self._lock:
            total = self._total
            self._total = replace(total, wasted=added(total.wasted, total.loose), loose={})

    def describe(self, *, waits: bool = False) -> Spending | None:
        """Return the totals; None if nothing was ever spent. `waits` if the lease ends with a wait or a release."""
        with self._lock:
            waited = self._epoch if waits else self._total.waited
            now = replace(self._total, in_flight=added(*self._running.values()), waited=waited)
        return now if now != Spending(waited=now.waited) else None
