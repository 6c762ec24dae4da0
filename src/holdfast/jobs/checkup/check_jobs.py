"""Whether the jobs of a store are consistent, and which of them are stuck. Must not repair anything.

Every walk is bounded, so checking a large store stays quick.
"""

from collections import Counter
from collections.abc import Sequence

from holdfast.core.lifecycle import SETTLED, TERMINAL
from holdfast.core.model import PAGE_LIMIT, Job, State, Time, Where
from holdfast.core.unreadable import unreadable_parts
from holdfast.engines.clock import SLEW
from holdfast.engines.contract import system_clock
from holdfast.jobs.checkup.check_code import check_resumed, check_undos
from holdfast.jobs.checkup.check_queues import (
    Code,
    check_drain,
    check_queues,
    check_review,
    check_types,
    check_workers,
)
from holdfast.jobs.checkup.check_schedules import check_schedules
from holdfast.jobs.checkup.finding import Finding, Level, Walk, name_jobs
from holdfast.jobs.service import Jobs
from holdfast.jobs.transfer.move import mark_in
from holdfast.jobs.views.overview import QueueSummary, is_alive, view_queues
from holdfast.jobs.views.text import NAMED, name_some, plural, short_id, span

RECOUNT_LIMIT = 100_000
"""Stores with more jobs than this aren't recounted."""

RECOUNT_TRIES = 3
"""How often a busy store, whose jobs change during a recount, is counted again."""

SLOW_MS = 60 * 60_000
"""A job that has waited longer than this for a worker is worth a warning."""

LATE_MS = 60_000
"""Upkeep runs every few seconds. If something is overdue by this much, no upkeep runs."""

AHEAD_MS = 10_000
"""If a job is from further in the future than this, a clock was set back or two machines' clocks differ."""


async def check_jobs(jobs: Jobs, code: Code | None = None) -> list[Finding]:
    """Check everything that the store's jobs, queues and workers show; with `code`, also for this App."""
    now, queues = await jobs.engine.now(), await view_queues(jobs)
    if marked := await mark_in(jobs.engine):
        return [_counts(queues), Finding("moved", Level.FAIL, marked[0].words())]
    return [
        _counts(queues),
        *await _check_counters(jobs),
        await _check_time(jobs),
        await _check_oldest(jobs, now),
        await _check_owners(jobs),
        await _check_expired(jobs, now),
        await _check_overdue(jobs, now),
        *check_queues(queues, code),
        *check_types(queues),
        *check_workers(await jobs.workers()),
        await check_undos(jobs, now),
        *await check_drain(jobs),
        *await check_schedules(jobs),
        await check_resumed(jobs, now),
        check_review(queues),
    ]


def _counts(queues: Sequence[QueueSummary]) -> Finding:
    totals = {state: sum(queue.counts.get(state, 0) for queue in queues) for state in State}
    counts = ", ".join(f"{number:,} {state}" for state, number in totals.items() if number)
    return Finding("jobs", Level.OK, counts or "none")


async def _check_counters(jobs: Jobs) -> list[Finding]:
    """Compare the store's counters with the jobs in it, and check that every job can be read."""
    kept = dict(await jobs.engine.count())
    if sum(kept.values()) > RECOUNT_LIMIT:
        return [Finding("counters", Level.OK, f"not recounted: more than {RECOUNT_LIMIT:,} jobs")]
    for _ in range(RECOUNT_TRIES):
        found: Counter[tuple[str, State]] = Counter()
        damaged: list[Job] = []
        async for job in jobs.walk(Where()):
            found[job.queue, job.state] += 1
            damaged += [job] if unreadable_parts(job) else []
            if found.total() > 2 * RECOUNT_LIMIT:
                break
        if dict(found) == kept:
            return [Finding("counters", Level.OK, "match a recount"), *_check_rows(damaged)]
        before, kept = kept, dict(await jobs.engine.count())
        if before == kept:
            wrong = sorted(name for name in kept.keys() | found.keys() if kept.get(name, 0) != found[name])
            differences = ", ".join(
                f"{q}/{s}: kept {kept.get((q, s), 0)}, found {found[q, s]}" for q, s in wrong[:NAMED]
            )
            text = f"differ from a recount ({differences}); the numbers in status and queues are wrong"
            return [Finding("counters", Level.FAIL, text), *_check_rows(damaged)]
    return [Finding("counters", Level.OK, "not compared: the jobs change too fast"), *_check_rows(damaged)]


