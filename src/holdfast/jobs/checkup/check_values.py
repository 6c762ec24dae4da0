"""Whether unfinished jobs fit the code: their arguments, and the results that the code will read from their records.

Must not change anything. What doesn't fit would put its job in review as soon as a worker with this code runs it.
"""

from collections.abc import Callable, Collection

from holdfast.core.model import Job, State, StepState, Where
from holdfast.core.references import is_kept_outside
from holdfast.core.summaries import is_step
from holdfast.jobs.checkup.check_code import WAITING
from holdfast.jobs.checkup.finding import Finding, Level, Walk, name_jobs
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.text import one_line, plural

Misfit = Callable[[str, str], str | None]
"""Says why a value doesn't fit the job or the step of this name; None if it does, or if the code doesn't have it."""

STEPS_READ = 200_000
"""How many recorded steps are read at most."""


async def check_values(jobs: Jobs, types: Collection[str], args_misfit: Misfit, result_misfit: Misfit) -> list[Finding]:
    """Find unfinished jobs whose arguments or recorded results this code can't read any more."""
    args: dict[str, list[Job]] = {}
    results: dict[str, list[Job]] = {}
    read = 0
    async for job in (walk := Walk(jobs, Where(states=(*WAITING, State.REVIEW)))):
        if job.type not in types:
            continue
        if not is_kept_outside(job.args) and (why := args_misfit(job.type, job.args)) is not None:
            args.setdefault(f"{job.type}: {one_line(why)}", []).append(job)
        if not job.epoch or read >= STEPS_READ:
            continue
        steps = [step for step in await jobs.engine.steps(job.id) if is_step(step.path)]
        read += len(steps)
        for step in steps:
            if is_kept_outside(step.result or ""):
                continue
            if step.state is StepState.DONE and (why := result_misfit(step.name, step.result or "null")) is not None:
                known = results.setdefault(f"{step.name}: {one_line(why)}", [])
                if not known or known[-1].id != job.id:
                    known.append(job)
    more = f"; only the first {STEPS_READ:,} steps were read" if read >= STEPS_READ else ""
    return [
        _finding("arguments", "the arguments", args, walk.scope),
        _finding("results", "recorded results", results, f"{walk.scope}{more}"),
    ]


def _finding(name: str, what: str, found: dict[str, list[Job]], scope: str) -> Finding:
    if not found:
        return Finding(name, Level.OK, f"this App can read {what} of unfinished jobs{scope}")
    jobs = list({job.id: job for members in found.values() for job in members}.values())
    why = next(iter(found))
    others = f" (and {plural(len(found) - 1, 'other reason')})" if len(found) > 1 else ""
    them = f"{plural(len(jobs), 'unfinished job')} ({name_jobs(jobs)})"
    text = f"{them} would break: this App can't read {what} of {why}{others}"
    return Finding(name, Level.FAIL, f"{text}; keep the old type readable, or let these jobs finish first{scope}")
