"""What a worker can run: jobs and steps by name, with their decorators' settings. Must not run anything."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from holdfast.core.codec import Signature
from holdfast.core.declared_limits import Limit
from holdfast.core.errors import Invalid
from holdfast.core.keys import check_type
from holdfast.core.model import Options, Retry


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


UNDOABLE: dict[str, dict[str, StepSpec]] = {}
"""The steps of this process that can be undone, by name and module: an undo may need them long after their job."""

STEPS: dict[str, dict[str, StepSpec]] = {}
"""All steps of this process, by name and module, including their old names. If a record's name isn't among them, its
step was renamed or removed.
"""


NO_GENERATOR = "a generator can't be recorded; return a list"
"""Why a function with `yield` is refused where a plain one is needed."""


class Registry:
    """The jobs of one app, by type, and its limits."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobSpec] = {}
        self._limits: dict[str, Limit] = {}

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

    def add_limit(self, limit: Limit) -> Limit:
        """Register a limit. The same name may be declared again, but not with other settings."""
        there = self._limits.setdefault(limit.name, limit)
        if there.words() != limit.words():
            raise Invalid(
                f"limit {limit.name} is declared twice with different settings: {there.words()}; and {limit.words()}; "
                "declare it once, and use what app.limit returns"
            )
        return there

    def limits(self) -> list[Limit]:
        """Return all registered limits, by name."""
        return [self._limits[name] for name in sorted(self._limits)]

    def is_home_of(self, function: Callable[..., Any], type: str) -> bool:
        """Whether this function is the job of this type here."""
        spec = self._jobs.get(type)
        return spec is not None and spec.function is function


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
