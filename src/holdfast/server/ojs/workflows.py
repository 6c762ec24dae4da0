"""Workflows: chains, groups, batches and graphs, as flows. Must not decide what follows from a step (`core.flows`)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from starlette.responses import Response

from holdfast.core.errors import Invalid, NotAllowed, NotFound
from holdfast.core.flows import Flow, places
from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import PAGE_LIMIT, Job, Options, Retry, State, Time, Where
from holdfast.engines.topics import queue_topic
from holdfast.jobs.built_in import OWN_QUEUE
from holdfast.jobs.flows import (
    FLOW_TYPE,
    FlowRun,
    Layer,
    batch_flow,
    flow_call,
    graph_flow,
    layered_flow,
    load_flow,
    read_flow,
)
from holdfast.jobs.job_calls import JobCall
from holdfast.jobs.requests import new_job
from holdfast.server.call import Call
from holdfast.server.ojs.envelope import OPTIONS, read_submit
from holdfast.server.ojs.jobs import limit_uses
from holdfast.server.ojs.problems import bad, unprocessable
from holdfast.server.ojs.service import MOST_IN_PAGE, PAGE, Ojs, offset_of, ojs_of, page_of, read_object, reply, text_of
from holdfast.server.ojs.vocabulary import shown_state, written_time

DEPTH = 8
"""How deep workflows may be nested."""

STEPS = 1_000
"""How many steps a workflow may have, nested ones included."""

START_SECONDS, LOOK_SECONDS = 2.0, 0.05
"""How long a new workflow's first steps are waited for, and how often they are looked for."""

CALLBACKS = ("on_success", "on_failure", "on_complete")
KINDS = ("chain", "group", "batch")

STEP_OPTIONS = OPTIONS - {"unique", "pending", "metadata"}
"""The options that a workflow can give all its steps."""

_LIKE = JobCall(type=FLOW_TYPE, queue=OWN_QUEUE, options=Options(retry=Retry(retries=0)))


