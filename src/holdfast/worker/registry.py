"""What a worker can run: jobs and steps by name, with their decorators' settings. Must not run anything."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

from holdfast.core.alerts import Alert
from holdfast.core.budgets import Cost
from holdfast.core.codec import Signature
from holdfast.core.declared_limits import Limit
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.keys import check_type
from holdfast.core.limits import CHILDREN
from holdfast.core.model import Options, Retry
from holdfast.core.queue_bounds import QueueBound
from holdfast.core.schedules import Definition
from holdfast.jobs.job_calls import JobCall


class StepSpec(Struct, frozen=True, kw_only=True):
    """A step, as its decorator described it."""

    name: str
    function: Callable[..., Any]
    signature: Signature
    is_async: bool
    retry: Retry
    timeout_ms: int | None
    stale_after_ms: int | None
    key: Any
    effect: str | None = None
    undo: Callable[..., Any] | None = None
    isolated: bool = False
    memory_mb: int | None = None
    was: tuple[str, ...] = ()
    """Its earlier names, oldest first."""
    limits: tuple[Limit, ...] = ()
    """The shared limits that each try needs a permit of."""
    cost: Cost | None = None
    """What each try costs."""
    undo_name: str = ""
    """The name of its undo, if that is found by this name and not by the step's (`attachments`)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and its earlier ones."""
        return (self.name, *self.was)


class JobSpec(Struct, frozen=True, kw_only=True):
    """A job, as its decorator described it."""

    type: str
    function: Callable[..., Any]
    signature: Signature
    is_async: bool
    queue: str
    options: Options
    cleanup: Callable[..., Any] | None = None
    isolated: bool = False
    memory_mb: int | None = None
    limits: tuple[Limit, ...] = ()
    most_children: int = CHILDREN
    """How many children one job of this type may submit."""
    fair: str = ""
    """A text with arguments in braces that makes a job's fair key."""
    needs: frozenset[str] = frozenset()
    """What a worker must have to run it."""


UNDOABLE: dict[str, dict[str, StepSpec]] = {}
"""The steps of this process that can be undone, by name and module: an undo may need them long after their job."""

STEPS: dict[str, dict[str, StepSpec]] = {}
"""All steps of this process, by name and module, including their old names. If a record's name isn't among them, its
step was renamed or removed.
"""


def check_fits(name: str, decode: Callable[[StepSpec], object]) -> None:
    """Refuse a value that fits no step with this name. If no step here has the name, nothing is refused."""
    trouble: BadValue | None = None
    for spec in STEPS.get(name, {}).values():
        try:
            decode(spec)
            return
        except BadValue as error:
            trouble = error
    if trouble is not None:
        raise trouble


NO_GENERATOR = "a generator can't be recorded; return a list"
"""Why a function with `yield` is refused where a plain one is needed."""


