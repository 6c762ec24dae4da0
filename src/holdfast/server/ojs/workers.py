"""Workers: fetch, ack, nack, heartbeats and directives. Must not know how a lease ends by itself (`upkeep.rescue`)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from holdfast.core.canonical import canonical
from holdfast.core.errors import NotFound
from holdfast.core.keys import check_queue
from holdfast.core.lifecycle import SETTLED
from holdfast.core.limits import ERROR_CHARACTERS, size_of
from holdfast.core.model import Job, Record, State, Time
from holdfast.core.reservations import MISSED_BEATS, REMOTE_WORKER, Holder, holder_for, stored_name
from holdfast.engines.records import QUIET
from holdfast.engines.topics import queue_topic
from holdfast.jobs.remote_workers import Failure
from holdfast.redaction import redact, redact_value
from holdfast.server.call import Call
from holdfast.server.ojs.envelope import kept_of, reservation_asked, result_ttl_ms
from holdfast.server.ojs.problems import bad
from holdfast.server.ojs.service import Ojs, claim_in, number_of, ojs_of, read_object, reply, text_of, worker_name
from holdfast.server.ojs.shapes import epoch_in
from holdfast.server.ojs.vocabulary import STATES, read_time, written_time
from holdfast.server.problems import Problem

FETCH_MOST = 100
"""How many jobs one fetch returns at most."""

QUEUES_MOST = 100
ACTIVE_MOST = 1_000
"""How many queues a fetch may name, and how many jobs a heartbeat."""

WAIT_SECONDS = 20.0
"""How long a fetch waits for a job at most, if it asks for that."""

NOTE_SECONDS = 30.0
"""How often at least it is written down that a fetching worker lives."""

ORDERS = ("running", "quiet", "terminate")
"""What a heartbeat's answer can order, in the order of their strength."""

RESULT_BYTES = 1 << 20
"""How large a result may be, as the specification wants it."""

BACKTRACE_FRAMES, BACKTRACE_CHARACTERS = 50, 10_000