class Reader:
    """Reads a workflow: each element is a job, or a nested workflow."""

    def __init__(self, ojs: Ojs, now: Time) -> None:
        self._ojs = ojs
        self._now = now
        self._left = STEPS
        self._options: Mapping[str, Any] = {}
        """What the workflow says for all its steps; a step's own options come first."""

    async def flow(self, body: Mapping[str, Any], depth: int = 0) -> Flow:
        """Read a workflow of any of the four forms."""
        if depth > DEPTH:
            raise bad("steps", f"workflows nest deeper than {DEPTH} levels; flatten them")
        outer, self._options = self._options, {**self._options, **_defaults(body)}
        try:
            return await self._form(body, depth)
        finally:
            self._options = outer

    async def _form(self, body: Mapping[str, Any], depth: int) -> Flow:
        kind = body.get("type")
        name = text_of(body, "name", "")[:200]
        if kind is None or kind in ("dag", "graph"):
            return await self._graph(body, name, depth)
        if kind not in KINDS:
            raise bad("type", f"give one of {', '.join(KINDS)}, or leave it out and give steps with depends_on")
        if kind == "chain":
            calls = await self._calls(body, ("steps", "jobs"), depth)
            return layered_flow("chain", [Layer(calls=(call,), is_list=False) for call in calls], name)
        calls = await self._calls(body, ("jobs", "steps"), depth)
        if kind == "group":
            return layered_flow("group", [Layer(calls=tuple(calls))], name)
        return await self._batch(body, calls, name)

    async def _batch(self, body: Mapping[str, Any], calls: Sequence[JobCall], name: str) -> Flow:
        given = body.get("callbacks")
        if not isinstance(given, dict) or not any(given.get(word) is not None for word in CALLBACKS):
            raise bad("callbacks", f"give at least one of {', '.join(CALLBACKS)}")
        found = {word: await self._job(given[word]) for word in CALLBACKS if given.get(word) is not None}
        return batch_flow(calls, name=name, **found)

    async def _graph(self, body: Mapping[str, Any], name: str, depth: int) -> Flow:
        given = body.get("steps")
        if not isinstance(given, list) or not given or not all(isinstance(step, dict) for step in given):
            raise bad("steps", "give an array of steps")
        names = [step.get("id") for step in given]
        texts = [id if isinstance(id, str) and 0 < len(id) <= 200 else None for id in names]
        if None in texts or len(set(texts)) < len(texts):
            raise bad("steps", "give each step an id of its own as text")
        before: dict[str, Sequence[str]] = {}
        calls: dict[str, JobCall] = {}
        for id, step in zip(names, given, strict=True):
            after = step.get("depends_on") or []
            if not isinstance(after, list) or not all(isinstance(one, str) for one in after):
                raise bad(f"steps.{id}.depends_on", "give an array of step ids")
            before[id] = after
            rest = {field: value for field, value in step.items() if field not in ("id", "depends_on")}
            calls[id] = await self._element(rest, depth)
        try:
            return graph_flow(calls, before, name)
        except Invalid as error:
            raise bad("steps", str(error)) from None

    async def _calls(self, body: Mapping[str, Any], fields: Sequence[str], depth: int) -> list[JobCall]:
        field = next((field for field in fields if body.get(field) is not None), fields[0])
        given = body.get(field)
        if not isinstance(given, list) or not given:
            raise bad(field, "give an array with at least one job")
        return [await self._element(one, depth) for one in given]

    async def _element(self, one: Any, depth: int) -> JobCall:
        may_nest = isinstance(one, dict) and ("steps" in one or "jobs" in one)
        if may_nest and one.get("type") in (None, *KINDS):
            return flow_call(await self.flow(one, depth + 1), _LIKE)
        return await self._job(one)

    async def _job(self, one: Any) -> JobCall:
        self._left -= 1
        if self._left < 0:
            raise bad("steps", f"a workflow has at most {STEPS:,} steps")
        if self._options and isinstance(one, dict) and isinstance(one.get("options") or {}, dict):
            one = {**one, "options": {**self._options, **(one.get("options") or {})}}
        order = read_submit(one, self._now)
        request = order.request
        if request.options.unique is not None or order.id is not None or request.pending:
            raise unprocessable("steps", "a step can't have an id, unique or pending", "unsupported")
        return JobCall(
            type=request.type,
            args=request.args,
            queue=request.queue,
            priority=request.priority,
            run_at=request.run_at,
            expires_at=request.expires_at,
            options=replace(request.options, limits=await limit_uses(self._ojs, order)),
        )


