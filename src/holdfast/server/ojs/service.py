"""What the handlers share: reading a request, reading a job with its past, and answering. Must not know a route."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from holdfast.core.errors import BadValue, BlobGone, NotAllowed
from holdfast.core.lifecycle import allowed
from holdfast.core.model import Event, Job, Time
from holdfast.core.queue_bounds import QueueBound
from holdfast.core.references import is_kept_outside
from holdfast.jobs.consequences import end_change, notify_others
from holdfast.jobs.flows import is_member, resolved_args, result_text, results_before
from holdfast.jobs.full_queues import stored_bounds
from holdfast.jobs.large_values import arguments_of
from holdfast.jobs.remote_workers import Claim, RemoteWorkers
from holdfast.jobs.requests import random_ids
from holdfast.jobs.service import Jobs
from holdfast.redaction import redact
from holdfast.server.call import Call
from holdfast.server.ojs.problems import bad
from holdfast.server.ojs.queue_settings import QueueSettings, queue_settings
from holdfast.server.ojs.shapes import (
    NOTHING,
    PAST_ENTRIES,
    Past,
    epoch_in,
    is_fresh_claim,
    needs_past,
    read_json,
    shown_job,
)
from holdfast.server.ojs.vocabulary import MEDIA_TYPE, VERSION
from holdfast.server.problems import Problem

BOUNDS_SECONDS = 1.0
"""How long the bounds of queues that another process set may be unknown here."""

READS_AT_ONCE = 20
"""How many histories one request reads at the same time."""

PAGE, MOST_IN_PAGE = 50, 200


class Ojs:
    """The Open Job Spec on one server: its jobs, what workers over HTTP do, and what is remembered for a moment."""

    def __init__(self, jobs: Jobs, *, requires_token: bool = False) -> None:
        self.jobs = jobs
        self.engine = jobs.engine
        self.remote = RemoteWorkers(jobs)
        self.new_id = random_ids()
        self.bounds: Mapping[str, QueueBound] = {}
        self.settings: Mapping[str, QueueSettings] = {}
        """What an administrator set for queues with a bound."""
        self.bounds_read = -BOUNDS_SECONDS
        self.refused: dict[str, float] = {}
        """When this server last wrote down that a queue refused somebody, by its own clock."""
        self.heard: dict[str, float] = {}
        """When this server last wrote down that it heard of a worker, by its own clock."""
        self.requires_token = requires_token
        self.limits: dict[str, object] = {}
        """The rate limits that this server has declared, by name."""

    def with_bounds(self) -> Jobs:
        """The jobs, for submits that respect the bounds of queues."""
        return self.jobs.within(self.bounds)

    async def read_bounds(self, *, anew: bool = False) -> None:
        """Read the bounds of queues, if that was long ago."""
        now = asyncio.get_running_loop().time()
        if anew or now - self.bounds_read >= BOUNDS_SECONDS:
            self.bounds_read = now
            found = await stored_bounds(self.engine)
            settings = await queue_settings(self.engine) if found else {}
            self.bounds = {
                queue: replace(bound, when_full=settings[queue].when_full) if queue in settings else bound
                for queue, bound in found.items()
            }
            self.settings = settings

    # Reading jobs.

    async def job(self, id: str) -> tuple[Job, Time]:
        """Return a job and the store's time. A job whose `expires_at` has passed ends here, if nobody ended it yet."""
        job, now = await self.jobs.get(id), await self.engine.now()
        if job.expires_at is not None and job.expires_at <= now and allowed(Event.EXPIRE, job.state):
            change = await end_change(self.engine, job, Event.EXPIRE, now, by="http", note={})
            (answer,) = await self.engine.commit([change])
            await notify_others(self.engine, change, answer, by="http")
            job = await self.jobs.get(id)
        return job, now

    async def past(self, job: Job) -> Past:
        """Return what is known of a job's past."""
        if not needs_past(job):
            return NOTHING
        entries = await self.engine.history(job.id, max(0, job.version - PAST_ENTRIES))
        reports = await self.remote.reports([job.id])
        return Past(entries, reports[job.id])

    async def shown(self, job: Job, now: Time, *, is_claim: bool = False, is_whole: bool = True) -> dict[str, Any]:
        """Return a job as the specification shows it. A step of a workflow knows the results before it.

        Unless it `is_whole`, large arguments and results stay references.
        """
        job = await self._whole(job) if is_whole else job
        is_first = is_claim and is_fresh_claim(job)  # then there is nothing to read
        shown = shown_job(job, NOTHING if is_first else await self.past(job), now, is_claim=is_claim)
        if is_member(job):
            shown["workflow_id"] = job.parent
            shown["parent_results"] = [read_json(text) for text in await results_before(self.engine, job)]
            shown["args"] = read_json(await resolved_args(self.engine, job))
        return shown

    async def _whole(self, job: Job) -> Job:
        """Return a job with its large arguments and result. What is gone stays a reference."""
        if not (is_kept_outside(job.args) or is_kept_outside(job.result or "")):
            return job
        with suppress(BlobGone):
            job = replace(job, args=await arguments_of(self.engine, job))
            if job.result is not None:
                job = replace(job, result=await result_text(self.engine, job))
        return job

    async def shown_all(self, jobs: Sequence[Job], now: Time, *, is_claim: bool = False) -> list[dict[str, Any]]:
        """Return several jobs as the specification shows them. Whoever claims them gets their large values, too."""
        gate = asyncio.Semaphore(READS_AT_ONCE)

        async def one(job: Job) -> dict[str, Any]:
            async with gate:
                return await self.shown(job, now, is_claim=is_claim, is_whole=is_claim)

        return list(await asyncio.gather(*map(one, jobs)))


