"""What workers report about a job: checkpoints, progress, steps; and results. Must not know how a worker lives."""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from starlette.responses import Response

from holdfast.core.canonical import canonical
from holdfast.core.errors import NotAllowed, NotFound
from holdfast.core.keys import check_id
from holdfast.core.limits import PROGRESS_CHARACTERS, size_of
from holdfast.core.model import Job, State, Step
from holdfast.engines.topics import job_topic
from holdfast.jobs.flows import result_text
from holdfast.jobs.remote_workers import CHECKPOINT_PATH, PROGRESS_PATH
from holdfast.redaction import redact, redact_value
from holdfast.server.auth import check_scope
from holdfast.server.call import Call
from holdfast.server.ojs.problems import bad
from holdfast.server.ojs.service import (
    MOST_IN_PAGE,
    Ojs,
    claim_in,
    number_of,
    offset_of,
    ojs_of,
    page_of,
    read_object,
    reply,
    text_of,
)
from holdfast.server.ojs.shapes import CHECKPOINT_MORE, checkpoint_in, has_result, read_json, result_expires_at
from holdfast.server.ojs.vocabulary import is_final, shown_state, written_time
from holdfast.server.problems import Problem

RESULT_WAIT_SECONDS = 30.0
"""How long a request for a result waits at most."""

RESULTS_MOST = 100

CHECKPOINT_BYTES = 1 << 20
"""How large a checkpoint may be, as the specification wants it."""


async def _report_of(ojs: Ojs, job: str, path: str) -> Step | None:
    return (await ojs.remote.reports([job]))[job].get(path)


# Checkpoints.


async def save_checkpoint(call: Call) -> Response:
    """Save the state of a job, in place of the one before."""
    ojs, body, id = ojs_of(call), await read_object(call), call.path_params["id"]
    if "state" not in body:
        raise bad("state", "is missing; give the state to save")
    job, _ = await ojs.job(id)
    more = {name: body[name] for name in CHECKPOINT_MORE if name in body}
    value = await _next_checkpoint(ojs, id, body["state"], more)
    await _write(ojs, call, job, body, value, "checkpoint saved")
    shown = {"job_id": id, **value, "created_at": written_time(await ojs.engine.now())}
    return reply({**shown, "checkpoint": shown})


