"""A job as the Open Job Spec shows it, made of our job, its history and what its worker reported.

Must not touch a store. Fields without a value are left out. Their `attempt` is ours plus the recoveries; it is 0 before
the first run, while ours begins at 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.core.codec import parse
from holdfast.core.errors import Invalid
from holdfast.core.keys import digest
from holdfast.core.model import Entry, Event, Job, Lease, State, Step, Time
from holdfast.core.reservations import holder_of
from holdfast.jobs.remote_workers import CHECKPOINT_PATH, FAILURE
from holdfast.server.ojs.envelope import Kept, kept_of, result_ttl_ms
from holdfast.server.ojs.policies import written_retry
from holdfast.server.ojs.vocabulary import STATES, VERSION, is_final, shown_state, written_time

PAST_ENTRIES = 200
"""How many of a job's last history entries count for what is shown."""

CHECKPOINT_MORE = ("step_index", "metadata")
"""What a checkpoint may have beside its state."""

REPLAY_COUNT = "ojs.replay_count"
"""The entry of meta that says how often a job was run again from the dead letter queue."""

_FAILURES = frozenset({Event.FAIL, Event.EXHAUST, Event.OVERRUN, Event.ABANDON, Event.LAPSE})
_READY = frozenset({Event.PROMOTE, Event.ACTIVATE, Event.LAPSE, Event.RELEASE, Event.REPLAY})


class Past(Struct, frozen=True):
    """What is known of a job's past: its last entries, and the reports of its workers."""

    entries: Sequence[Entry] = ()
    reports: Mapping[str, Step] = {}


NOTHING = Past()


def needs_past(job: Job) -> bool:
    """Whether a job has a past to read: it ran, or changed since it was submitted."""
    return job.version > 1


def is_fresh_claim(job: Job) -> bool:
    """Whether nothing has happened to a claimed job before this claim."""
    return job.epoch == 1 and job.version == 2


def shown_job(job: Job, past: Past, now: Time, *, is_claim: bool = False) -> dict[str, Any]:
    """Return a job as the specification shows it. With `is_claim`, its worker gets the lease token."""
    kept = kept_of(job.options)
    shown: dict[str, Any] = dict(kept.fields)
    shown |= _submitted(job, kept)
    shown |= _present(job, past, now)
    if not past.entries and not past.reports and not job.claimed_at:  # as every job that was just submitted
        is_ready = job.version == 1 and job.state is State.AVAILABLE
        shown |= {"enqueued_at": shown["created_at"] if is_ready else None, **_ends(job, ())}
    else:
        shown |= _past(job, past)
    if replays := sum(entry.event == Event.REPLAY for entry in past.entries):
        shown["meta"] = {**shown["meta"], REPLAY_COUNT: replays}
    if is_claim:
        shown["lease_token"] = lease_token(job.lease)
    return {name: value for name, value in shown.items() if value is not None}


def lease_token(lease: Lease) -> str:
    """The token that names a lease: what its holder shows with every write."""
    return f"{lease.epoch}-{digest(lease.job, str(lease.epoch))[:16]}"


def epoch_in(token: object, job: str) -> int | None:
    """Read the epoch of a lease token for this job; None if it is no such token."""
    if not isinstance(token, str):
        return None
    number = token.partition("-")[0]
    if not (number.isascii() and number.isdigit() and len(number) < 12):
        return None
    epoch = int(number)
    return epoch if token == lease_token(Lease(job, epoch)) else None


def _submitted(job: Job, kept: Kept) -> dict[str, Any]:
    retry = {**written_retry(job.options.retry), **(kept.options.get("retry") or {})}
    options = {name: kept.options.get(name) for name in kept.options if name not in ("retry", "pending")}
    return {
        **options,
        "specversion": VERSION,
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "args": shown_args(job.args),
        "meta": dict(kept.meta),
        "priority": job.priority,
        "timeout_ms": job.options.timeout_ms,
        "tags": list(job.options.tags) or None,
        "retry": retry,
        "max_attempts": retry["max_attempts"],
        "scheduled_at": kept.options.get("scheduled_at") or kept.options.get("delay_until"),
        "expires_at": kept.options.get("expires_at") or written_time(job.expires_at),
        "created_at": written_time(job.created_at),
    }


def shown_args(text: str) -> Any:
    """The arguments as an array; text that can't be read stays text."""
    value = read_json(text)
    return value if isinstance(value, list) else [value]


