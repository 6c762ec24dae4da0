"""The signals of one attempt: which its waits have taken, and which the next change removes from the job's inbox.

Must not read a store (`suspension`).
"""

from typing import Any

from holdfast.core.model import Signal
from holdfast.worker.held_job import HeldJob


class Inbox:
    """The inbox of one job, as its waits see it. Signals are identified by their versions. On the worker's loop."""

    def __init__(self, held: HeldJob) -> None:
        self._held = held
        self._used: set[int] = set()
        """Signals that a wait of this job has taken or is taking."""
        self._spent: set[int] = set()
        """Signals that a wait has recorded, or that matched no wait: the next change removes them from the inbox."""
        self._turns: dict[int, int] = {}
        """For signals that passed from wait to wait, because a wait was cancelled before its code got the signal: which
        turn it is, counted from 1. Only the wait that took the signal in its last turn has it.
        """
        self._given_back: dict[int, Signal] = {}
        """Signals of these that no wait has taken again. The store's inbox may have lost them: the next sender sees the
        record of the wait that took the signal, and removes it from the inbox.
        """

    def untaken(self, name: str) -> list[Signal]:
        """Return the signals of this name that no wait has taken yet, oldest first."""
        known = self._given_back | {signal.version: signal for signal in self._held.job.inbox}
        return [known[one] for one in sorted(known) if known[one].name == name and one not in self._used]

    def spent_versions(self) -> tuple[int, ...]:
        """Return the signals that the next change removes from the inbox."""
        return tuple(signal.version for signal in self._held.job.inbox if signal.version in self._spent)

    def turn_of(self, signal: Signal) -> int:
        """Return how often this signal will have been taken, if it is taken now: once, unless waits were cancelled."""
        return self._turns.get(signal.version, 1)

    def take(self, signal: Signal) -> None:
        """Take this signal for a wait. No other wait can have it."""
        self._used.add(signal.version)
        self._given_back.pop(signal.version, None)

    def refuse(self, signal: Signal) -> None:
        """Mark a taken signal as one that matches no wait."""
        self._spent.add(signal.version)

    def take_hints(self, name: str) -> None:
        """Take all signals of this name. They only say that something should be read, and it is about to be."""
        for signal in self.untaken(name):
            self.take(signal)
            self.refuse(signal)

    def untake(self, signal: Signal) -> None:
        """Release a taken signal that couldn't be recorded. The next wait for its name may take it."""
        self._used.discard(signal.version)
        self._given_back[signal.version] = signal

    def give_back(self, signal: Signal) -> None:
        """Return a signal whose wait ends before its code got it. The next wait for its name takes it."""
        self._turns[signal.version] = self.turn_of(signal) + 1
        self._used.discard(signal.version)
        self._spent.discard(signal.version)
        self._given_back[signal.version] = signal

    def is_only_recorded(self, version: int) -> bool:
        """Whether a returned signal is no longer in the store's inbox, so that only a record has it."""
        return version in self._given_back and all(signal.version != version for signal in self._held.job.inbox)

    def note_answer(self, info: dict[str, Any]) -> None:
        """Note that a wait was answered with a signal, as its record says."""
        signal, turn = info["signal"], info.get("turn", 1)
        if turn > 1:
            self._turns[signal] = max(turn, self._turns.get(signal, 1))
        if not self.is_given_up(info):
            self._used.add(signal)
            self._spent.add(signal)

    def is_given_up(self, info: dict[str, Any]) -> bool:
        """Whether the job gave up a wait, according to its record. It may hold a signal that another wait has."""
        return bool(info.get("dropped")) or info.get("turn", 1) < self._turns.get(info.get("signal", 0), 1)