class RemoteWorker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a worker over HTTP: what it last said about itself, and what it was ordered to do."""

    id: str
    state: str = "running"
    order: str = "running"
    hostname: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    concurrency: int = 0
    active: int = 0
    beat_ms: int = 0
    since: Time = 0


# Fetching.


async def fetch(call: Call) -> Response:
    """Claim jobs: from the queues in the given order, each reserved for the worker."""
    ojs = ojs_of(call)
    body = await read_object(call)
    queues = _queues(body)
    count = number_of(body, "count", 1, least=1, most=FETCH_MOST)
    worker = worker_name(body)
    asked, beat_ms = reservation_asked(body), _interval(body)
    holder = holder_for(worker, beat_ms * MISSED_BEATS or asked)
    await _note_fetch(ojs, worker, queues, beat_ms)
    jobs = await ojs.remote.claim(holder, queues, count)
    if not jobs and (wait := _wait_seconds(body)):
        jobs = await _wait_for_jobs(call, ojs, holder, queues, count, wait)
    now = await ojs.engine.now()
    return reply({"jobs": await ojs.shown_all(jobs, now, is_claim=True)})


async def _wait_for_jobs(
    call: Call, ojs: Ojs, holder: Holder, queues: list[str], count: int, seconds: float
) -> list[Job]:
    """Wait until there is a job, but no longer than this."""
    loop = asyncio.get_running_loop()
    until, mark = loop.time() + seconds, 0
    while (left := until - loop.time()) > 0 and not call.server.stopping.is_set():
        mark = await ojs.engine.wait([queue_topic(queue) for queue in queues], min(left, 2.0), mark)
        jobs = await ojs.remote.claim(holder, queues, count)
        if jobs or await call.is_disconnected():
            return jobs
    return []


def _wait_seconds(body: Mapping[str, Any]) -> float:
    value = body.get("wait_ms", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise bad("wait_ms", "give a whole number of milliseconds, 0 for no wait")
    return min(value / 1_000, WAIT_SECONDS)


def _queues(body: Mapping[str, Any]) -> list[str]:
    queues = body.get("queues")
    if not isinstance(queues, list) or not queues or not all(isinstance(queue, str) for queue in queues):
        raise bad("queues", "give an array with the names of at least one queue")
    if len(queues) > QUEUES_MOST:
        raise bad("queues", f"give at most {QUEUES_MOST} queues")
    return [check_queue(queue) for queue in queues]


def _interval(body: Mapping[str, Any]) -> int:
    """The time between two heartbeats that a worker promises, in milliseconds; 0 if it promises none."""
    value = body.get("heartbeat_interval_ms")
    if value is None and (seconds := body.get("heartbeat_interval")) is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 86_400:
            raise bad("heartbeat_interval", "give a number of seconds above 0, up to a day")
        value = max(1, round(seconds * 1_000))
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 86_400_000:
        raise bad("heartbeat_interval_ms", "give a whole number of milliseconds above 0, up to a day")
    return value


# The ends of an attempt.


async def ack(call: Call) -> Response:
    """Complete a job with its result."""
    ojs, body = ojs_of(call), await read_object(call)
    id = _job_of(call, body)
    result = canonical(body.get("result"))
    if size_of(result) > RESULT_BYTES:
        raise Problem(
            413,
            "RESULT_TOO_LARGE",
            f"job {id}: its result has {size_of(result):,} bytes, but the limit is {RESULT_BYTES:,}, so the job stays "
            "active; store it elsewhere and return where it is",
        )
    if result_ttl_ms(kept_of((await ojs.jobs.get(id)).options).options) == 0:
        result = "null"
    job = await ojs.remote.complete(claim_in(call, body, id, required=ojs.requires_token), result)
    shown = await ojs.shown(job, await ojs.engine.now())
    return reply({"acknowledged": True, "id": id, "job_id": id, "state": shown["state"],
                  "completed_at": shown.get("completed_at"), "job": shown})  # fmt: skip


async def nack(call: Call) -> Response:
    """Fail an attempt, or hand the job back."""
    ojs, body = ojs_of(call), await read_object(call)
    id = _job_of(call, body)
    claim = claim_in(call, body, id, required=ojs.requires_token)
    if body.get("requeue") not in (None, True, False):
        raise bad("requeue", "give true or false")
    now = await ojs.engine.now()
    if body.get("requeue"):
        job = await ojs.remote.hand_back(claim, why="its worker gave it back")
    elif body.get("rate_limit_until") is not None:
        until = read_time("rate_limit_until", body["rate_limit_until"], now)
        job = await ojs.remote.hand_back(claim, until=until, why="its worker met a rate limit")
    else:
        failure, can_retry, always = read_failure(body.get("error"))
        job = await ojs.remote.fail(claim, failure, can_retry=can_retry, always=always, counts_losses=True)
        if job.state is State.REVIEW and _is_discarded(job, failure.code):
            job = await ojs.jobs.discard(job.id, by=call.by, reason="its retry policy says so")
    shown = {**await ojs.shown(job, await ojs.engine.now()), "state": STATES[job.state]}  # a short backoff may be over
    names = ("state", "attempt", "max_attempts", "next_attempt_at", "discarded_at", "completed_at", "retry_delay_ms")
    return reply({"id": id, "job_id": id, **{name: shown[name] for name in names if name in shown}, "job": shown})


def _is_discarded(job: Job, code: str) -> bool:
    """Whether a job with no retries left is discarded, as its worker or its retry policy says. Otherwise it is dead."""
    if code in ("DISCARD", "DEAD_LETTER"):
        return code == "DISCARD"
    retry = kept_of(job.options).options.get("retry")
    return isinstance(retry, Mapping) and retry.get("on_exhaustion") == "discard"


def _job_of(call: Call, body: Mapping[str, Any]) -> str:
    """The job that a worker speaks of: in the path, or in the body."""
    return call.path_params.get("id") or text_of(body, "job_id")


def read_failure(given: Any) -> tuple[Failure, bool, bool]:
    """Read why an attempt failed, whether it may be tried again, and whether it is tried again whatever it was."""
    if given is None:
        given = {}
    if isinstance(given, str):
        given = {"message": given}
    if not isinstance(given, dict):
        raise bad("error", "give a JSON object with code and message")
    given = redact_value(given)  # before anything is cut, which may leave half of a secret
    details = given.get("details") or {}
    if not isinstance(details, dict):
        raise bad("error.details", "give a JSON object")
    code, told = text_of(given, "code", ""), text_of(given, "type", "")
    by_class = details.get("error_class")
    by_class = by_class if isinstance(by_class, str) else ""
    type = (told or by_class or code or "handler_error")[:200]
    can_retry = given.get("retryable", True)
    if not isinstance(can_retry, bool):
        raise bad("error.retryable", "give true or false")
    failure = Failure(
        type=type,
        message=text_of(given, "message", "")[:ERROR_CHARACTERS],
        code=code[:200],
        details=details,
        backtrace=_backtrace(given.get("backtrace")),
        names=tuple(name for name in (told, by_class, code) if name),
    )
    return failure, can_retry and code not in ("DISCARD", "DEAD_LETTER"), code == "RETRY"


def _backtrace(given: Any) -> tuple[str, ...]:
    lines = [line for line in given if isinstance(line, str)] if isinstance(given, list) else []
    kept: list[str] = []
    left = BACKTRACE_CHARACTERS
    for line in lines[:BACKTRACE_FRAMES]:
        kept.append(line[:left])
        left -= len(line)
        if left <= 0:
            break
    return tuple(kept)


# Heartbeats.


async def heartbeat(call: Call) -> Response:
    """Keep a worker's jobs reserved, and answer with what it must do."""
    ojs, body = ojs_of(call), await read_object(call)
    worker = worker_name(body)
    if not worker:
        raise bad("worker_id", "is missing; give the worker's name")
    ids, count = _active(body)
    if not ids and count and not ojs.requires_token:
        ids = [job.id for job in await ojs.remote.held_by(worker)]
    epochs = _epochs(body, ids)
    ids = list(dict.fromkeys([*ids, *epochs]))
    if ojs.requires_token and len(epochs) < len(ids):
        raise bad("lease_tokens", "is missing; this server wants the lease token of each active job")
    beat_ms = _interval(body)
    held = await ojs.remote.extend(worker, ids, epochs, beat_ms * MISSED_BEATS or reservation_asked(body))
    order = await _note_beat(ojs, worker, body, count)
    kept = {job.id for job in held}
    others = [job for job in await ojs.engine.get([id for id in ids if id not in kept]) if job is not None]
    cancelled = [job.id for job in others if job.state is State.CANCELLED]
    stale = [job.id for job in others if job.id in epochs and _is_stale(job, epochs[job.id])]
    answer: dict[str, Any] = {
        "acknowledged": True,
        "state": max([order, *map(_directive, held)], key=ORDERS.index),
        "jobs_extended": [job.id for job in held],
        "cancelled_jobs": cancelled,
        "lost_jobs": [id for id in ids if id not in kept and id not in cancelled],
        "server_time": written_time(await ojs.engine.now()),
    }
    if stale:
        raise Problem(409, "lease_lost", f"the lease of job {stale[0]} is over; stop working on it", **answer)
    return reply(answer)


