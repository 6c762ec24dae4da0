"""What the doctor sees in the jobs themselves: counts that don't add up, and jobs that nobody moves.

Must not mend anything. Every walk is bounded, so that a look at a large store stays a look.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from holdfast.app.app import App
from holdfast.cli.overview import QueueSummary, how_alive, named_types, summaries, type_words
from holdfast.cli.words import counted, one_line, short, span
from holdfast.core.lifecycle import SETTLED, TERMINAL
from holdfast.core.model import PAGE_LIMIT, Job, Presence, State, Time, Where
from holdfast.core.unreadable import unreadable_parts
from holdfast.engines.clock import SLEW
from holdfast.engines.contract import system_clock
from holdfast.engines.records import QUIET
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.service import Jobs, history_of
from holdfast.jobs.transfer.drain import OURS
from holdfast.jobs.transfer.move import mark_in
from holdfast.worker.drift import NEVER_ASKED
from holdfast.worker.registry import STEPS

RECOUNT_LIMIT = 100_000
"""Stores with more jobs than this are not recounted."""

RECOUNT_TRIES = 3
"""A store that is at work changes under a recount; then it is counted again."""

SLOW_MS = 60 * 60_000
"""A job that has waited for a worker for so long is worth a word."""

LATE_MS = 60_000
"""Upkeep comes around every few seconds; what is overdue by this much has nobody to see to it."""

AHEAD_MS = 10_000
"""A job from further in the future than this: the clock was set back, or another machine's differs."""

WALK_SECONDS = 5.0
"""How long one question may walk over the jobs. A finding says so where that was too short for all of them."""

RECENT_MS = 24 * 60 * 60_000
"""What was never asked for is told for so long after it was seen."""

UNENDED = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.PENDING, State.ACTIVE, State.REVIEW)

NAMED = 3
"""How many jobs a finding names."""

QUEUES_NAMED = 20
"""How many queues a suggested worker is given: a line stays a line."""


class Level(StrEnum):
    """How bad it is: nothing, worth a look, or broken."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True):
    """One line of the doctor's."""

    name: str
    level: Level
    text: str


class Walk:
    """The jobs of a kind, the newest first, for WALK_SECONDS at most. Then `scope` says how far it came."""

    def __init__(self, jobs: Jobs, where: Where) -> None:
        self._jobs, self._where = jobs, replace(where, newest_first=True)
        self.scope = ""

    async def __aiter__(self) -> AsyncIterator[Job]:
        seen, end = 0, time.monotonic() + WALK_SECONDS
        async for job in self._jobs.walk(self._where):
            if seen and time.monotonic() >= end:
                which = "job" if seen == 1 else f"{seen:,} jobs"
                self.scope = f" (of the newest {which} only: the look at them took too long)"
                return
            seen += 1
            yield job


async def look_at_jobs(jobs: Jobs) -> list[Finding]:
    """All that can be told from the store's jobs, queues and workers."""
    now, queues = await jobs.engine.now(), await summaries(jobs)
    if marked := await mark_in(jobs.engine):
        return [_counts(queues), Finding("moved", Level.FAIL, marked[0].words())]
    return [
        _counts(queues),
        *await _recount(jobs),
        await _newest(jobs),
        await _oldest(jobs, now),
        await _orphans(jobs),
        await _expired(jobs, now),
        await _overdue(jobs, now),
        *_queues(queues),
        *_types(queues),
        *_unreadable_workers(await jobs.workers()),
        await _resting_undos(jobs, now),
        *await _drained(jobs),
        await _vanished(jobs, now),
        _review(queues),
    ]


def _unreadable_workers(workers: Sequence[Presence]) -> list[Finding]:
    """Workers of which the store holds something that can't be read."""
    names = [one.worker for one in workers if one.unreadable]
    if not names:
        return []
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    named = ", ".join(one_line(name, 60) for name in names[:NAMED]) + more
    text = (
        f"what the store holds of {counted(len(names), 'worker')} ({named}) can't be read: a living worker writes it "
        "anew within seconds; after its lease the jobs of a dead one are taken over and its trace is removed, if a "
        "worker runs"
    )
    return [Finding("workers", Level.WARN, text)]


async def _drained(jobs: Jobs) -> list[Finding]:
    """Workers that a drain keeps from claiming. One that was cut off leaves them so."""
    quiet = [record.name.removeprefix(QUIET) for record in await jobs.engine.records(QUIET) if record.value == OURS]
    if not quiet:
        return []
    told = counted(len(quiet), "worker was", "workers were")
    text = (
        f"{told} told to claim nothing for a move ({', '.join(quiet[:3])}): if none is going on, repeat it, or take it "
        "back: holdfast move --from THIS-STORE --give-up"
    )
    return [Finding("drained", Level.WARN, text)]


