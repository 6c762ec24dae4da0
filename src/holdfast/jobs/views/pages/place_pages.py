"""Reads queues, workers, schedules, limits, budgets and the lifecycle as pages. Must not change anything."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.errors import NotFound
from holdfast.core.lifecycle import EVENTS, STATES
from holdfast.core.model import Job, Presence, State, Time, Usage, Where
from holdfast.core.shared_limits import UNIT
from holdfast.core.spending import in_words, plain
from holdfast.core.suggestions import suggest
from holdfast.engines.records import QUIET
from holdfast.jobs.budgets import Budget, list_budgets
from holdfast.jobs.built_in import OWN_QUEUE
from holdfast.jobs.limits import LimitView, list_limits
from holdfast.jobs.questions import Question
from holdfast.jobs.schedule_views import ScheduleView, list_schedules
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.overview import (
    ALIVE,
    GONE,
    WORKER_MEANINGS,
    QueueSummary,
    is_alive,
    view_queues,
    worker_state,
)
from holdfast.jobs.views.pages.acts import budget_act, place_act
from holdfast.jobs.views.pages.job_page import running_words
from holdfast.jobs.views.pages.lines import as_sentence, job_lines, name_of
from holdfast.jobs.views.pages.losses import LostWorker
from holdfast.jobs.views.pages.overview import by_need, lost_words, queue_bar, shown_queues, shown_workers
from holdfast.jobs.views.pages.parts import StateCount, moment
from holdfast.jobs.views.pages.places import (
    Amount,
    BudgetLine,
    BudgetsPage,
    ChangeLine,
    EventShown,
    LifecyclePage,
    LimitKey,
    LimitLine,
    LimitsPage,
    Navigation,
    QueueLine,
    QueuesPage,
    RunningLine,
    ScheduleLine,
    SchedulesPage,
    StateShown,
    WorkerLine,
    WorkerPage,
    WorkersPage,
)
from holdfast.jobs.views.shapes import plain_value, time_text
from holdfast.jobs.views.text import ago, one_line, plural, short_id, span
from holdfast.safe_text import clean

KEYS_SHOWN = 20
"""How many keys of a limit a page shows."""

ASKING_LOOKED_AT = 50
"""Of how many waiting jobs the frame's count looks for a question."""


async def view_navigation(jobs: Jobs, place: str, version: str, app: bool) -> Navigation:
    """Read what the frame around every page shows."""
    counts, now = await jobs.engine.count(), await jobs.engine.now()
    alive = [one for one in shown_workers(await jobs.workers()) if is_alive(one, now)]
    waiting = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE)
    queues = sorted({queue for queue, _ in counts} - {OWN_QUEUE})
    asking: list[Question] = []
    if any(state is State.PENDING for _, state in counts):
        pending = Where(states=(State.PENDING,), newest_first=True)
        asking = await jobs.questions_among(await jobs.engine.find(pending, limit=ASKING_LOOKED_AT))
    return Navigation(
        now=moment(now),
        store=place,
        version=version,
        needs=sum(number for (_, state), number in counts.items() if state is State.REVIEW) + len(asking),
        jobs=sum(counts.values()),
        running=sum(number for (_, state), number in counts.items() if state is State.ACTIVE),
        workers=len(alive),
        queues=tuple(StateCount(name, sum(counts.get((name, state), 0) for state in waiting)) for name in queues),
        paused=tuple(sorted(await jobs.pauses())),
        app=app,
    )


# Queues.


async def view_queues_page(jobs: Jobs) -> QueuesPage:
    """Read all queues."""
    found, now = shown_queues(await view_queues(jobs)), await jobs.engine.now()
    paused = sum(one.pause is not None for one in found)
    words = f"{plural(len(found), 'queue')}" + (f", {paused:,} paused" if paused else "")
    waiting = sum(one.waiting for one in found)
    return QueuesPage(
        now=moment(now),
        sentence=as_sentence(
            f"{words}; {plural(waiting, 'job waits', 'jobs wait')} for a worker"
            if found
            else "no queues yet: a queue appears with its first job"
        ),
        queues=tuple([await _queue_line(jobs, one, now) for one in found]),
    )


