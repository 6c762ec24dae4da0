"""Reads the steps of a job: a page of them, or one with its result. Must not change anything."""

from holdfast.core.errors import NotFound
from holdfast.core.keys import idempotency_key
from holdfast.core.model import Job, State, Step, StepState
from holdfast.core.outcome import ARGS_PATH, is_once
from holdfast.core.reruns import AGAIN_PATH, CODE_PATH, Again, again_in, code_of, generation_of
from holdfast.core.spending import SPENT_PATH, amounts_in, plain
from holdfast.core.summaries import StepHead, head_of
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.job import step_line
from holdfast.jobs.views.pages.acts import step_acts
from holdfast.jobs.views.pages.items import as_steps
from holdfast.jobs.views.pages.job import LogPage, RejectedShown, StepLineShown, StepPage, StepsPage
from holdfast.jobs.views.pages.job_page import read_places
from holdfast.jobs.views.pages.log import log_lines_shown
from holdfast.jobs.views.pages.parts import error_shown, moment
from holdfast.jobs.views.pages.values import value_shown
from holdfast.jobs.views.shapes import time_text
from holdfast.jobs.views.step_names import name_steps
from holdfast.safe_text import clean

BESIDE_STEP = (SPENT_PATH, ARGS_PATH)
"""The paths of what is read with a step."""


async def view_steps(jobs: Jobs, id: str, after: str, limit: int) -> StepsPage:
    """Read a page of a job's steps, without their results."""
    job = await jobs.get(id)
    heads = await jobs.engine.steps_page(id, after, limit)
    names = name_steps(job, as_steps(heads), await read_places(jobs, job))
    lines = tuple(_line(job, head, names[head.path]) for head in heads)
    return StepsPage(steps=lines, next=heads[-1].path if len(heads) == limit else None)


async def view_step(jobs: Jobs, id: str, path: str) -> StepPage:
    """Read one step with its result and its cost, or raise NotFound."""
    job = await jobs.get(id)
    found = [step for step in await jobs.engine.steps_under(id, path) if step.path == path]
    if not found or path.startswith("~"):
        raise NotFound(f"job {id} has no recorded step {path[:80]!r}; it may still run: see the job's steps")
    [step] = found
    beside = {one.path: one for prefix in BESIDE_STEP for one in await jobs.engine.steps_under(id, prefix + path)}
    paid, called = beside.get(SPENT_PATH + path), beside.get(ARGS_PATH + path)
    again = again_in(await jobs.engine.steps_under(id, AGAIN_PATH))
    code = code_of([step, *await jobs.engine.steps_under(id, f"{CODE_PATH}{step.epoch}")])
    has_result = step.state is not StepState.STARTED and step.result is not None
    return StepPage(
        step=_line(job, head_of(step), name_steps(job, [step])[path]),
        result=await value_shown(jobs.engine, step.result or "null") if has_result else None,
        spent=plain(amounts_in(paid)) if paid else {},
        key=idempotency_key(id, path, generation_of(path, again)),
        code=code.get(path, ""),
        is_effect=called is not None and is_once(called.result),
        rejected=await _rejected(jobs, again.get(path)),
        acts=step_acts(job, path),
    )


async def _rejected(jobs: Jobs, said: Again | None) -> RejectedShown | None:
    """Return what a person said about the step's earlier result."""
    if said is None or not said.whole:
        return None
    result = None if said.rejected == "null" else await value_shown(jobs.engine, said.rejected)
    return RejectedShown(feedback=clean(said.feedback), result=result)


async def view_log(jobs: Jobs, id: str) -> LogPage:
    """Read the log lines that are kept with a job."""
    return LogPage(lines=log_lines_shown(await jobs.log(id), {}))


def _line(job: Job, head: StepHead, name: str) -> StepLineShown:
    in_doubt = head.state is StepState.STARTED and job.state is State.REVIEW
    words = step_line(_step(head), name, is_in_doubt=in_doubt).words
    took = None if head.finished_at is None else head.finished_at - head.started_at
    return StepLineShown(
        path=head.path,
        name=clean(name),
        state=head.state.value,
        words=words,
        epoch=head.epoch,
        tries=head.tries,
        started_at=moment(head.started_at),
        finished_at=time_text(head.finished_at),
        took_ms=took,
        error=error_shown(head.error),
    )


def _step(head: StepHead) -> Step:
    return Step(
        job="",
        epoch=head.epoch,
        path=head.path,
        name=head.name,
        state=head.state,
        started_at=head.started_at,
        finished_at=head.finished_at,
        tries=head.tries,
    )
