"""Everything that can go wrong, as one small tree. Must not hold anything but error types.

    HoldfastError
    ├── Invalid              what was given can't be right: a name, a duration, a URL, an option
    │   ├── BadValue         a value that can't be stored, or doesn't fit its type
    │   └── UnknownOption    an option that isn't there: mistyped, or not in this version
    ├── Refused              what was asked is not possible now; the store is unchanged
    │   ├── NotFound         no such job
    │   ├── NotAllowed       the lifecycle has no such edge from this state
    │   ├── LeaseLost        the lease was taken over: this attempt stops
    │   ├── Outrun           somebody else changed the job first, again and again
    │   ├── KeyConflict      the idempotency key stands for other arguments
    │   └── Moved            the store's jobs were moved to another one, or are being moved
    ├── JobError             a job or a part of it came to no good end
    │   ├── JobFailed        it needs a person (review) or was given up (discarded)
    │   ├── JobCancelled     it was stopped on request
    │   ├── StepFailed       a step failed with an error that can't be raised as itself
    │   ├── EffectInDoubt    a step with effect="once" was begun and not recorded: did it happen?
    │   ├── UndoFailed       something that a stopped job made could not be undone
    │   └── ItemsFailed      fewer items of a map succeeded than were needed
    ├── WrongColour          a step was called in a way that its function's colour doesn't allow here
    └── StoreError           the store can't do its part
        ├── StoreBusy        locked by somebody else for too long, or owned by another process
        ├── StoreFull        no room left on the disk, or over the engine's limit
        ├── StoreDamaged     the file can't be read; it is never overwritten
        ├── StoreForeign     the file is somebody else's, or of a newer version
        ├── StoreUnwritable  the file or its folder can't be written
        ├── StoreLost        acknowledged work is gone, or files are: emptied, removed, or older than what we saw
        └── StoreClosed      used before open, after close, or across a fork

A message says what, which, and what now, in one line.
"""

from dataclasses import dataclass
from typing import Any


class HoldfastError(Exception):
    """The root of all errors that Holdfast raises on purpose."""


class Invalid(HoldfastError, ValueError):
    """What was given can't be right: a name, a duration, a URL, an option."""


class UnknownOption(Invalid, TypeError):
    """An option that isn't there: mistyped, or not in this version."""


class BadValue(Invalid):
    """A value that can't be stored, or that doesn't fit its type."""


class Refused(HoldfastError):
    """What was asked is not possible now; the store is unchanged."""


class NotFound(Refused, LookupError):
    """There is no such job."""


class NotAllowed(Refused):
    """The lifecycle has no such edge from this state."""


class LeaseLost(Refused):
    """The lease was taken over or ended: this attempt stops and writes nothing."""


class Outrun(Refused):
    """Somebody else changed the job first, as often as we tried."""


class KeyConflict(Refused):
    """The idempotency key already stands for other arguments."""


class Moved(Refused):
    """The store's jobs were moved to another one, or are being moved: it takes nothing."""


class JobError(HoldfastError):
    """A job or a part of it came to no good end. `type`, `message` and `traceback` are data, as they were kept."""

    def __init__(self, line: str, *, type: str = "", message: str = "", traceback: str = "") -> None:
        super().__init__(line)
        self.type = type
        self.message = message
        self.traceback = traceback


class JobFailed(JobError):
    """The job needs a person (review) or was given up (discarded)."""


class JobCancelled(JobError):
    """The job was stopped on request."""


class StepFailed(JobError):
    """A step failed with an error that can't be raised as itself: its class isn't loaded here, or is no Exception."""


class EffectInDoubt(JobError):
    """A step with `effect="once"` was begun and not recorded: only a person can tell whether it happened."""


class UndoFailed(JobError):
    """Something that a stopped job made could not be undone. The message names what is left over."""


class ItemsFailed(JobError):
    """Fewer items of a map succeeded than were needed.

    `results` has the items' places, None where one failed; `failures` tells which failed and why.
    """

    def __init__(self, line: str, results: list[Any], failures: list["ItemFailure"]) -> None:
        super().__init__(line, type="ItemsFailed", message=line)
        self.results = results
        self.failures = failures


@dataclass(frozen=True)
class ItemFailure:
    """One item of a map that failed: its place, the item, and the error."""

    index: int
    item: Any
    error: BaseException


class WrongColour(HoldfastError, TypeError):
    """A step was called in a way that its function's colour doesn't allow here. The message names the view to use."""


class StoreError(HoldfastError):
    """The store can't do its part. What was under way may or may not have been written."""


class StoreBusy(StoreError):
    """Locked by somebody else for too long, or owned by another process."""


class StoreFull(StoreError):
    """No room is left on the disk, or the engine's own limit is reached."""


class StoreDamaged(StoreError):
    """The file can't be read. It is never overwritten."""


class StoreForeign(StoreError):
    """The file is somebody else's, or written by a newer version. It is never written."""


class StoreUnwritable(StoreError):
    """The file or its folder can't be written."""


class StoreLost(StoreError):
    """Acknowledged work is gone: the store was emptied, or is older than what we saw. Nothing more is written."""


class StoreClosed(StoreError):
    """Used before open, after close, or in a forked child."""
