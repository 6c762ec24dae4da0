"""The dead letter queue: the jobs in review. A retry replays, a deletion discards. Must not decide who enters."""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from holdfast.core.canonical import canonical
from holdfast.core.errors import NotAllowed, NotFound, Refused
from holdfast.core.keys import check_queue, check_type
from holdfast.core.model import PAGE_LIMIT, Job, State, Time, Where
from holdfast.jobs.built_in import OWN_QUEUE
from holdfast.jobs.remote_workers import BUILT_IN
from holdfast.server.call import Call
from holdfast.server.ojs.problems import bad, unprocessable
from holdfast.server.ojs.service import (
    MOST_IN_PAGE,
    PAGE,
    Ojs,
    offset_of,
    ojs_of,
    page_of,
    read_object,
    reply,
)
from holdfast.server.ojs.vocabulary import read_time

WALK_MOST = 10_000
"""How many jobs one request walks over at most."""


class DeadFilter(Struct, frozen=True, kw_only=True):
    """Which jobs of the dead letter queue are meant: those that fit everything that is given."""

    queue: str | None = None
    type: str | None = None
    since: Time | None = None
    until: Time | None = None

    def fits(self, job: Job) -> bool:
        """Whether a job was submitted within the time that the filter names."""
        return (self.since is None or job.created_at >= self.since) and (
            self.until is None or job.created_at <= self.until
        )


def read_filter(given: Any) -> DeadFilter:
    """Read a filter. What isn't known is refused: a mistyped filter must not act on everything."""
    if given is None:
        return DeadFilter()
    if not isinstance(given, dict):
        raise bad("filter", "give a JSON object")
    for name, value in given.items():
        if name not in DeadFilter.__struct_fields__:
            raise bad(f"filter.{name[:80]}", "is no filter; there are queue, type, since and until")
        if not isinstance(value, str) or not value:
            raise bad(f"filter.{name}", "give text")
    return DeadFilter(
        queue=check_queue(given["queue"]) if "queue" in given else None,
        type=check_type(given["type"]) if "type" in given else None,
        since=read_time("filter.since", given["since"], 0) if "since" in given else None,
        until=read_time("filter.until", given["until"], 0) if "until" in given else None,
    )


def filter_in(call: Call) -> DeadFilter:
    """The filter in a request's query."""
    query = call.query_params
    return read_filter({name: query[name] for name in DeadFilter.__struct_fields__ if name in query})


async def dead(ojs: Ojs, filter: DeadFilter) -> list[Job]:
    """Return the jobs in review that a filter matches, newest first, up to WALK_MOST."""
    found: list[Job] = []
    after = ""
    where = Where(states=(State.REVIEW,), queue=filter.queue, type=filter.type, newest_first=True)
    while len(found) < WALK_MOST and (page := await ojs.engine.find(where, after)):
        found += [job for job in page if filter.fits(job) and not job.type.startswith(BUILT_IN)]
        if len(page) < PAGE_LIMIT:
            break
        after = page[-1].id
    return found


async def list_dead(call: Call) -> Response:
    """List the dead letter queue."""
    ojs = ojs_of(call)
    limit, offset = call.number("limit", PAGE, most=MOST_IN_PAGE), offset_of(call)
    jobs = await dead(ojs, filter_in(call))
    shown = await ojs.shown_all(jobs[offset : offset + limit], await ojs.engine.now())
    return reply({"jobs": shown, "pagination": page_of(shown, limit, offset, len(jobs))})


async def dead_job(ojs: Ojs, id: str) -> Job:
    """Return a job of the dead letter queue, or raise NotFound."""
    job, _ = await ojs.job(id)
    if job.state is not State.REVIEW:
        raise NotFound(f"job {id} isn't in the dead letter queue")
    return job


async def get_dead(call: Call) -> Response:
    """Return one job of the dead letter queue."""
    ojs = ojs_of(call)
    job = await dead_job(ojs, call.path_params["id"])
    return reply({"job": await ojs.shown(job, await ojs.engine.now())})


