"""What an administrator asks and does: queues, jobs, workers, totals. Must not know how a job runs."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.core.errors import NotAllowed, NotFound
from holdfast.core.keys import check_queue
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import PAGE_LIMIT, Job, State, Where
from holdfast.jobs.full_queues import reset_bound, set_bound
from holdfast.jobs.remote_workers import BUILT_IN
from holdfast.server.call import Call
from holdfast.server.ojs.admin_paging import cut, is_falling, is_falling_by, page_in, pagination
from holdfast.server.ojs.admin_stats import latencies, throughput
from holdfast.server.ojs.dead_letters import (
    WALK_MOST,
    act_on,
    check_confirmed,
    dead,
    dead_job,
    filter_in,
)
from holdfast.server.ojs.problems import bad
from holdfast.server.ojs.queue_settings import SETTINGS, QueueSettings, queue_settings, read_settings
from holdfast.server.ojs.queues import all_states, created, known_queues, set_paused
from holdfast.server.ojs.service import Ojs, ojs_of, read_object, reply
from holdfast.server.ojs.vocabulary import STATES, read_time, shown_state, states_named, written_time

SORTS: Mapping[str, Callable[[Job], Any]] = {
    "created_at": lambda job: (job.created_at, job.id),
    "priority": lambda job: (job.priority, job.id),
    "queue": lambda job: (job.queue, job.id),
    "state": lambda job: (STATES[job.state], job.id),
    "type": lambda job: (job.type, job.id),
    "attempt": lambda job: (job.attempt + job.recoveries, job.id),
    "scheduled_at": lambda job: (job.run_at or 0, job.id),
    "completed_at": lambda job: (job.finished_at or 0, job.id),
}
"""By what a list of jobs can be sorted."""


# Queues.


async def list_queues(call: Call) -> Response:
    """List the queues with their counts, by their names."""
    ojs = ojs_of(call)
    page, per_page = page_in(call)
    falls = is_falling_by(call, "name")
    counts, _ = await known_queues(ojs)
    items = [await _queue(ojs, name) for name in cut(sorted(counts, reverse=falls), page, per_page)]
    return reply({"items": items, "pagination": pagination(len(counts), page, per_page)})


async def _queue(ojs: Ojs, name: str) -> dict[str, Any]:
    counts, pauses = await known_queues(ojs)
    shown: dict[str, Any] = {
        "name": name,
        "state": "paused" if name in pauses else "active",
        "paused": name in pauses,
        "counts": all_states(counts.get(name, {})),
        "throughput": await throughput(ojs, name),
        "latency_ms": await latencies(ojs, name),
        "created_at": await created(ojs, name),
    }
    return {field: value for field, value in shown.items() if value is not None}


async def get_queue(call: Call) -> Response:
    """Return a queue with its counts and settings."""
    ojs, name = ojs_of(call), check_queue(call.path_params["name"])
    waiting = await ojs.engine.find(Where(states=(State.AVAILABLE,), queue=name), limit=1)
    settings = (await queue_settings(ojs.engine)).get(name, QueueSettings())
    oldest = {"oldest_available_at": written_time(waiting[0].created_at)} if waiting else {}
    return reply({**await _queue(ojs, name), "configuration": settings.shown(), **oldest})


async def pause_queue(call: Call) -> Response:
    """Pause a queue."""
    return reply(_flat(await set_paused(call, True)))


async def resume_queue(call: Call) -> Response:
    """Resume a queue."""
    return reply(_flat(await set_paused(call, False)))


def _flat(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {**answer, **answer["queue"]}


async def configure_queue(call: Call) -> Response:
    """Set how many jobs may wait in a queue, and what happens when it is full."""
    ojs, name = ojs_of(call), check_queue(call.path_params["name"])
    settings = read_settings(await read_object(call))
    await ojs.engine.put_record(SETTINGS + name, msgspec.json.encode(settings).decode())
    if settings.max_depth is not None:
        await set_bound(ojs.engine, name, settings.max_depth, by=call.by)
    else:
        with suppress(NotFound):  # nobody has set a bound
            await reset_bound(ojs.engine, name)
    await ojs.read_bounds(anew=True)
    return reply({"name": name, "configuration": settings.shown(), **settings.shown()})


async def purge_queue(call: Call) -> Response:
    """Cancel the waiting jobs of a queue, and discard those in review."""
    ojs, name, body = ojs_of(call), check_queue(call.path_params["name"]), await read_object(call)
    check_confirmed(body, "states", "older_than")
    states = _states(body.get("states"))
    before = None if body.get("older_than") is None else read_time("older_than", body["older_than"], 0)
    jobs = [
        job for job in await _jobs(ojs, Where(queue=name, states=states)) if before is None or job.created_at < before
    ]
    answer = await act_on(jobs, "delete", lambda job: _end(ojs, job, call.by))
    return reply({**answer, "purged_count": answer["succeeded"]})


def _states(given: Any) -> tuple[State, ...]:
    if given is None:
        return tuple(state for state in State if state not in TERMINAL and state is not State.ACTIVE)
    names = given if isinstance(given, list) else [given]
    states = tuple(state for name in names if isinstance(name, str) for state in states_named(name))
    if not states or len({name for name in names if isinstance(name, str) and states_named(name)}) < len(names):
        raise bad("states", "give an array of states, such as available")
    return states


async def _end(ojs: Ojs, job: Job, by: str) -> None:
    """End a job that hasn't ended: what is in review is discarded, what waits is cancelled."""
    if job.state in TERMINAL:
        until = "it is kept forever" if job.prune_at is None else f"it is removed after {written_time(job.prune_at)}"
        raise NotAllowed(f"job {job.id} has ended, and an ended job isn't removed early: {until}")
    if job.state is State.REVIEW:
        await ojs.jobs.discard(job.id, by=by)
    else:
        await ojs.jobs.cancel(job.id, by=by)