_OF: WeakKeyDictionary[object, Ojs] = WeakKeyDictionary()


def ojs_of(call: Call) -> Ojs:
    """Return what belongs to the server that a request came to."""
    found = _OF.get(call.server)
    if found is None or found.jobs is not call.jobs:
        found = _OF[call.server] = Ojs(call.jobs, requires_token=call.server.requires_lease_token)
    return found


def forget(call: Call) -> None:
    """Forget what is remembered for a moment, because the store was emptied."""
    _OF.pop(call.server, None)


# Requests and answers.


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer in the specification's media type."""
    more = {"OJS-Version": VERSION, **(headers or {})}
    return Response(msgspec.json.encode(value), status, more, media_type=MEDIA_TYPE)


async def read_object(call: Call, *, empty: bool = False) -> dict[str, Any]:
    """Read the body as a JSON object. With `empty`, no body is an empty object."""
    try:
        body = await call.json({}) if empty else await call.json()
    except BadValue as error:
        raise Problem(400, "invalid_payload", str(error)) from None
    if not isinstance(body, dict):
        raise Problem(400, "invalid_payload", "the body is not a JSON object; send one")
    return body


def text_of(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text field of a body."""
    value = body.get(name, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise bad(name, "is missing; give text" if value is None else "give text")
    return value


def number_of(body: Mapping[str, Any], name: str, default: int, *, least: int, most: int) -> int:
    """A whole number in a body."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise bad(name, f"give a whole number from {least} to {most:,}")
    return value


def claim_in(call: Call, body: Mapping[str, Any], job: str, *, required: bool = False) -> Claim:
    """Who says that it holds a job: by the lease token and the worker's name, as far as they are given."""
    epoch: int | None = None
    token = body.get("lease_token")
    if token is not None:
        epoch = epoch_in(token, job)
        if epoch is None:
            raise bad("lease_token", "this is no lease token of the job; send the one that came with fetch")
    elif required:
        raise bad("lease_token", "is missing; this server wants the one that came with fetch")
    return Claim(job=job, epoch=epoch, worker=worker_name(body), by=call.by if call.principal.token else "")


def worker_name(body: Mapping[str, Any]) -> str:
    """What the worker of a request calls itself; "" if it doesn't say."""
    return redact(text_of(body, "worker_id", ""))


def page_of(items: Sequence[Any], limit: int, offset: int, total: int) -> dict[str, Any]:
    """The pagination of a list."""
    more = offset + len(items) < total
    return {
        "total": total,
        "has_more": more,
        "next_cursor": str(offset + len(items)) if more else None,
        "limit": limit,
        "offset": offset,
    }


def offset_of(call: Call) -> int:
    """Where a page begins: `offset`, or the `cursor` of the page before."""
    name = "cursor" if call.query_params.get("cursor") else "offset"
    return call.number(name, 0, least=0, most=100_000_000)


def allowed_or(job: Job, event: Event, what: str) -> None:
    """Refuse what the lifecycle doesn't allow, in the specification's words."""
    if not allowed(event, job.state):
        state = "discarded" if job.state.value == "review" else job.state.value
        raise NotAllowed(f"job {job.id} is {state}, so it can't be {what}")
