"""Streams of events: of a job, of a queue or of all; of a job's progress, and of its result. Must not change anything.

The events of a job have its versions as ids, those of a queue the ids of the list of events; both increase, and a
client that comes back with `Last-Event-ID` misses none. Progress and heartbeats have no id: only the latest count.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from holdfast.core.errors import StoreError
from holdfast.core.keys import check_queue
from holdfast.core.model import SIGNAL, Entry, Event, Job, State, Step
from holdfast.core.reservations import HELD_PATH
from holdfast.engines.topics import job_topic, queue_topic
from holdfast.jobs.flows import result_text
from holdfast.jobs.remote_workers import BUILT_IN, CHECKPOINT_PATH, PROGRESS_PATH
from holdfast.server.call import Call
from holdfast.server.ojs.event_kinds import id_at, time_in
from holdfast.server.ojs.events import JOBS_WALKED, SETTLED_MS, pasts_since, words_in
from holdfast.server.ojs.problems import bad
from holdfast.server.ojs.reports import progress_of
from holdfast.server.ojs.service import Ojs, ojs_of
from holdfast.server.ojs.shapes import checkpoint_in, has_result, read_json
from holdfast.server.ojs.vocabulary import STATES, is_final, shown_state, written_time
from holdfast.server.site import GRACE_SECONDS
from holdfast.server.streams import EventStream, event

RETRY = b"retry: 3000\n\n"
"""After how many milliseconds a client comes back."""

SHUTDOWN = event({"reason": "shutdown", "grace_period_ms": 1_000 * GRACE_SECONDS}, name="server.shutdown")
"""What a client hears before its stream ends because the server stops: it comes back, perhaps to another one."""

LOOK_SECONDS, WAIT_SECONDS = 0.5, 5.0
"""How often an active job is looked at, because reports wake nobody, and how often one that waits."""

QUEUE_SECONDS = 0.5
"""How long to wait between two looks at a queue; at least LOOK_SHARE times as long as the last one took."""

LOOK_SHARE = 5

AWAY_SECONDS = 1.0
"""How long to wait while the store is away."""

_REPORTS = {HELD_PATH: "job.heartbeat", PROGRESS_PATH: "job.progress", CHECKPOINT_PATH: "job.checkpointed"}


class _Follower:
    """What one client of a job's events has seen, and which kinds of events it wants."""

    def __init__(self, types: Collection[str], version: int) -> None:
        self._types = types
        self.version = version
        self._reported: dict[str, int] = {}

    def changes(self, job: Job, entries: Sequence[Entry]) -> Iterator[bytes]:
        """The changes that it hasn't seen."""
        for entry in entries:
            self.version = entry.version
            if entry.event != SIGNAL and self._wants("job.state_changed"):
                yield event(_change(job, entry), name="job.state_changed", id=entry.version)

    def reports(self, job: Job, reports: Mapping[str, Step]) -> Iterator[bytes]:
        """The reports of the present attempt that it hasn't seen."""
        for path, name in _REPORTS.items():
            step = reports.get(path)
            if step is None or step.epoch != job.epoch or self._reported.get(path) == step.started_at:
                continue
            self._reported[path] = step.started_at
            if self._wants(name) and (data := _reported(job, path, step)) is not None:
                yield event(data, name=name)

    def _wants(self, name: str) -> bool:
        return not self._types or name in self._types


def _change(job: Job, entry: Entry) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "queue": job.queue,
        "type": job.type,
        "from": None if entry.before is None else STATES[entry.before],
        "to": STATES[entry.after],
        "timestamp": written_time(entry.at),
    }


def _reported(job: Job, path: str, step: Step) -> dict[str, Any] | None:
    about = {"job_id": job.id, "queue": job.queue, "type": job.type, "timestamp": written_time(step.started_at)}
    if path == HELD_PATH:
        return {**about, "worker_id": job.worker}
    if path == CHECKPOINT_PATH:
        saved = checkpoint_in(step)
        return None if saved is None else {**about, "sequence": saved["sequence"]}
    told = read_json(step.result)
    if not isinstance(told, dict):
        return None
    share = told.get("progress")
    return {
        **about,
        "progress": None if share is None else round(100 * share),
        "message": told.get("message") or None,
        "data": told.get("data"),
    }


# Handlers.


async def job_events(call: Call) -> Response:
    """Stream the changes and reports of a job until it has ended."""
    ojs, id = ojs_of(call), call.path_params["id"]
    await ojs.job(id)
    return EventStream(call, _job_events(call, ojs, id), goodbye=SHUTDOWN)


async def queue_events(call: Call) -> Response:
    """Stream the changes of the jobs of a queue."""
    return EventStream(call, _queue_events(call, ojs_of(call), check_queue(call.path_params["name"])), goodbye=SHUTDOWN)


