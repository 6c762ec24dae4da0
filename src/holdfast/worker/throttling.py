"""What a step or job does when its provider asks to slow down: close the limit for all workers, and wait. It costs no
try and no attempt.

Must not read an exception (`core.throttling`).
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from holdfast.core import changes
from holdfast.core.errors import Invalid, Outrun
from holdfast.core.model import OUTRUN, Applied, Change, Conflict, StepState, Time, Use, Wait, WaitKind
from holdfast.core.shared_limits import limit_of
from holdfast.core.throttling import (
    IN_A_ROW,
    IN_ALL_MS,
    Throttle,
    throttle_of,
    throttle_of_job,
    with_step,
    with_throttle,
)
from holdfast.jobs.limits import close_key
from holdfast.safe_text import logger
from holdfast.worker.attempt import Attempt
from holdfast.worker.call import LIMIT_PATH, Call
from holdfast.worker.context import PATH
from holdfast.worker.outcomes import make_cargo
from holdfast.worker.pending_wait import PendingWait
from holdfast.worker.recorded_errors import line_of
from holdfast.worker.records import record_info
from holdfast.worker.suspension import Suspension

log = logger("holdfast.worker")

REST_TRIES = 100
"""How often a rest is written anew because signals arrived for the job meanwhile."""

# Steps.


def heed(call: Call, error: Exception) -> Throttle | None:
    """Return what a failed try says about slowing down; None if this is a failure like any other."""
    throttle = throttle_of(error, time.time())
    if throttle is None or not _may_run_again(call, throttle):
        call.throttles = 0
        with_step(error)
        return None
    now = call.attempt.now()
    if call.throttles == 0:
        call.throttled_since = now
    call.throttles += 1
    if call.throttles > IN_A_ROW or now - call.throttled_since > IN_ALL_MS:
        log.warning(
            "job %s: step %s: the provider asked to slow down %d times in a row; this counts as a failure",
            call.attempt.job.id, call.path, call.throttles,
        )  # fmt: skip
        with_throttle(error, None)  # for a step around it, too
        with_step(error)
        return None
    call.attempt.progress.note_throttled(call.path, call.tries, call.spec.retry.retries + 1, error, throttle.ms)
    return throttle


def _may_run_again(call: Call, throttle: Throttle) -> bool:
    """Whether the body may simply run again: it isn't an effect that may have happened, nor did steps run inside it
    that a second run could not tell apart.
    """
    if call.spec.effect == "once" and not throttle.is_explicit:
        return False
    inside = call.path + "/"
    return call.is_retried or not any(path.startswith(inside) for path in call.journal.records.steps)


async def wait_out(call: Call, throttle: Throttle) -> None:
    """Close the limit that is meant, so that the step's next ask waits; without one, wait here."""
    key = _key_of(f"step {call.spec.name}", call.uses or (), throttle)
    call.not_before = call.attempt.now() + throttle.ms
    if key is not None and await _close(call.attempt, f"step {call.path}: only this call", key, throttle.ms):
        call.not_before = None
        return
    progress = call.attempt.progress
    progress.pause_step(call.path)
    token = PATH.set(call.parent)
    try:
        await rest(call)
    finally:
        PATH.reset(token)
        progress.resume_step(call.path, call.spec)


async def rest(call: Call) -> None:
    """Wait until a step whose provider asked to slow down may run again. Its job may give up its slot meanwhile."""
    attempt, until = call.attempt, call.not_before or 0

    async def poll() -> list[None] | None:
        return [None] if attempt.now() >= until else None

    with attempt.limit_wait(call.path):
        if call.parent:  # the step around it runs, so the job keeps its slot
            await asyncio.sleep(max(0, until - attempt.now()) / 1_000)
        else:
            path, info = call.waiting_record()
            await Suspension.of(attempt).wait(PendingWait(path, Wait(WaitKind.TIME, until=until), poll, info))
        attempt.progress.note_activity()
    call.not_before = None


# The code of jobs.


