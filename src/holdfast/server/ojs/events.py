"""Events, made of the histories of jobs: nothing is stored for them. Must not change anything.

So every server of a store tells the same events, also those of workers that don't work over HTTP. The list covers the
jobs that were submitted last (JOBS_READ).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.responses import Response

from holdfast.core.keys import check_queue
from holdfast.core.model import SIGNAL, Entry, Event, Job, State, Where
from holdfast.server.call import Call
from holdfast.server.ojs.service import MOST_IN_PAGE, PAGE, Ojs, ojs_of, reply
from holdfast.server.ojs.shapes import PAST_ENTRIES
from holdfast.server.ojs.vocabulary import STATES, written_time

JOBS_READ = 500
"""How many jobs one list of events looks at."""

SOURCE = "ojs://holdfast"

TYPES: dict[str, tuple[str, ...]] = {
    Event.PROMOTE: ("job.enqueued",),
    Event.ACTIVATE: ("job.enqueued",),
    Event.RELEASE: ("job.enqueued",),
    Event.REPLAY: ("job.enqueued",),
    Event.LAPSE: ("job.enqueued",),
    Event.CLAIM: ("job.started",),
    Event.COMPLETE: ("job.completed",),
    Event.RESOLVE: ("job.completed",),
    Event.FAIL: ("job.failed", "job.retrying"),
    Event.OVERRUN: ("job.failed", "job.retrying"),
    Event.EXHAUST: ("job.failed", "job.discarded"),
    Event.ABANDON: ("job.failed", "job.discarded"),
    Event.DISCARD: ("job.discarded",),
    Event.CANCEL: ("job.cancelled",),
    Event.EXPIRE: ("job.expired", "job.discarded"),
    Event.REST: ("job.scheduled",),
}
_ENDS = {"job.completed": State.COMPLETED, "job.cancelled": State.CANCELLED}
"""Events that only jobs in one state have."""


async def list_events(call: Call) -> Response:
    """List events, oldest first: the last ones, or those after a given event."""
    ojs, query = ojs_of(call), call.query_params
    limit = call.number("limit", PAGE, most=MOST_IN_PAGE)
    types = _words(query.get("types", ""))
    queues = [check_queue(queue) for queue in _words(query.get("queues", ""))][:20]
    after = query.get("after", "")
    jobs = await _jobs(ojs, types, queues)
    events = sorted(
        (event for job, entries in jobs for event in events_of(job, entries)), key=lambda event: str(event["id"])
    )
    events = [event for event in events if not types or event["type"] in types]
    shown = [event for event in events if event["id"] > after][:limit] if after else events[-limit:]
    return reply({"events": shown, "next_cursor": shown[-1]["id"] if shown else after or None})


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


async def _jobs(ojs: Ojs, types: Sequence[str], queues: Sequence[str]) -> Iterable[tuple[Job, Sequence[Entry]]]:
    states = tuple({_ENDS[type] for type in types}) if types and all(type in _ENDS for type in types) else ()
    found: list[Job] = []
    wheres = [Where(states=states, queue=queue, newest_first=True) for queue in queues]
    for where in wheres or [Where(states=states, newest_first=True)]:
        found += await ojs.engine.find(where, limit=JOBS_READ)
    return [(job, await ojs.engine.history(job.id, max(0, job.version - PAST_ENTRIES))) for job in found[:JOBS_READ]]


def events_of(job: Job, entries: Sequence[Entry]) -> Iterable[dict[str, Any]]:
    """The events of one job, in their order."""
    started = None
    attempt = 0
    for entry in entries:
        if entry.event == Event.CLAIM:
            started, attempt = entry.at, attempt + 1
        for number, type in enumerate(_types(entry)):
            data: dict[str, Any] = {
                "job_id": job.id,
                "job_type": job.type,
                "queue": job.queue,
                "attempt": attempt,
                "from": None if entry.before is None else STATES[entry.before],
                "to": STATES[entry.after],
            }
            if entry.before is State.ACTIVE and started is not None:
                data["duration_ms"] = max(0, entry.at - started)
            if "error" in entry.note:
                data["error"] = str(entry.note["error"])
            if entry.event == Event.FAIL and "delay_ms" in entry.note:
                data["retry_delay_ms"] = entry.note["delay_ms"]
            yield {
                "specversion": "1.0",
                "id": f"evt_{entry.at:013d}_{job.id}_{entry.version:06d}_{number}",
                "type": type,
                "source": SOURCE,
                "time": written_time(entry.at),
                "subject": job.id,
                "data": data,
            }


def _types(entry: Entry) -> tuple[str, ...]:
    if entry.event == Event.SUBMIT:
        return ("job.scheduled",) if entry.after is State.SCHEDULED else ("job.enqueued",)
    if entry.event == SIGNAL:
        return ("job.checkpointed",) if "checkpoint saved" in str(entry.note.get("report", "")) else ()
    return TYPES.get(entry.event, ())