class Registry:
    """The jobs of one app, by type, and its limits and schedules."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobSpec] = {}
        self.on_settle: Callable[[str, int], None] | None = None
        self._limits: dict[str, Limit] = {}
        self.bounds: dict[str, QueueBound] = {}
        """How many jobs may wait in which queues."""
        self.alerts: dict[Alert, None] = {}
        """The alerts of the app, in the order of their declaration."""
        self.subscriptions: dict[str, dict[str, JobCall | None]] = {}
        """The events that jobs are subscribed to: by name, the types of the jobs (`jobs.subscriptions`)."""
        self.schedules: dict[str, Definition] = {}
        """What the app declares, by name."""

    def add(self, spec: JobSpec) -> None:
        """Register a job. Two functions with one type are refused; the same function may be registered again."""
        there = self._jobs.get(spec.type)
        if there is not None and there.function.__code__ is not spec.function.__code__:
            raise Invalid(
                f"two jobs have the name {spec.type!r}: {place_of(there.function)} and {place_of(spec.function)}; "
                "give one of them name='…'"
            )
        self._jobs[spec.type] = spec

    def get(self, type: str) -> JobSpec | None:
        """Return the job of this type, if it is registered."""
        return self._jobs.get(type)

    def types(self) -> list[str]:
        """Return all registered types."""
        return sorted(self._jobs)

    def servable(self, has: Collection[str]) -> list[str]:
        """Return the registered types that a worker with these things can run."""
        return [type for type in self.types() if self._jobs[type].needs <= frozenset(has)]

    def lacking(self, has: Collection[str], most: int) -> dict[str, tuple[str, ...]]:
        """Return what a worker with these things lacks, for each of the types that it can't run; not too many."""
        lacks = {type: tuple(sorted(self._jobs[type].needs.difference(has))) for type in self.types()}
        return dict([(type, words) for type, words in lacks.items() if words][:most])

    def needed(self) -> frozenset[str]:
        """Return everything that jobs of this app need."""
        return frozenset(word for spec in self._jobs.values() for word in spec.needs)

    def add_limit(self, limit: Limit) -> Limit:
        """Register a limit. The same name may be declared again, but not with other settings."""
        there = self._limits.setdefault(limit.name, limit)
        if there.words() != limit.words():
            raise Invalid(
                f"limit {limit.name} is declared twice with different settings: {there.words()}; and {limit.words()}; "
                "declare it once, and use what app.limit returns"
            )
        return there

    def add_bound(self, bound: QueueBound) -> None:
        """Register the bound of a queue. The same queue may be declared again, but not with another bound."""
        there = self.bounds.setdefault(bound.queue, bound)
        if there != bound:
            raise Invalid(
                f"queue {bound.queue} is declared twice with different bounds: {there.words()}; and {bound.words()}; "
                "declare it once"
            )

    def settle(self, limit: Limit, units: int) -> None:
        """Correct what the running step uses of a limit, in millionths of a unit. See `Limit.settle`."""
        if self.on_settle is not None:
            self.on_settle(limit.name, units)

    def limits(self) -> list[Limit]:
        """Return all registered limits, by name."""
        return [self._limits[name] for name in sorted(self._limits)]

    def add_schedule(self, name: str, definition: Definition) -> None:
        """Register a schedule. The same name may be declared again, but not with another meaning."""
        there = self.schedules.setdefault(name, definition)
        if there != definition:
            raise Invalid(
                f"schedule {name} is declared twice: {there.words()} ({there.job.type}) and {definition.words()} "
                f"({definition.job.type}); give one of them another name"
            )

    def args_misfit(self, type: str, args: str) -> str | None:
        """Say why the job of this type can't read these arguments; None if it can, or if it isn't known here."""
        spec = self._jobs.get(type)
        return None if spec is None else _trouble_of(spec.signature.decode, args)

    def misfit(self, type: str, args: str) -> str | None:
        """Say why a job of this type can't have these arguments; None if it can, or if the type isn't known here."""
        spec = self._jobs.get(type)
        try:
            if spec is not None:
                spec.signature.decode(args)
        except BadValue as error:
            return f"its arguments don't fit the job {type} any more: {error}; change the schedule or the job"
        return None

    def is_home_of(self, function: Callable[..., Any], type: str) -> bool:
        """Whether this function is the job of this type here."""
        spec = self._jobs.get(type)
        return spec is not None and spec.function is function


def result_misfit(name: str, result: str) -> str | None:
    """Say why no step of this name can read a recorded result; None if one can, or if none is known here."""
    troubles = [_trouble_of(spec.signature.result.decode, result) for spec in STEPS.get(name, {}).values()]
    return None if None in troubles else next(iter(troubles), None)


def _trouble_of(decode: Callable[[str], object], text: str) -> str | None:
    try:
        decode(text)
    except BadValue as error:
        return str(error)
    return None


def check_function(function: Any, kind: str, name: str | None) -> Callable[..., Any]:
    """Refuse what another process can't find again, or what isn't one call: lambdas, methods, generators, classes."""
    if not inspect.isfunction(function):
        raise Invalid(f"@{kind} on {function!r}: decorate a plain function (def or async def) instead")
    where = place_of(function)
    if function.__name__ == "<lambda>":
        raise Invalid(f"@{kind} on a lambda ({where}): decorate a def function instead, which has a name")
    if is_generator(function):
        raise Invalid(f"@{kind} on {where}: {NO_GENERATOR}")
    parameters = list(inspect.signature(function).parameters)
    if parameters and parameters[0] in ("self", "cls"):
        raise Invalid(f"@{kind} on {where}: methods aren't supported; decorate a module-level function")
    if kind == "step" and "<locals>" in function.__qualname__ and name is None:
        raise Invalid(f"@{kind} on {where}, a nested function: give it name='…', so that Holdfast can find it again")
    return function


def is_generator(made: object) -> bool:
    """Whether this is a generator, or something whose call only creates one: its body would never run."""
    if inspect.isgenerator(made) or inspect.isasyncgen(made):
        return True
    calls = (made, getattr(made, "__call__", None))  # noqa: B004 (an object's own, if it isn't a function)
    return any(inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call) for call in calls)


def type_of(function: Callable[..., Any], name: str | None) -> str:
    """Return the job type of a function: its own name, unless another one is given."""
    return check_type(name if name is not None else function.__name__)


def place_of(function: Callable[..., Any]) -> str:
    """Return where a function is defined, for a message."""
    function = inspect.unwrap(function)
    if isinstance(function, functools.partial):
        function = function.func
    line = function.__code__.co_firstlineno if inspect.isfunction(function) else "?"
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '?')}.{name} (line {line})"
