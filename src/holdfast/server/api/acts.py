"""Handlers that submit jobs and change them: cancel, signal, answer, review, run again.

Must not decide what a change is: `jobs` does.
"""

from typing import Any

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from holdfast.core.budgets import budget_of
from holdfast.core.codec import canonical
from holdfast.core.durations import milliseconds
from holdfast.core.errors import BadValue, Invalid, NotAllowed, NotFound
from holdfast.core.lifecycle import standing
from holdfast.core.model import Job, Options, State
from holdfast.core.spending import plain
from holdfast.core.suggestions import suggest
from holdfast.core.unique import Unique
from holdfast.jobs.replay_plans import preview_replay
from holdfast.jobs.requests import JobRequest
from holdfast.jobs.reruns import find_steps, fork, rerun
from holdfast.jobs.views.names import known_types
from holdfast.jobs.views.pages.lines import job_lines
from holdfast.jobs.views.pages.place_pages import budget_line
from holdfast.jobs.views.pages.places import BudgetLine
from holdfast.jobs.views.text import one_line, short_id
from holdfast.server.api.answers import Acted, JobTypes, ReplayPlan, Submitted
from holdfast.server.api.looks import id_of, time_given
from holdfast.server.api.operation import Ask, Operation
from holdfast.server.api.requests import (
    AddBudgetRequest,
    AnswerRequest,
    ForkRequest,
    ReasonRequest,
    ReplayRequest,
    RerunRequest,
    ResolveRequest,
    ResolveStepRequest,
    SignalRequest,
    SubmitRequest,
)
from holdfast.server.bodies import json_reply
from holdfast.server.known_bounds import KnownBounds

ACT, SUBMIT, REVIEW = "act", "submit", "review"

KEY_HEADER = "Idempotency-Key"


# Submitting.


async def types(ask: Ask) -> JobTypes:
    """List the job types."""
    typed = ask.call.server.typed
    return JobTypes(
        is_typed=typed is not None,
        types=() if typed is None else tuple(typed.types()),
        known=tuple(sorted(await known_types(ask.jobs))),
    )


async def submit(ask: Ask) -> Response:
    """Submit a job: through its app's types if one is loaded, otherwise as it is."""
    body: SubmitRequest = ask.body
    key = _key(body, ask.call.headers.get(KEY_HEADER))
    before = await ask.jobs.engine.now()
    typed = ask.call.server.typed
    id = await (_submit_plain(ask, body, key, before) if typed is None else _submit_typed(ask, body, key))
    job = await ask.jobs.get(id)
    [line] = await job_lines(ask.jobs, [job])
    is_new = job.created_at >= before and (body.unique is None or job.version == 1)
    found = Submitted(id=id, is_new=is_new, job=line)
    return json_reply(found, 201 if is_new else 200, {"Location": f"{ask.call.root}/api/v1/jobs/{id}"})


def _key(body: SubmitRequest, header: str | None) -> str | None:
    if header is not None and body.key is not None and header != body.key:
        raise Invalid(f"{KEY_HEADER} and key differ; send one of them")
    return body.key if header is None else header


async def _submit_typed(ask: Ask, body: SubmitRequest, key: str | None) -> str:
    typed = ask.call.server.typed
    assert typed is not None
    signature = typed.signature(body.type)
    if signature is None:
        names = [one.type for one in typed.types()]
        hint = suggest(body.type, names) or f"; there are {', '.join(names)}"
        raise NotFound(f"the loaded app has no job of type {body.type[:80]!r}{hint}")
    args, kwargs = (body.args, {}) if isinstance(body.args, list) else ([], body.args)
    options: dict[str, Any] = {"key": key, "key_for": body.key_for, "queue": body.queue, "priority": body.priority}
    options |= {"delay": body.delay, "at": body.at, "expires": body.expires, "tags": body.tags, "meta": body.meta}
    options |= {"unique": _unique(body), "budget": body.budget}
    given = {name: value for name, value in options.items() if value is not None}
    return await typed.submit(body.type, args, kwargs, **given)


def _unique(body: SubmitRequest) -> Unique | None:
    one = body.unique
    return None if one is None else Unique(by=one.by, within=one.within, then=one.then)