async def _queue_line(jobs: Jobs, one: QueueSummary, now: Time) -> QueueLine:
    bound = one.bound.now(one.name)
    act = (
        place_act("queues", one.name, "resume", "Resume", f"queues resume {one.name}")
        if one.pause is not None
        else place_act("queues", one.name, "pause", "Pause", f"queues pause {one.name}")
    )
    return QueueLine(
        bar=await queue_bar(jobs, one, now),
        most_waiting=one.most_waiting,
        when_full=None if bound is None else bound.when_full,
        depth=one.depth,
        total=one.total,
        ended=one.ended,
        acts=(act,),
    )


# Workers.


async def view_workers_page(jobs: Jobs, lost: Sequence[LostWorker] = ()) -> WorkersPage:
    """Read all workers, those in trouble first, and those that were `lost` in the last hour."""
    now, workers = await jobs.engine.now(), shown_workers(await jobs.workers(), lost)
    quiet = await _quiet(jobs)
    alive = [one for one in workers if is_alive(one, now)]
    slots, busy = sum(one.slots for one in alive), sum(len(one.running) for one in alive)
    gone = len(workers) - len(alive)
    words = f"{plural(len(alive), 'worker')}, {busy} of {slots} slots in use" if alive else "no worker is running"
    return WorkersPage(
        now=moment(now),
        sentence=as_sentence(
            words + (f"; {gone:,} silent" if gone else "") + (f"; {len(lost):,} lost in the last hour" if lost else "")
        ),
        workers=(
            *(_worker_line(one, now, quiet) for one in by_need(workers, now)),
            *(_lost_line(one, now) for one in lost),
        ),
    )


async def view_worker(jobs: Jobs, id: str, lost: Sequence[LostWorker] = ()) -> WorkerPage:
    """Read one worker with the jobs that it runs, or raise NotFound. One that was `lost` has those taken from it."""
    now, workers = await jobs.engine.now(), await jobs.workers()
    gone = next((worker for worker in lost if worker.presence.worker == id), None)
    if gone is not None:
        taken = [job for job in await jobs.engine.get(gone.jobs) if job is not None]
        return WorkerPage(now=moment(now), worker=_lost_line(gone, now), jobs=await job_lines(jobs, taken))
    one = next((worker for worker in workers if worker.worker == id), None)
    if one is None:
        hint = suggest(id, [worker.worker for worker in workers]) or "; it may have stopped"
        raise NotFound(f"there is no worker {id[:80]!r} in this store{hint}")
    held = [job for job in await jobs.engine.get([running.job for running in one.running]) if job is not None]
    line = _worker_line(one, now, await _quiet(jobs))
    return WorkerPage(now=moment(now), worker=line, jobs=await job_lines(jobs, held))


async def _quiet(jobs: Jobs) -> frozenset[str]:
    return frozenset(record.name.removeprefix(QUIET) for record in await jobs.engine.records(QUIET))


def _lost_line(one: LostWorker, now: Time) -> WorkerLine:
    """Return a lost worker: what it last reported, and the jobs that were taken from it."""
    line = _worker_line(replace(one.presence, running=(), trouble="", gone=True), now, frozenset())
    taken = tuple(
        RunningLine(job=id, short=short_id(id), epoch=0, words="taken from it", since=None) for id in one.jobs
    )
    return replace(line, state=GONE, sentence=as_sentence(lost_words(one)), running=taken)


