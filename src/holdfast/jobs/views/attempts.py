"""The attempts of a job, read from its history: who ran it, when, and how each ended. Must not read a store."""

from collections.abc import Sequence

from msgspec import Struct

from holdfast.core.model import Entry, Event, State, Time
from holdfast.jobs.views.shapes import Shape, time_text
from holdfast.jobs.views.story import TRACEBACK, WORDS
from holdfast.jobs.views.text import one_line, span
from holdfast.safe_text import clean

FAILURES = frozenset({Event.FAIL, Event.EXHAUST, Event.OVERRUN})
"""The ends that use up an attempt."""


class AttemptView(Struct, frozen=True, kw_only=True):
    """One lease of a job: its attempt, its worker, when it began and ended, how, and with which error."""

    attempt: int
    epoch: int
    worker: str
    began: Time
    ended: Time | None
    how: str
    """The event that ended it; empty while it runs."""
    error: str
    traceback: str

    def words(self) -> str:
        """In one line: "attempt 1 by w-7 for 4 min: failed, will be retried: ProviderError: 429"."""
        took = "" if self.ended is None else f" for {span(max(0, self.ended - self.began))}"
        how = WORDS.get(self.how, self.how) if self.how else "running"
        error = f": {one_line(self.error)}" if self.error else ""
        return f"attempt {self.attempt} by {clean(self.worker)}{took}: {how}{error}"

    def shape(self) -> Shape:
        """As JSON."""
        return {
            "attempt": self.attempt,
            "epoch": self.epoch,
            "worker": self.worker,
            "began": time_text(self.began),
            "ended": time_text(self.ended),
            "how": self.how or None,
            "error": self.error or None,
            "traceback": self.traceback or None,
        }


def attempts_of(history: Sequence[Entry]) -> list[AttemptView]:
    """Return the attempts of a job, oldest first. A replay counts them anew."""
    found: list[AttemptView] = []
    claim: Entry | None = None
    number = 1
    for entry in history:
        if entry.event == Event.CLAIM:
            claim = entry
        elif claim is not None and entry.before is State.ACTIVE and entry.after is not State.ACTIVE:
            found.append(_attempt(number, claim, entry))
            claim = None
        if entry.event in FAILURES:
            number += 1
        elif entry.event == Event.REPLAY:
            number = 1
    if claim is not None:
        found.append(_attempt(number, claim, None))
    return found


def _attempt(number: int, claim: Entry, end: Entry | None) -> AttemptView:
    note = {} if end is None else end.note
    reason = "" if end is None or end.event == Event.RELEASE else note.get("why", "")
    return AttemptView(
        attempt=number,
        epoch=claim.epoch,
        worker=claim.by,
        began=claim.at,
        ended=None if end is None else end.at,
        how="" if end is None else str(end.event),
        error=str(note.get("error", "") or reason),
        traceback=str(note.get(TRACEBACK, "")),
    )
