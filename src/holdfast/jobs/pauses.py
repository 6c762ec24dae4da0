"""Paused queues: the records that pause a queue, with who paused it, when and why. Must not touch a job."""

from collections.abc import Sequence

import msgspec

from holdfast.core.codec import canonical, parse
from holdfast.core.errors import Invalid
from holdfast.core.model import Record, Time
from holdfast.engines.records import PAUSE


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's pause: since when, by whom and why."""

    at: Time
    by: str = ""
    reason: str = ""


def pause_text(by: str, reason: str) -> str:
    """Return the content of a pause's record."""
    return canonical({"by": by, "reason": reason})


def read_pauses(records: Sequence[Record]) -> dict[str, Pause]:
    """Return the queues that these records pause, each with its pause."""
    return {record.name.removeprefix(PAUSE): Pause(at=record.at, **_who_and_why(record.value)) for record in records}


def _who_and_why(text: str) -> dict[str, str]:
    """Return who paused a queue and why. A record in an unknown format still pauses its queue."""
    try:
        value = parse(text)
    except Invalid:
        return {}
    return {name: str(value[name]) for name in ("by", "reason") if name in value} if isinstance(value, dict) else {}
