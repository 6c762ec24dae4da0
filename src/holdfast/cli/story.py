"""A job's history told as a story: one line for each entry. Must not ask a store."""

from rich.text import Text

from holdfast.cli.shapes import moment
from holdfast.cli.words import STYLES, ago, one_line
from holdfast.core.model import SIGNAL, Entry, Event, Time

WORDS: dict[str, str] = {
    Event.SUBMIT: "submitted",
    Event.PROMOTE: "its moment came",
    Event.ACTIVATE: "activated",
    Event.CLAIM: "claimed",
    Event.COMPLETE: "completed",
    Event.FAIL: "failed, tries again",
    Event.EXHAUST: "failed for good, needs a person",
    Event.RELEASE: "handed over",
    Event.SUSPEND: "waits",
    Event.REST: "rests",
    Event.LAPSE: "its worker was lost, back in its queue",
    Event.OVERRUN: "overran its timeout",
    Event.ABANDON: "given to a person",
    Event.CANCEL: "cancelled",
    Event.EXPIRE: "expired",
    Event.REPLAY: "replayed",
    Event.RESOLVE: "resolved",
    Event.DISCARD: "discarded",
    SIGNAL: "a signal came",
}
"""What happened, as a person says it."""

DONE_BY = frozenset({"submit", "activate", "claim", "complete", "release", "cancel", "replay", "resolve", "discard"})
"""What somebody does. All else happens, and who noticed it stands behind."""

NOTE_LIMIT = 160


def entry_line(entry: Entry, now: Time) -> Text:
    """One entry: "12:03:10  claimed by w-7, epoch 2  3 min ago", with its date when that isn't today's; then notes."""
    told, today = moment(entry.at) or "", moment(now) or ""
    clock = told[11:19] if told[:10] == today[:10] else f"{told[:10]} {told[11:19]}"
    line = (
        Text()
        + Text(f"  {clock}  ", style="dim")
        + Text(WORDS.get(entry.event, entry.event), style=STYLES[entry.after])
    )
    if entry.by:
        who = one_line(entry.by, 60)
        line += Text(f" by {who}" if entry.event in DONE_BY else f" ({who})")
    if entry.event == Event.CLAIM:
        line += Text(f", epoch {entry.epoch}")
    line += Text(f"  {ago(entry.at, now)}", style="dim")
    for name, value in entry.note.items():
        line += Text(f"\n            {one_line(str(name), 40)}: {one_line(str(value), NOTE_LIMIT)}", style="dim")
    return line
