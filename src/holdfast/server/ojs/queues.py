"""Queues: list, count, pause and resume. Must not know jobs."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.core.keys import check_queue
from holdfast.core.model import Where
from holdfast.jobs.built_in import OWN_QUEUE
from holdfast.jobs.pauses import Pause
from holdfast.server.call import Call
from holdfast.server.ojs.event_kinds import QueuePause
from holdfast.server.ojs.service import MOST_IN_PAGE, PAGE, Ojs, offset_of, ojs_of, page_of, reply
from holdfast.server.ojs.vocabulary import STATES, written_time

PAUSED = "ojs/paused/"
"""A record `ojs/paused/NAME` has the last pause of a queue that was ended here; for the list of events."""

WAITING = ("available", "scheduled", "retryable")
_STATES = tuple(dict.fromkeys(STATES.values()))


async def counts_of(ojs: Ojs) -> dict[str, Counter[str]]:
    """How many jobs each queue has in each of their states. Our own queue is left out."""
    found: dict[str, Counter[str]] = {}
    for (queue, state), count in (await ojs.engine.count()).items():
        if queue != OWN_QUEUE:
            found.setdefault(queue, Counter())[STATES[state]] += count
    return found


async def known_queues(ojs: Ojs) -> tuple[dict[str, Counter[str]], Mapping[str, Pause]]:
    """All queues that have jobs or are paused, with their counts, and the pauses."""
    counts, pauses = await counts_of(ojs), await ojs.jobs.pauses()
    for queue in pauses:
        counts.setdefault(queue, Counter())
    return dict(sorted(counts.items())), pauses


def all_states(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of all states, with zeros."""
    return {state: counts.get(state, 0) for state in _STATES}


async def created(ojs: Ojs, queue: str) -> str | None:
    """When the oldest job that the queue still has was submitted."""
    oldest = await ojs.engine.find(Where(queue=queue), limit=1)
    return written_time(oldest[0].created_at) if oldest else None


async def list_queues(call: Call) -> Response:
    """List the queues."""
    ojs = ojs_of(call)
    limit, offset = call.number("limit", PAGE, most=MOST_IN_PAGE), offset_of(call)
    counts, pauses = await known_queues(ojs)
    names = list(counts)[offset : offset + limit]
    now = written_time(await ojs.engine.now())
    shown = [
        {"name": name, "status": _status(name, pauses), "created_at": await created(ojs, name) or now} for name in names
    ]
    return reply({"queues": shown, "pagination": page_of(shown, limit, offset, len(counts))})


def _status(queue: str, pauses: Mapping[str, Pause]) -> str:
    return "paused" if queue in pauses else "active"


async def queue_stats(call: Call) -> Response:
    """Count the jobs of a queue."""
    ojs, name = ojs_of(call), check_queue(call.path_params["name"])
    counts, pauses = await known_queues(ojs)
    mine = all_states(counts.get(name, {}))
    depth = sum(mine[state] for state in WAITING)
    is_paused = name in pauses
    return reply({
        "queue": {"name": name, "status": _status(name, pauses), "paused": is_paused, "depth": depth, **mine},
        "status": _status(name, pauses),
        "stats": {"queue": name, "depth": depth, **mine},
        "computed_at": written_time(await ojs.engine.now()),
    })  # fmt: skip


async def pause_queue(call: Call) -> Response:
    """Pause a queue: nothing is fetched from it."""
    return reply(await set_paused(call, True))


async def resume_queue(call: Call) -> Response:
    """Resume a queue."""
    return reply(await set_paused(call, False))


async def set_paused(call: Call, paused: bool) -> dict[str, Any]:
    """Pause or resume the queue that the path names."""
    ojs, name = ojs_of(call), check_queue(call.path_params["name"])
    if paused:
        await ojs.jobs.pause(name, by=call.by)
    else:
        before = (await ojs.jobs.pauses()).get(name)
        await ojs.jobs.resume(name)
        if before is not None:
            pause = QueuePause(paused_at=before.at, resumed_at=await ojs.engine.now(), by=call.by)
            await ojs.engine.put_record(PAUSED + name, msgspec.json.encode(pause).decode())
    status = "paused" if paused else "active"
    at = written_time(await ojs.engine.now())
    when = "paused_at" if paused else "resumed_at"
    return {"queue": {"name": name, "paused": paused, "status": status}, "status": status, when: at}


def waiting(counts: Mapping[str, int]) -> int:
    """How many jobs of a queue wait."""
    return sum(counts.get(state, 0) for state in WAITING)
