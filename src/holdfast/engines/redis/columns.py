"""The fields of a job that Lua reads: how each is stored, and how it is read back.

Must not talk to the server. Lua's numbers are doubles: a number that a double can't hold is stored as text, and a
missing value as False.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from holdfast.core.model import Job, State, Time, Wait
from holdfast.core.unreadable import unreadable_waits

_encode = msgspec.json.Encoder().encode
_waits = msgspec.json.Decoder(tuple[Wait, ...]).decode

LETTERS = {
    State.SCHEDULED: "s",
    State.AVAILABLE: "a",
    State.PENDING: "p",
    State.ACTIVE: "o",
    State.RETRYABLE: "r",
    State.REVIEW: "v",
    State.COMPLETED: "c",
    State.DISCARDED: "d",
    State.CANCELLED: "k",
}
STATES = {letter: state for state, letter in LETTERS.items()}

_EXACT = 1 << 53
_HALF = 1 << 63


def number(value: int | None) -> int | str | bool:
    """A number for Lua: text if a double can't hold it, False if there is none."""
    if value is None:
        return False
    return value if -_EXACT < value < _EXACT else str(value)


def read_number(value: Any) -> int | None:
    return None if value is False else int(value)


def moment(value: int) -> str:
    """A number as text that sorts like the number."""
    return f"1{value:016x}" if value >= 0 else f"0{value + _HALF:016x}"


def unmoment(text: str) -> int:
    value = int(text[1:], 16)
    return value if text[0] == "1" else value - _HALF


def json_text(value: Any) -> str:
    """JSON, for what Lua needn't read. (Lua's msgpack reader knows text, but no bytes.)"""
    return _encode(value).decode()


class Column(NamedTuple):
    """A field of a job's head in the store: how it is written and read."""

    name: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def text_or_false(value: str | None) -> str | bool:
    return False if value is None else value


def _read_text(value: Any) -> str | None:
    return None if value is False else value


def _when(value: Time | None) -> str | bool:
    return False if value is None else moment(value)


def _read_when(value: Any) -> Time | None:
    return None if value is False else unmoment(value)


def waits_text(waits: tuple[Wait, ...]) -> str | bool:
    return json_text(waits) if waits else False


def _read_waits(text: Any) -> tuple[Wait, ...]:
    if text is False:
        return ()
    try:
        return _waits(text)
    except msgspec.DecodeError:
        return unreadable_waits(text)


NUMBERED = 4
"""How many columns precede the job's number, which the store assigns, in its head."""

HEAD = (
    Column("state", LETTERS.__getitem__, STATES.__getitem__),
    Column("version", _same, _same),
    Column("epoch", number, int),
    Column("queue", _same, _same),
    Column("priority", lambda priority: moment(-priority - 1), lambda rank: -unmoment(rank) - 1),
    Column("run_at", _when, _read_when),
    Column("attempt", number, int),
    Column("recoveries", number, int),
    Column("worker", text_or_false, _read_text),
    Column("claimed_at", number, read_number),
    Column("finished_at", number, read_number),
    Column("prune_at", number, read_number),
    Column("arrived", _same, _same),
    Column("parent", text_or_false, _read_text),
    Column("group", text_or_false, _read_text),
    Column("expires_at", number, read_number),
    Column("waits", waits_text, _read_waits),
    Column("type", _same, _same),
    Column("key", text_or_false, _read_text),
)
"""The fields of a job that Lua reads, in the order of `lua/store.lua`."""

_CHANGED = ("state", "run_at", "epoch", "attempt", "recoveries", "worker", "claimed_at", "finished_at", "prune_at")
"""The fields of the head that a change writes, in the order of `lua/commit.lua`."""


def _writing(columns: Sequence[Column]) -> Callable[[Job], list[Any]]:
    """A function that returns these fields of a job as Lua takes them."""
    get, writes = attrgetter(*(column.name for column in columns)), [column.write for column in columns]
    return lambda job: [write(value) for write, value in zip(writes, get(job), strict=True)]


head_columns = _writing(HEAD)
"""The head of a new job, without what the store assigns."""

changed_columns = _writing([column for name in _CHANGED for column in HEAD if column.name == name])
"""The part of a job's head that a change writes."""

_READS = [(column.name, column.read) for column in HEAD]


def read_head(columns: Sequence[Any]) -> dict[str, Any]:
    """The fields of a job from its head."""
    return {name: read(value) for (name, read), value in zip(_READS, columns, strict=True)}
