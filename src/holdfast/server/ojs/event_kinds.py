"""Events, made of what the store knows anyway: histories, reports of workers, schedules, pauses. Must not read a store.

The id of an event begins with its time, so that events sort by their ids.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.core.keys import digest
from holdfast.core.model import SIGNAL, Entry, Event, Job, State, Step, Time
from holdfast.core.reservations import HELD_PATH
from holdfast.core.schedules import Schedule
from holdfast.jobs.flows import FLOW_TYPE, is_member
from holdfast.jobs.remote_workers import BUILT_IN, CHECKPOINT_PATH, PROGRESS_PATH
from holdfast.jobs.room import SHED
from holdfast.server.ojs.shapes import checkpoint_in, read_json
from holdfast.server.ojs.vocabulary import STATES, VERSION, written_time

SOURCE = "ojs://holdfast"

_ENQUEUED = ("job.enqueued",)
_AGAIN = ("job.failed", "job.retrying")
_GIVEN_UP = ("job.failed", "job.discarded")

TYPES: dict[str, tuple[str, ...]] = {
    Event.PROMOTE: _ENQUEUED,
    Event.ACTIVATE: _ENQUEUED,
    Event.RELEASE: _ENQUEUED,
    Event.REPLAY: _ENQUEUED,
    Event.LAPSE: _ENQUEUED,
    Event.CLAIM: ("job.started",),
    Event.COMPLETE: ("job.completed",),
    Event.RESOLVE: ("job.completed",),
    Event.FAIL: _AGAIN,
    Event.OVERRUN: _AGAIN,
    Event.EXHAUST: _GIVEN_UP,
    Event.ABANDON: _GIVEN_UP,
    Event.CANCEL: ("job.cancelled",),
    Event.EXPIRE: ("job.expired", "job.discarded"),
    Event.REST: ("job.scheduled",),
}
"""What an entry of a history means to those who listen. Discarding what looked discarded before is no event."""

FLOW_TYPES: dict[str, str] = {
    Event.SUBMIT: "workflow.started",
    Event.COMPLETE: "workflow.completed",
    Event.RESOLVE: "workflow.completed",
    Event.EXHAUST: "workflow.failed",
    Event.ABANDON: "workflow.failed",
    Event.CANCEL: "workflow.cancelled",
}


class Refusal(Struct, frozen=True, kw_only=True):
    """A submit that a full queue refused: when, how deep the queue was, its bound, and the type of the job."""

    at: Time
    depth: int
    bound: int
    type: str


class QueuePause(Struct, frozen=True, kw_only=True):
    """A pause of a queue; `resumed_at` is None while it lasts."""

    paused_at: Time
    resumed_at: Time | None = None
    by: str = ""


def _event(at: Time, key: str, type: str, subject: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "specversion": VERSION,
        "id": id_at(at, key),
        "type": type,
        "source": SOURCE,
        "time": written_time(at),
        "subject": subject,
        "data": data,
    }


def id_at(at: Time, key: str) -> str:
    """The id of an event of this time; with no key, an id before all others of that time."""
    return f"evt_{at:013d}_{key}"


def time_in(id: str) -> Time:
    """The time at which the id of an event begins; 0 if it is no such id."""
    digits = id[4:17]
    return int(digits) if id.startswith("evt_") and digits.isascii() and digits.isdigit() else 0


def may_have_events_since(job: Job, since: Time) -> bool:
    """Whether a job may have events from this time on, as far as the job itself tells."""
    if job.finished_at is not None:
        return job.finished_at >= since
    return job.version > 1 or job.created_at >= since


# Jobs and workflows.


def events_of(job: Job, entries: Sequence[Entry], reports: Mapping[str, Step]) -> Iterator[dict[str, Any]]:
    """The events of one job, or of the workflow that it runs. Our other built-in jobs have none."""
    if job.type == FLOW_TYPE:
        yield from _flow_events(job, entries)
    elif not job.type.startswith(BUILT_IN):
        yield from _entry_events(job, entries)
        yield from _report_events(job, entries, reports)


def _about(job: Job) -> dict[str, Any]:
    return {"job_id": job.id, "job_type": job.type, "queue": job.queue}


def _entry_events(job: Job, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    started = None
    attempt = 0
    for entry in entries:
        if entry.event == Event.CLAIM:
            started, attempt = entry.at, attempt + 1
        key = f"{job.id}_{entry.version:06d}"
        for number, type in enumerate(_types(entry)):
            data: dict[str, Any] = {
                **_about(job),
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
            yield _event(entry.at, f"{key}_{number}", type, job.id, data)
        if entry.event == Event.CANCEL and str(entry.note.get("reason", "")).startswith(SHED):
            yield _event(entry.at, f"{key}_8", "backpressure.dropped", job.id, _about(job))
        if entry.event == Event.COMPLETE and is_member(job) and job.parent is not None:
            told = {"workflow_id": job.parent, **_about(job)}
            yield _event(entry.at, f"{key}_9", "workflow.step_completed", job.parent, told)


def _types(entry: Entry) -> tuple[str, ...]:
    if entry.event == Event.SUBMIT:
        return ("job.scheduled",) if entry.after is State.SCHEDULED else _ENQUEUED
    if entry.event == Event.DISCARD:
        return () if entry.before is State.REVIEW else ("job.discarded",)
    if entry.event == SIGNAL:
        return ("job.checkpointed",) if _notes_a_checkpoint(entry) else ()
    return TYPES.get(entry.event, ())


def _notes_a_checkpoint(entry: Entry) -> bool:
    return entry.event == SIGNAL and "checkpoint saved" in str(entry.note.get("report", ""))


def _report_events(job: Job, entries: Sequence[Entry], reports: Mapping[str, Step]) -> Iterator[dict[str, Any]]:
    """What the worker last reported: only the latest report of each kind is known."""
    noted = {entry.at for entry in entries if _notes_a_checkpoint(entry)}
    for path, step in reports.items():
        data, key = _about(job), f"{job.id}_r_{path.rpartition('/')[2]}"
        if path == HELD_PATH:
            yield _event(step.started_at, key, "job.heartbeat", job.id, data)
        elif path == PROGRESS_PATH and isinstance(told := read_json(step.result), dict):
            share = told.get("progress")
            percentage = None if share is None else round(100 * share)
            more = {"progress": share, "percentage": percentage, "message": told.get("message")}
            yield _event(step.started_at, key, "job.progress", job.id, {**data, **more})
        elif path == CHECKPOINT_PATH and step.started_at not in noted and (saved := checkpoint_in(step)) is not None:
            data["sequence"] = saved["sequence"]
            yield _event(step.started_at, key, "job.checkpointed", job.id, data)


def _flow_events(job: Job, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        if (type := FLOW_TYPES.get(entry.event)) is not None:
            yield _event(entry.at, f"{job.id}_{entry.version:06d}_0", type, job.id, {"workflow_id": job.id})


# Schedules and queues.


def schedule_events(name: str, one: Schedule) -> Iterator[dict[str, Any]]:
    """The last tick of a schedule that had a job, and the last one that had none."""
    key = f"cron_{digest(name)[:16]}"
    if one.tick is not None:
        data = {"cron_name": name, "job_id": one.job or None, "job_type": one.definition.job.type}
        yield _event(one.tick, f"{key}_0", "cron.triggered", name, data)
    if one.skipped and one.after > (one.tick or 0):
        yield _event(one.after, f"{key}_1", "cron.skipped", name, {"cron_name": name, "skipped_count": one.skipped})


def refusal_event(queue: str, refusal: Refusal) -> dict[str, Any]:
    """The last submit that a queue had no room for."""
    data = {"queue": queue, "depth": refusal.depth, "bound": refusal.bound, "job_type": refusal.type}
    return _event(refusal.at, f"queue_{queue}_2", "backpressure.rejected", queue, data)


def pause_events(queue: str, pause: QueuePause) -> Iterator[dict[str, Any]]:
    """The last pause of a queue, and its end."""
    key, data = f"queue_{queue}", {"queue": queue, "by": pause.by}
    yield _event(pause.paused_at, f"{key}_0", "queue.paused", queue, data)
    if pause.resumed_at is not None:
        yield _event(pause.resumed_at, f"{key}_1", "queue.resumed", queue, data)