def _epochs(body: Mapping[str, Any], ids: Sequence[str]) -> dict[str, int]:
    """The leases that a heartbeat shows: by `lease_tokens`, and by `lease_token`, which belongs to one of the jobs."""
    tokens = body.get("lease_tokens") or {}
    if not isinstance(tokens, dict):
        raise bad("lease_tokens", "give a JSON object with a lease token for each job's id")
    epochs: dict[str, int] = {}
    for id, token in tokens.items():
        if (epoch := epoch_in(token, id)) is None:
            raise bad("lease_tokens", f"this is no lease token of job {id[:80]}; send the one that came with fetch")
        epochs[id] = epoch
    if (token := body.get("lease_token")) is not None:
        named = {id: epoch for id in ids if (epoch := epoch_in(token, id)) is not None}
        if not named:
            raise bad("lease_token", "this isn't the lease token of an active job; send the one that came with fetch")
        epochs |= named
    if len(epochs) > ACTIVE_MOST:
        raise bad("lease_tokens", f"give at most {ACTIVE_MOST:,} lease tokens")
    return epochs


def _is_stale(job: Job, epoch: int) -> bool:
    """Whether a lease that couldn't be extended was taken away. One with which the job ended was not."""
    return job.state is not State.CANCELLED and (epoch != job.epoch or job.state not in SETTLED)