async def _vanished(jobs: Jobs, now: Time) -> Finding:
    """Jobs that went on with code which never asked for what they had recorded."""
    told: Counter[str] = Counter()
    named: list[Job] = []
    async for job in (walk := Walk(jobs, Where())):
        if job.epoch < 2 or (job.finished_at is not None and now - job.finished_at > RECENT_MS):
            continue
        history = await history_of(jobs.engine, job.id)  # it may be pruned meanwhile
        notes = [one.note for one in history if NEVER_ASKED in one.note and now - one.at < RECENT_MS]
        if notes:
            told.update(notes[-1][NEVER_ASKED])
            named.append(job)
    if not named:
        return Finding("resumed", Level.OK, f"jobs that went on asked for all that they had recorded{walk.scope}")
    text = f"{counted(len(named), 'job')} ({_named(named)}) went on lately, and {_steps_in_words(told)}"
    return Finding("resumed", Level.WARN, f"{text} were recorded and never asked for{_renamed(told)}{walk.scope}")


async def _unknown_steps(jobs: Jobs, known: set[str]) -> Finding:
    """Jobs that have begun and not ended, with records of steps that the App doesn't define: it would run them anew."""
    told: Counter[str] = Counter()
    named: list[Job] = []
    async for job in (walk := Walk(jobs, Where(states=UNENDED))):
        if not job.epoch or job.type not in known:
            continue
        steps = [one for one in await jobs.engine.steps(job.id) if one.path[0] != "~" and "/" not in one.path]
        if strange := Counter(one.name for one in steps if one.name not in STEPS):
            told.update(strange)
            named.append(job)
    if not named:
        text = "this App defines every step that a job which has begun has recorded"
        return Finding("steps", Level.OK, f"{text}{walk.scope}")
    text = f"{counted(len(named), 'unended job')} ({_named(named)}) recorded {_steps_in_words(told)}"
    return Finding("steps", Level.WARN, f"{text}, which this App doesn't define{_renamed(told)}{walk.scope}")


def _steps_in_words(told: Counter[str]) -> str:
    more = f" and {len(told) - NAMED:,} names more" if len(told) > NAMED else ""
    return ", ".join(f"{one_line(name, 60)} ({number:,})" for name, number in told.most_common(NAMED)) + more


def _renamed(told: Counter[str]) -> str:
    ((name, _),) = told.most_common(1)
    return f": if a step was renamed, @step(was={name!r}) finds its records again"


async def look_at_app(jobs: Jobs, app: App) -> list[Finding]:
    """Whether an App knows the jobs that wait in its store, and the steps that they have recorded."""
    known = {*app.registry.types(), UNDO_TYPE}
    waiting = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.PENDING, State.ACTIVE)
    page = await jobs.engine.find(Where(states=waiting, newest_first=True))
    strange = Counter((job.type, job.queue) for job in page if job.type not in known)
    more = f" (of the newest {PAGE_LIMIT:,})" if len(page) == PAGE_LIMIT else ""
    findings = [await _unknown_steps(jobs, known)]
    if not strange:
        told = f"knows the types of all waiting jobs{more}: {', '.join(app.registry.types())}"
        return [Finding("app", Level.OK, told), *findings]
    for (type, queue), number in sorted(strange.items()):
        text = f"{counted(number, 'waiting job')} of type {type} in queue {queue}, which this App doesn't know{more}"
        findings.append(Finding("app", Level.WARN, f"{text}; its workers leave them to an App that does"))
    return findings


def _counts(queues: Sequence[QueueSummary]) -> Finding:
    totals = {state: sum(queue.counts.get(state, 0) for queue in queues) for state in State}
    told = ", ".join(f"{number:,} {state}" for state, number in totals.items() if number)
    return Finding("jobs", Level.OK, told or "none")


async def _recount(jobs: Jobs) -> list[Finding]:
    """Compare the counters that the store keeps with the jobs that are there, and see whether those can be read."""
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
            return [Finding("counters", Level.OK, "equal to a recount"), *_unreadable(damaged)]
        before, kept = kept, dict(await jobs.engine.count())
        if before == kept:
            wrong = sorted(name for name in kept.keys() | found.keys() if kept.get(name, 0) != found[name])
            told = ", ".join(f"{q}/{s}: kept {kept.get((q, s), 0)}, found {found[q, s]}" for q, s in wrong[:NAMED])
            text = f"differ from a recount ({told}); status and queues are misleading"
            return [Finding("counters", Level.FAIL, text), *_unreadable(damaged)]
    return [Finding("counters", Level.OK, "not compared: the jobs change too fast just now"), *_unreadable(damaged)]


