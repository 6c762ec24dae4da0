"""Events: their names and ids, the key of the job that one makes for a subscriber, and how deep they may nest. Pure."""

import re
from collections.abc import Mapping

from holdfast.core.errors import Invalid, NotAllowed

EVENT_DEPTH = 20
"""How many events may lead to one another: an event whose job emits the next one, and so on."""

NAME_CHARACTERS, ID_CHARACTERS = 100, 100
"""How long the name of an event and its id may be."""

EVENT, EVENT_ID, EVENT_DEEP = "event", "event_id", "event_depth"
"""The meta entries of a job that an event made: the event's name and id, and how many events led to it."""

_NAME = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*")


class EndlessEvents(NotAllowed):
    """Too many events led to one another. A retry would find the same."""


def check_event(name: str) -> str:
    """Return an event's name, or raise Invalid."""
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} can't be the name of an event; use lower-case words of letters, digits, '_' and '-', joined by "
            f"dots, up to {NAME_CHARACTERS} characters, for example order.paid"
        )
    return name


def check_event_id(id: str) -> str:
    """Return an event's id, or raise Invalid."""
    if not isinstance(id, str) or not 0 < len(id) <= ID_CHARACTERS:
        raise Invalid(f"the id of an event, {id!r}, isn't valid; give a string of 1 to {ID_CHARACTERS} characters")
    return id


def event_key(name: str, id: str) -> str:
    """Return the key of the job that an event makes for each of its subscribers."""
    return f"event/{name}/{id}"


def event_meta(name: str, id: str, depth: int) -> dict[str, str]:
    """Return the meta entries of a job that an event makes; or raise EndlessEvents if too many events led to it."""
    if depth > EVENT_DEPTH:
        raise EndlessEvents(
            f"event {name}: {EVENT_DEPTH} events led to the job that emits it, each emitted by the job of the one "
            "before; it was not emitted, because that looks like a loop"
        )
    return {EVENT: name, EVENT_ID: id, EVENT_DEEP: str(depth)}


def depth_in(meta: Mapping[str, str]) -> int | None:
    """Return how many events led to a job with this meta; None if no event made it."""
    text = meta.get(EVENT_DEEP, "")
    return int(text) if text.isdecimal() and EVENT in meta else None