async def _submit_plain(ask: Ask, body: SubmitRequest, key: str | None, now: int) -> str:
    """Submit without types: the arguments are stored as they are."""
    if body.unique is not None:
        raise Invalid("unique needs the job's types; start the server with its app: holdfast serve MODULE:APP")
    if isinstance(body.args, dict):
        raise Invalid("args by name need the job's types; send a list, or start the server with its app")
    if body.type.startswith("holdfast."):
        raise NotAllowed(f"jobs of type {body.type[:60]} are made by Holdfast itself; use its own calls for them")
    if body.delay is not None and body.at is not None:
        raise Invalid("give delay or at, not both")
    request = JobRequest(
        type=body.type,
        args=canonical(body.args),
        queue=body.queue or "default",
        priority=body.priority or 0,
        key=key,
        key_until=None if body.key_for is None else now + milliseconds(body.key_for),
        run_at=time_given("at", body.at) if body.delay is None else now + milliseconds(body.delay),
        expires_at=_expiry(body.expires, now),
        options=Options(
            tags=body.tags,
            meta=body.meta,
            budget={} if body.budget is None else budget_of(f"job {body.type}", body.budget),
        ),
    )
    jobs = await ask.call.server.part(KnownBounds).within(ask.jobs)
    [answer] = await jobs.submit([request], now=now)
    return answer.id


def _expiry(text: str | None, now: int) -> int | None:
    if text is None:
        return None
    return time_given("expires", text) if "-" in text else now + milliseconds(text)


# One job.


async def _acted(ask: Ask, job: Job, words: str) -> Acted:
    [line] = await job_lines(ask.jobs, [job])
    return Acted(words=words, job=line)


async def cancel(ask: Ask) -> Acted:
    """Cancel a job."""
    job = await ask.jobs.cancel(await id_of(ask), by=ask.by, reason=ask.body.reason)
    return await _acted(ask, job, f"Cancelled {short_id(job.id)}.")


async def activate(ask: Ask) -> Acted:
    """Let a pending job continue."""
    job = await ask.jobs.activate(await id_of(ask), by=ask.by, reason=ask.body.reason)
    return await _acted(ask, job, f"{short_id(job.id)} continues.")


async def signal(ask: Ask) -> Acted:
    """Send a job a named value."""
    body: SignalRequest = ask.body
    job = await ask.jobs.signal(await id_of(ask), body.name, body.value, by=ask.by)
    return await _acted(ask, job, f"Sent signal {one_line(body.name, 60)} to {short_id(job.id)}.")


async def answer(ask: Ask) -> Acted:
    """Answer a job's question."""
    body: AnswerRequest = ask.body
    job = await ask.jobs.answer(await id_of(ask), body.value, name=body.name, by=ask.by)
    continues = job.state in (State.AVAILABLE, State.ACTIVE)
    words = "it continues" if continues else f"it is {standing(job.state)}"
    return await _acted(ask, job, f"Answered {short_id(job.id)}: {words}.")


async def replay(ask: Ask) -> Acted:
    """Run a job in review again."""
    body: ReplayRequest = ask.body
    id = await id_of(ask)
    args = await _edited(ask, id, body.args)
    job = await ask.jobs.replay(id, args=args, by=ask.by, reason=body.reason)
    return await _acted(ask, job, f"Replayed {short_id(job.id)}: recorded steps keep their results.")


async def _edited(ask: Ask, id: str, given: list[Any] | UnsetType) -> str | None:
    """Return a job's other arguments as text, checked if its type is loaded here."""
    if isinstance(given, UnsetType):
        return None
    args, typed = canonical(given), ask.call.server.typed
    signature = None if typed is None else typed.signature((await ask.jobs.get(id)).type)
    if signature is not None:
        signature.decode(args)
    return args


async def preview(ask: Ask) -> ReplayPlan:
    """Say what a replay would do."""
    id = await id_of(ask)
    plan = await preview_replay(ask.jobs, id, args=await _edited(ask, id, ask.body.args))
    return ReplayPlan(
        words=str(plan),
        will_run=plan.will_run,
        recorded=plan.recorded,
        in_doubt=plan.in_doubt,
        children=plan.children,
        effects=plan.effects,
        expected=dict(plan.expected),
        ms=plan.ms,
        spent=plain(plan.spent),
    )


async def rerun_steps(ask: Ask) -> Acted:
    """Run recorded steps again: in the job if it is in review, otherwise in a new run."""
    body: RerunRequest = ask.body
    id, args = await id_of(ask), None if body.args is UNSET else canonical(body.args)
    typed = ask.call.server.typed
    if args is not None and typed is not None:
        records = await ask.jobs.engine.steps(id)
        names = {record.path: record.name for record in records}
        for path in find_steps(await ask.jobs.get(id), records, body.steps):
            typed.check_step_args(names[path], args)
    job = await rerun(
        ask.jobs,
        id,
        body.steps,
        args=args,
        feedback=body.feedback,
        allow=body.allow,
        by=ask.by,
        reason=body.reason,
    )
    return await _acted(ask, job, _made_words(id, job))


