"""What an administrator asks and orders of workers: those over HTTP, and our own. Must not know how a worker lives."""

from operator import itemgetter
from typing import Any

from starlette.responses import Response

from holdfast.core.model import PAGE_LIMIT, Presence, State, Time, Where
from holdfast.core.reservations import MISSED_BEATS, REMOTE_WORKER, stored_name
from holdfast.engines.records import QUIET
from holdfast.redaction import redact
from holdfast.server.call import Call
from holdfast.server.ojs.admin_paging import cut, is_falling_by, page_in, pagination
from holdfast.server.ojs.service import Ojs, ojs_of, reply
from holdfast.server.ojs.shapes import worker_of
from holdfast.server.ojs.vocabulary import written_time
from holdfast.server.ojs.workers import RemoteWorker, order_worker, worker_in

JOBS_SHOWN = 100
"""How many of its jobs a worker is shown with."""

SILENT_MS = 90_000
"""A worker that wasn't heard for this long, and promised no heartbeats, counts as stale."""


async def list_workers(call: Call) -> Response:
    """List the workers: those over HTTP, and our own."""
    ojs = ojs_of(call)
    page, per_page = page_in(call)
    workers = sorted(await all_workers(ojs), key=itemgetter("id"), reverse=is_falling_by(call, "id"))
    count = {state: sum(one["state"] == state for one in workers) for state in ("running", "quiet", "stale")}
    return reply({
        "items": cut(workers, page, per_page),
        "summary": {"total": len(workers), **count},
        "pagination": pagination(len(workers), page, per_page),
    })  # fmt: skip


async def all_workers(ojs: Ojs) -> list[dict[str, Any]]:
    """All workers, each as it is shown."""
    now = await ojs.engine.now()
    quiet = {record.name.removeprefix(QUIET) for record in await ojs.engine.records(QUIET)}
    remote = [
        _shown_remote(one, record.at, now, quiet)
        for record in await ojs.engine.records(REMOTE_WORKER)
        if (one := worker_in(record)) is not None
    ]
    return [*remote, *(_shown_own(one, now, quiet) for one in await ojs.jobs.workers())]


def _shown_remote(one: RemoteWorker, heard_at: Time, now: Time, quiet: set[str]) -> dict[str, Any]:
    is_stale = now - heard_at > (MISSED_BEATS * one.beat_ms if one.beat_ms else SILENT_MS)
    order = "quiet" if stored_name(one.id) in quiet and one.order == "running" else one.order
    return {
        "id": one.id or "anonymous",
        "worker_id": one.id or "anonymous",
        "state": "stale" if is_stale else order if order != "running" else one.state,
        "hostname": one.hostname,
        "pid": one.pid,
        "queues": list(one.queues),
        "concurrency": one.concurrency,
        "active_jobs": one.active,
        "started_at": written_time(one.since),
        "last_heartbeat_at": written_time(heard_at),
    }


def _shown_own(one: Presence, now: Time, quiet: set[str]) -> dict[str, Any]:
    is_stale = one.gone or now - one.beat_at > one.lease_ms
    return {
        "id": one.worker,
        "worker_id": one.worker,
        "state": "stale" if is_stale else "quiet" if one.worker in quiet else "running",
        "hostname": one.host,
        "pid": one.pid,
        "queues": list(one.queues),
        "concurrency": one.slots,
        "active_jobs": len(one.running),
        "started_at": written_time(one.started_at),
        "last_heartbeat_at": written_time(one.beat_at),
    }


async def get_worker(call: Call) -> Response:
    """Return a worker, with jobs that it has."""
    ojs, id = ojs_of(call), redact(call.path_params["id"])
    for one in await all_workers(ojs):
        if one["id"] == id:
            held = await ojs.engine.find(Where(states=(State.ACTIVE,)), limit=PAGE_LIMIT)
            mine = [job for job in held if (worker_of(job) or "anonymous") == id][:JOBS_SHOWN]
            return reply({**one, "jobs": await ojs.shown_all(mine, await ojs.engine.now())})
    await order_worker(ojs, id, "running")  # raises NotFound
    return reply({"id": id})


async def quiet_worker(call: Call) -> Response:
    """Order a worker to fetch no more jobs."""
    return await _order(call, "quiet")


async def end_worker(call: Call) -> Response:
    """Order a worker to finish and end."""
    return await _order(call, "terminate")


async def _order(call: Call, order: str) -> Response:
    ojs, id = ojs_of(call), redact(call.path_params["id"])
    known = await order_worker(ojs, id, order)
    return reply({"id": known.id, "worker_id": known.id, "state": known.order})