def read_json(text: str | None) -> Any:
    """A stored value; one that can't be read is shown as text."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        try:
            return parse(text)
        except Invalid:
            return text


def _present(job: Job, past: Past, now: Time) -> dict[str, Any]:
    state = shown_state(job, now)
    waits = job.state in (State.SCHEDULED, State.RETRYABLE)
    return {
        "state": state,
        "attempt": attempts(job, past.entries),
        "result": read_json(job.result) if has_result(job, now) else None,
        "worker_id": worker_of(job) or None,
        "next_attempt_at": written_time(job.run_at) if job.state is State.RETRYABLE else None,
        **({"scheduled_at": written_time(job.run_at)} if waits and job.state is State.SCHEDULED else {}),
    }


def worker_of(job: Job) -> str:
    """What the worker that has a job calls itself; "" if nobody has it, or its worker has no name."""
    holder = holder_of(job.worker)
    return holder.name if holder is not None else job.worker or ""


def result_expires_at(job: Job) -> Time | None:
    """When the result of a completed job can no longer be read; None if it is kept forever."""
    ttl = result_ttl_ms(kept_of(job.options).options)
    return job.prune_at if ttl is None or job.finished_at is None else job.finished_at + ttl


def has_result(job: Job, now: Time) -> bool:
    """Whether a job has a result that can still be read."""
    if job.state is not State.COMPLETED:
        return False
    until = result_expires_at(job)
    return until is None or now < until


def attempts(job: Job, entries: Sequence[Entry]) -> int:
    """How often the job has started, as the specification counts."""
    last = entries[-1] if entries else None
    runs = job.state is State.ACTIVE or (
        last is not None
        and last.before is State.ACTIVE
        and (last.event in (Event.COMPLETE, Event.ABANDON, Event.CANCEL))
    )
    return max(0, job.attempt - 1 + job.recoveries + runs)


def _past(job: Job, past: Past) -> dict[str, Any]:
    entries = since_replay(past.entries)
    claims = [entry.at for entry in entries if entry.event == Event.CLAIM]
    ready = [entry.at for entry in past.entries if entry.event in _READY]
    if not past.entries and (is_fresh_claim(job) or (job.version == 1 and job.state is State.AVAILABLE)):
        ready = [job.created_at]
    if not ready and past.entries and past.entries[0].after is State.AVAILABLE:
        ready = [past.entries[0].at]
    errors = errors_of(entries)
    checkpoint = checkpoint_in(past.reports.get(CHECKPOINT_PATH))
    started = written_time(job.claimed_at or (claims[-1] if claims else None))
    return {
        "enqueued_at": written_time(ready[-1] if ready else None),
        "started_at": started,
        "activated_at": _at(entries, Event.ACTIVATE),
        "error": errors[-1] if errors and job.state is not State.COMPLETED else None,
        "errors": errors or None,
        "retry_delay_ms": _retry_delay_ms(job, entries),
        "checkpoint": checkpoint,
        **_ends(job, past.entries),
    }


def _retry_delay_ms(job: Job, entries: Sequence[Entry]) -> int | None:
    """How long the job waits, or has waited, between its last failure and its next attempt."""
    failed = next((entry for entry in reversed(entries) if entry.event in (Event.FAIL, Event.OVERRUN)), None)
    if failed is None or "delay_ms" in failed.note:
        return None if failed is None else failed.note["delay_ms"]
    return max(0, job.run_at - failed.at) if job.state is State.RETRYABLE and job.run_at is not None else None


def _ends(job: Job, entries: Sequence[Entry]) -> dict[str, Any]:
    """When the job ended. One that expired was discarded without having completed anything."""
    last = entries[-1] if entries else None
    at = written_time(job.finished_at or (last.at if last is not None else None))
    match job.state:
        case State.COMPLETED:
            return {"completed_at": at}
        case State.CANCELLED:
            return {"cancelled_at": at}
        case State.REVIEW:
            return {"completed_at": at, "discarded_at": at}
        case State.DISCARDED:
            expired = last is not None and last.event == Event.EXPIRE
            return {"discarded_at": at} if expired else {"completed_at": at, "discarded_at": at}
    return {}


def _at(entries: Sequence[Entry], event: Event) -> str | None:
    return next((written_time(entry.at) for entry in reversed(entries) if entry.event == event), None)


def since_replay(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries since the last replay: a manual retry begins anew."""
    for place in range(len(entries) - 1, -1, -1):
        if entries[place].event == Event.REPLAY:
            return entries[place:]
    return entries


def errors_of(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The errors of all attempts so far, oldest first."""
    failed = [entry for entry in entries if entry.event in _FAILURES]
    return [_error(entry, number) for number, entry in enumerate(failed, 1)]


def _error(entry: Entry, number: int) -> dict[str, Any]:
    note = entry.note
    told = note.get(FAILURE)
    if isinstance(told, Mapping):
        error = dict(told)
    elif entry.event == Event.LAPSE or (entry.event == Event.ABANDON and "lost" in note):
        error = {"type": "visibility_timeout", "message": str(note.get("why", "its worker was lost"))}
    elif entry.event == Event.OVERRUN or str(note.get("error", "")).startswith("TimeoutError"):
        error = {"type": "timeout", "message": str(note.get("error", "")).partition(": ")[2]}
    else:
        type, _, message = str(note.get("error", "")).partition(": ")
        error = {"type": type or "error", "message": message}
    error.setdefault("code", error["type"])
    return {**error, "attempt": number, "occurred_at": written_time(entry.at)}


def checkpoint_in(step: Step | None) -> dict[str, Any] | None:
    """The saved state of a job; None if there is none, or it was deleted."""
    value = read_json(step.result) if step is not None and step.result is not None else None
    if not isinstance(value, dict) or "sequence" not in value or step is None:
        return None
    more = {name: value[name] for name in CHECKPOINT_MORE if name in value}
    at = written_time(step.started_at)
    return {"state": value.get("state"), "sequence": value["sequence"], "created_at": at, **more}


def previous_state(entries: Sequence[Entry]) -> str | None:
    """Their name of the state before the last change."""
    before = entries[-1].before if entries else None
    return None if before is None else STATES[before]


def final(job: Job) -> bool:
    """Whether a job looks terminal."""
    return is_final(job)
