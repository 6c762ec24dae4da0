"""What a step does when its provider asks to slow down: close the limit for all workers, and wait. It costs no try.

Must not read an exception (`core.throttling`).
"""

import asyncio
import time

from holdfast.core.errors import Invalid, Outrun
from holdfast.core.model import Wait, WaitKind
from holdfast.core.throttling import IN_A_ROW, IN_ALL_MS, Throttle, throttle_of, with_throttle
from holdfast.jobs.limits import close_key
from holdfast.safe_text import logger
from holdfast.worker.call import Call
from holdfast.worker.context import PATH
from holdfast.worker.pending_wait import PendingWait
from holdfast.worker.suspension import Suspension

log = logger("holdfast.worker")


def heed(call: Call, error: Exception) -> Throttle | None:
    """Return what a failed try says about slowing down; None if this is a failure like any other."""
    throttle = throttle_of(error, time.time())
    if throttle is None or not _may_run_again(call, throttle):
        call.throttles = 0
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
    key = _key_of(call, throttle)
    call.not_before = call.attempt.now() + throttle.ms
    if key is not None and await _close(call, key, throttle.ms):
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


def _key_of(call: Call, throttle: Throttle) -> str | None:
    """The key to close: of the limit that is named, or of the step's only one."""
    limits, uses = call.spec.limits, call.uses or ()
    if not throttle.limit:
        if len(uses) > 1:
            line = "step %s has several limits, so only this call slows down; name one: Throttled(…, limit=…)"
            log.warning(line, call.spec.name)
        return uses[0].key if len(uses) == 1 else None
    for limit, use in zip(limits, uses, strict=True):
        if limit.name == throttle.limit:
            return use.key
    raise Invalid(
        f"step {call.spec.name} raised Throttled(limit={throttle.limit}), a limit that it doesn't use; add it to "
        "@step(limit=…)"
    )


async def _close(call: Call, key: str, ms: int) -> bool:
    """Close a key for all workers; return whether that could be written."""
    attempt = call.attempt

    async def close() -> None:
        await close_key(attempt.engine, key, await attempt.engine.now() + ms)

    try:
        await attempt.persist(close)
    except Outrun as error:
        log.warning("job %s: step %s: only this call slows down: %s", attempt.job.id, call.path, error)
        return False
    log.warning("limit %s: closed for all workers for %.1f s, because the provider asked to slow down", key, ms / 1_000)
    return True
