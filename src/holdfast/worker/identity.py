"""How the calls of one attempt are known again: their paths, their records, old names, and what nobody asked for.

Must not run anything or write to a store: it is the part of an attempt that looks at what earlier leases left.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.core.errors import Invalid
from holdfast.core.keys import quoted_name, step_path
from holdfast.core.model import Job, Step, StepState
from holdfast.jobs.consequences import UNDO_PATH
from holdfast.worker.drift import DRIFT_LINES, VANISHED_NAMES, is_once, not_asked, other_key
from holdfast.worker.registry import StepSpec, place_of
from holdfast.worker.tries import TRY


class _Made:
    """An attribute that is made when it is first asked for. Of two threads that ask at once, both get the same."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        instance.is_bare = False
        return instance.__dict__.setdefault(self._name, self._make())


def made(make: Callable[[], Any]) -> Any:
    """See _Made. For a type checker it is what `make` makes."""
    return _Made(make)


class Identity:
    """What an attempt's code has asked for, beside what earlier leases recorded. Safe from any thread of the job."""

    job: Job
    root: asyncio.Task[Any] | None = None
    """The task of the handler itself."""

    # Most attempts are short and need little of what follows: it is made when it is first asked for.

    is_bare = True
    """Whether none of it was asked for: then nothing need be looked for, and the instance needs no dict, which Python
    makes at the first `vars`. Who assigns to one of these says so.
    """
    records: dict[str, Step] = made(dict)
    waits: dict[str, Step] = made(dict)
    unsettled: dict[str, str] = made(dict)
    """Effects that an earlier lease began and that have no result, by path, with the step's name: those that this
    attempt's code has not asked for yet. What the store says counts, not what the step's decorator says today.
    """
    arguments: dict[str, str] = made(dict)
    """What the arguments of keyed calls were, as hashes, by their paths: see drift.tags."""
    _effects: dict[str, str] = made(dict)
    """The path of each effect that this attempt's code has asked for, by its name and key."""
    _earlier: dict[str, str] | None = None
    _earlier_once: dict[str, str] | None = None
    _calls: dict[str, int] = made(dict)
    _callers: dict[str, int] = made(dict)
    _named: dict[str, StepSpec] = made(dict)
    _left: dict[str, dict[str, None]] = made(dict)
    _new: list[tuple[str, StepSpec, bool]] = made(list)
    _first_names: dict[str, str] = made(dict)
    """Of steps that have been renamed: the oldest name of each, by all that it has had, as they are in paths."""
    _paths: set[str] | None = None
    _drift: list[str] = made(list)
    _lock: threading.Lock = made(threading.Lock)

    def number(self, call: str) -> int:
        """Which of the equal calls this one is: the first, the second, … Each try of a step counts from the start."""
        within = TRY.get()
        if within is not None:
            within.check()
        with self._lock:
            calls = self._calls if within is None else within.calls
            nth = calls[call] = calls.get(call, 0) + 1
            return nth

    def note_caller(self, path: str, nth: int) -> None:
        """Equal calls from different tasks may change places the next time: the history says so. On the loop."""
        task, within = asyncio.current_task(), TRY.get()
        callers = self._callers if within is None else within.callers
        if nth == 1:
            if task is not self.root:
                callers[path] = id(task)
        elif callers.get(path, id(self.root)) != id(task):
            self.note_drift(f"{path} was called from different tasks, which may change places; give key= to tell them")

    def check_place(self, spec: StepSpec) -> None:
        """Two functions under one name in one run would answer for each other, and so would a step and its old name."""
        there = self._named.setdefault(spec.name, spec)
        if there is not spec:
            _check_twins(there, spec, spec.name)
        if spec.was:
            for old in spec.was:
                there = self._named.setdefault(old, spec)
                if there is not spec:
                    _check_twins(there, spec, old)
            self._first_names |= dict.fromkeys(map(quoted_name, spec.names), quoted_name(spec.was[0]))

    def placed(self, spec: StepSpec, parent: str, key: str, nth: int = 1) -> tuple[str, str]:
        """The name and path under which a call is recorded: today's, or older ones where something is recorded."""
        path = step_path(parent, spec.name, key, nth)
        if spec.was and self.job.epoch > 1 and path not in self._known_paths():
            for old in spec.was:
                older = step_path(parent, old, key, nth)
                if older in self._known_paths():
                    return old, older
        return spec.name, path

    # One key is one effect in a job, whichever step asks for it: the first call's path is that of all others.

    def effect_path(self, spec: StepSpec, key: str, path: str) -> str:
        """Where the effect of this name and key is recorded, or will be: at `path`, unless another step asked first."""
        if path in self.records:
            return path
        if self.job.epoch > 1:
            if self._earlier is None:
                self._earlier = _by_call(list(self.records.values()))
            if (found := _found(self._earlier, spec, key)) is not None:
                return found
        call = step_path("", spec.name, key) if spec.was else path.rpartition("/")[2]
        return self._effects.setdefault(call, path)

    def once_path(self, spec: StepSpec, key: str, path: str) -> str | None:
        """Where an earlier version of a step, which was an effect then, recorded this call or began it. None if no
        earlier lease has done so.
        """
        if self._earlier_once is None:
            self._earlier_once = _by_call([step for step in list(self.records.values()) if self._is_once(step)])
        if not self._earlier_once:
            return None
        here = self.records.get(path)
        return path if here is not None and self._is_once(here) else _found(self._earlier_once, spec, key)

    def _is_once(self, step: Step) -> bool:
        return step.state is StepState.STARTED or is_once(self.arguments.get(step.path))

    def _known_paths(self) -> set[str]:
        """Where earlier leases have left something: a record, that of a step inside, or something to undo."""
        if self._paths is None:
            left = [*self.records, *(path.removeprefix(UNDO_PATH) for path in self.waits if path.startswith(UNDO_PATH))]
            self._paths = {*left, *(above for path in left for above in above_of(path))}
        return self._paths

    def first_path(self, path: str) -> str:
        """A path with the oldest names of steps that have been renamed: what is derived from it outlasts a rename."""
        if self.is_bare or not vars(self).get("_first_names"):
            return path
        parts = (part.partition("#") for part in path.split("/"))
        return "/".join(f"{self._first_names.get(name, name)}{mark}{rest}" for name, mark, rest in parts)

    def recorded(self, path: str) -> Step | None:
        """The record of a step that is done or failed, if there is one. A look, not a call to the store."""
        step = self.records.get(path)
        if step is not None:
            self._left.get(step.name, {}).pop(path, None)
            if step.state is not StepState.STARTED:
                return step
            self.unsettled.pop(path, None)
        return None

    def note_run(self, path: str, spec: StepSpec, *, keyed: bool) -> None:
        """The body of a call is about to run. It may be one that differs from what is recorded: see drift."""
        if self._left and len(self._new) < DRIFT_LINES and any(self._left.get(name) for name in spec.names):
            self._new.append((path, spec, keyed))

    def unasked(self) -> list[str]:
        """The recorded steps that this attempt has not asked for, leaving out those inside a step that answers."""
        left = [path for paths in self._left.values() for path in paths]
        return [path for path in left if not any(above in self.records for above in above_of(path))]

    def vanished(self) -> dict[str, int]:
        """The recorded steps whose names this attempt's code has never asked for, by name, and how many there are of
        each; leaving out those inside a step that has a record itself.
        """
        if self.job.epoch == 1 or self.is_bare:
            return {}
        left = {name: paths for name, paths in self._left.items() if paths and name not in self._named}
        counts = {name: sum(not self.is_inside_recorded(path) for path in paths) for name, paths in left.items()}
        return dict([(name, number) for name, number in counts.items() if number][:VANISHED_NAMES])

    def note_drift(self, line: str) -> None:
        """Remember, for the history, that a call differs from its record."""
        if len(self._drift) < DRIFT_LINES:
            self._drift.append(line)

    def drift(self) -> list[str]:
        """What the history is told about calls that differ from what is recorded. Complete at the handler's end."""
        if self.is_bare or ("_new" not in vars(self) and "_drift" not in vars(self)):
            return []
        for path, spec, keyed in self._new:
            names = list(inspect.signature(spec.function).parameters)
            left = [old for name in spec.names for old in self._left.get(name, ())]
            line = other_key(path, left) if keyed else not_asked(path, names, left)
            if line is not None:
                self.note_drift(line)
        return self._drift

    def is_inside_recorded(self, path: str) -> bool:
        """Whether a step around it has a record, which answers for all that happened inside."""
        outer = (self.records.get(above) for above in above_of(path))
        return any(step is not None and step.state is not StepState.STARTED for step in outer)


def _by_call(steps: Iterable[Step]) -> dict[str, str]:
    """The paths of records by the last part of each: the name and key of the call, without the steps around it. Of
    several, one that is done counts; one that failed never does.
    """
    kept = [step for step in steps if step.state is not StepState.FAILED]
    kept.sort(key=lambda step: step.state is StepState.DONE)
    return {step.path.rpartition("/")[2]: step.path for step in kept}


def _found(places: dict[str, str], spec: StepSpec, key: str) -> str | None:
    """The path of a call, under whichever name its step has had."""
    return next((found for name in spec.names if (found := places.get(step_path("", name, key))) is not None), None)


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


def above_of(path: str) -> list[str]:
    """The paths of the steps around a step, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
