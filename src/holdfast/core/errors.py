"""Everything that can go wrong, as one small tree. Must not hold anything but error types.

    HoldfastError
    ├── Invalid              the caller passed something invalid: a name, a duration, a URL, an option
    │   ├── BadValue         a value that can't be stored, or doesn't fit its type
    │   └── UnknownOption    an option that doesn't exist: mistyped, or not in this version
    ├── Refused              the request isn't possible now; the store is unchanged
    │   ├── NotFound         there is no such job
    │   ├── NotAllowed       the job's state doesn't allow this
    │   ├── LeaseLost        another worker took the lease, or it ended: this attempt stops
    │   ├── Outrun           others kept changing the job first
    │   ├── KeyConflict      the idempotency key was already used with other arguments
    │   ├── Duplicate        there is a job like it already, and `unique=` says to refuse
    │   ├── QueueFull        as many jobs wait in the queue as may
    │   └── Moved            the store's jobs were moved to another store, or are being moved
    ├── JobError             a job or a part of it failed
    │   ├── JobFailed        the job needs a person (review) or was discarded
    │   ├── JobCancelled     the job was cancelled
    │   ├── StepFailed       a step failed with an error whose own type can't be raised here
    │   ├── EffectInDoubt    a step with effect="once" started, and no result was recorded: did it happen?
    │   ├── AlreadyHappened  a rerun changed the arguments of such a step, and nobody has let it happen again
    │   ├── UndoFailed       something that a stopped job made could not be undone
    │   └── ItemsFailed      too many items of a map failed
    ├── Throttled            raise it in a step: the provider asks to slow down (in `throttling`)
    ├── BlobError            a large value or a file
    │   ├── BlobGone         it isn't in the blob store any more, or it was altered there
    │   ├── BlobsAway        the blob store can't be reached, is full, or refuses
    │   └── Unstored         a result couldn't be stored; a local file holds it
    ├── WrongColour          an async step was called from sync code, or the other way round
    └── StoreError           the store failed
        ├── StoreBusy        another process locked the store for too long, or owns it
        ├── StoreFull        the disk is full, or the engine's limit is reached
        ├── StoreDamaged     the file can't be read; it is never overwritten
        ├── StoreForeign     the file belongs to another program, or to a newer version
        ├── StoreUnwritable  the file or its folder isn't writable
        ├── StoreLost        acknowledged work is gone: the store was emptied, deleted, or replaced by an older copy
        └── StoreClosed      the store isn't open: used before open, after close, or across a fork

A message says in one line what happened, to which thing, why, and what to do.
"""

from dataclasses import dataclass
from typing import Any


class HoldfastError(Exception):
    """The root of all errors that Holdfast raises on purpose."""


class Invalid(HoldfastError, ValueError):
    """The caller passed something invalid: a name, a duration, a URL, an option."""


class UnknownOption(Invalid, TypeError):
    """An option that doesn't exist: mistyped, or not in this version."""


class BadValue(Invalid):
    """A value that can't be stored, or that doesn't fit its type."""


class Refused(HoldfastError):
    """The request isn't possible now; the store is unchanged."""


class NotFound(Refused, LookupError):
    """There is no such job."""


class NotAllowed(Refused):
    """The job's state doesn't allow this."""


class LeaseLost(Refused):
    """Another worker took the lease, or it ended: this attempt stops and writes nothing more."""


class Outrun(Refused):
    """Others kept changing the job first, until the retries ran out."""


class KeyConflict(Refused):
    """The idempotency key was already used with other arguments."""


class Duplicate(Refused):
    """There is a job like it already, and `unique=` says to refuse. `existing` is its run, `id` its id."""

    def __init__(self, line: str, id: str, existing: Any = None) -> None:
        super().__init__(line)
        self.id = id
        self.existing: Any = id if existing is None else existing


class QueueFull(Refused):
    """As many jobs wait in the queue as may. `depth` is how many do; try again in about `retry_after` seconds."""

    def __init__(self, line: str, *, queue: str, depth: int, most_waiting: int, retry_after: float) -> None:
        super().__init__(line)
        self.queue = queue
        self.depth = depth
        self.most_waiting = most_waiting
        self.retry_after = retry_after


class Moved(Refused):
    """The store's jobs were moved to another store, or are being moved: it accepts no writes."""


class JobError(HoldfastError):
    """A job or a part of it failed. `type`, `message` and `traceback` are the recorded texts of the original error."""

    def __init__(self, line: str, *, type: str = "", message: str = "", traceback: str = "") -> None:
        super().__init__(line)
        self.type = type
        self.message = message
        self.traceback = traceback


class JobFailed(JobError):
    """The job needs a person (review) or was discarded."""


class JobCancelled(JobError):
    """The job was cancelled."""


class StepFailed(JobError):
    """A step failed with an error whose own type can't be raised: it isn't loaded here, or isn't an Exception."""


class EffectInDoubt(JobError):
    """A step with `effect="once"` started, and no result was recorded. A person has to find out whether it happened."""


class AlreadyHappened(JobError):
    """A rerun changed the arguments of a step with effect="once" that has happened. A person has to allow it again."""


class UndoFailed(JobError):
    """Something that a stopped job made could not be undone. The message names it."""


class ItemsFailed(JobError):
    """Too many items of a map failed.

    `results` has one entry per item, in order, None for a failed one; `failures` lists the failed items with their
    errors.
    """

    def __init__(self, line: str, results: list[Any], failures: list["ItemFailure"]) -> None:
        super().__init__(line, type="ItemsFailed", message=line)
        self.results = results
        self.failures = failures


@dataclass(frozen=True)
class ItemFailure:
    """One failed item of a map: its index, the item, and the error."""

    index: int
    item: Any
    error: BaseException


class BlobError(HoldfastError):
    """A large value or a file can't be read or stored."""


class BlobGone(BlobError):
    """It isn't in the blob store any more, or it was altered there."""


class BlobsAway(BlobError):
    """The blob store can't be reached, is full, or refuses."""


class Unstored(BlobError):
    """A result couldn't be stored. The message names the local file that holds it."""


class WrongColour(HoldfastError, TypeError):
    """An async step was called from sync code, or the other way round. The message says how to call it."""


class StoreError(HoldfastError):
    """The store failed. A write that was in progress may or may not be stored."""


class StoreBusy(StoreError):
    """Another process locked the store for too long, or owns it."""


class StoreFull(StoreError):
    """The disk is full, or the engine's own limit is reached."""


class StoreDamaged(StoreError):
    """The file can't be read. It is never overwritten."""


class StoreForeign(StoreError):
    """The file belongs to another program, or to a newer version. Holdfast never writes to it."""


class StoreUnwritable(StoreError):
    """The file or its folder isn't writable."""


class StoreLost(StoreError):
    """Acknowledged work is gone: the store was emptied, deleted or replaced by an older copy. Writing stops."""


class StoreClosed(StoreError):
    """The store isn't open: it was used before open, after close, or in a forked child."""
