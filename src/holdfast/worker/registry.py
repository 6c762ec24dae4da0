"""What a worker knows how to run: jobs and steps by name, with what their decorators said. Must not run anything."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from holdfast.core.codec import Signature
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
    """The names that it had before, oldest first."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and those that it had before."""
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


UNDOABLE: dict[str, dict[str, StepSpec]] = {}
"""The steps of this process that can be undone, by name and module: an undo finds them long after their job."""

STEPS: dict[str, dict[str, StepSpec]] = {}
"""All steps of this process in the same way, under their old names too: a record of a name that is not among them was
made by a step that has been renamed or removed since.
"""


NO_GENERATOR = "a generator can't be recorded; return a list"
"""Why a function with `yield` is refused wherever a plain one is asked for."""


class Registry:
    """The jobs of one app, by type."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobSpec] = {}

    def add(self, spec: JobSpec) -> None:
        """Make a job known. Two functions under one type are refused; the same one may come again."""
        there = self._jobs.get(spec.type)
        if there is not None and there.function.__code__ is not spec.function.__code__:
            raise Invalid(
                f"two jobs are called {spec.type!r}: {place_of(there.function)} and {place_of(spec.function)}; "
                "give one of them name='…'"
            )
        self._jobs[spec.type] = spec

    def get(self, type: str) -> JobSpec | None:
        """The job of this type, if it is known here."""
        return self._jobs.get(type)

    def types(self) -> list[str]:
        """All types that are known here."""
        return sorted(self._jobs)


def check_function(function: Any, kind: str, name: str | None) -> Callable[..., Any]:
    """Refuse what can't be found again in another process or called once: lambdas, methods, generators, classes."""
    if not inspect.isfunction(function):
        raise Invalid(f"@{kind} on {function!r}: put it on a plain function (def or async def)")
    where = place_of(function)
    if function.__name__ == "<lambda>":
        raise Invalid(f"@{kind} on a lambda ({where}): write a function, so that it has a name")
    if is_generator(function):
        raise Invalid(f"@{kind} on {where}: {NO_GENERATOR}")
    parameters = list(inspect.signature(function).parameters)
    if parameters and parameters[0] in ("self", "cls"):
        raise Invalid(f"@{kind} on {where}: a method has no identity of its own; use a module-level function")
    if kind == "step" and "<locals>" in function.__qualname__ and name is None:
        raise Invalid(f"@{kind} on {where}, a function inside a function: give it name='…', so that it is known again")
    return function


def is_generator(made: object) -> bool:
    """Whether this is a generator, or something whose call only makes one: its body would never run."""
    if inspect.isgenerator(made) or inspect.isasyncgen(made):
        return True
    calls = (made, getattr(made, "__call__", None))  # noqa: B004 (an object's own, if it isn't a function)
    return any(inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call) for call in calls)


def type_of(function: Callable[..., Any], name: str | None) -> str:
    """The job type of a function: its own name, unless another is given."""
    return check_type(name if name is not None else function.__name__)


def place_of(function: Callable[..., Any]) -> str:
    """Where a function stands, for a message."""
    function = inspect.unwrap(function)
    if isinstance(function, functools.partial):
        function = function.func
    line = function.__code__.co_firstlineno if inspect.isfunction(function) else "?"
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '?')}.{name} (line {line})"