async def _next_checkpoint(ojs: Ojs, id: str, state: Any, more: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The checkpoint with this state that follows the saved one; raise Problem 413 if it is too large."""
    value = redact_value({"state": state, **more})
    size = size_of(canonical(value)) - len('{"state":}')
    if size > CHECKPOINT_BYTES:
        raise Problem(
            413,
            "too_large",
            f"job {id}: its checkpoint has {size:,} bytes, but the limit is {CHECKPOINT_BYTES:,}; save less, "
            "or save it elsewhere and where it is here",
        )
    before = checkpoint_in(await _report_of(ojs, id, CHECKPOINT_PATH))
    return {**value, "sequence": 1 if before is None else before["sequence"] + 1}


async def _write(ojs: Ojs, call: Call, job: Job, body: dict[str, Any], value: Any, what: str) -> None:
    """Write the checkpoint of a job: under its lease if it is active, else beside it."""
    if is_final(job):
        raise NotAllowed(f"job {job.id} has ended, so its checkpoint can't change")
    claim = claim_in(call, body, job.id, required=ojs.requires_token and job.state is State.ACTIVE)
    if job.state is State.ACTIVE or claim.epoch is not None:
        await ojs.remote.report(claim, CHECKPOINT_PATH, value, job=job)
    else:
        await ojs.remote.note(job, CHECKPOINT_PATH, value, by=call.by, what=what)


def _check_reader(call: Call) -> None:
    """Refuse who may neither read nor work: a worker needs what is recorded of the job that it continues."""
    check_scope(call.principal, "work" if call.principal.may("work") else "read")


async def get_checkpoint(call: Call) -> Response:
    """Return the saved state of a job."""
    _check_reader(call)
    ojs, id = ojs_of(call), call.path_params["id"]
    await ojs.jobs.get(id)
    found = checkpoint_in(await _report_of(ojs, id, CHECKPOINT_PATH))
    if found is None:
        raise NotFound(f"job {id} has no checkpoint")
    shown = {"job_id": id, **found}
    return reply({**shown, "checkpoint": shown})


async def delete_checkpoint(call: Call) -> Response:
    """Delete the saved state of a job. Without one, nothing happens."""
    ojs, body, id = ojs_of(call), await read_object(call, empty=True), call.path_params["id"]
    job, _ = await ojs.job(id)
    if checkpoint_in(await _report_of(ojs, id, CHECKPOINT_PATH)) is not None:
        await _write(ojs, call, job, body, None, "checkpoint deleted")
    return reply({"deleted": True, "job_id": id})


# Progress.


async def save_progress(call: Call) -> Response:
    """Note how far a job is. It never goes back within an attempt. For a job that isn't active nothing happens."""
    ojs, body = ojs_of(call), await read_object(call)
    id = call.path_params.get("id") or text_of(body, "job_id")
    share, data = _share(body), redact_value(body.get("data"))
    message = redact(text_of(body, "message", ""))[:PROGRESS_CHARACTERS]
    canonical(data)
    job, _ = await ojs.job(id)
    if job.state is not State.ACTIVE:
        if claim_in(call, body, id).epoch is not None:
            await ojs.remote.report(claim_in(call, body, id), PROGRESS_PATH, None, job=job)
        return reply(await progress_of(ojs, job))
    claim = claim_in(call, body, id, required=ojs.requires_token)
    saved = None if body.get("checkpoint") is None else await _next_checkpoint(ojs, id, body["checkpoint"])
    before = await _report_of(ojs, id, PROGRESS_PATH)
    if before is not None and before.epoch == job.epoch and isinstance(old := read_json(before.result), dict):
        known = [one for one in (share, old.get("progress")) if one is not None]
        share = max(known, default=None)
    value = {"progress": share, "data": data, "message": message}
    await ojs.remote.report(claim, PROGRESS_PATH, value, job=job)
    if saved is not None:
        await ojs.remote.report(claim, CHECKPOINT_PATH, saved, job=job)
    return reply(await progress_of(ojs, job))


def _share(body: Mapping[str, Any]) -> float | None:
    """How far a report says that a job is, from 0 to 1; None if it only has data or a message."""
    name = "progress" if body.get("progress") is not None else "percentage"
    given = body.get(name)
    if given is None and (body.get("data") is not None or body.get("message") is not None):
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise bad("progress", "give a number from 0 to 1")
    return min(1.0, max(0.0, float(given) / (100 if name == "percentage" else 1)))


async def get_progress(call: Call) -> Response:
    """Return how far a job is."""
    ojs = ojs_of(call)
    job, _ = await ojs.job(call.path_params["id"])
    return reply(await progress_of(ojs, job))


async def progress_of(ojs: Ojs, job: Job) -> dict[str, Any]:
    """How far a job is, as its worker said last."""
    """How far a job is, as its worker said last."""
    step = await _report_of(ojs, job.id, PROGRESS_PATH)
    told = read_json(step.result) if step is not None and step.epoch == job.epoch else None
    told = told if isinstance(told, dict) and job.state is not State.RETRYABLE else {}
    share = told.get("progress")
    return {
        "job_id": job.id,
        "state": shown_state(job, await ojs.engine.now()),
        "progress": 1.0 if share is not None and job.state is State.COMPLETED else share,
        "data": told.get("data"),
        "message": told.get("message") or None,
        "updated_at": written_time(step.started_at) if step is not None and told else None,
    }


# Steps.


async def record_step(call: Call) -> Response:
    """Record a step as done, with its result. If it is recorded already, the first record stands and is returned."""
    ojs, body, id = ojs_of(call), await read_object(call), call.path_params["id"]
    name = text_of(body, "name")
    if not 0 < len(name) <= 200 or name.startswith("~"):
        raise bad("name", "give 1 to 200 characters that don't begin with ~")
    key = text_of(body, "key", "")
    result = canonical(body.get("result"))
    tries = number_of(body, "tries", 1, least=1, most=1_000_000)
    recorded = await ojs.remote.record_step(
        claim_in(call, body, id, required=ojs.requires_token), name, key, result, tries
    )
    return reply(
        {"job_id": id, "step": _shown_step(recorded.step), "recorded": recorded.first}, 201 if recorded.first else 200
    )


async def list_steps(call: Call) -> Response:
    """List the recorded steps of a job with their results, so that a worker can leave out what is done."""
    _check_reader(call)
    ojs, id = ojs_of(call), call.path_params["id"]
    limit, offset = call.number("limit", MOST_IN_PAGE, most=MOST_IN_PAGE), offset_of(call)
    steps = await ojs.remote.steps(id)
    shown = [
        _shown_step(step if step.result is None else replace(step, result=await ojs.engine.blobs.fetch(step.result)))
        for step in steps[offset : offset + limit]
    ]
    return reply({"job_id": id, "steps": shown, "pagination": page_of(shown, limit, offset, len(steps))})


def _shown_step(step: Step) -> dict[str, Any]:
    return {
        "path": step.path,
        "name": step.name,
        "state": step.state.value,
        "result": read_json(step.result),
        "error": None if step.error is None else {"type": step.error.type, "message": step.error.message},
        "recorded_at": written_time(step.finished_at or step.started_at),
    }


# Results.


async def get_result(call: Call) -> Response:
    """Return the result of a job; with `wait=true`, wait for it."""
    ojs, id = ojs_of(call), call.path_params["id"]
    until, mark = asyncio.get_running_loop().time(), 0
    if call.query_params.get("wait") == "true":
        until += call.number("timeout", int(RESULT_WAIT_SECONDS), least=0, most=int(RESULT_WAIT_SECONDS))
    while True:
        job, now = await ojs.job(id)
        left = until - asyncio.get_running_loop().time()
        if is_final(job) or left <= 0 or call.server.stopping.is_set():
            break
        mark = await ojs.engine.wait([job_topic(id)], min(left, 2.0), mark)
    if has_result(job, now):
        result = await result_text(ojs.engine, job)
        return reply({
            "job_id": id,
            "state": "completed",
            "result": read_json(result),
            "completed_at": written_time(job.finished_at),
            "result_stored_at": written_time(job.finished_at),
            "result_expires_at": written_time(result_expires_at(job)),
            "result_size_bytes": size_of(result),
        })  # fmt: skip
    if is_final(job):
        why = "and its result is gone" if job.state is State.COMPLETED else "so it has no result"
        raise Problem(410, "x_no_result", f"job {id} is {shown_state(job, now)}, {why}")
    if call.query_params.get("wait") == "true":
        raise Problem(408, "x_not_done", f"job {id} is still {shown_state(job, now)}; ask again")
    raise Problem(404, "not_found", f"job {id} is {shown_state(job, now)} and has no result yet")


async def get_results(call: Call) -> Response:
    """Return the results of several jobs."""
    ojs, body = ojs_of(call), await read_object(call)
    ids = body.get("ids")
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids) or len(ids) > RESULTS_MOST:
        raise bad("ids", f"give an array of at most {RESULTS_MOST} job ids")
    now = await ojs.engine.now()
    found = [job for job in await ojs.engine.get([check_id(id) for id in ids]) if job is not None]
    shown = [
        {
            "job_id": job.id,
            "state": shown_state(job, now),
            "result": read_json(await result_text(ojs.engine, job)) if has_result(job, now) else None,
        }
        for job in found
    ]
    return reply({"results": shown})
