"""Jobs, histories and workers as JSON documents with stable keys. Must not read a store or leave out a key.

Times are text in UTC ("2026-03-01T12:00:00.000Z"), durations whole milliseconds, arguments and results plain values.
"""

import json
from datetime import datetime
from typing import Any

from holdfast.core.durations import as_utc
from holdfast.core.model import Entry, Error, Job, Presence, Retrying, Step, Time
from holdfast.core.shared_limits import UNIT
from holdfast.core.spending import plain
from holdfast.core.unreadable import unreadable_note
from holdfast.jobs.budgets import Budget, BudgetWait, budget_shape
from holdfast.jobs.limit_status import LimitWait
from holdfast.jobs.limits import LimitView, Setting
from holdfast.jobs.questions import Refusal
from holdfast.jobs.schedule_views import ScheduleView
from holdfast.jobs.status import Status
from holdfast.jobs.tokens import Token

Shape = dict[str, Any]


def time_text(at: Time | None) -> str | None:
    """Return a time as text, exact to the millisecond."""
    if at is None:
        return None
    return as_utc(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str | None) -> Time | None:
    """Return the time that a text means, or raise ValueError."""
    if text is None:
        return None
    whole = datetime.fromisoformat(text)
    if whole.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return round(whole.timestamp() * 1_000)


def plain_value(text: str | None) -> Any:
    """Return a stored value as plain data. If it can't be read, return its raw text, under a name that says so."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return unreadable_note(text or "")


def error_shape(error: Error | None) -> Shape | None:
    """Return an error: type, message, traceback."""
    if error is None:
        return None
    return {"type": error.type, "message": error.message, "traceback": error.traceback}


def job_shape(job: Job) -> Shape:
    """Return a whole job."""
    options = job.options
    return {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "state": job.state,
        "priority": job.priority,
        "args": plain_value(job.args),
        "result": plain_value(job.result),
        "error": error_shape(job.error),
        "attempt": job.attempt,
        "recoveries": job.recoveries,
        "epoch": job.epoch,
        "version": job.version,
        "worker": job.worker,
        "key": job.key,
        "parent": job.parent,
        "group": job.group,
        "waits": [{"kind": w.kind, "name": w.name, "until": time_text(w.until)} for w in job.waits],
        "signals": [
            {"name": s.name, "value": plain_value(s.value), "by": s.by, "at": time_text(s.at)} for s in job.inbox
        ],
        "options": {
            "retry": {f: getattr(options.retry, f) for f in options.retry.__struct_fields__},
            "timeout_ms": options.timeout_ms,
            "keep_ms": options.keep_ms,
            "stages": list(options.stages),
            "tags": list(options.tags),
            "fair": options.fair or None,
            "meta": dict(options.meta),
            **({"budget": plain(options.budget)} if options.budget else {}),
        },
        "created_at": time_text(job.created_at),
        "run_at": time_text(job.run_at),
        "claimed_at": time_text(job.claimed_at),
        "expires_at": time_text(job.expires_at),
        "finished_at": time_text(job.finished_at),
        "prune_at": time_text(job.prune_at),
    }


def entry_shape(entry: Entry) -> Shape:
    """Return one entry of a history."""
    return {
        "version": entry.version,
        "at": time_text(entry.at),
        "event": entry.event,
        "before": entry.before,
        "after": entry.after,
        "by": entry.by,
        "epoch": entry.epoch,
        "note": dict(entry.note),
    }


def step_shape(step: Step) -> Shape:
    """Return one step's record."""
    return {
        "path": step.path,
        "name": step.name,
        "state": step.state,
        "epoch": step.epoch,
        "result": plain_value(step.result),
        "error": error_shape(step.error),
        "started_at": time_text(step.started_at),
        "finished_at": time_text(step.finished_at),
        "tries": step.tries,
    }


def refusal_shape(refused: Refusal) -> Shape:
    """Return a signal or an answer that the job itself refused."""
    return {"name": refused.name, "by": refused.by, "why": refused.why}


def status_shape(status: Status) -> Shape:
    """Return a job's status."""
    return {
        "id": status.id,
        "type": status.type,
        "queue": status.queue,
        "state": status.state,
        "stage": status.stage,
        "stage_number": status.stage_number,
        "stages": list(status.stages),
        "done": status.done,
        "total": status.total,
        "text": status.text,
        "steps": status.steps,
        "attempt": status.attempt,
        "recoveries": status.recoveries,
        "worker": status.worker,
        "retrying": retry_shape(status.retrying),
        "limited": limited_shape(status.limited),
        "running_ms": status.running_ms,
        "remaining_ms": status.remaining_ms,
        "trouble": status.trouble,
        **spending_shape(status),
        "error": error_shape(status.error),
        "created_at": time_text(status.created_at),
        "run_at": time_text(status.run_at),
        "finished_at": time_text(status.finished_at),
    }