def _check_rows(damaged: Sequence[Job]) -> list[Finding]:
    """Report jobs that are damaged in the store, with what a person can do about each kind."""
    if not damaged:
        return [Finding("rows", Level.OK, "every job can be read")]
    findings: list[Finding] = []
    waiting = [job for job in damaged if job.state not in SETTLED]
    review = [job for job in damaged if job.state is State.REVIEW]
    ended = [job for job in damaged if job.state in TERMINAL]
    for level, some, what in (
        (Level.FAIL, waiting, "the worker that claims one puts it into review; if no worker does, cancel it"),
        (Level.WARN, review, "holdfast replay ID continues without the damaged part; or resolve or discard it"),
        (Level.WARN, ended, "they have ended, so nothing needs to be done"),
    ):
        if some:
            named = name_some([f"{short_id(job.id)}: {' and '.join(unreadable_parts(job))}" for job in some])
            text = f"{plural(len(some), 'job')} can't be read completely ({named}); {what}"
            findings.append(Finding("rows", level, text))
    return findings


async def _check_time(jobs: Jobs) -> Finding:
    page = await jobs.engine.find(Where(newest_first=True), limit=1)
    beats = [worker.beat_at for worker in await jobs.workers()]
    now = await jobs.engine.now()  # after the reads, because a recount may have taken long
    newest = max([job.created_at for job in page] + beats, default=now)
    if jobs.engine.guarantees.clock == "this machine's" and abs(off := now - system_clock()) > AHEAD_MS:
        text = (
            f"the store's time is {span(abs(off))} {'ahead of' if off > 0 else 'behind'} this machine's clock, which "
            f"was changed; it catches up by {60 // SLEW} s a minute, and until then jobs with at= or expires= are "
            f"{'early' if off > 0 else 'late'}"
        )
        return Finding("time", Level.WARN, text)
    if newest > now + AHEAD_MS:
        text = f"the store has times that are {span(newest - now)} ahead of the clock; was the clock set back?"
        return Finding("time", Level.WARN, text)
    return Finding("time", Level.OK, "no times in the future")


async def _check_oldest(jobs: Jobs, now: Time) -> Finding:
    page = await jobs.engine.find(Where(states=(State.AVAILABLE,)))
    if not page:
        return Finding("oldest", Level.OK, "no job is waiting for a worker")
    job = min(page, key=lambda one: one.run_at or one.created_at)
    since = job.run_at or job.created_at
    waited = span(max(0, now - since))
    text = f"job {short_id(job.id)} ({job.type}, queue {job.queue}) has been waiting for a worker for {waited}"
    return Finding("oldest", Level.WARN if now - since > SLOW_MS else Level.OK, text)


async def _check_owners(jobs: Jobs) -> Finding:
    """Find active jobs whose worker is dead, silent or unknown."""
    now, workers = await jobs.engine.now(), await jobs.workers()
    alive = {worker.worker for worker in workers if is_alive(worker, now)}
    dead = {worker.worker for worker in workers if worker.gone}
    late = now - LATE_MS // 4  # a worker that has just started may not have sent a heartbeat yet
    lost: list[Job] = []
    active = 0
    async for job in (walk := Walk(jobs, Where(states=(State.ACTIVE,)))):
        active += 1
        if job.worker in dead or (job.worker not in alive and (job.claimed_at or now) < late):
            lost.append(job)
    if lost:
        what = "another worker will take them over shortly" if alive else "start a worker, which will take them over"
        text = f"{plural(len(lost), 'active job')} without a running worker ({name_jobs(lost)}): {what}{walk.scope}"
        return Finding("owners", Level.FAIL, text)
    text = "every active job has a running worker" if active else "no job is active"
    return Finding("owners", Level.OK, f"{text}{walk.scope}")


async def _check_expired(jobs: Jobs, now: Time) -> Finding:
    page = await jobs.engine.find(Where(expires_before=now - LATE_MS))
    if page:
        some = ("at least " if len(page) == PAGE_LIMIT else "") + plural(len(page), "job")
        text = f"{some} expired but not yet discarded ({name_jobs(page)}): start a worker, which will discard them"
        return Finding("expired", Level.WARN, text)
    return Finding("expired", Level.OK, "no expired job is left over")


async def _check_overdue(jobs: Jobs, now: Time) -> Finding:
    """Find jobs that were due long ago. A claim in their queue would take them, so no worker claims there."""
    walk = Walk(jobs, Where(states=(State.SCHEDULED, State.RETRYABLE)))
    late = [job async for job in walk if job.run_at is not None and now - job.run_at > LATE_MS]
    if late:
        text = f"{plural(len(late), 'job')} long overdue ({name_jobs(late)}): no worker claims from their queues"
        text += walk.scope
        return Finding("due", Level.WARN, text)
    return Finding("due", Level.OK, f"no job is overdue{walk.scope}")
