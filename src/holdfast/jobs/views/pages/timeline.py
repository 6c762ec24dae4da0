"""When everything of a job ran: owners as bands, stages as rows, steps as bars in lanes. Must not change anything."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from holdfast.core.model import Entry, Event, Job, RunningItem, State, StepState, Time
from holdfast.core.summaries import StepHead
from holdfast.jobs.consequences import presence_of, running_of
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.pages.items import as_steps
from holdfast.jobs.views.pages.job import Gap, OwnerBand, Timeline, TimelineBar, TimelineRow
from holdfast.jobs.views.pages.job_page import read_places, recent_history
from holdfast.jobs.views.pages.parts import moment
from holdfast.jobs.views.pages.story import LEAVES, cut_items, cut_steps, last_sign, losses_in
from holdfast.jobs.views.step_names import name_steps
from holdfast.jobs.views.text import one_line, span
from holdfast.safe_text import clean

STEPS_READ = 10_000
"""How many steps a timeline shows. Of a job with more, the newest are left out."""

BARS = 2_000
"""With more bars than this, bars that touch are drawn as one."""

NAMED = 600
"""With more steps than this, bars have no names: the call for one step has it."""

LANES = 64
"""How many lanes a row has at most."""

WAITS = {
    Event.SUSPEND: ("waited", "waited {}"),
    Event.REST: ("slept", "slept {}"),
    Event.LAPSE: ("lost", "nobody worked on it for {}"),
    Event.RELEASE: ("queued", "in its queue for {}"),
    Event.FAIL: ("slept", "waited {} before the next attempt"),
    Event.OVERRUN: ("slept", "waited {} before the next attempt"),
    Event.EXHAUST: ("review", "in review for {}"),
    Event.ABANDON: ("review", "in review for {}"),
    Event.SUBMIT: ("queued", "waited {} for a worker"),
}
"""The time until the next claim, by how the lease before ended: its kind, and its words."""


async def view_timeline(jobs: Jobs, id: str, epoch: int | None = None) -> Timeline:
    """Read when everything of a job ran; with `epoch`, only under this lease."""
    job = await jobs.get(id)
    now = await jobs.engine.now()
    history = await recent_history(jobs, job)
    heads = await _heads(jobs, job)
    running = running_of(await presence_of(jobs.engine, job), job)
    going = () if running is None or job.state is not State.ACTIVE else running.items
    return timeline_of(job, history, heads, going, now, epoch, await read_places(jobs, job))


async def _heads(jobs: Jobs, job: Job) -> list[StepHead]:
    heads: list[StepHead] = []
    while len(heads) < STEPS_READ and (page := await jobs.engine.steps_page(job.id, heads[-1].path if heads else "")):
        heads += page
    return heads


def timeline_of(
    job: Job,
    history: Sequence[Entry],
    heads: Sequence[StepHead],
    going: Sequence[RunningItem],
    now: Time,
    epoch: int | None = None,
    places: Mapping[str, int] = {},
) -> Timeline:
    """Build the timeline of a job."""
    start = min([job.created_at, *(head.started_at for head in heads[:1])])
    over = now if job.finished_at is None else job.finished_at
    signs = {entry.version: last_sign(entry, heads) for entry in losses_in(history)}
    bands, gaps = _bands(history, start, signs), _gaps(history, start, signs)
    if epoch is not None:
        bands = tuple(band for band in bands if band.epoch == epoch)
    names = {}
    if len(heads) <= NAMED:
        names = name_steps(job, [*as_steps(heads), *cut_steps(history)], places)
    bars = [one for one in _bars(job, history, heads, going, now, names, signs) if epoch in (None, one[1].epoch)]
    stages = list(dict.fromkeys(stage for stage, _ in sorted(bars, key=lambda one: one[1].at)))
    rows: list[TimelineRow] = []
    placed: list[TimelineBar] = []
    for row, stage in enumerate(stages):
        own = _in_lanes([bar for name, bar in bars if name == stage], row)
        rows.append(TimelineRow(stage=clean(stage), lanes=1 + max(bar.lane for bar in own)))
        placed += own
    binned = len(placed) > BARS
    placed = [replace(bar, at=max(0, bar.at - start), end=max(0, bar.end - start)) for bar in placed]
    if binned:
        placed = _binned(placed, max(1, (over - start) // (BARS // 4)))
    return Timeline(
        start=moment(start),
        now=now - start,
        end=max(over - start, 1),
        bands=bands,
        gaps=gaps,
        rows=tuple(rows),
        bars=tuple(placed),
        is_binned=binned,
        is_cut=len(heads) >= STEPS_READ,
    )


def _bars(
    job: Job,
    history: Sequence[Entry],
    heads: Sequence[StepHead],
    going: Sequence[RunningItem],
    now: Time,
    names: dict[str, str],
    signs: Mapping[int, Time],
) -> Iterator[tuple[str, TimelineBar]]:
    """Yield the bars with their stages, in absolute times and without lanes."""
    live = {item.path for item in going}
    for head in heads:
        if "/" in head.path or head.path in live:
            continue
        if head.finished_at is None and job.state is State.ACTIVE and head.epoch == job.epoch:
            state, end = "running", now
        else:
            state = {StepState.DONE: "done", StepState.FAILED: "failed"}.get(head.state, "cut")
            end = head.finished_at or head.started_at
        yield (
            head.name,
            TimelineBar(
                row=0,
                lane=0,
                at=head.started_at,
                end=max(end, head.started_at),
                state=state,
                path=head.path,
                name=clean(names.get(head.path, "")),
                epoch=head.epoch,
            ),
        )
    for item in going:
        if "/" not in item.path:
            bar = TimelineBar(row=0, lane=0, at=item.since, end=now, state="running", path=item.path, epoch=job.epoch)
            yield item.path.partition("#")[0], bar
    for entry in history:
        for path, ms in cut_items(entry.note):
            if "/" not in path:
                bar = TimelineBar(
                    row=0,
                    lane=0,
                    at=entry.at - ms,
                    end=max(entry.at - ms, signs.get(entry.version, entry.at)),
                    state="cut",
                    path=path,
                    name=clean(names.get(path, "")),
                    epoch=entry.epoch,
                )
                yield path.partition("#")[0], bar


def _in_lanes(bars: Iterable[TimelineBar], row: int) -> list[TimelineBar]:
    """Put the bars of a row into lanes: each into the first that is free. The same bars always get the same lanes."""
    free: list[Time] = []
    placed = []
    for bar in sorted(bars, key=lambda one: (one.at, one.path)):
        lane = next((number for number, until in enumerate(free) if until <= bar.at), len(free))
        if lane >= LANES:
            lane = min(range(LANES), key=free.__getitem__)
        free[lane : lane + 1] = [bar.end]
        placed.append(replace(bar, row=row, lane=lane))
    return placed


def _binned(bars: Iterable[TimelineBar], width: int) -> list[TimelineBar]:
    """Draw short bars of the same lane and state that begin in the same bin as one."""

    def key(bar: TimelineBar) -> tuple[int, int, str, int]:
        return bar.row, bar.lane, bar.state, bar.at // width

    joined = []
    for _, same in groupby(sorted(bars, key=key), key):
        group = list(same)
        first, end = group[0], max(bar.end for bar in group)
        joined.append(first if len(group) == 1 else replace(first, end=end, count=len(group), path="", name=""))
    return joined


def _bands(history: Sequence[Entry], start: Time, signs: Mapping[int, Time]) -> tuple[OwnerBand, ...]:
    bands: list[OwnerBand] = []
    for entry in history:
        if entry.event == Event.CLAIM:
            at = entry.at - start
            bands.append(OwnerBand(worker=one_line(entry.by, 60), epoch=entry.epoch, at=at, end=None, how=""))
        elif bands and bands[-1].end is None and entry.before is State.ACTIVE and entry.after is not State.ACTIVE:
            how = LEAVES.get(Event(entry.event), entry.event)
            bands[-1] = replace(bands[-1], end=max(bands[-1].at, signs.get(entry.version, entry.at) - start), how=how)
    return tuple(bands)


def _gaps(history: Sequence[Entry], start: Time, signs: Mapping[int, Time]) -> tuple[Gap, ...]:
    gaps: list[Gap] = []
    since: Entry | None = None
    for entry in history:
        if since is not None and entry.event == Event.CLAIM:
            kind, words = WAITS[Event(since.event)]
            began = signs.get(since.version, since.at)
            took = span(entry.at - began) if entry.at - began >= 1_000 else f"{entry.at - began} ms"
            gaps.append(Gap(kind=kind, at=began - start, end=entry.at - start, words=words.format(took)))
            since = None
        elif entry.event in WAITS and entry.after not in (State.ACTIVE,):
            since = entry
    if since is not None and history[-1].after not in (State.ACTIVE, State.COMPLETED):
        kind, words = WAITS[Event(since.event)]
        gaps.append(
            Gap(kind=kind, at=signs.get(since.version, since.at) - start, end=None, words=words.format("until now"))
        )
    return tuple(gaps)