async def channel_events(call: Call) -> Response:
    """Stream what `channel` names: `job:ID`, `queue:NAME` or `all`."""
    ojs = ojs_of(call)
    kind, _, name = call.query_params.get("channel", "all").partition(":")
    if kind == "job":
        await ojs.job(name)
        return EventStream(call, _job_events(call, ojs, name), goodbye=SHUTDOWN)
    if kind == "queue":
        return EventStream(call, _queue_events(call, ojs, check_queue(name)), goodbye=SHUTDOWN)
    if kind != "all" or name:
        raise bad("channel", "give job:ID, queue:NAME or all")
    return EventStream(call, _queue_events(call, ojs, None), goodbye=SHUTDOWN)


async def progress_stream(call: Call) -> Response:
    """Stream the progress of a job, then how it ended."""
    ojs, id = ojs_of(call), call.path_params["id"]
    await ojs.job(id)
    return EventStream(call, _until_end(ojs, id, lambda job: progress_of(ojs, job)), goodbye=SHUTDOWN)


async def result_stream(call: Call) -> Response:
    """Wait for the end of a job, and stream it with its result."""
    ojs, id = ojs_of(call), call.path_params["id"]
    await ojs.job(id)
    return EventStream(call, _until_end(ojs, id, None), goodbye=SHUTDOWN)


# What they send.


async def _job_events(call: Call, ojs: Ojs, id: str) -> AsyncIterator[bytes]:
    yield RETRY
    given = call.heads.get("last-event-id", "")
    known = int(given) if given.isascii() and given.isdigit() and len(given) < 18 else 0
    if given and not known:
        yield event({"reason": "the id of the last event isn't known"}, name="system.gap")
    follower = _Follower(words_in(call, "event_types"), known)
    async for job in _looks(ojs, id):
        reports = (await ojs.remote.reports([id]))[id]
        while page := await ojs.engine.history(id, follower.version):
            for chunk in follower.changes(job, page):
                yield chunk
        for chunk in follower.reports(job, reports):
            yield chunk
        if is_final(job) and follower.version >= job.version:
            return


async def _looks(ojs: Ojs, id: str) -> AsyncIterator[Job]:
    """The job as it is now, again and again."""
    mark = 0
    while True:
        try:
            job, _ = await ojs.job(id)
            yield job
            seconds = LOOK_SECONDS if job.state is State.ACTIVE else WAIT_SECONDS
            mark = await ojs.engine.wait([job_topic(id)], seconds, mark)
        except StoreError:
            await asyncio.sleep(AWAY_SECONDS)


async def _queue_events(call: Call, ojs: Ojs, queue: str | None) -> AsyncIterator[bytes]:
    yield RETRY
    types = words_in(call, "event_types")
    after = call.heads.get("last-event-id", "")
    if after and not time_in(after):
        yield event({"reason": "the id of the last event isn't known"}, name="system.gap")
    if not time_in(after):
        after = id_at(await ojs.engine.now(), "")
    mark = 0
    while True:
        began = time.monotonic()
        try:
            for id, data in await _changes_since(ojs, queue, after):
                after = id
                if not types or "job.state_changed" in types:
                    yield event(data, name="job.state_changed", id=id)
            pause = max(QUEUE_SECONDS, LOOK_SHARE * (time.monotonic() - began))
            await asyncio.sleep(pause)
            if queue is not None:
                mark = await ojs.engine.wait([queue_topic(queue)], QUEUE_SECONDS, mark)
        except StoreError:
            await asyncio.sleep(AWAY_SECONDS)


async def _changes_since(ojs: Ojs, queue: str | None, after: str) -> list[tuple[str, dict[str, Any]]]:
    """The changes of a queue's jobs after an event, in the order of their ids."""
    until = id_at(await ojs.engine.now() - SETTLED_MS, "")
    found: list[tuple[str, dict[str, Any]]] = []
    async for pasts in pasts_since(ojs, (), [] if queue is None else [queue], time_in(after), JOBS_WALKED):
        for job, entries, _ in pasts:
            if job.type.startswith(BUILT_IN):
                continue
            for entry in entries:
                id = id_at(entry.at, f"{job.id}_{entry.version:06d}")
                if after < id < until and entry.event != SIGNAL and entry.event != Event.DISCARD:
                    found.append((id, _change(job, entry)))
    return sorted(found, key=lambda one: one[0])


async def _until_end(ojs: Ojs, id: str, tell: Callable[[Job], Any] | None) -> AsyncIterator[bytes]:
    """What `tell` says of a job whenever that changes, then how the job ended."""
    yield RETRY
    said: Any = None
    async for job in _looks(ojs, id):
        if tell is not None and (now := await tell(job)) != said:
            said = now
            yield event(said, name="progress")
        if is_final(job):
            at = await ojs.engine.now()
            result = read_json(await result_text(ojs.engine, job)) if has_result(job, at) else None
            state = shown_state(job, at)
            name = "failed" if state == "discarded" else state
            yield event({"job_id": id, "state": state, "result": result}, name=name)
            return