def _unreadable(damaged: Sequence[Job]) -> list[Finding]:
    """Jobs that are damaged in the store: what a person can do about each kind."""
    if not damaged:
        return [Finding("rows", Level.OK, "every job can be read")]
    findings: list[Finding] = []
    waiting = [job for job in damaged if job.state not in SETTLED]
    review = [job for job in damaged if job.state is State.REVIEW]
    ended = [job for job in damaged if job.state in TERMINAL]
    for level, some, what in (
        (Level.FAIL, waiting, "the worker that claims one puts it into review; cancel it if none does"),
        (Level.WARN, review, "holdfast replay ID goes on without the damaged part; or resolve or discard it"),
        (Level.WARN, ended, "they have ended, so that nothing more comes of it"),
    ):
        if some:
            told = ", ".join(f"{short(job.id)}: {' and '.join(unreadable_parts(job))}" for job in some[:NAMED])
            more = f" and {len(some) - NAMED:,} more" if len(some) > NAMED else ""
            text = f"{counted(len(some), 'job')} can't be read whole ({told}{more}); {what}"
            findings.append(Finding("rows", level, text))
    return findings


async def _newest(jobs: Jobs) -> Finding:
    page = await jobs.engine.find(Where(newest_first=True), limit=1)
    beats = [worker.beat_at for worker in await jobs.workers()]
    now = await jobs.engine.now()  # after what was read: a recount may have taken long
    newest = max([job.created_at for job in page] + beats, default=now)
    if jobs.engine.guarantees.clock == "this machine's" and abs(off := now - system_clock()) > AHEAD_MS:
        text = (
            f"the store's time is {span(abs(off))} {'ahead of' if off > 0 else 'behind'} this machine's clock, which "
            f"was set; it approaches it by {60 // SLEW} s a minute, and until then at= and expires= come "
            f"{'early' if off > 0 else 'late'}"
        )
        return Finding("time", Level.WARN, text)
    if newest > now + AHEAD_MS:
        text = f"the store holds times that are {span(newest - now)} ahead of the clock; was it set back?"
        return Finding("time", Level.WARN, text)
    return Finding("time", Level.OK, "nothing is from the future")


async def _oldest(jobs: Jobs, now: Time) -> Finding:
    page = await jobs.engine.find(Where(states=(State.AVAILABLE,)))
    if not page:
        return Finding("oldest", Level.OK, "no job waits for a worker")
    job = min(page, key=lambda one: one.run_at or one.created_at)
    since = job.run_at or job.created_at
    text = (
        f"job {short(job.id)} ({job.type}, queue {job.queue}) has waited for a worker for {span(max(0, now - since))}"
    )
    return Finding("oldest", Level.WARN if now - since > SLOW_MS else Level.OK, text)


async def _orphans(jobs: Jobs) -> Finding:
    """Active jobs whose worker is gone, silent, or has left no trace."""
    now, workers = await jobs.engine.now(), await jobs.workers()
    alive = {worker.worker for worker in workers if how_alive(worker, now) == "alive"}
    dead = {worker.worker for worker in workers if worker.gone}
    late = now - LATE_MS // 4  # who has just begun may not have shown itself yet
    lost: list[Job] = []
    active = 0
    async for job in (walk := Walk(jobs, Where(states=(State.ACTIVE,)))):
        active += 1
        if job.worker in dead or (job.worker not in alive and (job.claimed_at or now) < late):
            lost.append(job)
    if lost:
        what = "another worker takes them over in a moment" if alive else "start a worker, which takes them over"
        text = f"{counted(len(lost), 'active job')} without a living worker ({_named(lost)}): {what}{walk.scope}"
        return Finding("owners", Level.FAIL, text)
    text = "every active job has a living worker" if active else "no job is active"
    return Finding("owners", Level.OK, f"{text}{walk.scope}")


async def _expired(jobs: Jobs, now: Time) -> Finding:
    page = await jobs.engine.find(Where(expires_before=now - LATE_MS))
    if page:
        some = ("at least " if len(page) == PAGE_LIMIT else "") + counted(len(page), "job")
        text = f"{some} expired and not yet put away ({_named(page)}); a running worker does that"
        return Finding("expired", Level.WARN, text)
    return Finding("expired", Level.OK, "none is overdue")


