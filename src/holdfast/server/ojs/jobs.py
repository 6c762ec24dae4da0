"""Jobs: submit one or many, read, cancel, activate. Must not know workers."""

from typing import Any

from msgspec.structs import replace
from starlette.responses import Response

from holdfast.core.declared_limits import declare
from holdfast.core.errors import Duplicate, NotAllowed
from holdfast.core.model import Event, Inserted, Job, Time, Use
from holdfast.core.unique import REPLACE, RETURN
from holdfast.jobs.limits import declare_limits
from holdfast.redaction import redact
from holdfast.server.call import Call
from holdfast.server.ojs.backpressure import pressure_headers, when_room
from holdfast.server.ojs.envelope import Submit, read_submit
from holdfast.server.ojs.policies import RateLimit, read_rate_limits
from holdfast.server.ojs.problems import bad
from holdfast.server.ojs.service import Ojs, allowed_or, ojs_of, read_object, reply, text_of
from holdfast.server.ojs.shapes import NOTHING, previous_state, shown_job
from holdfast.server.ojs.vocabulary import STATES, is_final, shown_state, written_time
from holdfast.server.problems import Problem

BATCH_MOST = 1_000
"""How many jobs one batch may have."""


async def submit(call: Call) -> Response:
    """Submit a job. A job that another one like it answers for is returned with status 200."""
    ojs = ojs_of(call)
    body = await read_object(call)
    now = await ojs.engine.now()
    order = read_submit(body, now)
    headers = await _headers(ojs, [order])
    job = order.job(ojs.new_id(now), now, await limit_uses(ojs, order), by=call.by)
    job, answer = await when_room(call, ojs, [order], lambda: _insert(ojs, order, job))
    if answer.id == job.id:
        shown = shown_job(job, NOTHING, now)
        return reply({"job": shown, "id": job.id}, 201, {"Location": f"{call.root}/ojs/v1/jobs/{job.id}", **headers})
    existing, now = await ojs.job(answer.id)
    return reply({"job": await ojs.shown(existing, now), "id": existing.id}, 200, headers)


async def _insert(ojs: Ojs, order: Submit, job: Job) -> tuple[Job, Inserted]:
    """Insert a job; return it as it was inserted, and the answer."""
    unique = job.options.unique
    if order.keeps_schedule and unique is not None:
        # Ask who is there before replacing it: the new job keeps the time of the old one.
        options = replace(job.options, unique=replace(unique, then=RETURN))
        (found,) = await ojs.with_bounds().insert([replace(job, options=options)])
        if found.new or found.id == job.id:
            return job, found
        old = await ojs.jobs.get(found.id)
        job = replace(job, state=old.state, run_at=old.run_at, waits=old.waits) if old.epoch == 0 else job
        job = replace(job, options=replace(job.options, unique=replace(unique, then=REPLACE)))
    (answer,) = await ojs.with_bounds().insert([job])
    if not answer.new and answer.id == job.id:
        raise Duplicate(f"job {job.id} already exists, so nothing was submitted; use another id", job.id)
    return job, answer


async def submit_batch(call: Call) -> Response:
    """Submit jobs, all or none."""
    ojs = ojs_of(call)
    body = await read_object(call)
    given = body.get("jobs")
    if not isinstance(given, list) or not given:
        raise bad("jobs", "give an array with at least one job")
    if len(given) > BATCH_MOST:
        raise bad("jobs", f"{len(given):,} jobs are too many; send at most {BATCH_MOST:,} at once")
    now = await ojs.engine.now()
    orders = [_item(one, place, now) for place, one in enumerate(given)]
    headers = await _headers(ojs, orders)
    jobs = [order.job(ojs.new_id(now), now, await limit_uses(ojs, order), by=call.by) for order in orders]
    if len({job.id for job in jobs}) < len(jobs):
        raise Problem(409, "duplicate", "two jobs of the batch have the same id; nothing was submitted")
    known = [one.id for one in await ojs.engine.get([order.id for order in orders if order.id]) if one is not None]
    if known:
        raise Duplicate(f"job {known[0]} already exists, so nothing was submitted; use another id", known[0])
    answers = await when_room(call, ojs, orders, lambda: ojs.with_bounds().insert(jobs))
    by_id = {job.id: shown_job(job, NOTHING, now) for job in jobs}
    others = [answer.id for answer in answers if answer.id not in by_id]
    for job in await ojs.engine.get(others):
        if job is not None:
            by_id[job.id] = await ojs.shown(job, now)
    shown = [by_id[answer.id] for answer in answers if answer.id in by_id]
    return reply({"jobs": shown, "count": len(shown)}, 201, headers)