def _worker_line(one: Presence, now: Time, quiet: frozenset[str]) -> WorkerLine:
    state = worker_state(one, now)
    is_quiet = one.worker in quiet
    words = [
        f"{len(one.running)} of {one.slots} slots in use" if state == ALIVE else WORKER_MEANINGS[state],
        f"last heartbeat {ago(one.beat_at, now)}" if one.beat_at else "last heartbeat unknown",
        f"started {ago(one.started_at, now)}" if one.started_at else "",
        "claims nothing new" if is_quiet else "",
    ]
    act = (
        place_act("workers", one.worker, "resume", "Let it claim again", f"workers resume {one.worker}")
        if is_quiet
        else place_act("workers", one.worker, "quiet", "Quiet", f"workers quiet {one.worker}")
    )
    return WorkerLine(
        id=one.worker,
        state=state,
        sentence=as_sentence(", ".join(word for word in words if word)),
        host=clean(one.host),
        pid=one.pid,
        queues=one.queues,
        types=one.types,
        has=one.has,
        slots=one.slots,
        busy=len(one.running),
        running=tuple(
            RunningLine(
                job=job.job,
                short=short_id(job.job),
                epoch=job.epoch,
                words=running_words(job, now),
                since=time_text(job.since),
            )
            for job in one.running
        ),
        started_at=time_text(one.started_at or None),
        beat_at=time_text(one.beat_at or None),
        is_quiet=is_quiet,
        trouble="its status can't be read; see holdfast doctor" if one.unreadable else one_line(one.trouble),
        acts=(act,) if state == ALIVE else (),
    )


# Schedules.


async def view_schedules_page(jobs: Jobs) -> SchedulesPage:
    """Read all schedules."""
    found, now = await list_schedules(jobs.engine), await jobs.engine.now()
    trouble = sum(bool(one.trouble) for one in found)
    words = plural(len(found), "schedule") + (f", {trouble:,} in trouble" if trouble else "")
    return SchedulesPage(
        now=moment(now),
        sentence=as_sentence(words if found else "no schedules yet: declare one with app.schedule(…)"),
        schedules=tuple(schedule_line(one, now) for one in found),
    )


def schedule_line(one: ScheduleView, now: Time) -> ScheduleLine:
    """Return a schedule as a line."""
    pause, name = one.paused, one.name
    reason = f": {one_line(pause.reason)}" if pause is not None and pause.reason else ""
    paused = "" if pause is None else f"paused by {one_line(pause.by)} {ago(pause.at, now)}{reason}"
    upcoming = f"next {ago(one.next[0], now)}" if one.next else "never fires again"
    last = f"last job {one.job_state or 'no longer kept'}" if one.job else "no job yet"
    switch = (
        place_act("schedules", name, "resume", "Resume", f"schedules resume {name}")
        if pause is not None
        else place_act("schedules", name, "pause", "Pause", f"schedules pause {name}")
    )
    return ScheduleLine(
        name=name,
        when=one.when,
        sentence=as_sentence(f"{paused or upcoming}, {last}"),
        type=one.type,
        queue=one.queue,
        args=plain_value(one.args),
        tz=one.tz,
        missed=one.missed,
        overlap=one.overlap,
        is_code=one.is_code,
        next=tuple(moment(tick) for tick in one.next),
        last_at=time_text(one.tick),
        last_job=one.job or None,
        last_state=None if one.job_state is None else one.job_state.value,
        skipped=one.skipped,
        is_paused=pause is not None,
        pause_words=paused,
        trouble=one_line(one.trouble, 400),
        changes=tuple(ChangeLine(at=moment(c.at), by=one_line(c.by), what=one_line(c.what)) for c in one.changes),
        acts=(
            switch,
            place_act("schedules", name, "run", "Run now", f"schedules run {name}"),
            place_act("schedules", name, "remove", "Remove", f"schedules remove {name}", twice="Remove it"),
        ),
    )


# Limits and budgets.


async def view_limits_page(jobs: Jobs) -> LimitsPage:
    """Read all shared limits."""
    found, now = await list_limits(jobs.engine), await jobs.engine.now()
    return LimitsPage(
        now=moment(now),
        sentence=as_sentence(plural(len(found), "limit") if found else "no limits yet: declare one with app.limit(…)"),
        limits=tuple(limit_line(one, now) for one in found),
    )


