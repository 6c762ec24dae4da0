"""Converts values to rows; `engines.rows` converts them back. Must not run a statement."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import asdict

from holdfast.core.model import Entry, Job, State, Step, Time
from holdfast.core.shared_limits import awaited_key, awaits_permit
from holdfast.engines.rows import STATES, text

Params = dict[str, Any]

_encode = msgspec.json.Encoder().encode


def job_params(job: Job, n: int) -> Params:
    """What `add_job`, `add_body` and `update_job` take from a job."""
    params = asdict(job)
    params["n"] = n
    params["state"] = job.state.value
    params["arrived"] = int(job.arrived)
    params["waits"] = text(job.waits)
    params["inbox"] = text(job.inbox)
    params["error"] = None if job.error is None else text(job.error)
    params["options"] = text(job.options)
    params["fair"] = job.options.fair or None
    return params


def place_params(job: Job, n: int) -> Params:
    """What `place_behind` takes from a job: its fair key, and the keys behind which it waits, later and now."""
    return {
        "n": n,
        "limit_key": job.options.limits[0].key if job.options.limits else None,
        "parked_key": awaited_key(job) if job.state is State.PENDING and awaits_permit(job) else None,
        "fair": job.options.fair or None,
    }


LONE_FIELDS = frozenset({"id", "type", "queue", "priority", "state", "run_at", "expires_at", "waits"})
"""The fields that `add_lone_job` takes from a job."""

BODY_FIELDS = frozenset({"args", "digest", "key", "key_until", "created_at", "options"})
"""The fields that `add_body` takes from a job."""


def is_untouched(job: Job) -> bool:
    """Whether nothing has happened to a job yet: then `add_lone_job` knows the values of its other columns."""
    return _others(job) == _NOTHING


_others = attrgetter(*(name for name in Job.__struct_fields__ if name not in LONE_FIELDS | BODY_FIELDS))
_NOTHING = _others(Job(id="", type="", created_at=0, state=State.AVAILABLE))


def lone_params(job: Job) -> Params:
    """What `add_lone_job` takes from a new job; the other columns are the same for every new job."""
    return {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "priority": job.priority,
        "state": job.state.value,
        "run_at": job.run_at,
        "expires_at": job.expires_at,
        "waits": text(job.waits),
    }


def body_params(job: Job, n: int) -> Params:
    """What `add_body` takes from a job."""
    return {
        "n": n,
        "args": job.args,
        "digest": job.digest,
        "key": job.key,
        "key_until": job.key_until,
        "created_at": job.created_at,
        "options": text(job.options),
    }


def key_params(type: str, key: str, job: str, digest: str, until: Time | None) -> Params:
    """What `set_key` takes: an idempotency key or a unique name, and the job that has it."""
    return {"type": type, "key": key, "job": job, "digest": digest, "until": until}


def due_job(id: str, queue: str, state: str, version: int, epoch: int, run_at: int) -> Job:
    """The part of a due job that `promote` and `activate` need."""
    return Job(
        id=id, type="", queue=queue, created_at=0, state=STATES[state], version=version, epoch=epoch, run_at=run_at
    )


def entry_params(entry: Entry, n: int) -> Params:
    """What `add_entry` takes from an entry."""
    params = asdict(entry)
    params["n"] = n
    params["event"] = str.__str__(entry.event)
    params["before"] = None if entry.before is None else entry.before.value
    params["after"] = entry.after.value
    params["note"] = text(entry.note)
    return params


def step_rows(steps: Iterable[Step]) -> str:
    """What `add_steps` takes: an array for each step, in the order of its columns there."""
    return _encode(
        [
            (
                step.job,
                step.epoch,
                step.path,
                step.name,
                step.state,
                step.started_at,
                step.finished_at,
                None if step.error is None else text(step.error),
                step.result,
                step.tries,
            )
            for step in steps
        ]
    ).decode()


def step_params(step: Step, n: int) -> Params:
    """What `set_step` takes from a step."""
    params = asdict(step)
    params["n"] = n
    params["state"] = step.state.value
    params["error"] = None if step.error is None else text(step.error)
    return params
