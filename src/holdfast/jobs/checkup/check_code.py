"""Whether the code fits the jobs: recorded steps that the code no longer asks for, types and steps unknown to an App.

Must not repair anything.
"""

from collections import Counter
from collections.abc import Callable, Collection

from holdfast.core.model import NEVER_ASKED, Job, State, Time, Where
from holdfast.core.summaries import StepCounts
from holdfast.jobs.built_in import BUILT_IN_TYPES
from holdfast.jobs.checkup.finding import Finding, Level, Walk, name_jobs, reasons_of
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.record_reads import step_heads
from holdfast.jobs.service import Jobs, history_of
from holdfast.jobs.views.overview import is_alive, list_types
from holdfast.jobs.views.text import NAMED, one_line, plural

RECENT_MS = 24 * 60 * 60_000
"""For how long a record that was never asked for is reported."""

WAITING = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.PENDING, State.ACTIVE)


async def check_app(
    jobs: Jobs, types: Collection[str], steps: Collection[str], queues: Collection[str]
) -> list[Finding]:
    """Check that an App with these types, steps and queues knows the unfinished jobs and the steps they have recorded.
    A run that has begun and can't continue with this code is a failure.
    """
    return [*await _check_types(jobs, types, queues), await _check_steps(jobs, types, steps)]


async def _check_types(jobs: Jobs, types: Collection[str], queues: Collection[str]) -> list[Finding]:
    """Find waiting jobs whose types the App doesn't know."""
    known = {*types, *BUILT_IN_TYPES}
    waiting: dict[tuple[str, str], list[Job]] = {}
    async for job in (walk := Walk(jobs, Where(states=WAITING))):
        if job.type not in known:
            waiting.setdefault((job.type, job.queue), []).append(job)
    if not waiting:
        text = f"this App knows the types of all waiting jobs{walk.scope}: {', '.join(types)}"
        return [Finding("app", Level.OK, text)]
    is_ours = await _claimed_by_our_code(jobs, types)
    findings: list[Finding] = []
    for (type, queue), found in sorted(waiting.items()):
        begun = [job for job in found if job.epoch]
        if begun and is_ours(type, queue in queues):
            them = f"{plural(len(begun), 'run')} ({name_jobs(begun)}) of type {type} in queue {queue}"
            text = f"{them} would break: this App doesn't know the type; keep the job until these runs have ended"
            findings.append(Finding("app", Level.FAIL, f"{text}{walk.scope}", reasons_of({f"no job {type}": begun})))
            continue
        text = f"{plural(len(found), 'waiting job')} of type {type} in queue {queue}, which this App doesn't know"
        text = f"{text}; only a worker with an App that knows it runs them{walk.scope}"
        findings.append(Finding("app", Level.WARN, text))
    return findings


async def _claimed_by_our_code(jobs: Jobs, types: Collection[str]) -> Callable[[str, bool], bool]:
    """Return what says whether a type belonged to an older version of this App, and not to another App of this store:
    a running worker claims it together with types that this App knows; or none claims it, and it is in our queue.
    """
    now = await jobs.engine.now()
    claimed = [set(worker.types) for worker in await jobs.workers() if worker.types and is_alive(worker, now)]
    ours: set[str] = set().union(*(one for one in claimed if not one.isdisjoint(types)))
    others: set[str] = set().union(*(one for one in claimed if one.isdisjoint(types)))
    return lambda type, is_in_our_queue: type in ours or (type not in others and is_in_our_queue)


async def _check_steps(jobs: Jobs, types: Collection[str], known: Collection[str]) -> Finding:
    """Find unfinished jobs with records of steps that the App doesn't define. It would run these steps again."""
    counts: Counter[str] = Counter()
    named: dict[str, list[Job]] = {}
    async for job in (walk := Walk(jobs, Where(states=(*WAITING, State.REVIEW)))):
        if not job.epoch or job.type not in types:
            continue
        (summary,) = await jobs.engine.summaries([job.id])
        if summary.others == StepCounts() and summary.names.keys() <= set(known):
            continue
        steps = [one for one in await step_heads(jobs.engine, job.id) if "/" not in one.path]
        strange = Counter(one.name for one in steps if one.name not in known)
        counts.update(strange)
        for name in strange:
            named.setdefault(f"no step {name}", []).append(job)
    if not named:
        text = "this App defines every step that unfinished jobs have recorded"
        return Finding("steps", Level.OK, f"{text}{walk.scope}")
    broken = list({job.id: job for members in named.values() for job in members}.values())
    text = f"{plural(len(broken), 'unfinished job')} ({name_jobs(broken)}) recorded {_step_counts(counts)}"
    text = f"{text}, which this App doesn't define{_rename_hint(counts)}{walk.scope}"
    return Finding("steps", Level.FAIL, text, reasons_of(named))


async def check_resumed(jobs: Jobs, now: Time) -> Finding:
    """Find jobs that resumed with code that never asked for some of their records."""
    counts: Counter[str] = Counter()
    named: list[Job] = []
    async for job in (walk := Walk(jobs, Where())):
        if job.epoch < 2 or (job.finished_at is not None and now - job.finished_at > RECENT_MS):
            continue
        history = await history_of(jobs.engine, job.id)  # the job may be pruned meanwhile
        notes = [one.note for one in history if NEVER_ASKED in one.note and now - one.at < RECENT_MS]
        if notes:
            counts.update(notes[-1][NEVER_ASKED])
            named.append(job)
    if not named:
        return Finding("resumed", Level.OK, f"resumed jobs asked for everything they had recorded{walk.scope}")
    text = f"{plural(len(named), 'job')} ({name_jobs(named)}) resumed recently, and {_step_counts(counts)}"
    return Finding("resumed", Level.WARN, f"{text} were recorded and never asked for{_rename_hint(counts)}{walk.scope}")


async def check_undos(jobs: Jobs, now: Time) -> Finding:
    """Find undo jobs that workers have put back, if no running worker knows the type of the job to undo."""
    alive = [worker for worker in await jobs.workers() if is_alive(worker, now)]
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
        return Finding("undo", Level.OK, "every waiting undo job has a worker with its code, or needs none")
    text = (
        f"{plural(len(left), 'undo job waits', 'undo jobs wait')} ({name_jobs(left)}), but no running worker knows the "
        f"type of the job to undo ({list_types(sorted(types))}): start a worker whose App has the code; after an hour, "
        "any worker runs the undo without the code and lists in review what it couldn't undo"
    )
    return Finding("undo", Level.WARN, text)


def _step_counts(counts: Counter[str]) -> str:
    more = f" and {len(counts) - NAMED:,} more names" if len(counts) > NAMED else ""
    return ", ".join(f"{one_line(name, 60)} ({number:,})" for name, number in counts.most_common(NAMED)) + more


def _rename_hint(counts: Counter[str]) -> str:
    ((name, _),) = counts.most_common(1)
    return f": if you renamed a step, @step(was={name!r}) makes it use the old records"