def limit_line(one: LimitView, now: Time) -> LimitLine:
    """Return a limit as a line."""
    person, name = one.person, one.name
    reason = f": {one_line(person.reason)}" if person is not None and person.reason else ""
    is_closed = any(use.closed_until for use in one.usage)
    acts = [place_act("limits", name, "set", "Set", f"limits set {name}")]
    if person is not None:
        acts.append(place_act("limits", name, "reset", "Reset to the code's", f"limits reset {name}"))
    if is_closed:
        acts.append(place_act("limits", name, "open", "Open", f"limits open {name}"))
    else:
        acts.append(place_act("limits", name, "close", "Close", f"limits close {name} --for 10m"))
    return LimitLine(
        name=name,
        sentence=as_sentence(one.now.words()),
        at_once=one.now.at_once,
        rate=one.now.rate,
        burst=one.now.burst,
        per=one.now.per,
        set_by="" if person is None else f"set by {one_line(person.by)} {ago(person.at, now)}{reason}",
        keys=tuple(_limit_key(one, use, now) for use in one.usage[:KEYS_SHOWN]),
        changes=tuple(ChangeLine(at=moment(c.at), by=one_line(c.by), what=one_line(c.what)) for c in one.changes),
        acts=tuple(acts),
    )


def _limit_key(limit: LimitView, one: Usage, now: Time) -> LimitKey:
    of = "" if limit.settings.at_once is None else f" of {limit.settings.at_once:,}"
    closed = f", closed, {span(one.closed_until - now)} left" if one.closed_until > now else ""
    return LimitKey(
        key=one.key,
        in_use=one.held,
        waiting=one.waiting,
        units_left=None if one.tokens is None else one.tokens / UNIT,
        closed_until=time_text(one.closed_until or None),
        words=f"{one.held:,}{of} in use, {one.waiting:,} waiting{closed}",
    )


async def view_budgets_page(jobs: Jobs) -> BudgetsPage:
    """Read the budgets of jobs that have begun to use them and have not ended."""
    found, now = await list_budgets(jobs.engine), await jobs.engine.now()
    return BudgetsPage(
        now=moment(now),
        sentence=as_sentence(f"{plural(len(found), 'budget')} in use" if found else "no budgets in use"),
        budgets=tuple(budget_line(job, one) for job, one in found),
    )


def budget_line(job: Job, one: Budget) -> BudgetLine:
    """Return a job's budget as a line."""
    granted, spent, left = plain(one.granted), plain(one.spent), plain(one.left)
    return BudgetLine(
        job=job.id,
        short=short_id(job.id),
        name=name_of(job),
        type=job.type,
        state=job.state.value,
        words=str(one),
        amounts=tuple(
            Amount(currency=name, granted=granted[name], spent=spent[name], left=left[name]) for name in granted
        ),
        added=tuple(
            ChangeLine(
                at=moment(note.at),
                by=one_line(note.by),
                what=f"added {in_words(note.added)}" + (f": {one_line(note.reason)}" if note.reason else ""),
            )
            for note in one.notes
        ),
        acts=(budget_act(job.id),),
    )


# The lifecycle.


async def view_lifecycle_page(jobs: Jobs) -> LifecyclePage:
    """Return the lifecycle's table, with how many jobs are in each state."""
    counts, now = await jobs.engine.count(), await jobs.engine.now()

    def jobs_in(state: State) -> int:
        return sum(number for (_, one), number in counts.items() if one is state)

    return LifecyclePage(
        now=moment(now),
        states=tuple(
            StateShown(state=row.state.value, meaning=row.meaning, is_terminal=row.terminal, jobs=jobs_in(row.state))
            for row in STATES
        ),
        events=tuple(
            EventShown(
                event=row.event.value,
                sources=tuple(state.value for state in row.sources),
                targets=tuple(state.value for state in row.targets),
                who=row.who,
                meaning=row.meaning,
            )
            for row in EVENTS
        ),
    )
