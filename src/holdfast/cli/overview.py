"""What is going on in a store, as data (`look`) and as a picture in words and bars. Must not change anything."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.shapes import Shape, error_shape, moment, status_shape
from holdfast.cli.words import (
    STYLES,
    ago,
    bar,
    counted,
    error_line,
    one_line,
    short,
    span,
    state_text,
    wait_in_words,
)
from holdfast.core.lifecycle import STATE_ROWS, TERMINAL
from holdfast.core.model import Entry, Event, Job, Presence, State, Time, Where
from holdfast.jobs.questions import ASK
from holdfast.jobs.service import Jobs, Pause, Status
from holdfast.safe_text import clean

ACTIVE_SHOWN = 20
REVIEW_SHOWN = 5
"""How many jobs an overview shows; then it says how to see the rest."""

TYPES_SHOWN = 10
"""How many job types a line names."""

SILENT_MS = 10_000
"""A worker beats every two seconds; one not heard of for so long is called silent."""


RETRY_SHOWN = 300
"""How long the line about a step that is tried again may be."""


class QueueSummary(Struct, frozen=True, kw_only=True):
    """A queue: its jobs by state, whether it is paused, and how many living workers serve it.

    `unknown` are the types of jobs that wait there and that none of these workers knows.
    """

    name: str
    counts: Mapping[State, int]
    pause: Pause | None
    workers: int
    unknown: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All its jobs that are kept."""
        return sum(self.counts.values())

    @property
    def ended(self) -> int:
        """Those that have ended."""
        return sum(number for state, number in self.counts.items() if state in TERMINAL)

    @property
    def waiting(self) -> int:
        """Those that want a worker, now or at their time."""
        return sum(self.counts.get(state, 0) for state in (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE))

    def shape(self) -> Shape:
        """As JSON."""
        return {
            "name": self.name,
            "paused": self.pause is not None,
            "paused_by": None if self.pause is None else self.pause.by,
            "paused_at": None if self.pause is None else moment(self.pause.at),
            "reason": None if self.pause is None else self.pause.reason,
            "workers": self.workers,
            "unknown_types": list(self.unknown),
            "jobs": {state.value: self.counts.get(state, 0) for state in State},
        }


class Overview(Struct, frozen=True, kw_only=True):
    """A whole store at one moment."""

    place: str
    now: Time
    queues: tuple[QueueSummary, ...]
    workers: tuple[Presence, ...]
    active: tuple[Status, ...]
    review: tuple[Job, ...]

    def total(self, state: State) -> int:
        """How many jobs are in a state, over all queues."""
        return sum(queue.counts.get(state, 0) for queue in self.queues)

    def moved(self) -> object:
        """What changes when something has happened. Time passing is not among it."""
        counts = [(queue.name, queue.pause, tuple(sorted(queue.counts.items()))) for queue in self.queues]
        return counts, [(one.id, one.progress()) for one in self.active], [worker.worker for worker in self.workers]

    def shape(self) -> Shape:
        """As JSON."""
        return {
            "store": self.place,
            "at": moment(self.now),
            "queues": [queue.shape() for queue in self.queues],
            "workers": sum(how_alive(worker, self.now) == "alive" for worker in self.workers),
            "active": [status_shape(one) for one in self.active],
            "review": [
                {"id": job.id, "type": job.type, "queue": job.queue, "error": error_shape(job.error)}
                for job in self.review
            ],
        }


def how_alive(worker: Presence, now: Time) -> str:
    """Alive, silent (not heard of for a while) or gone (seen dead)."""
    if worker.gone:
        return "gone"
    return "silent" if now - worker.beat_at > SILENT_MS else "alive"


async def summaries(jobs: Jobs) -> tuple[QueueSummary, ...]:
    """Every queue that has jobs, is paused, or is served."""
    counts, pauses, now = await jobs.engine.count(), await jobs.pauses(), await jobs.engine.now()
    alive = [worker for worker in await jobs.workers() if how_alive(worker, now) == "alive"]
    names = {queue for queue, _ in counts} | set(pauses) | {queue for worker in alive for queue in worker.queues}
    found = [
        QueueSummary(
            name=name,
            counts={state: number for (queue, state), number in counts.items() if queue == name},
            pause=pauses.get(name),
            workers=sum(name in worker.queues for worker in alive),
            unknown=await _unknown(jobs, name, alive) if counts.get((name, State.AVAILABLE)) else (),
        )
        for name in sorted(names)
    ]
    return tuple(found)


async def _unknown(jobs: Jobs, queue: str, alive: Sequence[Presence]) -> tuple[str, ...]:
    """The types that wait in a queue and that none of its living workers knows. Where it has none, that is told."""
    serving = [worker.types for worker in alive if queue in worker.queues]
    if not serving or None in serving:  # one that doesn't tell its types may know any
        return ()
    known = {type for types in serving for type in types or ()}
    return tuple(type for type in await jobs.engine.ready_types(queue) if type not in known)


