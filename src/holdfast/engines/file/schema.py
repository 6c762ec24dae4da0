"""The format of a checkpoint file: Structs in the order of the file, and how values, errors and times are written.

Must not touch a disk, decide anything or know how a file is laid out: `writer` writes it, `checkpoint` reads it.

    {
      "version": 1,
      "jobs": [
        {"id": …, "type": …, "status": …, "error": …, "args": …, "result": …, "state": …, …, "history": […], "check": …}
      ],
      "keys": […], "groups": […], "records": […]
    }
"""

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.core.keys import digest
from holdfast.core.model import State, StepState, Time, WaitKind
from holdfast.engines.file.scan import no_constant, unique

VERSION = 1
"""The version of the format. A file with another version is never written."""

EDIT = "edit"
"""A kind of history entry that isn't an event: a person edited the job in the file, and its state didn't change."""

Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A number that every store can hold: 64 bits."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A number of something."""

Moment = str | Whole
"""A time in the file: ISO 8601 in UTC to the millisecond, or a whole number if it is beyond the calendar."""


# The format. Defaults are left out of the file; UNSET means that a field is missing. A value that isn't canonical JSON
# is stored as `…_text`, so that an engine returns exactly what it was given.


class Part(Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of the file."""


class WaitPart(Part, kw_only=True):
    """What a job waits for."""

    kind: WaitKind
    name: str = ""
    until: Moment | None = None


class SignalPart(Part, kw_only=True):
    """A signal in a job's inbox."""

    version: Count
    name: str
    value: Any = UNSET
    value_text: str | UnsetType = UNSET
    by: str = ""
    at: Moment


class StepPart(Part, kw_only=True):
    """One step, on one line."""

    path: str
    name: str
    state: StepState
    result: Any = UNSET
    result_text: str | UnsetType = UNSET
    error: str | None = None
    error_type: str | UnsetType = UNSET
    epoch: Count
    started_at: Moment
    finished_at: Moment | None = None
    tries: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 1
    traceback: list[str] = []


class EntryPart(Part, kw_only=True):
    """One entry of the history, on one line. `before` is written only if it differs from the last entry's `after`."""

    version: Count
    at: Moment
    event: str
    before: State | UnsetType | None = UNSET
    after: State
    by: str = ""
    epoch: Count = 0
    note: dict[str, Any] = {}


class JobPart(Part, kw_only=True):
    """One job, a block of lines. The fields that matter most to a person come first."""

    id: str
    type: str
    status: str
    error: str | None
    error_type: str | UnsetType = UNSET
    args: Any = UNSET
    args_text: str | UnsetType = UNSET
    result: Any = UNSET
    result_text: str | UnsetType = UNSET
    state: State
    queue: str = "default"
    priority: Whole = 0
    key: str | None = None
    key_until: Moment | None = None
    parent: str | None = None
    group: str | None = None
    arrived: bool = False
    worker: str | None = None
    attempt: Count = 1
    recoveries: Count = 0
    epoch: Count = 0
    created_at: Moment
    run_at: Moment | None = None
    claimed_at: Moment | None = None
    expires_at: Moment | None = None
    finished_at: Moment | None = None
    prune_at: Moment | None = None
    options: dict[str, Any] = {}
    digest: str = ""
    args_digest: str | UnsetType = UNSET
    waits: list[WaitPart] = []
    inbox: list[SignalPart] = []
    traceback: list[str] = []
    steps: list[StepPart] = []
    history: list[EntryPart]
    check: str | UnsetType = UNSET
    """Shows which fields a person edited (`checksum`). Without it, the block is accepted as it is."""


class KeyPart(Part, kw_only=True):
    """An idempotency key and its job."""

    type: str
    key: str
    job: str
    digest: str = ""
    until: Moment | None = None
    outlives: bool = False
    """The job was pruned, and its key is still valid. Without this, a missing job was removed by hand with its key."""


class GroupPart(Part, kw_only=True):
    """How many children a job has, and how many have arrived."""

    parent: str
    name: str = ""
    total: Count
    arrived: Count = 0


class RecordPart(Part, kw_only=True):
    """A small record. A removed one has no value, and keeps its version."""

    name: str
    value: Any = UNSET
    value_text: str | UnsetType = UNSET
    version: Count
    at: Moment


# Values, errors and times as text.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SPECIAL = frozenset({"args", "result", "value", "error", "options", "waits", "inbox", "before", "note"})
"""Fields that the format writes differently from the model."""


@cache
def shared(part: type[Part], kind: type[Struct]) -> tuple[str, ...]:
    """The fields that a part of the format and a struct of the model have in common."""
    return tuple(name for name in part.__struct_fields__ if name in kind.__struct_fields__ and name not in _SPECIAL)


def is_time(name: str) -> bool:
    """Whether a field holds a time, as the model names them."""
    return name in ("at", "until") or name.endswith(("_at", "_until"))


def shown(time: Time) -> Moment:
    """A time as a person reads it."""
    try:
        return (_EPOCH + time * _MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return time


def time_of(moment: Moment) -> Time:
    """Parse a time in any ISO 8601 form; ValueError if it isn't a time or has no time zone."""
    if not isinstance(moment, str):
        return moment
    at = datetime.fromisoformat(moment)
    if at.tzinfo is None:
        raise ValueError("no zone")
    return (at - _EPOCH) // _MILLISECOND


def canonical(value: Any) -> str:
    """The canonical text of a plain value, as `codec` writes it, except for numbers that `codec` refuses or rounds."""
    return _CANONICAL(value)


def plain(text: str) -> Any:
    """The value of a text, if encoding the value gives exactly this text again; otherwise ValueError."""
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
        if canonical(value) == text:
            return value
    except RecursionError:
        pass
    raise ValueError("not canonical JSON")


def fingerprint(type: str, args: str) -> str:
    """The digest that shows whether arguments were edited; empty if the text has none."""
    try:
        return digest(type, args)
    except UnicodeEncodeError:  # A lone surrogate.
        return ""


def split_error(text: str) -> tuple[str, str]:
    """The type and the message of an error that a person reads as one line."""
    kind, _, message = text.partition(": ")
    return kind, message


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