async def _overdue(jobs: Jobs, now: Time) -> Finding:
    """Jobs whose time came long ago. A claim in their queue would take them along, so nobody claims there."""
    walk = Walk(jobs, Where(states=(State.SCHEDULED, State.RETRYABLE)))
    late = [job async for job in walk if job.run_at is not None and now - job.run_at > LATE_MS]
    if late:
        text = f"{counted(len(late), 'job')} due since long and not taken up ({_named(late)}): no worker claims there"
        text += walk.scope
        return Finding("due", Level.WARN, text)
    return Finding("due", Level.OK, f"nothing is overdue{walk.scope}")


def _queues(queues: Sequence[QueueSummary]) -> list[Finding]:
    findings: list[Finding] = []
    unserved: list[QueueSummary] = []
    for queue in queues:
        if queue.pause is not None and queue.waiting:
            waiting = counted(queue.waiting, "job waits", "jobs wait")
            text = f"{queue.name} is paused and {waiting}: holdfast queues resume {queue.name}"
            findings.append(Finding("queue", Level.WARN, text))
        elif queue.waiting and not queue.workers:
            unserved.append(queue)
    if unserved:
        findings.append(_unserved(unserved))
    return findings or [Finding("queue", Level.OK, "every queue with waiting jobs is served")]


def _types(queues: Sequence[QueueSummary]) -> list[Finding]:
    """Types that wait in a queue that is served, by workers of which none knows them."""
    findings = [
        Finding(
            "types",
            Level.WARN,
            f"{queue.name}: no living worker knows {type_words(queue.unknown)}: start a worker whose App has the code, "
            "or cancel these jobs",
        )
        for queue in queues
        if queue.unknown
    ]
    return findings or [Finding("types", Level.OK, "every type that waits in a served queue is known there")]


async def _resting_undos(jobs: Jobs, now: Time) -> Finding:
    """Undo jobs that their workers have put to rest, and no living worker knows the type of the job to undo."""
    alive = [worker for worker in await jobs.workers() if how_alive(worker, now) == "alive"]
    page = await jobs.engine.find(Where(states=(State.AVAILABLE, State.SCHEDULED), type=UNDO_TYPE))
    rested = [job for job in page if job.epoch]
    undone = await jobs.engine.get([job.parent or "" for job in rested])
    left: list[Job] = []
    types: set[str] = set()
    for undo, job in zip(rested, undone, strict=True):
        serving = [worker.types for worker in alive if undo.queue in worker.queues]
        if job is not None and serving and not any(known is None or job.type in known for known in serving):
            left.append(undo)
            types.add(job.type)
    if not left:
        return Finding("undo", Level.OK, "every undo job that waits has a worker with the code, or needs none")
    text = (
        f"{counted(len(left), 'undo job waits', 'undo jobs wait')} ({_named(left)}), and no living worker knows the "
        f"type of the job to undo ({named_types(sorted(types))}): start a worker whose App has the code; one that "
        "hasn't runs an undo when it is an hour old, and names what is left in review"
    )
    return Finding("undo", Level.WARN, text)


def _unserved(queues: Sequence[QueueSummary]) -> Finding:
    """One finding, because one worker can serve them all."""
    waiting = counted(sum(queue.waiting for queue in queues), "job waits", "jobs wait")
    named = queues[:QUEUES_NAMED]
    start = f"holdfast worker MODULE:APP --queues {','.join(queue.name for queue in named)}"
    if len(queues) == 1:
        return Finding("queue", Level.WARN, f"{queues[0].name}: {waiting} and no worker serves it: {start}")
    told = [f"{queue.name}: {queue.waiting:,}" for queue in named]
    told += [f"and {len(queues) - len(named):,} queues more"] if len(queues) > len(named) else []
    text = f"{waiting} in queues that no worker serves ({', '.join(told)}): {start}"
    return Finding("queue", Level.WARN, text)


def _review(queues: Sequence[QueueSummary]) -> Finding:
    number = sum(queue.counts.get(State.REVIEW, 0) for queue in queues)
    if number:
        return Finding("review", Level.WARN, f"{counted(number, 'job needs', 'jobs need')} a person: holdfast review")
    return Finding("review", Level.OK, "no job needs a person")


def _named(jobs: Sequence[Job]) -> str:
    more = f" and {len(jobs) - NAMED:,} more" if len(jobs) > NAMED else ""
    return ", ".join(short(job.id) for job in jobs[:NAMED]) + more
