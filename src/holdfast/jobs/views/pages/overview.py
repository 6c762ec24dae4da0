"""The overview of a store: what needs a person, what runs, and how much is where. Must not change anything."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.core.alerts import ALERT, raised_in
from holdfast.core.codec import canonical
from holdfast.core.errors import EffectInDoubt
from holdfast.core.model import Job, Presence, State, Time, Where
from holdfast.jobs.built_in import OWN_QUEUE
from holdfast.jobs.pauses import Pause
from holdfast.jobs.questions import Question
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.overview import (
    ALIVE,
    GONE,
    WORKER_MEANINGS,
    QueueSummary,
    is_alive,
    lacking_words,
    raised_words,
    type_words,
    view_queues,
    worker_state,
)
from holdfast.jobs.views.pages.acts import answer_act, review_acts
from holdfast.jobs.views.pages.lines import as_sentence, job_lines, name_of, waited_ms
from holdfast.jobs.views.pages.losses import LostWorker
from holdfast.jobs.views.pages.parts import Act, JobLine, Moment, StateCount, moment
from holdfast.jobs.views.shapes import time_text
from holdfast.jobs.views.text import ago, error_line, one_line, plural, short_id, span, time_left
from holdfast.safe_text import clean

NEEDS_SHOWN = 5
RUNNING_SHOWN = 8
WORKERS_SHOWN = 24
LOST_SHOWN = 6
QUEUES_SHOWN = 24
"""How much an overview shows. The totals are exact, and `…_more` says how much is left out."""

ASKING = Where(states=(State.PENDING, State.ACTIVE), newest_first=True)
ASKING_READ = 200
"""How many of the newest jobs that may ask something are looked at."""


class Need(Struct, frozen=True, kw_only=True):
    """Something that needs a person: a question, an effect in doubt, or a failure."""

    kind: str
    """"question", "doubt" or "failure"."""
    job: str
    short: str
    name: str
    type: str
    words: str
    """What is asked, or what went wrong, in one line."""
    since: Moment
    until: Moment | None
    acts: tuple[Act, ...]
    question: str = ""
    """The question's name, if it is one."""


class WorkerDot(Struct, frozen=True, kw_only=True):
    """A worker as slots: how many it has, how many are busy, and whether it was lost."""

    id: str
    state: str
    host: str
    slots: int
    busy: int
    words: str


class QueueBar(Struct, frozen=True, kw_only=True):
    """A queue as one bar by state, with its pause and its longest wait."""

    name: str
    states: tuple[StateCount, ...]
    waiting: int
    oldest_at: Moment | None
    oldest_words: str
    is_paused: bool
    pause_words: str
    workers: int
    trouble: str
    """Why waiting jobs of this queue can't run: no worker knows their type, for example."""


class MinuteCounts(Struct, frozen=True, kw_only=True):
    """Jobs that ended, per minute, for up to an hour, and workers that were lost. The last minute is unfinished.

    `since` is when this server began to count. The first entry of each list is the minute that starts at `first`.
    `cancelled` and `discarded` are parts of `ended`; the others completed.
    """

    since: Moment | None
    since_words: str
    first: Moment | None
    ended: tuple[int, ...]
    cancelled: tuple[int, ...]
    discarded: tuple[int, ...]
    lost: tuple[int, ...]
    words: str


class MoneySeen(Struct, frozen=True, kw_only=True):
    """What running jobs spent while this server watched, since midnight UTC or its start."""

    since: Moment
    spent: dict[str, float]
    wasted: dict[str, float]
    saved: dict[str, float]
    words: str


class OverviewPage(Struct, frozen=True, kw_only=True):
    """A whole store at one moment."""

    now: Moment
    store: str
    sentence: str
    needs: tuple[Need, ...]
    needs_total: int
    running: tuple[JobLine, ...]
    running_total: int
    states: tuple[StateCount, ...]
    finished: MinuteCounts
    money: MoneySeen | None
    workers: tuple[WorkerDot, ...]
    workers_more: int
    queues: tuple[QueueBar, ...]
    queues_more: int
    alerts: tuple[str, ...]


