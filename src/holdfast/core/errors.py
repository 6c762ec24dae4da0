"""Everything that can go wrong, as one small tree. Must not hold anything but error types.

    HoldfastError
    ├── Invalid              what was given can't be right: a name, a duration, a URL, an option
    │   └── BadValue         a value that can't be stored, or doesn't fit its type
    ├── Refused              what was asked is not possible now; the store is unchanged
    │   ├── NotFound         no such job
    │   ├── NotAllowed       the lifecycle has no such edge from this state
    │   ├── LeaseLost        the lease was taken over: this attempt stops
    │   ├── Outrun           somebody else changed the job first, again and again
    │   └── KeyConflict      the idempotency key stands for other arguments
    └── StoreError           the store can't do its part
        ├── StoreBusy        locked by somebody else for too long, or owned by another process
        ├── StoreFull        no room left on the disk, or over the engine's limit
        ├── StoreDamaged     the file can't be read; it is never overwritten
        ├── StoreForeign     the file is somebody else's, or of a newer version
        ├── StoreUnwritable  the file or its folder can't be written
        └── StoreClosed      used before open, after close, or across a fork

A message says what, which, and what now, in one line.
"""


class HoldfastError(Exception):
    """The root of all errors that Holdfast raises on purpose."""


class Invalid(HoldfastError, ValueError):
    """What was given can't be right: a name, a duration, a URL, an option."""


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


class StoreClosed(StoreError):
    """Used before open, after close, or in a forked child."""