# Jobs.


async def list_jobs(call: Call) -> Response:
    """List jobs by queue, state, type and time."""
    ojs, query = ojs_of(call), call.query_params
    page, per_page = page_in(call)
    filter = {name: query[name] for name in ("queue", "state", "type", "since", "until") if name in query}
    jobs = _in_order(call, await _matching(ojs, filter))
    now = await ojs.engine.now()
    items = await ojs.shown_all(cut(jobs, page, per_page), now)
    return reply({"items": items, "pagination": pagination(len(jobs), page, per_page)})


def _in_order(call: Call, jobs: list[Job]) -> list[Job]:
    """The jobs in the order that is asked for; without a word, the newest come first."""
    sort = call.query_params.get("sort", "created_at")
    if sort not in SORTS:
        raise bad("sort", f"give one of {', '.join(SORTS)}")
    return sorted(jobs, key=SORTS[sort], reverse=is_falling(call, "desc"))


async def _matching(ojs: Ojs, filter: Mapping[str, Any]) -> list[Job]:
    """The jobs that a filter matches, up to WALK_MOST. Our own built-in jobs are left out."""
    for name, value in filter.items():
        if name not in ("queue", "state", "type", "since", "until"):
            raise bad(f"filter.{name[:80]}", "is no filter; there are queue, state, type, since and until")
        if not isinstance(value, str):
            raise bad(f"filter.{name}", "give text")
    states = _states(filter["state"]) if "state" in filter else ()
    since = read_time("since", filter["since"], 0) if "since" in filter else None
    until = read_time("until", filter["until"], 0) if "until" in filter else None
    queue = check_queue(filter["queue"]) if "queue" in filter else None
    type: str = filter.get("type", "")
    is_prefix = type.endswith("*")
    prefix = type[:-1] if is_prefix else ""
    where = Where(states=states, queue=queue, type=None if is_prefix else type or None, newest_first=True)
    found = await _jobs(ojs, where)
    return [
        job
        for job in found
        if not job.type.startswith(BUILT_IN)
        and job.type.startswith(prefix)
        and (since is None or job.created_at >= since)
        and (until is None or job.created_at <= until)
    ]


