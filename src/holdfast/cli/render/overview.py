"""A store for a person, readable at 80 columns: its queues, running jobs, jobs that need a person, and workers.

Must not read a store: it draws what `jobs.views` returns.
"""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.render.job import progress_line
from holdfast.cli.render.screen import STYLES, Hanging, bar
from holdfast.core.lifecycle import STATE_ROWS
from holdfast.core.model import Job, Presence, Running, State, Time
from holdfast.jobs.status import Status, retry_line, stage_words
from holdfast.jobs.views.overview import (
    ALIVE,
    ASKING_SHOWN,
    GONE,
    SILENT,
    TYPES_SHOWN,
    WORKER_MEANINGS,
    Overview,
    QueueSummary,
    lacking_words,
    question_wait,
    raised_words,
    type_words,
    worker_state,
)
from holdfast.jobs.views.remarks import owner_words
from holdfast.jobs.views.text import ago, error_line, one_line, plural, short_id, span
from holdfast.jobs.views.waits import wait_words
from holdfast.safe_text import clean

WORKER_STYLES = {ALIVE: "green", SILENT: "yellow", GONE: "red"}
RUNNING_SHOWN = 10
"""How many of a worker's jobs are shown."""


def draw_overview(overview: Overview) -> RenderableType:
    """Return the whole store at one moment."""
    parts: list[RenderableType] = [_head(overview)]
    if overview.queues:
        parts += [Text(), queue_table(overview.queues), *unknown_lines(overview.queues), *_alert_lines(overview)]
    if overview.active:
        parts += [Text(), Text("Running", style="bold")]
        alive = {worker.worker for worker in overview.alive}
        for one in overview.active:
            parts += _running_lines(one, is_lost=one.worker not in alive)
        if (more := overview.total(State.ACTIVE) - len(overview.active)) > 0:
            parts.append(Text(f"  and {more:,} more: holdfast jobs --state active", style="dim"))
    if overview.review:
        parts += [Text(), Text("Needs a person", style="bold")]
        for job in overview.review:
            parts += _review_lines(job, overview.now)
        more = overview.total(State.REVIEW) - len(overview.review)
        rest = f"and {more:,} more; " if more > 0 else ""
        parts.append(Text(f"  {rest}to decide: holdfast review", style="dim"))
    if overview.asking:
        parts += [Text(), Text("Waits for an answer", style="bold")]
        for job in overview.asking[:ASKING_SHOWN]:
            head = Text() + Text(job.type, style="bold") + Text(f" {short_id(job.id)}", style="cyan")
            words = wait_words(question_wait(job), overview.now)
            parts.append(Hanging(head + Text(f"  {words}", style="dim"), 2, hang=2))
        rest = "there are more; " if len(overview.asking) > ASKING_SHOWN else ""
        parts.append(Text(f"  {rest}to answer: holdfast ask", style="dim"))
    return Group(*parts)


def _head(overview: Overview) -> Text:
    alive = overview.alive
    slots, busy = sum(worker.slots for worker in alive), sum(len(worker.running) for worker in alive)
    serving = f"{plural(len(alive), 'worker')}, {busy} of {slots} slots in use" if alive else "no worker"
    head = Text() + Text(overview.place, style="bold") + Text(f"\n{serving}", style="" if alive else "yellow")
    for worker in [worker for worker in alive if worker.trouble]:
        head += Text(f"\nworker {worker.worker} can't write: {one_line(worker.trouble)}", style="bold red")
    if not any(queue.total for queue in overview.queues):
        head += Text("\nno jobs yet", style="dim")
    return head


def queue_table(queues: Sequence[QueueSummary]) -> Table:
    """Return the queues, each with its share of ended jobs and its jobs by state."""
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
        if (most := queue.most_waiting) is not None:
            is_full = queue.depth >= most
            notes += Text(f"{queue.depth:,} of {most:,} waiting; ", style="bold yellow" if is_full else "")
        table.add_row(Text(queue.name), bar(queue.ended, queue.total, 10), notes + (words or Text("empty", "dim")))
    return table


def _alert_lines(overview: Overview) -> Iterator[Text]:
    """Yield the alerts that are raised."""
    for one in overview.alerts:
        yield Text(f"alert: {raised_words(one)}, since {ago(one.since, overview.now)}", style="bold yellow")