async def heed_job(attempt: Attempt, error: BaseException | None, now: Time) -> Throttle | None:
    """Return what the error that ended a job's code says about slowing down, once the limit that is meant is closed
    from now on; None if this is a failure like any other.
    """
    job = attempt.job
    throttle = throttle_of_job(error, time.time(), is_limited=bool(job.options.limits))
    if throttle is None or attempt.journal.effects.doubts:
        return None
    throttles, since = _throttles(attempt)
    if throttles > IN_A_ROW or attempt.now() - since > IN_ALL_MS:
        line = "job %s (%s): the provider asked to slow down %d times in a row; this counts as a failure"
        log.warning(line, job.id, job.type, throttles)
        return None
    key = _key_of(f"job {job.type}", job.options.limits, throttle)
    if key is not None:
        await _close(attempt, "only this job", key, throttle.ms, now)
    return throttle


def rest_after(attempt: Attempt, error: BaseException | None, throttle: Throttle, now: Time, *, by: str) -> Change:
    """Return the change with which a job comes back later that its provider asked to slow down. It costs no attempt."""
    job = attempt.job
    attempt.progress.waste_loose()
    cargo = make_cargo(attempt, now, completes=False, waits=False)
    throttles, since = _throttles(attempt)
    info = {"attempt": job.attempt, "throttles": throttles, "since": since}
    cargo["steps"] = (*cargo["steps"], attempt.journal.wait_record(LIMIT_PATH, StepState.STARTED, info))
    assert error is not None
    line, until = line_of(error), now + throttle.ms
    cargo["note"] = {**cargo["note"], "throttled": line}
    log.warning(
        "job %s (%s): the provider asks to slow down: %s; runs again in %.1f s; this uses no attempt",
        job.id, job.type, line, throttle.ms / 1_000,
    )  # fmt: skip
    return _rest(attempt, now, by, until, cargo)


async def commit_rest(attempt: Attempt, change: Change) -> tuple[Change, Applied | Conflict]:
    """Commit such a change; return it with the answer. If a signal arrived meanwhile, it is made anew."""
    for _ in range(REST_TRIES):
        (answer,) = await attempt.persist(partial(attempt.engine.commit, [change]))
        if isinstance(answer, Applied) or answer.reason != OUTRUN:
            break
        await Suspension.of(attempt).read_inbox()
        cargo = changes.Cargo(note=change.note, steps=change.steps, drops=change.drops)
        assert change.job.run_at is not None
        change = _rest(attempt, change.at, change.by, change.job.run_at, cargo)
    return change, answer


def _rest(attempt: Attempt, now: Time, by: str, until: Time, cargo: changes.Cargo) -> Change:
    waits = (Wait(WaitKind.TIME, until=until),)
    return replace(changes.rest(attempt.job, now, by=by, run_at=until, waits=waits, **cargo), frees=attempt.has_asked)


def _throttles(attempt: Attempt) -> tuple[int, Time]:
    """How often in a row, this time included, the provider asked to slow down, and since when."""
    known = attempt.journal.records.waits.get(LIMIT_PATH)
    info = {} if known is None else record_info(known)
    if info.get("attempt") != attempt.job.attempt:
        return 1, attempt.now()
    return info["throttles"] + 1, info["since"]


# Closing limits.


def _key_of(who: str, uses: Sequence[Use], throttle: Throttle) -> str | None:
    """The key to close: of the limit that is named, or of the only one."""
    if not throttle.limit:
        if len(uses) > 1:
            log.warning("%s has several limits, so only this call slows down; name one: Throttled(…, limit=…)", who)
        return uses[0].key if len(uses) == 1 else None
    for use in uses:
        if limit_of(use.key) == throttle.limit:
            return use.key
    raise Invalid(
        f"{who} raised Throttled(limit={throttle.limit}), a limit that it doesn't use; give it to the step or job: "
        "limit=…"
    )


async def _close(attempt: Attempt, otherwise: str, key: str, ms: int, since: Time | None = None) -> bool:
    """Close a key for all workers, from now on or since then; return whether that could be written."""

    async def close() -> None:
        await close_key(attempt.engine, key, (await attempt.engine.now() if since is None else since) + ms)

    try:
        await attempt.persist(close)
    except Outrun as error:
        log.warning("job %s: %s slows down: %s", attempt.job.id, otherwise, error)
        return False
    log.warning("limit %s: closed for all workers for %.1f s, because the provider asked to slow down", key, ms / 1_000)
    return True