async def retry_dead(call: Call) -> Response:
    """Run a dead job again, from its first attempt."""
    ojs, body = ojs_of(call), await read_object(call, empty=True)
    override = body.get("override")
    if override is not None and not isinstance(override, dict):
        raise bad("override", "give a JSON object")
    for name in override or {}:
        if name != "args":
            raise unprocessable(f"override.{name[:80]}", "can't be changed by a retry; only args can", "unsupported")
    args = None
    if override and override.get("args") is not None:
        if not isinstance(override["args"], list):
            raise bad("override.args", "give an array")
        args = canonical(override["args"])
    job = await dead_job(ojs, call.path_params["id"])
    job = await ojs.jobs.replay(job.id, args=args, by=call.by, reason="retried from the dead letter queue")
    return reply({"job": await ojs.shown(job, await ojs.engine.now())})


async def delete_dead(call: Call) -> Response:
    """Discard a dead job: it never runs again."""
    ojs = ojs_of(call)
    job = await dead_job(ojs, call.path_params["id"])
    await ojs.jobs.discard(job.id, by=call.by, reason="deleted from the dead letter queue")
    return reply({"deleted": True, "job_id": job.id})


async def retry_many(call: Call) -> Response:
    """Run all dead jobs again that a filter matches."""
    ojs, body = ojs_of(call), await read_object(call)
    check_confirmed(body, "filter")
    jobs = await dead(ojs, read_filter(body.get("filter")))
    return reply(await act_on(jobs, "retry", lambda job: ojs.jobs.replay(job.id, by=call.by)))


async def purge(call: Call) -> Response:
    """Discard all dead jobs that a filter matches, in the body or in the query."""
    ojs, body, query = ojs_of(call), await read_object(call, empty=True), dict(call.query_params)
    if query.pop("confirm", "") == "true":
        body = {**body, "confirm": True}
    check_confirmed(body, "filter", "older_than")
    if query and body.get("filter"):
        raise bad("filter", "give the filter in the body or in the query, not in both")
    before = None if body.get("older_than") is None else read_time("older_than", body["older_than"], 0)
    jobs = await dead(ojs, read_filter(query or body.get("filter")))
    jobs = [job for job in jobs if before is None or job.created_at < before]
    answer = await act_on(jobs, "delete", lambda job: ojs.jobs.discard(job.id, by=call.by))
    return reply({**answer, "deleted": answer["succeeded"], "purged_count": answer["succeeded"]})


async def dead_stats(call: Call) -> Response:
    """Count the dead letter queue."""
    return reply(await count_dead(ojs_of(call)))


async def count_dead(ojs: Ojs) -> dict[str, Any]:
    """How many jobs are in review, by queue. Our own queue is left out."""
    counts = await ojs.engine.count()
    by_queue = {
        queue: count for (queue, state), count in counts.items() if state is State.REVIEW and queue != OWN_QUEUE
    }
    return {"total": sum(by_queue.values()), "by_queue": by_queue}


# Many at once.

ACTS_AT_ONCE = 20


def check_confirmed(body: Mapping[str, Any], *fields: str) -> None:
    """Refuse an act on many jobs that isn't confirmed, or that has other fields than these: they may be mistyped."""
    for name in body:
        if name not in ("confirm", *fields):
            raise bad(name[:80], f"is no field of this request; there are {', '.join((*fields, 'confirm'))}")
    if body.get("confirm") is not True:
        raise bad("confirm", "must be true, because this acts on many jobs")


async def act_on(jobs: list[Job], action: str, act: Any) -> dict[str, Any]:
    """Do the same to many jobs; say how many it worked for, and why not for the others."""
    gate = asyncio.Semaphore(ACTS_AT_ONCE)

    async def one(job: Job) -> str | None:
        async with gate:
            try:
                await act(job)
            except (NotAllowed, NotFound, Refused) as error:
                return str(error)
        return None

    answers = await asyncio.gather(*map(one, jobs))
    errors = [{"job_id": job.id, "error": text} for job, text in zip(jobs, answers, strict=True) if text is not None]
    succeeded = len(jobs) - len(errors)
    return {"action": action, "matched": len(jobs), "succeeded": succeeded, "failed": len(errors), "errors": errors}