def _item(one: Any, place: int, now: Time) -> Submit:
    try:
        return read_submit(one, now)
    except Problem as problem:
        raise Problem(problem.status, problem.code, f"jobs[{place}]: {problem.detail}", **problem.more) from None
    except ValueError as error:
        raise Problem(400, "invalid_request", f"jobs[{place}]: {error}") from None


async def limit_uses(ojs: Ojs, order: Submit) -> tuple[Use, ...]:
    """Declare the rate limits that a job asks for, and return their uses."""
    limits = _limits(order)
    for limit in limits:
        if ojs.limits.get(limit.name) != limit:
            if len(ojs.limits) >= 10_000:
                ojs.limits.clear()
            declared = declare(limit.name, limit.at_once, limit.rate, limit.burst, "", None)
            await declare_limits(ojs.engine, [declared], by="http")
            ojs.limits[limit.name] = limit
    return tuple(Use(limit.name) for limit in limits)


def _limits(order: Submit) -> tuple[RateLimit, ...]:
    return () if order.rate_limit is None else read_rate_limits(order.rate_limit, order.request.queue)


async def _headers(ojs: Ojs, orders: list[Submit]) -> dict[str, str]:
    """What a submitter should know about limits: how many may start, and how full its queue is."""
    headers: dict[str, str] = {}
    if limits := _limits(orders[-1]):
        headers["X-RateLimit-Limit"] = str(limits[0].per_period or limits[0].at_once)
    return {**headers, **await pressure_headers(ojs, orders)}


async def get_job(call: Call) -> Response:
    """Return a job."""
    ojs = ojs_of(call)
    job, now = await ojs.job(call.path_params["id"])
    return reply({"job": await ojs.shown(job, now)})


async def cancel_job(call: Call) -> Response:
    """Cancel a job. One that has ended is refused."""
    ojs = ojs_of(call)
    body = await read_object(call, empty=True)
    job, now = await ojs.job(call.path_params["id"])
    if is_final(job):
        raise NotAllowed(f"job {job.id} is {shown_state(job, now)}, so it can't be cancelled")
    job = await ojs.jobs.cancel(job.id, by=call.by, reason=redact(text_of(body, "reason", "")))
    return reply({"job": await _changed(ojs, job, now)})


async def activate_job(call: Call) -> Response:
    """Let a job that was submitted as pending start."""
    ojs = ojs_of(call)
    job, _ = await ojs.job(call.path_params["id"])
    allowed_or(job, Event.ACTIVATE, "activated")
    job = await ojs.jobs.activate(job.id, by=call.by)
    return reply({"job": await _changed(ojs, job, await ojs.engine.now())})


async def _changed(ojs: Ojs, job: Job, now: Time) -> dict[str, Any]:
    past = await ojs.past(job)
    return {**shown_job(job, past, now), "previous_state": previous_state(past.entries)}


async def get_history(call: Call) -> Response:
    """Return what has happened to a job."""
    ojs = ojs_of(call)
    job, _ = await ojs.job(call.path_params["id"])
    entries = await ojs.jobs.history(job.id)
    shown = [
        {
            "version": entry.version,
            "event": entry.event,
            "from": None if entry.before is None else STATES[entry.before],
            "to": STATES[entry.after],
            "by": entry.by,
            "timestamp": written_time(entry.at),
        }
        for entry in entries
    ]
    return reply({"job_id": job.id, "history": shown})
