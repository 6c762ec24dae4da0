"""How the calls of an attempt are matched with records: their numbers, names and paths, and where they differ.

Must not run anything or write to a store. It compares what the code calls with what earlier leases recorded.
"""

import asyncio
import inspect
import threading
from typing import Any

from holdfast.core.errors import Invalid
from holdfast.core.keys import quoted_name, step_path
from holdfast.core.model import Step
from holdfast.core.places import PLACES_LIMIT, places_text, unused_before
from holdfast.worker.drift import DRIFT_LINES, VANISHED_NAMES, describe_other_key, describe_unasked
from holdfast.worker.records import Records, paths_above
from holdfast.worker.registry import StepSpec, place_of
from holdfast.worker.tries import TRY


class Calls:
    """What an attempt's code has called, and what earlier leases recorded. Safe from any thread of the job."""

    def __init__(self, epoch: int, records: Records) -> None:
        self._epoch = epoch
        self._records = records
        self._numbers: dict[str, int] = {}
        self._callers: dict[str, int] = {}
        self._named: dict[str, StepSpec] = {}
        self._first_names: dict[str, str] = {}
        """The oldest name of each renamed step, by every name that it has had."""
        self._unasked: dict[str, dict[str, None]] = {}
        """The recorded steps that the code hasn't called yet: their paths, by name."""
        self._new: list[tuple[str, StepSpec, bool]] = []
        self._drift: list[str] = []
        self._vanished: dict[str, int] | None = None
        self._called: dict[str, None] = {}
        self._places: str | None = None
        self._lock = threading.Lock()

    # Which call this is.

    def number(self, call: str) -> int:
        """Count equal calls: this one is the first, the second, … Each try of a step counts from one."""
        within = TRY.get()
        if within is not None:
            within.check()
        with self._lock:
            numbers = self._numbers if within is None else within.calls
            nth = numbers[call] = numbers.get(call, 0) + 1
            return nth

    def note_caller(self, path: str, nth: int, root: "asyncio.Task[Any] | None") -> None:
        """Note equal calls from different tasks, whose order may change next time: the history warns. On the loop.
        `root` is the task of the handler.
        """
        task, within = asyncio.current_task(), TRY.get()
        callers = self._callers if within is None else within.callers
        if nth == 1:
            if task is not root:
                callers[path] = id(task)
        elif callers.get(path, id(root)) != id(task):
            self.note_drift(f"{path} was called from different tasks, whose order may change; give each call a key=")

    def check_name(self, spec: StepSpec) -> None:
        """Refuse two functions with one name in one job: their records would get mixed up. Old names count, too."""
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
        """Return the name and path under which a call is recorded: current ones, or older ones that have a record."""
        path = step_path(parent, spec.name, key, nth)
        if spec.was and self._epoch > 1 and path not in self._records.known_paths():
            for old in spec.was:
                older = step_path(parent, old, key, nth)
                if older in self._records.known_paths():
                    return old, older
        return spec.name, path

    def first_path(self, path: str) -> str:
        """Return a path with the oldest names of renamed steps: what is derived from it survives a rename."""
        if not self._first_names:
            return path
        parts = (part.partition("#") for part in path.split("/"))
        return "/".join(f"{self._first_names.get(name, name)}{mark}{rest}" for name, mark, rest in parts)

    def note_place(self, path: str) -> None:
        """Note that the code has made this call, after those before it."""
        if len(self._called) <= PLACES_LIMIT:
            self._called.setdefault(path)

    def places(self, *, completes: bool = False) -> str:
        """Return the places of the calls that weren't recorded in their order (`core.places`). With `completes`, the
        code has made all its calls: after a rerun, what it no longer calls is noted.
        """
        if self._places is not None:
            return self._places
        before, recorded = self._records.places, self._records.steps
        has_reruns = bool(self._records.reruns.number)
        if len(self._called) < (1 if has_reruns else 2) or max(len(self._called), len(recorded)) > PLACES_LIMIT:
            return before
        unused = self.unasked_paths() if has_reruns and completes else unused_before(before, self._called, recorded)
        return places_text(list(self._called), list(recorded), before, unused)

    # Recorded steps that the code doesn't call, or calls differently.

    def expect(self, step: Step) -> None:
        """Add a step that an earlier lease recorded: the code is expected to call it."""
        self._unasked.setdefault(step.name, {})[step.path] = None

    def note_asked(self, step: Step) -> None:
        """Note that the code has called a recorded step."""
        self._unasked.get(step.name, {}).pop(step.path, None)

    def is_asked(self, step: Step) -> bool:
        """Whether the code has called a recorded step."""
        return step.path not in self._unasked.get(step.name, ())

    def note_run(self, path: str, spec: StepSpec, *, keyed: bool) -> None:
        """Note that a call's body is about to run. It may be a recorded call that has changed: see drift."""
        if self._unasked and len(self._new) < DRIFT_LINES and any(self._unasked.get(name) for name in spec.names):
            self._new.append((path, spec, keyed))

    def note_drift(self, line: str) -> None:
        """Keep a line for the history: a call differs from its record."""
        if len(self._drift) < DRIFT_LINES:
            self._drift.append(line)

    def unasked_paths(self) -> list[str]:
        """Return the recorded steps that this attempt hasn't called, except those inside a recorded step."""
        left = [path for paths in self._unasked.values() for path in paths]
        return [path for path in left if not any(above in self._records.steps for above in paths_above(path))]

    def vanished_counts(self) -> dict[str, int]:
        """Count the recorded steps whose names this attempt's code has never called, by name; except those inside a
        step that has a record itself.
        """
        if self._vanished is not None:
            return self._vanished
        left = {name: paths for name, paths in self._unasked.items() if paths and name not in self._named}
        inside = self._records.is_inside_recorded
        counts = {name: sum(not inside(path) for path in paths) for name, paths in left.items()}
        return dict([(name, number) for name, number in counts.items() if number][:VANISHED_NAMES])

    def drift_lines(self) -> list[str]:
        """Return the history's lines about calls that differ from their records. Complete once the handler ended."""
        for path, spec, keyed in self._new:
            names = list(inspect.signature(spec.function).parameters)
            left = [old for name in spec.names for old in self._unasked.get(name, ())]
            line = describe_other_key(path, left) if keyed else describe_unasked(path, names, left)
            if line is not None:
                self.note_drift(line)
        return self._drift

    def take_over(self, drift: list[str], vanished: dict[str, int], places: str) -> None:
        """Take over the comparison from another process, where the code ran."""
        self._drift, self._vanished, self._places = drift, vanished, places


def _check_twins(one: StepSpec, other: StepSpec, name: str) -> None:
    """Refuse two functions with the same name, now or in the past."""
    here, there = place_of(one.function), place_of(other.function)
    if one.name == other.name:
        if here == there:  # the same function, decorated again
            return
        raise Invalid(f"two steps of this job have the name {name!r}: {here} and {there}; give one of them name='…'")
    if name not in (one.name, other.name):
        raise Invalid(f"two steps of this job have was={name!r}: {here} and {there}; keep it on only one of them")
    still, renamed = (one, other) if one.name == name else (other, one)
    raise Invalid(
        f"step {renamed.name!r} has was={name!r}, but this job still has a step {name!r} ({place_of(still.function)}); "
        "remove was=, or rename the other step"
    )