async def look(jobs: Jobs, place: str) -> Overview:
    """The store as it is now. The lists are bounded; the counts are not."""
    engine = jobs.engine
    active = await engine.find(Where(states=(State.ACTIVE,)), limit=ACTIVE_SHOWN)
    return Overview(
        place=place,
        now=await engine.now(),
        queues=await summaries(jobs),
        workers=tuple(await jobs.workers()),
        active=tuple(await jobs.statuses(active)),
        review=tuple(await engine.find(Where(states=(State.REVIEW,), newest_first=True), limit=REVIEW_SHOWN)),
    )


# In words and bars.


def picture(overview: Overview) -> RenderableType:
    """The overview for a person, readable at 80 columns."""
    parts: list[RenderableType] = [_head(overview)]
    if overview.queues:
        parts += [Text(), queue_table(overview.queues), *unknown_lines(overview.queues)]
    if overview.active:
        parts += [Text(), Text("Running", style="bold")]
        alive = {worker.worker for worker in overview.workers if how_alive(worker, overview.now) == "alive"}
        for one in overview.active:
            parts += running_lines(one, lost=one.worker not in alive)
        if (more := overview.total(State.ACTIVE) - len(overview.active)) > 0:
            parts.append(Text(f"  and {more:,} more: holdfast jobs --state active", style="dim"))
    if overview.review:
        parts += [Text(), Text("Needs a person", style="bold")]
        for job in overview.review:
            parts += _review_lines(job, overview.now)
        more = overview.total(State.REVIEW) - len(overview.review)
        rest = f"and {more:,} more; " if more > 0 else ""
        parts.append(Text(f"  {rest}what can be done: holdfast review", style="dim"))
    return Group(*parts)


def _head(overview: Overview) -> Text:
    alive = [worker for worker in overview.workers if how_alive(worker, overview.now) == "alive"]
    slots, busy = sum(worker.slots for worker in alive), sum(len(worker.running) for worker in alive)
    serving = f"{counted(len(alive), 'worker')}, {busy} of {slots} slots in use" if alive else "no worker"
    head = Text() + Text(overview.place, style="bold") + Text(f"\n{serving}", style="" if alive else "yellow")
    for worker in [worker for worker in alive if worker.trouble]:
        head += Text(f"\nworker {worker.worker} can't write: {one_line(worker.trouble)}", style="bold red")
    if not any(queue.total for queue in overview.queues):
        head += Text("\nno jobs yet", style="dim")
    return head


