"""Converts errors of jobs and steps to data, and back. Must not decide what happens to a job."""

import asyncio
import concurrent.futures
import sys
from typing import Any

from holdfast.core.errors import (
    AlreadyHappened,
    BlobGone,
    Invalid,
    ItemsFailed,
    JobError,
    StepFailed,
    Unstored,
    WrongColour,
)
from holdfast.core.events import EndlessEvents
from holdfast.core.limits import ERROR_CHARACTERS, TRACEBACK_CHARACTERS
from holdfast.core.model import Error, Step
from holdfast.redaction import redact
from holdfast.tracebacks import format_folded

SHORT_CHARACTERS = 200
"""How many characters of an error fit into one short line."""

MAIN = "__holdfast_main__"
"""The name, in another process, of the script that the worker was started with: there it isn't `__main__`."""

MISREAD = (StopIteration, concurrent.futures.CancelledError)
"""Exceptions that coroutines and futures don't treat as errors."""

INSIDE = (
    "cancelled from inside: it awaited a cancelled task or future, or raised CancelledError; nobody stopped the job"
)
"""The text of a CancelledError that is an error: Python gives it none."""


class Escaped(StepFailed):
    """Wraps an error that must not pass through an event loop: `sys.exit`, a cancelled future, StopIteration."""

    def __init__(self, error: BaseException) -> None:
        text = text_of(error)
        super().__init__(f"{type(error).__name__}: {text}", type=type_name(error), message=text)
        self.error = error
        self.__cause__ = error


def contain(error: BaseException) -> Exception:
    """Return an error of user code in a form that can pass through tasks and futures and that `except Exception`
    catches.

    `sys.exit` would end the worker's event loop. For asyncio, a task that ends with CancelledError hasn't failed.
    """
    if isinstance(error, Exception) and not isinstance(error, MISREAD):
        return error
    return Escaped(error)


class Reported(Exception):
    """An error of code that ran in another process, as data."""

    def __init__(self, error: Error, *, is_final: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.is_final = is_final


def is_final(error: BaseException) -> bool:
    """Whether a retry would fail the same way, because the code or its arguments are wrong."""
    return (
        error.is_final
        if isinstance(error, Reported)
        else isinstance(error, Invalid | AlreadyHappened | WrongColour | Unstored | BlobGone | EndlessEvents)
    )


def error_of(error: BaseException) -> Error:
    """Return an error as data. Never raises, whatever the exception's own code does."""
    if isinstance(error, Escaped):
        error = error.error
    if isinstance(error, Reported):
        return error.error
    try:
        lines = format_folded(error)
    except Exception:
        lines = "(the traceback can't be formatted)"
    lines = redact(lines)  # before it is cut, which may leave half of a secret
    if len(lines) > TRACEBACK_CHARACTERS:
        half = TRACEBACK_CHARACTERS // 2
        lines = f"{lines[:half]}\n… {len(lines) - TRACEBACK_CHARACTERS} characters left out …\n{lines[-half:]}"
    return Error(type_name(error), text_of(error), storable(lines))


def type_name(error: BaseException) -> str:
    """Return the name of an error's type: bare for Python's own types, with its module otherwise."""
    if isinstance(error, Escaped):
        error = error.error
    if isinstance(error, StepFailed) and error.type:
        return error.type
    kind = type(error)
    module = module_of(kind)
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def module_of(named: Any) -> str:
    """Return the module of a class or function, by its name in the worker."""
    module = str(named.__module__)
    return "__main__" if module.endswith(MAIN) else module


def text_of(error: BaseException) -> str:
    """Return an error's text, or why there is none."""
    if isinstance(error, StepFailed) and error.message:
        return error.message
    try:
        text = str(error)
    except BaseException as trouble:
        text = f"(no text: __str__ raised {type(trouble).__name__})"
    if isinstance(error, asyncio.CancelledError):
        text = f"{INSIDE}: {text}" if text else INSIDE
    return storable(text, ERROR_CHARACTERS)


def line_of(error: BaseException) -> str:
    """Return an error as a short line for a log or a status: its bare type and its text, without control characters."""
    text = f"{type_name(error).rpartition('.')[2]}: {' '.join(text_of(error).split())}"[:SHORT_CHARACTERS]
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def storable(text: str, most: int | None = None) -> str:
    """Return a text, cut to `most` characters, without secrets and what a store can't hold: lone surrogates, NUL."""
    return redact(text)[:most].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def rebuild_error(step: Step) -> Exception:
    """Return the error of a failed record. If this process has loaded its class, that is used, so `except` still works.

    Nothing is imported, and no `__init__` is called: only a subclass of Exception is created. An error that had to be
    wrapped (`contain`) comes back as the StepFailed that it was the first time.
    """
    error = step.error or Error("Exception", "")
    kind = _find_class(error.type)
    made = None
    if kind is not None:
        try:
            made = kind.__new__(kind)
        except Exception:  # it needs arguments that weren't recorded
            made = None
    if made is None:
        line = f"step {step.path} failed earlier in this attempt: {error.type}: {error.message}"
        return StepFailed(line, type=error.type, message=error.message, traceback=error.traceback)
    made.args = (error.message,)
    if isinstance(made, JobError):
        made.type, made.message, made.traceback = error.type, error.message, error.traceback
    if isinstance(made, ItemsFailed):
        made.results, made.failures = [], []
    made.add_note(f"(recorded: step {step.path} failed earlier in this attempt)")
    return made


def _find_class(name: str) -> type[Exception] | None:
    """Return the exception class of this name, if this process has loaded it."""
    module, _, path = name.rpartition(".")
    while module and module not in sys.modules:  # a class inside a class
        module, _, outer = module.rpartition(".")
        path = f"{outer}.{path}"
    scripts = () if module else [name for name in list(sys.modules) if name.endswith(MAIN)]
    for home in [module] if module else ["builtins", "__main__", *scripts]:
        kind: Any = sys.modules.get(home)
        for part in path.split("."):
            kind = getattr(kind, part, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return None if issubclass(kind, MISREAD) else kind
    return None
