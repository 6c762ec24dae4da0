"""Whether unfinished jobs fit the code: their arguments, and the results that the code will read from their records.

Must not change anything. What doesn't fit would put its job in review as soon as a worker with this code runs it.
"""

from collections.abc import Callable, Collection

from holdfast.core.errors import BlobGone, BlobsAway
from holdfast.core.model import Job, State, StepState, Where
from holdfast.core.outcome import ARGS_PATH
from holdfast.core.references import is_kept_outside
from holdfast.core.summaries import is_step
from holdfast.jobs.checkup.check_code import WAITING
from holdfast.jobs.checkup.finding import Finding, Level, Walk, name_jobs, reasons_of
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.text import one_line, plural

Misfit = Callable[[str, str], str | None]
"""Says why a value doesn't fit the job or the step of this name; None if it does, or if the code doesn't have it."""

STEPS_READ = 200_000
"""How many recorded steps are read at most."""

LARGE_READ = 1_000
"""How many of the values that are kept outside their records are read at most."""


async def check_values(
    jobs: Jobs, types: Collection[str], args_misfit: Misfit, result_misfit: Misfit, call_misfit: Misfit
) -> list[Finding]:
    """Find unfinished jobs whose arguments or recorded results this code can't read any more, and recorded calls that
    it can't make any more. `call_misfit` gets the path of a call without a key.
    """
    args: dict[str, list[Job]] = {}
    results: dict[str, list[Job]] = {}
    calls: dict[str, list[Job]] = {}
    read, values = 0, _Values(jobs)
    async for job in (walk := Walk(jobs, Where(states=(*WAITING, State.REVIEW)))):
        if job.type not in types:
            continue
        args_text = await values.whole(job.args)
        if args_text is not None and (why := args_misfit(job.type, args_text)) is not None:
            _note(args, f"{job.type}: {one_line(why)}", job)
        if not job.epoch or read >= STEPS_READ:
            continue
        records = await jobs.engine.steps(job.id)
        keyed = {record.path.removeprefix(ARGS_PATH) for record in records if record.path.startswith(ARGS_PATH)}
        steps = [step for step in records if is_step(step.path) and step.state is StepState.DONE]
        read += len(steps)
        for step in steps:
            text = await values.whole(step.result or "null")
            if text is not None and (why := result_misfit(step.name, text)) is not None:
                _note(results, f"{step.name}: {one_line(why)}", job)
            is_plain = step.path not in keyed and "/" not in step.path
            if is_plain and (why := call_misfit(step.name, step.path)) is not None:
                _note(calls, f"{step.name}: {one_line(why)}", job)
    more = f"; only the first {STEPS_READ:,} steps were read" if read >= STEPS_READ else ""
    scope = f"{walk.scope}{more}"
    keep = "keep the old type readable"
    return [
        _finding("arguments", "read the arguments of", args, keep, walk.scope),
        _finding("results", "read recorded results of", results, keep, scope),
        _finding("calls", "find recorded calls of", calls, "give new parameters a default", scope),
    ]


class _Values:
    """Reads recorded values, also those that are blobs, up to a bound and as long as the blob store answers."""

    def __init__(self, jobs: Jobs) -> None:
        self._blobs = jobs.engine.blobs
        self._left = LARGE_READ

    async def whole(self, text: str) -> str | None:
        """Return a recorded value; None if it can't be read, which another check tells."""
        if not is_kept_outside(text):
            return text
        if not self._left:
            return None
        self._left -= 1
        try:
            return await self._blobs.fetch(text)
        except BlobsAway:
            self._left = 0
        except BlobGone:
            pass
        return None


def _note(found: dict[str, list[Job]], why: str, job: Job) -> None:
    known = found.setdefault(why, [])
    if not known or known[-1].id != job.id:
        known.append(job)


def _finding(name: str, what: str, found: dict[str, list[Job]], advice: str, scope: str) -> Finding:
    if not found:
        return Finding(name, Level.OK, f"this App can {what} unfinished jobs{scope}")
    jobs = list({job.id: job for members in found.values() for job in members}.values())
    why = next(iter(found))
    others = f" (and {plural(len(found) - 1, 'other reason')}: --json)" if len(found) > 1 else ""
    them = f"{plural(len(jobs), 'unfinished job')} ({name_jobs(jobs)})"
    text = f"{them} would break: this App can't {what} {why}{others}; {advice}, or let these jobs finish first{scope}"
    return Finding(name, Level.FAIL, text, reasons_of(found))