def _defaults(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options that a workflow gives its steps."""
    options = body.get("options") or {}
    if not isinstance(options, dict):
        raise bad("options", "give a JSON object")
    for name in options:
        if name not in STEP_OPTIONS:
            raise unprocessable(f"options.{name[:80]}", "isn't supported for a workflow", "unsupported")
    return options


async def start_workflow(call: Call) -> Response:
    """Start a workflow."""
    ojs, body = ojs_of(call), await read_object(call)
    now = await ojs.engine.now()
    flow = await Reader(ojs, now).flow(body)
    like = replace(_LIKE, options=replace(_LIKE.options, submitted_by=call.by))
    job = new_job(flow_call(flow, like).request(now), ojs.new_id(now), now)
    await ojs.jobs.insert([job])
    await _started(ojs, read_flow(job))
    shown = await shown_workflow(ojs, job)
    return reply({"workflow": shown, "id": job.id}, 201, {"Location": f"{call.root}/ojs/v1/workflows/{job.id}"})


async def _started(ojs: Ojs, run: FlowRun) -> None:
    """Wait until the first steps can be fetched, but not for long: the upkeep of any server submits them."""
    first = [run.id_of(place) for place, step in enumerate(run.flow.steps) if not step.after]
    queues = {call.queue for call in run.calls}
    loop, mark = asyncio.get_running_loop(), 0
    until = loop.time() + START_SECONDS
    while loop.time() < until and None in await ojs.engine.get(first):
        mark = await ojs.engine.wait([queue_topic(queue) for queue in queues], LOOK_SECONDS, mark)


async def _workflow(ojs: Ojs, id: str) -> Job:
    job, _ = await ojs.job(id)
    if job.type != FLOW_TYPE:
        raise NotFound(f"job {id} isn't a workflow")
    return job


async def get_workflow(call: Call) -> Response:
    """Return a workflow with the states of its steps."""
    ojs = ojs_of(call)
    return reply({"workflow": await shown_workflow(ojs, await _workflow(ojs, call.path_params["id"]))})


async def list_workflows(call: Call) -> Response:
    """List the workflows, newest first."""
    ojs = ojs_of(call)
    limit, offset = call.number("limit", PAGE, most=MOST_IN_PAGE), offset_of(call)
    found = await ojs.engine.find(Where(type=FLOW_TYPE, newest_first=True), limit=PAGE_LIMIT)
    shown = [await shown_workflow(ojs, job) for job in found[offset : offset + limit]]
    return reply({"workflows": shown, "pagination": page_of(shown, limit, offset, len(found))})


async def cancel_workflow(call: Call) -> Response:
    """Cancel a workflow and all its jobs that haven't ended."""
    ojs = ojs_of(call)
    job = await _workflow(ojs, call.path_params["id"])
    if job.state in SETTLED:
        raise NotAllowed(f"workflow {job.id} has ended, so it can't be cancelled")
    job = await ojs.jobs.cancel(job.id, by=call.by)
    return reply({"workflow": await shown_workflow(ojs, job)})


async def shown_workflow(ojs: Ojs, job: Job) -> dict[str, Any]:
    """Return a workflow as the specification shows it."""
    run, now = await load_flow(ojs.engine, job), await ojs.engine.now()
    ids = [run.id_of(place) for place in range(len(run.flow.steps))]
    members: list[Job | None] = []
    for start in range(0, len(ids), PAGE_LIMIT):
        members += await ojs.engine.get(ids[start : start + PAGE_LIMIT])
    counted = places(run.flow.result) if run.flow.kind == "batch" else list(range(len(ids)))
    mine = [members[place] for place in counted]
    done = sum(one is not None and one.state is State.COMPLETED for one in mine)
    failed = sum(one is not None and one.state in SETTLED and one.state is not State.COMPLETED for one in mine)
    state = _state(job, run, len(mine), done, failed)
    ended = written_time(await _end_of(ojs, job)) if state != "running" else None
    shown = {
        "id": job.id,
        "type": "dag" if run.flow.kind == "graph" else run.flow.kind,
        "name": run.flow.name,
        "state": state,
        "steps_total": len(mine),
        "steps_completed": done,
        "jobs_total": len(mine),
        "jobs_completed": done,
        "jobs_failed": failed,
        "steps": [_shown_step(run, place, members[place], now) for place in counted],
        "created_at": written_time(job.created_at),
        "completed_at": ended,
        "metadata": {
            "created_at": written_time(job.created_at),
            "started_at": written_time(job.created_at),
            "completed_at": ended,
            "job_count": len(mine),
            "completed_count": done,
            "failed_count": failed,
        },
    }
    return {field: value for field, value in shown.items() if value is not None}


async def _end_of(ojs: Ojs, job: Job) -> Time | None:
    """When a workflow ended; None for one that hasn't. One that failed is in review, which is no end to us."""
    if job.finished_at is not None or job.state not in SETTLED:
        return job.finished_at
    entries = await ojs.engine.history(job.id, max(0, job.version - 1))
    return entries[-1].at if entries else None


def _state(job: Job, run: FlowRun, count: int, done: int, failed: int) -> str:
    """The state of a workflow: a chain fails with its first failure, others once all their jobs have ended."""
    if job.state is State.CANCELLED:
        return "cancelled"
    if done == count:
        return "completed"
    if failed and (run.flow.kind == "chain" or done + failed == count):
        return "failed"
    if job.state in SETTLED:
        return "completed" if job.state is State.COMPLETED else "failed"
    return "running"


def _shown_step(run: FlowRun, place: int, member: Job | None, now: Time) -> dict[str, Any]:
    call = run.calls[run.flow.steps[place].call]
    shown: dict[str, Any] = {
        "index": place,
        "id": run.flow.steps[place].name or str(place),
        "type": "workflow" if call.type == FLOW_TYPE else call.type,
        "state": "waiting" if member is None else shown_state(member, now),
        "job_id": None if member is None else member.id,
    }
    return {field: value for field, value in shown.items() if value is not None}
