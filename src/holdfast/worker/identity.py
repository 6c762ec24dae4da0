"""How the calls of one attempt are known again: their numbers, names and paths, and how they differ from the records.

Must not run anything or write to a store: it compares what the code asks for with what earlier leases left.
"""

import asyncio
import inspect
import threading
from typing import Any

from holdfast.core.errors import Invalid
from holdfast.core.keys import quoted_name, step_path
from holdfast.core.model import Step
from holdfast.worker.drift import DRIFT_LINES, VANISHED_NAMES, describe_other_key, describe_unasked
from holdfast.worker.records import Records, paths_above
from holdfast.worker.registry import StepSpec, place_of
from holdfast.worker.tries import TRY


class Calls:
    """What an attempt's code has asked for, beside what earlier leases recorded. Safe from any thread of the job."""

    def __init__(self, epoch: int, records: Records) -> None:
        self._epoch = epoch
        self._records = records
        self._numbers: dict[str, int] = {}
        self._callers: dict[str, int] = {}
        self._named: dict[str, StepSpec] = {}
        self._first_names: dict[str, str] = {}
        """Of steps that have been renamed: the oldest name of each, by all that it has had, as they are in paths."""
        self._unasked: dict[str, dict[str, None]] = {}
        """The recorded steps that the code has not asked for yet: their paths, by name."""
        self._new: list[tuple[str, StepSpec, bool]] = []
        self._drift: list[str] = []
        self._vanished: dict[str, int] | None = None
        self._lock = threading.Lock()

    # Which call it is.

    def number(self, call: str) -> int:
        """Count the equal calls: this one is the first, the second, … Each try of a step counts from the start."""
        within = TRY.get()
        if within is not None:
            within.check()
        with self._lock:
            numbers = self._numbers if within is None else within.calls
            nth = numbers[call] = numbers.get(call, 0) + 1
            return nth

    def note_caller(self, path: str, nth: int, root: "asyncio.Task[Any] | None") -> None:
        """Equal calls from different tasks may change places the next time: the history says so. On the loop. `root`
        is the task of the handler.
        """
        task, within = asyncio.current_task(), TRY.get()
        callers = self._callers if within is None else within.callers
        if nth == 1:
            if task is not root:
                callers[path] = id(task)
        elif callers.get(path, id(root)) != id(task):
            self.note_drift(f"{path} was called from different tasks, which may change places; give key= to tell them")

    def check_name(self, spec: StepSpec) -> None:
        """Refuse two functions under one name in one run, which would answer for each other; old names count, too."""
        there = self._named.setdefault(spec.name, spec)
        if there is not spec:
            _check_twins(there, spec, spec.name)
        if spec.was:
            for old in spec.was:
                there = self._named.setdefault(old, spec)
                if there is not spec:
                    _check_twins(there, spec, old)
            self._first_names |= dict.fromkeys(map(quoted_name, spec.names), quoted_name(spec.was[0]))

    def locate(self, spec: StepSpec, parent: str, key: str, nth: int = 1) -> tuple[str, str]:
        """The name and path under which a call is recorded: today's, or older ones where something is recorded."""
        path = step_path(parent, spec.name, key, nth)
        if spec.was and self._epoch > 1 and path not in self._records.known_paths():
            for old in spec.was:
                older = step_path(parent, old, key, nth)
                if older in self._records.known_paths():
                    return old, older
        return spec.name, path

    def first_path(self, path: str) -> str:
        """A path with the oldest names of steps that have been renamed: what is derived from it outlasts a rename."""
        if not self._first_names:
            return path
        parts = (part.partition("#") for part in path.split("/"))
        return "/".join(f"{self._first_names.get(name, name)}{mark}{rest}" for name, mark, rest in parts)

    # What was recorded and is not asked for, or differs from what is.

    def expect(self, step: Step) -> None:
        """An earlier lease recorded this step: the code is expected to ask for it."""
        self._unasked.setdefault(step.name, {})[step.path] = None

    def note_asked(self, step: Step) -> None:
        """The code has asked for a recorded step."""
        self._unasked.get(step.name, {}).pop(step.path, None)

    def is_asked(self, step: Step) -> bool:
        """Whether the code has asked for a recorded step."""
        return step.path not in self._unasked.get(step.name, ())

    def note_run(self, path: str, spec: StepSpec, *, keyed: bool) -> None:
        """The body of a call is about to run. It may be one that differs from what is recorded: see drift."""
        if self._unasked and len(self._new) < DRIFT_LINES and any(self._unasked.get(name) for name in spec.names):
            self._new.append((path, spec, keyed))

    def note_drift(self, line: str) -> None:
        """Remember, for the history, that a call differs from its record."""
        if len(self._drift) < DRIFT_LINES:
            self._drift.append(line)

    def unasked_paths(self) -> list[str]:
        """The recorded steps that this attempt has not asked for, leaving out those inside a step that answers."""
        left = [path for paths in self._unasked.values() for path in paths]
        return [path for path in left if not any(above in self._records.steps for above in paths_above(path))]

    def vanished_counts(self) -> dict[str, int]:
        """The recorded steps whose names this attempt's code has never asked for, by name, and how many there are of
        each; leaving out those inside a step that has a record itself.
        """
        if self._vanished is not None:
            return self._vanished
        left = {name: paths for name, paths in self._unasked.items() if paths and name not in self._named}
        inside = self._records.is_inside_recorded
        counts = {name: sum(not inside(path) for path in paths) for name, paths in left.items()}
        return dict([(name, number) for name, number in counts.items() if number][:VANISHED_NAMES])

    def drift_lines(self) -> list[str]:
        """What the history says about calls that differ from what is recorded. Complete at the handler's end."""
        for path, spec, keyed in self._new:
            names = list(inspect.signature(spec.function).parameters)
            left = [old for name in spec.names for old in self._unasked.get(name, ())]
            line = describe_other_key(path, left) if keyed else describe_unasked(path, names, left)
            if line is not None:
                self.note_drift(line)
        return self._drift

    def take_over(self, drift: list[str], vanished: dict[str, int]) -> None:
        """The code ran in another process, where the calls were compared."""
        self._drift, self._vanished = drift, vanished


def _check_twins(one: StepSpec, other: StepSpec, name: str) -> None:
    """Refuse that two functions have one name, now or before."""
    here, there = place_of(one.function), place_of(other.function)
    if one.name == other.name:
        if here == there:  # one function, decorated again
            return
        raise Invalid(f"two steps of this run are called {name!r}: {here} and {there}; give one name='…'")
    if name not in (one.name, other.name):
        raise Invalid(f"two steps of this run have was={name!r}: {here} and {there}; leave it to one of them")
    still, renamed = (one, other) if one.name == name else (other, one)
    raise Invalid(
        f"step {renamed.name!r} has was={name!r}, and this run still has a step {name!r}: {place_of(still.function)}; "
        "leave out was=, or give that one another name"
    )
