"""Reads queues, workers, schedules, limits, budgets and the lifecycle as pages. Must not change anything."""

from holdfast.core.lifecycle import EVENTS, STATES
from holdfast.core.model import Job, State, Time, Usage, Where
from holdfast.core.shared_limits import UNIT
from holdfast.core.spending import in_words, plain
from holdfast.jobs.budgets import Budget, list_budgets
from holdfast.jobs.built_in import OWN_QUEUE
from holdfast.jobs.limits import LimitView, list_limits
from holdfast.jobs.questions import Question
from holdfast.jobs.schedule_views import ScheduleView, list_schedules
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.overview import (
    QueueSummary,
    is_alive,
    view_queues,
)
from holdfast.jobs.views.pages.acts import budget_act, place_act
from holdfast.jobs.views.pages.lines import as_sentence, name_of
from holdfast.jobs.views.pages.overview import queue_bar, shown_queues, shown_workers
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
    ScheduleLine,
    SchedulesPage,
    StateShown,
)
from holdfast.jobs.views.shapes import plain_value, time_text
from holdfast.jobs.views.text import ago, one_line, plural, short_id, span

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