async def _jobs(ojs: Ojs, where: Where) -> list[Job]:
    found: list[Job] = []
    after = ""
    while len(found) < WALK_MOST and (page := await ojs.engine.find(where, after)):
        found += page
        if len(page) < PAGE_LIMIT:
            break
        after = page[-1].id
    return found


async def get_job(call: Call) -> Response:
    """Return a job, without a wrapper."""
    ojs = ojs_of(call)
    job, now = await ojs.job(call.path_params["id"])
    return reply(await ojs.shown(job, now))


async def retry_job(call: Call) -> Response:
    """Run a dead job again."""
    ojs = ojs_of(call)
    job, now = await ojs.job(call.path_params["id"])
    if job.state is not State.REVIEW:
        raise NotAllowed(f"job {job.id} is {shown_state(job, now)}, so it can't be retried; a dead job can")
    job = await ojs.jobs.replay(job.id, by=call.by)
    return reply({"job": await ojs.shown(job, await ojs.engine.now())})


async def bulk_retry(call: Call) -> Response:
    """Run all dead jobs again that a filter matches."""
    ojs, filter = ojs_of(call), _filter(await read_object(call))
    jobs = [job for job in await _matching(ojs, filter) if job.state is State.REVIEW]
    return reply(await act_on(jobs, "retry", lambda job: ojs.jobs.replay(job.id, by=call.by)))


async def bulk_cancel(call: Call) -> Response:
    """Cancel all jobs that a filter matches and that haven't ended."""
    ojs, filter = ojs_of(call), _filter(await read_object(call))
    jobs = [job for job in await _matching(ojs, filter) if job.state not in (*TERMINAL, State.REVIEW)]
    return reply(await act_on(jobs, "cancel", lambda job: ojs.jobs.cancel(job.id, by=call.by)))


async def bulk_delete(call: Call) -> Response:
    """Discard the dead jobs and cancel the waiting ones that a filter matches."""
    ojs, filter = ojs_of(call), _filter(await read_object(call))
    jobs = [
        job
        for job in await _matching(ojs, filter)
        if job.state is not State.ACTIVE and ("state" in filter or job.state not in TERMINAL)
    ]
    return reply(await act_on(jobs, "delete", lambda job: _end(ojs, job, call.by)))


def _filter(body: Mapping[str, Any]) -> Mapping[str, Any]:
    check_confirmed(body, "filter")
    filter = body.get("filter") or {}
    if not isinstance(filter, dict):
        raise bad("filter", "give a JSON object")
    return filter


# Dead letters.


async def list_dead(call: Call) -> Response:
    """List the dead letter queue, page by page."""
    ojs = ojs_of(call)
    page, per_page = page_in(call)
    jobs = _in_order(call, await dead(ojs, filter_in(call)))
    items = await ojs.shown_all(cut(jobs, page, per_page), await ojs.engine.now())
    return reply({"items": items, "pagination": pagination(len(jobs), page, per_page)})


async def delete_dead(call: Call) -> Response:
    """Discard a dead job."""
    ojs = ojs_of(call)
    job = await dead_job(ojs, call.path_params["id"])
    await ojs.jobs.discard(job.id, by=call.by, reason="deleted from the dead letter queue")
    return Response(status_code=204, headers={"OJS-Version": "1.0"})


# The server.


async def config(call: Call) -> Response:
    """Return how this server is set up."""
    ojs = ojs_of(call)
    guarantees = ojs.engine.guarantees
    return reply({
        "backend": {"type": guarantees.name, "durable": guarantees.durable},
        "requires_lease_token": ojs.requires_token,
        "queues": {name: one.shown() for name, one in (await queue_settings(ojs.engine)).items()},
    })  # fmt: skip
