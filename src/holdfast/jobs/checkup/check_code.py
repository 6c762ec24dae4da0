"""Whether the code fits the jobs: recorded steps that the code no longer asks for, types and steps unknown to an App.

Must not repair anything.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from holdfast.core.model import NEVER_ASKED, PAGE_LIMIT, Job, State, Time, Where
from holdfast.core.summaries import StepCounts
from holdfast.jobs.built_in import BUILT_IN_TYPES
from holdfast.jobs.checkup.finding import Finding, Level, Walk, name_jobs
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.record_reads import step_heads
from holdfast.jobs.service import Jobs, history_of
from holdfast.jobs.views.overview import is_alive, list_types
from holdfast.jobs.views.text import NAMED, one_line, plural

RECENT_MS = 24 * 60 * 60_000
"""For how long a record that was never asked for is reported."""

WAITING = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.PENDING, State.ACTIVE)


async def check_app(jobs: Jobs, types: Sequence[str], steps: Collection[str]) -> list[Finding]:
    """Check that an App with these types and steps knows the waiting jobs and the steps they have recorded."""
    known = {*types, *BUILT_IN_TYPES}
    page = await jobs.engine.find(Where(states=WAITING, newest_first=True))
    strange = Counter((job.type, job.queue) for job in page if job.type not in known)
    more = f" (of the newest {PAGE_LIMIT:,})" if len(page) == PAGE_LIMIT else ""
    findings = [await _check_steps(jobs, known, steps)]
    if not strange:
        text = f"this App knows the types of all waiting jobs{more}: {', '.join(types)}"
        return [Finding("app", Level.OK, text), *findings]
    for (type, queue), number in sorted(strange.items()):
        text = f"{plural(number, 'waiting job')} of type {type} in queue {queue}, which this App doesn't know"
        findings.append(Finding("app", Level.WARN, f"{text}{more}; only a worker with an App that knows it runs them"))
    return findings


async def _check_steps(jobs: Jobs, types: Collection[str], known: Collection[str]) -> Finding:
    """Find unfinished jobs with records of steps that the App doesn't define. It would run these steps again."""
    counts: Counter[str] = Counter()
    named: list[Job] = []
    async for job in (walk := Walk(jobs, Where(states=(*WAITING, State.REVIEW)))):
        if not job.epoch or job.type not in types:
            continue
        (summary,) = await jobs.engine.summaries([job.id])
        if summary.others == StepCounts() and summary.names.keys() <= set(known):
            continue
        steps = [one for one in await step_heads(jobs.engine, job.id) if "/" not in one.path]
        if strange := Counter(one.name for one in steps if one.name not in known):
            counts.update(strange)
            named.append(job)
    if not named:
        text = "this App defines every step that unfinished jobs have recorded"
        return Finding("steps", Level.OK, f"{text}{walk.scope}")
    text = f"{plural(len(named), 'unfinished job')} ({name_jobs(named)}) recorded {_step_counts(counts)}"
    return Finding("steps", Level.WARN, f"{text}, which this App doesn't define{_rename_hint(counts)}{walk.scope}")


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
    """Find undo jobs that workers have put back, if no living worker knows the type of the job to undo."""
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
        f"{plural(len(left), 'undo job waits', 'undo jobs wait')} ({name_jobs(left)}), but no living worker knows the "
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
