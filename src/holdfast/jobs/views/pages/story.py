"""A job's history as a story: a sentence for each entry, and for the end of each stage. Must not read a store."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.core.model import Entry, Event, Job, State, Step, StepState, Time
from holdfast.core.summaries import StepHead
from holdfast.jobs.lost_workers import CUT, SILENT_FOR
from holdfast.jobs.views.pages.job import LossBox, StoryEntry
from holdfast.jobs.views.pages.lines import as_sentence, spoken
from holdfast.jobs.views.pages.parts import moment
from holdfast.jobs.views.story import describe_entry
from holdfast.jobs.views.text import one_line, plural, span
from holdfast.safe_text import clean

STAGE_END = "stage"
"""The event of a line that is no entry: a stage has ended."""

CUT_SHOWN = 20

LEAVES = {
    Event.COMPLETE: "completed",
    Event.FAIL: "failed",
    Event.EXHAUST: "failed",
    Event.RELEASE: "handed over",
    Event.SUSPEND: "waits",
    Event.REST: "sleeps",
    Event.LAPSE: "lost",
    Event.ABANDON: "lost",
    Event.OVERRUN: "overran",
    Event.CANCEL: "cancelled",
}
"""How a lease can end, in one word."""


def story_entries(history: Sequence[Entry], now: Time, names: Mapping[str, str] | None = None) -> list[StoryEntry]:
    """Return the entries as sentences, the oldest first. `names` are those of the steps that losses cut, by path."""
    return [_entry(one, now, names or {}) for one in history]


def _entry(one: Entry, now: Time, names: Mapping[str, str]) -> StoryEntry:
    shown = describe_entry(one, now)
    is_loss = one.event in (Event.LAPSE, Event.ABANDON) and "lost" in one.note
    if is_loss:
        then = "needs a person" if one.after is State.REVIEW else "the job is back in its queue"
        words = f"worker {one_line(str(one.note['lost']), 60)} was lost; {then}"
    else:
        words = f"{shown.words}{shown.who}"
    return StoryEntry(
        version=one.version,
        at=moment(one.at),
        clock=shown.clock,
        sentence=as_sentence(words),
        event=one.event,
        after=one.after.value,
        by=one_line(one.by, 60),
        notes=() if is_loss else shown.notes,
        loss=_loss(one.note, names) if is_loss else None,
    )


def _loss(note: Mapping[str, Any], names: Mapping[str, str]) -> LossBox:
    return LossBox(
        why=one_line(str(note.get("why", ""))),
        kept=one_line(str(note.get("survived", ""))),
        cut=tuple(
            f"{clean(names.get(path, path))}, after {span(ms)}" for path, ms in list(cut_items(note))[:CUT_SHOWN]
        ),
    )


def cut_items(note: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield what a loss cut: the paths of steps, and for how long each had run."""
    cut = note.get(CUT)
    for path, ms in cut.items() if isinstance(cut, Mapping) else ():
        if isinstance(ms, int):
            yield str(path), ms


def cut_steps(history: Iterable[Entry]) -> list[Step]:
    """Return the steps that losses cut, so that they can be named."""
    return [
        Step(job=one.job, epoch=one.epoch, path=path, name=path.partition("#")[0], state=StepState.STARTED,
             started_at=one.at - ms)
        for one in history
        for path, ms in cut_items(one.note)
    ]  # fmt: skip


def lost_at(one: Entry) -> Time:
    """Return when a lost worker was heard of last; when its loss was noticed, if that isn't known."""
    silent_ms = one.note.get(SILENT_FOR)
    return one.at - silent_ms if isinstance(silent_ms, int) else one.at


def last_sign(one: Entry, heads: Iterable[StepHead] = ()) -> Time:
    """Return when a lost worker gave its last sign: a heartbeat, or a step that it began or recorded after that."""
    recorded = (head.finished_at for head in heads if head.epoch == one.epoch and head.finished_at is not None)
    signs = (*recorded, *(one.at - ms for _, ms in cut_items(one.note)))
    return max(lost_at(one), *(at for at in signs if at <= one.at), 0)


def stage_ends(job: Job, heads: Iterable[StepHead], current: str, now: Time) -> list[StoryEntry]:
    """Return a line for each stage that has ended: how many items it made, and how long it took."""
    groups: dict[str, list[StepHead]] = {}
    for head in heads:
        if "/" not in head.path:
            groups.setdefault(head.name, []).append(head)
    lines = []
    for name, group in groups.items():
        if name == current or any(head.finished_at is None for head in group):
            continue
        began, ended = min(h.started_at for h in group), max(h.finished_at or 0 for h in group)
        failed = sum(head.state is StepState.FAILED for head in group)
        made = f"{plural(len(group), 'item')} in " if len(group) > 1 else "done in "
        words = f"{spoken(clean(name))}: {made}{span(ended - began)}" + (f", {failed:,} failed" if failed else "")
        clock = describe_entry(_end(job, ended), now).clock
        lines.append(
            StoryEntry(version=0, at=moment(ended), clock=clock, sentence=as_sentence(words), event=STAGE_END, after="")
        )
    return lines


def _end(job: Job, at: Time) -> Entry:
    return Entry(job=job.id, version=0, at=at, event=STAGE_END, before=None, after=job.state, by="", epoch=0)


def losses_in(history: Iterable[Entry]) -> list[Entry]:
    """Return the entries of lost workers."""
    return [one for one in history if one.event in (Event.LAPSE, Event.ABANDON) and "lost" in one.note]


def why_line(job: Job, history: Sequence[Entry], now: Time, heads: Sequence[StepHead] = ()) -> str:
    """Return the line below the sentence: who runs it since when, and which losses it survived."""
    said = []
    if job.worker is not None and job.claimed_at is not None:
        clock = describe_entry(_end(job, job.claimed_at), now).clock
        said.append(f"On {job.worker} since {clock} UTC.")
    losses = losses_in(history)
    if losses:
        last = losses[-1]
        after = [one for one in history if one.version > last.version and one.event == Event.CLAIM]
        lost = one_line(str(last.note["lost"]), 60)
        if after:
            apart = _soon(after[0].at - last_sign(last, heads))
            said.append(f"{lost} was lost on the way; {after[0].by} continued {apart} later.")
        else:
            said.append(f"{lost} was lost.")
        if len(losses) > 1:
            said.append(f"{plural(len(losses), 'worker')} lost in all.")
        if kept := last.note.get("survived"):
            said.append(f"{one_line(str(kept))} kept.")
    return " ".join(said)


def _soon(milliseconds: int) -> str:
    return f"{max(0, milliseconds)} ms" if milliseconds < 1_000 else span(milliseconds)
