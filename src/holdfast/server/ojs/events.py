"""The list of events, read from the whole store: nothing is stored for it but the end of a pause. Must not change it.

So every server of a store tells the same events, also those of workers that don't work over HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.core.keys import check_queue
from holdfast.core.model import PAGE_LIMIT, Entry, Job, State, Step, Time, Where
from holdfast.core.schedules import SCHEDULE, schedule_in
from holdfast.server.call import Call
from holdfast.server.ojs.backpressure import REFUSED
from holdfast.server.ojs.event_kinds import (
    QueuePause,
    Refusal,
    events_of,
    may_have_events_since,
    pause_events,
    refusal_event,
    schedule_events,
    time_in,
)
from holdfast.server.ojs.queues import PAUSED
from holdfast.server.ojs.service import MOST_IN_PAGE, PAGE, READS_AT_ONCE, Ojs, ojs_of, reply
from holdfast.server.ojs.shapes import PAST_ENTRIES

JOBS_WALKED = 100_000
"""How many jobs one list of events looks at. The history is read only of those that may have events in it."""

JOBS_LAST = 500
"""How many jobs are looked at for the last events: those that were submitted last."""

SETTLED_MS = 200
"""How old an event is before a page that follows another one has it: a later commit may still bring an earlier one."""

QUEUES_MOST = 20

JobPast = tuple[Job, Sequence[Entry], Mapping[str, Step]]
"""A job with its last entries and the reports of its workers."""

_ENDS = {"job.completed": State.COMPLETED, "job.cancelled": State.CANCELLED}
"""Events that only jobs in one state have."""

_ID = itemgetter("id")


async def list_events(call: Call) -> Response:
    """List events, oldest first: the last ones, or those after a given event."""
    ojs, query = ojs_of(call), call.query_params
    limit = call.number("limit", PAGE, most=MOST_IN_PAGE)
    types = words_in(call, "types")
    queues = [check_queue(queue) for queue in words_in(call, "queues")][:QUEUES_MOST]
    after = query.get("after", "")
    before = await ojs.engine.now() - SETTLED_MS if after else None
    shown: list[dict[str, Any]] = []
    async for found in _found(ojs, types, queues, time_in(after), JOBS_WALKED if after else JOBS_LAST):
        fit = [
            event
            for event in found
            if event["id"] > after
            and (not types or event["type"] in types)
            and (before is None or time_in(event["id"]) <= before)
        ]
        shown = nsmallest(limit, [*shown, *fit], _ID) if after else nlargest(limit, [*shown, *fit], _ID)[::-1]
    return reply({"events": shown, "next_cursor": shown[-1]["id"] if shown else after or None})


def words_in(call: Call, name: str) -> list[str]:
    """The words of a list in the query, between commas."""
    return [word for word in call.query_params.get(name, "").split(",") if word]


async def _found(
    ojs: Ojs, types: Sequence[str], queues: Sequence[str], since: Time, most: int
) -> AsyncIterator[list[dict[str, Any]]]:
    """The events since a time, page by page in no order."""
    yield await _of_queues_and_schedules(ojs, queues)
    states = tuple({_ENDS[type] for type in types}) if types and all(type in _ENDS for type in types) else ()
    async for pasts in pasts_since(ojs, states, queues, since, most):
        yield [event for past in pasts for event in events_of(*past)]


async def pasts_since(
    ojs: Ojs, states: tuple[State, ...], queues: Sequence[str], since: Time, most: int
) -> AsyncIterator[list[JobPast]]:
    """The jobs to which something may have happened since a time, with their pasts, page by page."""
    chosen: Sequence[str | None] = queues or [None]
    for queue in chosen:
        after, left = "", most
        while left > 0:
            where = Where(states=states, queue=queue, newest_first=True)
            page = await ojs.engine.find(where, after, limit=min(left, PAGE_LIMIT))
            yield await _pasts(ojs, [job for job in page if may_have_events_since(job, since)])
            if len(page) < min(left, PAGE_LIMIT):
                break
            after, left = page[-1].id, left - len(page)


async def _pasts(ojs: Ojs, jobs: Sequence[Job]) -> list[JobPast]:
    gate = asyncio.Semaphore(READS_AT_ONCE)
    reports = await ojs.remote.reports([job.id for job in jobs if job.epoch])

    async def one(job: Job) -> JobPast:
        async with gate:
            entries = await ojs.engine.history(job.id, max(0, job.version - PAST_ENTRIES))
        return job, entries, reports.get(job.id, {})

    return list(await asyncio.gather(*map(one, jobs)))


async def _of_queues_and_schedules(ojs: Ojs, queues: Sequence[str]) -> list[dict[str, Any]]:
    events = [
        event
        for queue, pause in (await _pauses(ojs)).items()
        if not queues or queue in queues
        for event in pause_events(queue, pause)
    ]
    for record in await ojs.engine.records(REFUSED):
        queue = record.name.removeprefix(REFUSED)
        if not queues or queue in queues:
            with suppress(msgspec.MsgspecError):
                events.append(refusal_event(queue, msgspec.json.decode(record.value, type=Refusal)))
    if not queues:
        for record in await ojs.engine.records(SCHEDULE):
            if (one := schedule_in(record)) is not None:
                events += schedule_events(record.name.removeprefix(SCHEDULE), one)
    return events


async def _pauses(ojs: Ojs) -> Mapping[str, QueuePause]:
    """The last pause of each queue, as far as it lasts or was ended over the Open Job Spec."""
    found: dict[str, QueuePause] = {}
    for record in await ojs.engine.records(PAUSED):
        try:
            found[record.name.removeprefix(PAUSED)] = msgspec.json.decode(record.value, type=QueuePause)
        except msgspec.MsgspecError:
            continue
    now = {queue: QueuePause(paused_at=one.at, by=one.by) for queue, one in (await ojs.jobs.pauses()).items()}
    return found | now
