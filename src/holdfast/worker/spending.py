"""What an attempt spends: the amounts that its code reports with `spend()`, and what became of them.

A step that declares a cost counts as if it had spent that, for each currency in which it doesn't report something else.
Must not write anything: a step's amounts are recorded with the step (`journal`), the totals with the heartbeat and the
end of the lease (`progress`), and the job's budget hears of them with the step's permits (`permits`).
"""

import threading
from collections.abc import Collection, Iterator

from msgspec import json
from msgspec.structs import replace

from holdfast.core.model import Spending, Step, StepState
from holdfast.core.reruns import SAVED_PATH
from holdfast.core.spending import SPENT_PATH, Amounts, added, amounts_in, charged, failed, lessened


class Ledger:
    """The amounts of one attempt. Safe from any thread of the job, and from the heartbeat's thread."""

    def __init__(self, epoch: int, *, is_budgeted: bool = False) -> None:
        self._epoch = epoch
        self._is_budgeted = is_budgeted
        self._lock = threading.Lock()
        self._running: dict[str, Amounts] = {}
        """What the steps that run now have spent in this try, by path."""
        self._declared: dict[str, Amounts] = {}
        """What the steps that run now declare as the cost of this try, by path."""
        self._ended: dict[str, Amounts] = {}
        """What ended tries have spent, by path, until it is booked on the job's budget."""
        self._unbooked: Amounts = {}
        """What code between steps has spent, and what earlier leases left, until it is booked on the job's budget."""
        self._recorded: dict[str, Amounts] = {}
        """What earlier leases recorded, by path: what is asked for again is saved."""
        self._total = Spending()
        self._saves = True

    # What earlier leases spent.

    def load(self, before: Spending) -> None:
        """Take over the totals of the lease before this one. After a wait or a release, nothing counts as saved."""
        with self._lock:
            self._total = replace(before, kept=self._total.kept, in_flight={}, waited=0, unbooked={})
            self._unbooked = before.unbooked
            self._saves = before.waited != self._epoch - 1

    def load_step(self, record: Step) -> None:
        """Take over what a recorded step has spent."""
        amounts = amounts_in(record)
        with self._lock:
            self._recorded[record.path.removeprefix(SPENT_PATH)] = amounts
            self._total = replace(self._total, kept=added(self._total.kept, amounts))

    def load_saved(self, record: Step) -> None:
        """Take over what a step had cost the run that it was copied from: this run saves it."""
        with self._lock:
            self._recorded[record.path.removeprefix(SAVED_PATH)] = amounts_in(record)

    def note_answered(self, path: str) -> None:
        """Note that a record answered a call that would have cost money again."""
        if not self._recorded:
            return
        with self._lock:
            amounts = self._recorded.pop(path, None)
            if amounts and self._saves:
                self._total = replace(self._total, saved=added(self._total.saved, amounts))

    # What this one spends.

    def declare(self, path: str, cost: Amounts) -> None:
        """Note what the next try of a step costs, as far as it is known."""
        with self._lock:
            self._declared[path] = cost

    def spend(self, path: str, amounts: Amounts) -> None:
        """Note that code in this step has spent something; outside steps, the path is empty."""
        with self._lock:
            if path:
                self._running[path] = added(self._running.get(path, {}), amounts)
            else:
                self._total = replace(self._total, loose=added(self._total.loose, amounts))
                if self._is_budgeted:
                    self._unbooked = added(self._unbooked, amounts)

    def waste(self, path: str, *, is_refused: bool = False) -> None:
        """Note that a try of a step failed: what it spent is not kept. If its provider refused it, it cost nothing."""
        with self._lock:
            if is_refused:
                self._declared.pop(path, None)
            if amounts := self._close(path):
                total = self._total
                by = charged(total.wasted_by, [(path, amounts)])
                self._total = replace(total, wasted=added(total.wasted, amounts), wasted_by=by)

    def _close(self, path: str) -> Amounts:
        """Return what the try that ends now has spent."""
        spent = {**self._declared.pop(path, {}), **self._running.pop(path, {})}
        if spent and self._is_budgeted:
            self._ended[path] = added(self._ended.get(path, {}), spent)
        return spent

    def records_of(self, step: Step) -> Iterator[Step]:
        """Yield the record of what a finished step has spent, to be written together with the step's own."""
        if step.state is not StepState.DONE:
            self.waste(step.path)
            return
        with self._lock:
            amounts = self._close(step.path)
            if not amounts:
                return
            self._total = replace(self._total, kept=added(self._total.kept, amounts))
        text = json.encode(amounts).decode()
        yield replace(step, path=SPENT_PATH + step.path, name=SPENT_PATH[:-1], result=text)

    def waste_loose(self) -> None:
        """Note that the attempt failed: what its code spent between steps is not kept."""
        with self._lock:
            self._total = failed(self._total)

    # What the job's budget doesn't know yet.

    def take_ended(self, path: str) -> Amounts:
        """Return what the tries of a step have spent since this was last asked."""
        with self._lock:
            return self._ended.pop(path, {})

    def take_unbooked(self) -> Amounts:
        """Return what was spent between steps, and by cut steps of earlier leases, since this was last asked."""
        with self._lock:
            taken, self._unbooked = self._unbooked, {}
            return taken

    def has_unbooked(self) -> bool:
        """Whether there is such an amount."""
        return bool(self._unbooked)

    def in_flight(self) -> dict[str, Amounts]:
        """Return what the steps that run now have spent in this try, and what else they declare, by path."""
        with self._lock:
            return {path: added(self._declared.get(path, {}), self._over(path)) for path in self._open()}

    def _open(self) -> Collection[str]:
        return {*self._running, *self._declared}

    def _over(self, path: str) -> Amounts:
        """Return what this try of a step has spent beyond what it declares."""
        return lessened(self._running.get(path, {}), self._declared.get(path, {}))

    def describe(self, *, waits: bool = False) -> Spending | None:
        """Return the totals; None if nothing was ever spent. `waits` if the lease ends with a wait or a release."""
        with self._lock:
            waited = self._epoch if waits else self._total.waited
            over = [self._over(path) for path in self._open()]
            in_flight = added(*self._declared.values(), *over)
            unbooked = added(self._unbooked, *over) if self._is_budgeted else {}
            now = replace(self._total, in_flight=in_flight, waited=waited, unbooked=unbooked)
        return now if now != Spending(waited=now.waited) else None
