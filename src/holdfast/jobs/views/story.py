"""A job's history in words: one line for each entry. Must not read a store."""

from collections.abc import Callable

from msgspec import Struct

from holdfast.core.model import SIGNAL, Entry, Event, State, Time
from holdfast.core.outcome import DOUBT_ADVICE
from holdfast.jobs.lost_workers import SILENT_FOR
from holdfast.jobs.views.shapes import time_text
from holdfast.jobs.views.text import OUR_ERRORS, ago, one_line, span
from holdfast.jobs.views.waits import noted_wait_words

WORDS: dict[str, str] = {
    Event.SUBMIT: "submitted",
    Event.PROMOTE: "became due",
    Event.ACTIVATE: "activated",
    Event.CLAIM: "claimed",
    Event.COMPLETE: "completed",
    Event.FAIL: "failed, will be retried",
    Event.EXHAUST: "failed, needs a person",
    Event.RELEASE: "handed over",
    Event.SUSPEND: "waits",
    Event.REST: "put back",
    Event.LAPSE: "its worker was lost, back in its queue",
    Event.OVERRUN: "overran its timeout",
    Event.ABANDON: "given to a person",
    Event.CANCEL: "cancelled",
    Event.EXPIRE: "expired",
    Event.REPLAY: "replayed",
    Event.RESOLVE: "resolved",
    Event.DISCARD: "discarded",
    SIGNAL: "got a signal",
}
"""What happened, in words."""

DONE_BY = frozenset({"submit", "activate", "claim", "complete", "release", "cancel", "replay", "resolve", "discard"})
"""Events that somebody causes. For all others, the line ends with who noticed it."""

NOTE_LIMIT = 160

TRACEBACK = "traceback"
"""The key, in a failure's note, of the traceback with the user's own frames."""


class StoryLine(Struct, frozen=True):
    """One entry in words: when, what happened, who did or noticed it, and its notes."""

    clock: str
    words: str
    who: str
    ago: str
    notes: tuple[str, ...]
    after: State


def describe_entry(entry: Entry, now: Time) -> StoryLine:
    """Describe one entry: "12:03:10", "claimed", " by w-7, epoch 2", "3 min ago"; with its date if it isn't today."""
    text, today = time_text(entry.at) or "", time_text(now) or ""
    who = one_line(entry.by, 60)
    if who:
        who = f" by {who}" if entry.event in DONE_BY else f" ({who})"
    return StoryLine(
        clock=text[11:19] if text[:10] == today[:10] else f"{text[:10]} {text[11:19]}",
        words="sleeps" if entry.event == Event.REST and "waits" in entry.note else WORDS.get(entry.event, entry.event),
        who=who + (f", epoch {entry.epoch}" if entry.event == Event.CLAIM else ""),
        ago=ago(entry.at, now),
        notes=tuple(_note_words(name, value) for name, value in _notes(entry)),
        after=entry.after,
    )


def _notes(entry: Entry) -> list[tuple[str, object]]:
    """Return the notes that fit into lines. What to do about an effect in doubt is shown with the job, and left out."""
    in_doubt = "in_doubt" in entry.note
    return [
        (name, _IN_WORDS.get(name, _unchanged)(value))
        if name != "error" or not in_doubt
        else (name, str(value).partition(DOUBT_ADVICE)[0])
        for name, value in entry.note.items()
        if name not in (TRACEBACK, SILENT_FOR)
    ]


def _unchanged(value: object) -> object:
    return value


def _wait_words(value: object) -> object:
    """Say what the job waits for: "job 4f2a91bc", "children of draw.map()". Each only once."""
    return list(dict.fromkeys(map(noted_wait_words, map(str, value)))) if isinstance(value, list) else value


def _cut_words(value: object) -> object:
    """Say what a loss cut off: "draw#3 after 12 s"."""
    if not isinstance(value, dict):
        return value
    return [f"{path} after {span(ms)}" if isinstance(ms, int) else str(path) for path, ms in value.items()]


_IN_WORDS: dict[str, Callable[[object], object]] = {"cut": _cut_words, "waits": _wait_words}


def _note_words(name: str, value: object) -> str:
    """Return a note in words. Holdfast's own errors go without their module."""
    text = _plain(value).removeprefix(OUR_ERRORS) if name == "error" else _plain(value)
    return f"{one_line(name.replace('_', ' '), 40)}: {one_line(text, NOTE_LIMIT)}"


def _plain(value: object) -> str:
    """Return a note's value without brackets and quotes: lists and objects as enumerations."""
    match value:
        case dict():
            return ", ".join(f"{name}: {_plain(one)}" for name, one in value.items())
        case list() | tuple():
            return ", ".join(map(_plain, value))
        case bool():
            return "yes" if value else "no"
        case None:
            return "none"
    return str(value)