def unknown_lines(queues: Sequence[QueueSummary]) -> Iterator[Text]:
    """Yield the types of waiting jobs that no running worker knows, or can run."""
    for queue in queues:
        if queue.unknown:
            yield Text(f"{queue.name}: no running worker knows {type_words(queue.unknown)}", style="yellow")
        yield from (Text(line, style="yellow") for line in lacking_words(queue))


def _running_lines(one: Status, *, is_lost: bool) -> Iterator[RenderableType]:
    """Yield one active job: its stage, its progress, its worker."""
    head = Text(one.type, style="bold") + Text(f" {short_id(one.id)}", style="cyan")
    if one.stage:
        head += Text(f"  {stage_words(one)}")
    if one.running_ms is not None:
        head += Text(f"  for {span(one.running_ms)}", style="dim")
    yield Hanging(head, 2, hang=2)
    progress = progress_line(one)
    if progress.plain:
        yield Hanging(progress, 4)
    if one.limited is not None:
        yield Padding(Text(str(one.limited), "yellow"), (0, 0, 0, 4))
    if one.retrying is not None:
        yield Padding(Text(retry_line(one), "yellow"), (0, 0, 0, 4))
    owner = Text(", ".join(owner_words(one)), style="dim")
    yield Hanging(Text() + owner + Text(", which is not responding" if is_lost else "", style="yellow"), 4, hang=2)


def _review_lines(job: Job, now: Time) -> Iterator[RenderableType]:
    head = Text(job.type, style="bold") + Text(f" {short_id(job.id)}", style="cyan")
    yield Hanging(head + Text(f"  submitted {ago(job.created_at, now)}", style="dim"), 2, hang=2)
    if job.error is not None:
        yield Padding(Text(error_line(job.error), "red", no_wrap=True, overflow="ellipsis"), (0, 0, 0, 4))


def worker_lines(worker: Presence, now: Time) -> list[Text]:
    """Return one worker: where it runs, its last heartbeat, its queues and its jobs."""
    state = worker_state(worker, now)
    head = Text() + Text(worker.worker, style="bold") + Text(f"  {state}", style=WORKER_STYLES[state])
    head += Text(f"  {len(worker.running)} of {worker.slots} slots in use", style="")
    if worker.unreadable:
        beat = f"last heartbeat {ago(worker.beat_at, now)}" if worker.beat_at else "last heartbeat unknown"
        return [head, Text(f"  its worker status can't be read, {beat}; see holdfast doctor", style="bold red")]
    host = f"process {worker.pid} on {clean(worker.host) or 'this machine'}"
    place = f"  {host}, last heartbeat {ago(worker.beat_at, now)}, started {ago(worker.started_at, now)}"
    lines = [head, Text(place, style="dim"), Text(f"  queues {', '.join(worker.queues) or '–'}", style="dim")]
    if worker.trouble and state == ALIVE:
        lines.append(Text(f"  can't write: {one_line(worker.trouble)}", style="bold red"))
    if worker.has:
        lines.append(Text(f"  has {', '.join(worker.has)}", style="dim"))
    if worker.types:
        more = f" and {len(worker.types) - TYPES_SHOWN} more" if len(worker.types) > TYPES_SHOWN else ""
        lines.append(Text(f"  types {', '.join(worker.types[:TYPES_SHOWN])}{more}", style="dim"))
    if WORKER_MEANINGS[state]:
        lines.append(Text(f"  {WORKER_MEANINGS[state]}", style=WORKER_STYLES[state]))
    lines += [_running_line(one, now) for one in worker.running[:RUNNING_SHOWN]]
    if len(worker.running) > RUNNING_SHOWN:
        lines.append(Text(f"    and {len(worker.running) - RUNNING_SHOWN} more", style="dim"))
    return lines


def _running_line(one: Running, now: Time) -> Text:
    line = Text("    ") + Text(short_id(one.job), style="cyan") + Text(f"  {clean(one.stage) or 'between steps'}")
    if one.done is not None and one.total:
        line += Text(f", {one.done:,} of {one.total:,}")
    return line + Text(f"  for {span(now - one.since)}" if one.since else "", style="dim")