async def view_overview(
    jobs: Jobs, place: str, finished: MinuteCounts, money: MoneySeen | None, lost: Sequence[LostWorker] = ()
) -> OverviewPage:
    """Read a whole store. The lists are bounded; the counts are exact. `lost` are workers lost in the last hour."""
    engine = jobs.engine
    now = await engine.now()
    queues, workers = await view_queues(jobs), shown_workers(await jobs.workers(), lost)
    active = await engine.find(Where(states=(State.ACTIVE,)), limit=RUNNING_SHOWN)
    needs = await view_needs(jobs, NEEDS_SHOWN)
    raised = [one for record in await engine.records(ALERT) if (one := raised_in(record)) is not None]
    counts = {state: sum(queue.counts.get(state, 0) for queue in queues) for state in State}
    queues = shown_queues(queues)
    bars = [await queue_bar(jobs, queue, now) for queue in queues[:QUEUES_SHOWN]]
    needs_total = counts[State.REVIEW] + sum(one.kind == "question" for one in needs)
    dots = tuple(worker_dot(one, now) for one in by_need(workers, now)[:WORKERS_SHOWN])
    return OverviewPage(
        now=moment(now),
        store=place,
        sentence=_sentence(counts, needs_total, workers, now),
        needs=tuple(needs[:NEEDS_SHOWN]),
        needs_total=max(needs_total, len(needs)),
        running=await job_lines(jobs, active),
        running_total=counts[State.ACTIVE],
        states=tuple(StateCount(state.value, number) for state, number in counts.items()),
        finished=finished,
        money=money,
        workers=(*dots, *(lost_dot(one) for one in lost[:LOST_SHOWN])),
        workers_more=len(workers) - len(dots),
        queues=tuple(bars),
        queues_more=len(queues) - len(bars),
        alerts=tuple(f"{raised_words(one)}, since {ago(one.since, now)}" for one in raised),
    )


def shown_workers(workers: Sequence[Presence], lost: Sequence[LostWorker] = ()) -> list[Presence]:
    """Return the workers without those for Holdfast's own jobs, which each server has, and without the lost ones."""
    left_out = {one.presence.worker for one in lost}
    return [one for one in workers if set(one.queues) != {OWN_QUEUE} and one.worker not in left_out]


def shown_queues(queues: Sequence[QueueSummary]) -> tuple[QueueSummary, ...]:
    """Return the queues without the one of Holdfast's own jobs."""
    return tuple(one for one in queues if one.name != OWN_QUEUE)


def by_need(workers: Sequence[Presence], now: Time) -> list[Presence]:
    """Return the workers, those in trouble first, then by name."""
    return sorted(workers, key=lambda one: (worker_state(one, now) == ALIVE and not one.trouble, one.worker))


def _sentence(counts: Mapping[State, int], needs: int, workers: Sequence[Presence], now: Time) -> str:
    """Say how the store is: "3 jobs run, 1 needs you, 340 wait. 2 workers, 3 of 8 slots in use."."""
    waiting = counts[State.AVAILABLE] + counts[State.SCHEDULED] + counts[State.RETRYABLE]
    parts = [
        f"{plural(counts[State.ACTIVE], 'job')} {'runs' if counts[State.ACTIVE] == 1 else 'run'}"
        if counts[State.ACTIVE]
        else "",
        f"{needs:,} {'needs' if needs == 1 else 'need'} you" if needs else "",
        f"{waiting:,} {'waits' if waiting == 1 else 'wait'} for a worker" if waiting else "",
        f"{counts[State.PENDING]:,} for something else" if waiting and counts[State.PENDING] else "",
        plural(counts[State.PENDING], "job waits", "jobs wait") if counts[State.PENDING] and not waiting else "",
    ]
    said = ", ".join(part for part in parts if part)
    alive = [one for one in workers if is_alive(one, now)]
    slots, busy = sum(one.slots for one in alive), sum(len(one.running) for one in alive)
    serving = f"{plural(len(alive), 'worker')}, {busy} of {slots} slots in use" if alive else "No worker is running"
    if not any(counts.values()):
        return f"No jobs yet. {serving}."
    return f"{as_sentence(said or 'nothing runs or waits')} {serving}."


