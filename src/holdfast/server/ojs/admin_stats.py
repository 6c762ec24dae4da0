"""Totals over the Open Job Spec, now and in the past: counts, throughput, latencies. Must not know how a job runs.

Nothing is stored for them: they are read from the jobs that were submitted last, and their histories.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from starlette.responses import Response

from holdfast.core.keys import check_queue
from holdfast.core.model import Entry, Event, Job, State, Time, Where
from holdfast.jobs.remote_workers import BUILT_IN
from holdfast.server.call import Call
from holdfast.server.ojs.admin_workers import all_workers
from holdfast.server.ojs.dead_letters import count_dead
from holdfast.server.ojs.events import pasts_since
from holdfast.server.ojs.problems import bad
from holdfast.server.ojs.queues import all_states, known_queues
from holdfast.server.ojs.service import READS_AT_ONCE, Ojs, ojs_of, reply
from holdfast.server.ojs.vocabulary import read_time, written_time

PERIODS: Mapping[str, int] = {"1m": 60_000, "5m": 300_000, "1h": 3_600_000, "1d": 86_400_000}
"""The periods in which the past can be counted."""

MOST_PERIODS = 1_500
"""How many periods one answer has at most."""

SINCE_MS = 3_600_000
"""How far back to count, unless the request says so."""

HISTORY_JOBS = 5_000
"""From how many of the last jobs the past is counted."""

RECENT_JOBS = 1_000
"""From how many of the last jobs the throughput is counted."""

SAMPLE = 50
"""From how many of the last jobs the latencies of a queue are made."""

_FAILURES = (Event.EXHAUST, Event.ABANDON)
_STARTED = time.monotonic()


class Period(Struct):
    """What happened in one period: how many jobs came, completed and failed for good, and how long they ran."""

    enqueued: int = 0
    processed: int = 0
    failed: int = 0
    ran_ms: list[int] = field(default_factory=list)


async def stats(call: Call) -> Response:
    """Count everything."""
    ojs = ojs_of(call)
    counts, _ = await known_queues(ojs)
    jobs = all_states({})
    for one in counts.values():
        for state, count in one.items():
            jobs[state] += count
    return reply({
        "queues": len(counts),
        "workers": len(await all_workers(ojs)),
        "jobs": jobs,
        "throughput": await throughput(ojs, None),
        "dead_letter": await count_dead(ojs),
        "uptime_seconds": round(time.monotonic() - _STARTED),
    })  # fmt: skip


async def throughput(ojs: Ojs, queue: str | None) -> dict[str, int]:
    """How many jobs completed and failed in the last minute, as far as the jobs submitted last tell."""
    since = await ojs.engine.now() - 60_000
    done = await ojs.engine.find(Where(states=(State.COMPLETED,), queue=queue, newest_first=True), limit=RECENT_JOBS)
    dead = await ojs.engine.find(Where(states=(State.REVIEW,), queue=queue, newest_first=True), limit=RECENT_JOBS)
    young = sum(job.created_at >= since for job in dead)
    last = await _lasts(ojs, [job for job in dead if job.created_at < since][:SAMPLE])
    return {
        "processed_per_minute": sum((job.finished_at or 0) >= since for job in done),
        "failed_per_minute": young + sum(entries[-1].at >= since for entries in last),
    }


async def latencies(ojs: Ojs, queue: str) -> dict[str, int | None]:
    """How long the last attempts of the jobs of a queue ran that completed last."""
    done = await ojs.engine.find(Where(states=(State.COMPLETED,), queue=queue, newest_first=True), limit=SAMPLE)
    ran = sorted(entries[1].at - entries[0].at for entries in await _lasts(ojs, done) if len(entries) == 2)
    return {f"p{share}": _share(ran, share) for share in (50, 95, 99)}


async def _lasts(ojs: Ojs, jobs: Sequence[Job]) -> list[Sequence[Entry]]:
    """The last two entries of the histories of these jobs."""
    gate = asyncio.Semaphore(READS_AT_ONCE)

    async def one(job: Job) -> Sequence[Entry]:
        async with gate:
            return await ojs.engine.history(job.id, max(0, job.version - 2))

    return [entries for entries in await asyncio.gather(*map(one, jobs)) if entries]


def _share(ordered: Sequence[int], share: int) -> int | None:
    """The smallest value that so many of a hundred don't exceed."""
    return ordered[-(-len(ordered) * share // 100) - 1] if ordered else None


async def stats_history(call: Call) -> Response:
    """Count what happened in each period of a time, as far as the jobs submitted last tell."""
    ojs, query = ojs_of(call), call.query_params
    name = query.get("period", "5m")
    if name not in PERIODS:
        raise bad("period", f"give one of {', '.join(PERIODS)}")
    now, length = await ojs.engine.now(), PERIODS[name]
    until = read_time("until", query["until"], now) if "until" in query else now
    since = read_time("since", query["since"], now) if "since" in query else until - SINCE_MS
    if until < since or (until - since) // length >= MOST_PERIODS:
        raise bad("since", f"give a time before until, and at most {MOST_PERIODS:,} periods before it")
    queues = [check_queue(query["queue"])] if "queue" in query else []
    first = since - since % length
    periods = {at: Period() for at in range(first, until + 1, length)}
    async for pasts in pasts_since(ojs, (), queues, first, HISTORY_JOBS):
        for job, entries, _ in pasts:
            if not job.type.startswith(BUILT_IN):
                _count(periods, entries, length)
    return reply({"period": name, "data": [_shown(at, one) for at, one in periods.items()]})


def _count(periods: Mapping[Time, Period], entries: Sequence[Entry], length: int) -> None:
    """Count what happened to one job, each entry in its period."""
    started = None
    for entry in entries:
        started = entry.at if entry.event == Event.CLAIM else started
        period = periods.get(entry.at - entry.at % length)
        if period is None:
            continue
        period.enqueued += entry.event == Event.SUBMIT
        period.failed += entry.event in _FAILURES
        if entry.event == Event.COMPLETE:
            period.processed += 1
            if started is not None:
                period.ran_ms.append(max(0, entry.at - started))


def _shown(at: Time, one: Period) -> dict[str, Any]:
    ran = sorted(one.ran_ms)
    return {
        "timestamp": written_time(at),
        "processed": one.processed,
        "failed": one.failed,
        "enqueued": one.enqueued,
        "latency_p50_ms": _share(ran, 50),
        "latency_p99_ms": _share(ran, 99),
    }