def queue_table(queues: tuple[QueueSummary, ...]) -> Table:
    """The queues, each with how much of it has ended and its jobs by state."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("queue", overflow="fold", min_width=8)
    table.add_column("ended")
    table.add_column("jobs", overflow="fold")
    for queue in queues:
        words = Text(", ").join(
            Text(f"{queue.counts[state]:,} {state}", style=STYLES[state])
            for state in STATE_ROWS
            if queue.counts.get(state)
        )
        notes = Text()
        if queue.pause is not None:
            notes = Text() + Text("paused", style="bold yellow") + Text("; ")
        elif queue.waiting and not queue.workers:
            notes = Text() + Text("no worker; ", style="yellow")
        table.add_row(Text(queue.name), bar(queue.ended, queue.total, 10), notes + (words or Text("empty", "dim")))
    return table


def unknown_lines(queues: Sequence[QueueSummary]) -> Iterator[Text]:
    """The types that wait and that no living worker knows."""
    for queue in queues:
        if queue.unknown:
            yield Text(f"{queue.name}: no living worker knows {type_words(queue.unknown)}", style="yellow")


def type_words(types: Sequence[str]) -> str:
    """Types of jobs that wait, named."""
    return f"{'the type' if len(types) == 1 else 'the types'} of waiting jobs {named_types(types)}"


def named_types(types: Sequence[str]) -> str:
    """Types in a row, but not too many."""
    return ", ".join(
        [*types[:TYPES_SHOWN], *([f"{len(types) - TYPES_SHOWN:,} more"] if len(types) > TYPES_SHOWN else [])]
    )


def running_lines(one: Status, *, lost: bool) -> Iterator[RenderableType]:
    """One active job: what it does, how far it is, who runs it."""
    head = Text("  ") + Text(one.type, style="bold") + Text(f" {short(one.id)}", style="cyan")
    if one.stage:
        place = f", stage {one.stage_number} of {len(one.stages)}" if one.stage_number else ""
        head += Text(f"  {clean(one.stage)}{place}")
    if one.running_ms is not None:
        head += Text(f"  for {span(one.running_ms)}", style="dim")
    yield head
    progress = progress_line(one)
    if progress.plain:
        yield Text("    ") + progress
    if one.retrying is not None:
        yield Padding(Text(one_line(one.retry_words, RETRY_SHOWN), "yellow"), (0, 0, 0, 4))
    owner = Text(f"    {', '.join(owner_words(one))}", style="dim")
    yield Text() + owner + Text(", which is not heard of" if lost else "", style="yellow")


def progress_line(one: Status) -> Text:
    """A bar, "12 of 30", what the job says, and about how long it will take."""
    line = Text()
    if one.done is not None and one.total:
        line += bar(one.done, one.total) + Text(f" {one.done:,} of {one.total:,}")
    elif one.steps:
        line += Text(f"{counted(one.steps, 'step')} recorded")
    if one.text:
        line += Text("  " if line else "") + Text(one_line(one.text, 60))
    if one.remaining_ms:
        line += Text(f"  about {span(one.remaining_ms)} left", style="dim")
    if one.trouble:
        line += Text(("  " if line else "") + "stands still: nothing can be written", style="bold red")
    return line


def lost_workers(history: Sequence[Entry]) -> int:
    """How many workers were lost over a job in all."""
    return sum(entry.event in (Event.LAPSE, Event.ABANDON) and "lost" in entry.note for entry in history)


def owner_words(one: Status | Job, lost: int | None = None) -> Iterator[str]:
    """Who runs it, and what has gone wrong before. `lost` is how many workers were lost in all, where that is known."""
    if one.worker is not None:
        yield f"worker {one.worker}"
    if one.attempt > 1:
        # The attempt that runs has a number; where none runs, only the failed ones can be told.
        yield f"attempt {one.attempt}" if one.state is State.ACTIVE else counted(one.attempt - 1, "failed attempt")
    if lost:
        in_a_row = f", {one.recoveries} in a row" if 1 < one.recoveries < lost else ""
        yield f"{counted(lost, 'worker')} lost{in_a_row}"
    elif lost is None and one.recoveries:
        yield f"{counted(one.recoveries, 'worker')} lost in a row" if one.recoveries > 1 else "its worker was lost"


def _review_lines(job: Job, now: Time) -> Iterator[RenderableType]:
    head = Text("  ") + Text(job.type, style="bold") + Text(f" {short(job.id)}", style="cyan")
    yield head + Text(f"  submitted {ago(job.created_at, now)}", style="dim")
    if job.error is not None:
        yield Padding(Text(error_line(job.error), "red", no_wrap=True, overflow="ellipsis"), (0, 0, 0, 4))


def detail(one: Status, history: Sequence[Entry], now: Time) -> Iterator[RenderableType]:
    """Where one job stands. Its history tells how long it took, and how many workers were lost over it."""
    yield Text() + Text(one.type, style="bold") + Text(f" {one.id}", style="cyan")
    meaning = STATE_ROWS[one.state].meaning.split(":")[0]
    yield Text("  ") + state_text(one.state) + Text(f": {meaning}", style="dim")
    if one.state is State.ACTIVE:
        place = f", stage {one.stage_number} of {len(one.stages)}" if one.stage_number else ""
        yield Text(f"  {clean(one.stage) or 'running'}{place}, for {span(one.running_ms or 0)}")
    if one.stages:
        yield Text("  ") + strip(one)
    progress = progress_line(one)
    if progress.plain:
        yield Text("  ") + progress
    if one.trouble:
        yield Padding(Text(f"its worker can't write: {one_line(one.trouble)}", "bold red"), (0, 0, 0, 2))
    if one.retrying is not None:
        yield Padding(Text(one_line(one.retry_words, RETRY_SHOWN), "yellow"), (0, 0, 0, 2))
    for wait in one.waits:
        yield Text(f"  {wait_in_words(wait, now)}")
    if any(wait.name.startswith(ASK) for wait in one.waits):
        yield Text(f"  answer it: holdfast ask {short(one.id)}")
    if one.state in (State.SCHEDULED, State.RETRYABLE) and not one.waits:
        yield Text(f"  due {ago(one.run_at, now)}")
    if one.error is not None:
        yield Padding(Text(error_line(one.error), "red"), (0, 0, 0, 2))
    told = [f"queue {one.queue}", f"submitted {ago(one.created_at, now)}", *owner_words(one, lost_workers(history))]
    if one.finished_at is not None:
        told.append(f"ended {ago(one.finished_at, now)}")
        began_at = next((entry.at for entry in history if entry.event == Event.CLAIM), None)
        told += [] if began_at is None else [f"took {span(one.finished_at - began_at)}"]
    yield Text(f"  {', '.join(told)}", style="dim")


def strip(one: Status) -> Text:
    """The job's stages in a row, the current one marked."""
    passed = one.stage_number or 0
    parts = []
    for number, stage in enumerate(one.stages, 1):
        if one.state is State.COMPLETED or number < passed:
            parts.append(Text(f"✓ {clean(stage)}", style="green"))
        elif number == passed:
            parts.append(Text(f"▶ {clean(stage)}", style="bold"))
        else:
            parts.append(Text(clean(stage), style="dim"))
    return Text(" → ").join(parts)