async def view_needs(jobs: Jobs, limit: int) -> list[Need]:
    """Return what needs a person: first the questions, then the jobs in review, the newest first."""
    engine = jobs.engine
    now = await engine.now()
    asking = await jobs.questions_among(await engine.find(ASKING, limit=ASKING_READ))
    owners = {job.id: job for job in await engine.get([one.job for one in asking]) if job is not None}
    found = [_question_need(owners[one.job], one, now) for one in asking if one.job in owners][:limit]
    if len(found) < limit:
        review = await engine.find(Where(states=(State.REVIEW,), newest_first=True), limit=limit - len(found))
        found += [_review_need(job) for job in review]
    return found


def _question_need(job: Job, one: Question, now: Time) -> Need:
    left = "" if one.until is None else f" ({time_left(one.until, now)})"
    return Need(
        kind="question",
        job=job.id,
        short=short_id(job.id),
        name=name_of(job),
        type=job.type,
        words=one_line(question_text(one)) + left,
        since=moment(one.asked_at),
        until=time_text(one.until),
        acts=(answer_act(job.id, one.name),),
        question=one.name,
    )


def _review_need(job: Job) -> Need:
    is_doubt = job.error is not None and job.error.type == EffectInDoubt.__name__
    return Need(
        kind="doubt" if is_doubt else "failure",
        job=job.id,
        short=short_id(job.id),
        name=name_of(job),
        type=job.type,
        words=error_line(job.error) or "no error was recorded",
        since=moment(job.claimed_at or job.created_at),
        until=None,
        acts=review_acts(job.id),
    )


def worker_dot(one: Presence, now: Time) -> WorkerDot:
    """Return a worker as slots."""
    state = worker_state(one, now)
    words = f"{len(one.running)} of {one.slots} slots in use" if state == ALIVE else WORKER_MEANINGS[state]
    return WorkerDot(
        id=one.worker,
        state=state,
        host=clean(one.host),
        slots=one.slots,
        busy=len(one.running),
        words=f"can't write: {one_line(one.trouble)}" if one.trouble and state == ALIVE else words,
    )


def lost_dot(one: LostWorker) -> WorkerDot:
    """Return a lost worker, with when it was heard of last and how many jobs it lost."""
    worker = one.presence
    return WorkerDot(
        id=worker.worker, state=GONE, host=clean(worker.host), slots=worker.slots, busy=0, words=lost_words(one)
    )


def lost_words(one: LostWorker) -> str:
    """Say when a worker was lost, and what it lost: "lost at 14:11:03 UTC, with 2 jobs"."""
    held = plural(len(one.jobs), "job") if one.jobs else "no job"
    return f"lost at {moment(one.at)[11:19]} UTC, with {held}"


async def queue_bar(jobs: Jobs, queue: QueueSummary, now: Time) -> QueueBar:
    """Return a queue as a bar, with how long its oldest job has waited."""
    oldest: list[Job] = []
    if queue.counts.get(State.AVAILABLE):
        oldest = await jobs.engine.find(Where(states=(State.AVAILABLE,), queue=queue.name), limit=1)
    return QueueBar(
        name=queue.name,
        states=tuple(StateCount(state.value, queue.counts[state]) for state in State if queue.counts.get(state)),
        waiting=queue.waiting,
        oldest_at=time_text(now - waited_ms(oldest[0], now)) if oldest else None,
        oldest_words=f"oldest has waited {span(waited_ms(oldest[0], now))}" if oldest else "",
        is_paused=queue.pause is not None,
        pause_words="" if queue.pause is None else pause_words(queue.pause, now),
        workers=queue.workers,
        trouble=queue_trouble(queue),
    )


def pause_words(pause: Pause, now: Time) -> str:
    """Say who paused something, when and why."""
    reason = f": {one_line(pause.reason)}" if pause.reason else ""
    return f"paused by {one_line(pause.by)} {ago(pause.at, now)}{reason}"


def queue_trouble(queue: QueueSummary) -> str:
    """Say why waiting jobs of a queue can't run; empty if they can."""
    if queue.unknown:
        return f"no running worker knows {type_words(queue.unknown)}"
    if queue.lacking:
        return lacking_words(queue)[0]
    return "no worker serves this queue" if queue.waiting and not queue.workers else ""


def question_text(one: Question) -> str:
    """Return a question in words: a text as it is, anything else as JSON."""
    return one.value if isinstance(one.value, str) else canonical(one.value)