def limited_shape(limited: LimitWait | BudgetWait | None) -> Shape | None:
    """The limit that a job waits for, or its budget."""
    if limited is None:
        return None
    if isinstance(limited, BudgetWait):
        return {"budget": limited.currency, "needs": plain({limited.currency: limited.need})[limited.currency]}
    return {
        "limit": limited.key,
        "in_use": limited.held,
        "at_once": limited.at_once,
        "about_ms": limited.ms,
        "closed": limited.closed,
        "steps": limited.steps,
    }


def limit_shape(limit: LimitView) -> Shape:
    """A shared limit: its settings, who set them, and how much of each key is used."""
    now, person = limit.now, limit.person
    return {
        "name": limit.name,
        "at_once": now.at_once,
        "rate": now.rate,
        "burst": now.burst,
        "per": now.per or None,
        "set_by": None if person is None else {"by": person.by, "reason": person.reason, "at": time_text(person.at)},
        "code": None if limit.code is None else _setting_shape(limit.code),
        "keys": [
            {
                "key": one.key,
                "in_use": one.held,
                "waiting": one.waiting,
                "units_left": None if one.tokens is None else one.tokens / UNIT,
                "closed_until": time_text(one.closed_until or None),
            }
            for one in limit.usage
        ],
        "changes": [{"by": one.by, "at": time_text(one.at), "what": one.what} for one in limit.changes],
    }


def _setting_shape(setting: Setting) -> Shape:
    return {"at_once": setting.at_once, "rate": setting.rate, "burst": setting.burst, "by": setting.by}


def schedule_shape(one: ScheduleView) -> Shape:
    """A schedule: when it fires, its job, its last and next ticks, and what is wrong."""
    pause = one.paused
    return {
        "name": one.name,
        "when": one.when,
        "type": one.type,
        "args": plain_value(one.args),
        "queue": one.queue,
        "tz": one.tz,
        "missed": one.missed,
        "overlap": one.overlap,
        "jitter_ms": one.jitter_ms,
        "from": "code" if one.is_code else "caller",
        "declared": one.is_declared,
        "next": [time_text(tick) for tick in one.next],
        "last_tick": time_text(one.tick),
        "last_job": one.job or None,
        "last_state": None if one.job_state is None else one.job_state.value,
        "waiting": time_text(one.waiting),
        "skipped": one.skipped,
        "paused": None if pause is None else {"by": pause.by, "reason": pause.reason, "at": time_text(pause.at)},
        "trouble": one.trouble or None,
        "changes": [{"by": change.by, "at": time_text(change.at), "what": change.what} for change in one.changes],
    }


def spending_shape(status: Status) -> Shape:
    """What a job has spent."""
    budget = budget_shape(status.budget)
    return {"spent": status.spent, "wasted": status.wasted, "saved": status.saved, "budget": budget}


def budget_detail_shape(budget: Budget) -> Shape:
    """A budget, with who added to it."""
    return {
        "budget": budget_shape(budget),
        "added": [
            {"by": one.by, "at": time_text(one.at), "reason": one.reason, **plain(one.added)} for one in budget.notes
        ],
    }


def retry_shape(retrying: Retrying | None) -> Shape | None:
    """Return a step that is being retried."""
    if retrying is None:
        return None
    return {
        "step": retrying.step,
        "try": retrying.try_number,
        "of": retrying.of,
        "error": retrying.error,
        "next_at": time_text(retrying.next_at),
        "others": retrying.others,
    }


def worker_shape(presence: Presence, how: str) -> Shape:
    """Return a worker. `how` is its state: alive, silent, gone."""
    return {
        "id": presence.worker,
        "state": how,
        "host": presence.host,
        "pid": presence.pid,
        "queues": list(presence.queues),
        "types": None if presence.types is None else list(presence.types),
        "has": list(presence.has),
        "slots": presence.slots,
        "running": [
            {
                "job": one.job,
                "epoch": one.epoch,
                "stage": one.stage,
                "done": one.done,
                "total": one.total,
                "text": one.text,
                "since": time_text(one.since),
                "retrying": retry_shape(one.retrying),
                "limited": None if one.limited is None else one.limited.key,
            }
            for one in presence.running
        ],
        "trouble": presence.trouble,
        "started_at": time_text(presence.started_at or None),
        "beat_at": time_text(presence.beat_at or None),
    }


def token_shape(token: Token, now: Time) -> Shape:
    """Return a token of the HTTP API, without its hash."""
    return {
        "name": token.name,
        "id": token.id,
        "state": token.state(now),
        "scopes": list(token.scopes),
        "expires_at": time_text(token.expires_at),
        "used_at": time_text(token.used_at),
        "made_at": time_text(token.made_at),
        "made_by": token.made_by,
        "revoked_at": time_text(token.revoked_at),
        "revoked_by": token.revoked_by or None,
    }