async def fork_job(ask: Ask) -> Acted:
    """Make a new run that keeps the first steps of another one."""
    body: ForkRequest = ask.body
    id = await id_of(ask)
    args = await _edited(ask, id, body.args)
    job = await fork(ask.jobs, id, body.until, args=args, allow=body.allow, by=ask.by, reason=body.reason)
    return await _acted(ask, job, _made_words(id, job))


def _made_words(id: str, job: Job) -> str:
    if job.id == id:
        return f"Replayed {short_id(id)}: it waits for a worker."
    return f"Made {short_id(job.id)} from {short_id(id)}: it waits for a worker."


async def resolve(ask: Ask) -> Acted:
    """Complete a job in review with a result."""
    body: ResolveRequest = ask.body
    id = await id_of(ask)
    typed = ask.call.server.typed
    if typed is not None and (signature := typed.signature((await ask.jobs.get(id)).type)) is not None:
        signature.result.decode(canonical(body.result))
    job = await ask.jobs.resolve(id, body.result, by=ask.by, reason=body.reason)
    return await _acted(ask, job, f"Completed {short_id(job.id)} with your result.")


async def resolve_step(ask: Ask) -> Acted:
    """Decide a step in doubt."""
    body: ResolveStepRequest = ask.body
    if body.again and body.result is not None:
        raise BadValue("give a result if it happened, or again if it did not; not both")
    job = await ask.jobs.resolve_step(
        await id_of(ask), body.path, body.result, again=body.again, by=ask.by, reason=body.reason
    )
    then = "another step is still in doubt" if job.state is State.REVIEW else "the job continues"
    return await _acted(ask, job, f"Noted for {one_line(body.path, 60)}: {then}.")


async def discard(ask: Ask) -> Acted:
    """Give up a job in review."""
    job = await ask.jobs.discard(await id_of(ask), by=ask.by, reason=ask.body.reason)
    return await _acted(ask, job, f"Gave up {short_id(job.id)}.")


async def add_budget(ask: Ask) -> BudgetLine:
    """Add to a job's budget."""
    body: AddBudgetRequest = ask.body
    id = await id_of(ask)
    budget = await ask.jobs.add_budget(id, body.add, by=ask.by, reason=body.reason)
    return budget_line(await ask.jobs.get(budget.root), budget)


def _job_act(path: str, name: str, summary: str, scope: str, handle: Any, body: Any = ReasonRequest) -> Operation:
    return Operation("POST", f"/jobs/{{id}}/{path}", name, summary, scope, Acted, handle, body=body)


ACTS = (
    Operation("GET", "/types", "get_types", "List the job types", "read", JobTypes, types),
    Operation("POST", "/jobs", "submit_job", "Submit a job", SUBMIT, Submitted, submit, body=SubmitRequest, status=201,
              headers={KEY_HEADER: "the job's key: the same job is returned for the same key"}),
    _job_act("cancel", "cancel_job", "Cancel a job; what it made is undone", ACT, cancel),
    _job_act("activate", "activate_job", "Let a pending job continue now", ACT, activate),
    _job_act("signal", "signal_job", "Send a job a named value", ACT, signal, SignalRequest),
    _job_act("answer", "answer_job", "Answer a job's question", ACT, answer, AnswerRequest),
    _job_act("replay", "replay_job", "Run a job in review again", REVIEW, replay, ReplayRequest),
    Operation("POST", "/jobs/{id}/replay/preview", "preview_replay", "Say what a replay would do", "read", ReplayPlan,
              preview, body=ReplayRequest),
    _job_act("rerun", "rerun_job", "Run recorded steps of a job again, or in a new run if it has ended", REVIEW,
             rerun_steps, RerunRequest),
    _job_act("fork", "fork_job", "Make a new run from the first steps of another one", SUBMIT, fork_job, ForkRequest),
    _job_act("resolve", "resolve_job", "Complete a job in review with a result", REVIEW, resolve, ResolveRequest),
    _job_act("resolve-step", "resolve_step", "Decide a step in doubt", REVIEW, resolve_step, ResolveStepRequest),
    _job_act("discard", "discard_job", "Give up a job in review", REVIEW, discard),
    Operation("POST", "/jobs/{id}/budget", "add_budget", "Add to a job's budget", ACT, BudgetLine, add_budget,
              body=AddBudgetRequest),
)  # fmt: skip
"""The calls that submit and change jobs."""