def _active(body: Mapping[str, Any]) -> tuple[list[str], int]:
    """The jobs that a heartbeat names, and how many the worker says it runs."""
    given = body.get("active_jobs")
    ids = given if isinstance(given, list) else body.get("active_job_ids") or []
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids) or len(ids) > ACTIVE_MOST:
        raise bad("active_jobs", f"give an array of at most {ACTIVE_MOST:,} job ids")
    if given is not None and not isinstance(given, list):
        return ids, number_of(body, "active_jobs", 0, least=0, most=1_000_000)
    return ids, len(ids)


def _directive(job: Job) -> str:
    """What a job's own metadata orders its worker to do; for tests of workers."""
    metadata = kept_of(job.options).options.get("metadata")
    order = metadata.get("test_directive") if isinstance(metadata, dict) else None
    return order if order in ORDERS else "running"


async def _note_fetch(ojs: Ojs, worker: str, queues: list[str], beat_ms: int) -> None:
    """Write down that a worker fetches, if nobody has for a while. The record also tells the upkeep to look."""
    now = asyncio.get_running_loop().time()
    if now - ojs.heard.get(worker, -NOTE_SECONDS) < NOTE_SECONDS:
        return
    if len(ojs.heard) >= 10_000:
        ojs.heard.clear()
    ojs.heard[worker] = now
    known = await find_worker(ojs, worker)
    since = known.since or await ojs.engine.now()
    await _write(ojs, replace(known, queues=tuple(queues), beat_ms=beat_ms or known.beat_ms, since=since))


async def _note_beat(ojs: Ojs, worker: str, body: Mapping[str, Any], active: int) -> str:
    """Write down what a worker says about itself; return what it was ordered to do."""
    known = await find_worker(ojs, worker)
    state = redact(text_of(body, "state", "running"))[:40] or "running"
    if body.get("shutdown") is True:
        state = "shutting_down"
    queues = body.get("queues")
    await _write(ojs, replace(
        known,
        state=state,
        hostname=redact(text_of(body, "hostname", known.hostname))[:200],
        pid=number_of(body, "pid", known.pid, least=0, most=1 << 40),
        queues=tuple(_queues(body)) if queues else known.queues,
        concurrency=number_of(body, "concurrency", known.concurrency, least=0, most=1_000_000),
        beat_ms=_interval(body) or known.beat_ms,
        active=active,
        since=known.since or await ojs.engine.now(),
    ))  # fmt: skip
    is_quiet = any(record.name == QUIET + stored_name(worker) for record in await ojs.engine.records(QUIET))
    return max([known.order, "quiet" if is_quiet else "running"], key=ORDERS.index)


async def find_worker(ojs: Ojs, worker: str) -> RemoteWorker:
    """Return what is known of a worker; an empty record if nothing is."""
    name = REMOTE_WORKER + (stored_name(worker) or "anonymous")
    for record in await ojs.engine.records(name):
        if record.name == name and (found := worker_in(record)) is not None:
            return found
    return RemoteWorker(id=worker[:200])


def worker_in(record: Record) -> RemoteWorker | None:
    """Read the record of a worker; None if it can't be read."""
    try:
        return msgspec.json.decode(record.value, type=RemoteWorker)
    except msgspec.MsgspecError:
        return None


async def _write(ojs: Ojs, worker: RemoteWorker) -> None:
    name = REMOTE_WORKER + (stored_name(worker.id) or "anonymous")
    await ojs.engine.put_record(name, msgspec.json.encode(worker).decode())


async def order_worker(ojs: Ojs, worker: str, order: str) -> RemoteWorker:
    """Order a worker to be quiet or to end; it learns that with its next heartbeat. Nothing takes back an end."""
    known = await find_worker(ojs, worker)
    if not known.since:
        raise NotFound(f"no worker {worker[:80]!r} has worked over HTTP here")
    known = replace(known, order=max(known.order, order, key=ORDERS.index))
    await _write(ojs, known)
    return known


async def worker_health(call: Call) -> Response:
    """Return what a worker last said about itself."""
    ojs, worker = ojs_of(call), redact(call.path_params["id"])
    known = await find_worker(ojs, worker)
    if not known.since:
        raise NotFound(f"no worker {worker[:80]!r} has worked over HTTP here")
    is_leaving = known.state in ("drain", "draining", "shutting_down", "terminate")
    return reply({"worker_id": known.id, "state": known.state, "active_jobs": known.active}, 503 if is_leaving else 200)
