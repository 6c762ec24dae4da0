"""The waits that a job's code asks for directly: for a time, and for a signal.

Must not know apps. Waits for other jobs are in `children`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.core.codec import canonical, parse
from holdfast.core.durations import in_words
from holdfast.core.errors import Invalid
from holdfast.core.model import Signal, Step, StepState, Wait, WaitKind
from holdfast.worker.attempt import Attempt
from holdfast.worker.pending_wait import PendingWait, until_of
from holdfast.worker.records import record_info
from holdfast.worker.suspension import Suspension

T = TypeVar("T")


def time_wait(attempt: Attempt, path: str, milliseconds: int) -> PendingWait[None]:
    """Make a wait for a time. Its end is fixed when it is first asked for."""
    until = until_of(attempt, path, milliseconds)

    async def poll() -> list[None] | None:
        return [None] if attempt.now() >= (until or 0) else None

    return PendingWait(path, Wait(WaitKind.TIME, until=until), poll)


def signal_wait(
    attempt: Attempt,
    path: str,
    name: str,
    read: Callable[[str], T],
    within_ms: int | None,
    info: dict[str, Any],
) -> PendingWait[T]:
    """Make a wait for a signal. The signal is recorded with its value; so is a timeout."""
    until = until_of(attempt, path, within_ms)
    inbox = attempt.journal.inbox

    async def poll() -> list[T] | None:
        record = attempt.journal.records.waits.get(path)
        if record is not None and record.state is StepState.DONE:
            if inbox.is_given_up(record_info(record)):
                pending.is_given_up = True
                return None
            return [_read_answer(record, name, within_ms, read)]
        is_late = until is not None and attempt.now() >= until
        signal = None
        try:
            if is_late:
                await Suspension.of(attempt).read_inbox()
            signal = _take_fitting(attempt, name, read)
            if signal is None and not is_late:
                return None
            # Finish this even if the wait is cancelled meanwhile: the job doesn't suspend before that.
            turn = inbox.turn_of(signal) if signal is not None else 1
            answer = await asyncio.shield(attempt.loop.create_task(_record_answer(attempt, path, signal, turn)))
        except asyncio.CancelledError:
            Suspension.of(attempt).give_back(path, signal)
            raise
        return [_read_answer(answer, name, within_ms, read)]

    pending = PendingWait(path, Wait(WaitKind.SIGNAL, name, until), poll, info)
    return pending


def _take_fitting(attempt: Attempt, name: str, read: Callable[[str], Any]) -> Signal | None:
    """Take the oldest signal of this name that matches, for this wait. Signals that don't match are refused."""
    inbox = attempt.journal.inbox
    for signal in inbox.untaken(name):
        inbox.take(signal)
        try:
            read(signal.value)
        except Invalid as error:
            inbox.refuse(signal)
            Suspension.of(attempt).note_refusal(signal, error)
            attempt.progress.add_log_line(f"signal {name} was refused: {error}")
        else:
            return signal
    return None


async def _record_answer(attempt: Attempt, path: str, signal: Signal | None, turn: int) -> Step:
    """Record that a wait took a signal, which `turn - 1` cancelled waits had taken before; or that it timed out."""
    inbox = attempt.journal.inbox
    info: dict[str, Any] = {"late": True}
    if signal is not None:
        info = {"signal": signal.version, "value": parse(signal.value)} | ({"turn": turn} if turn > 1 else {})
    try:
        with attempt.activity():
            return await attempt.journal.record_wait(path, info)
    except BaseException:
        if signal is not None and not inbox.is_given_up(info):
            inbox.untake(signal)
        raise


def _read_answer(record: Step, name: str, within_ms: int | None, read: Callable[[str], T]) -> T:
    info = record_info(record)
    if info.get("late"):
        raise TimeoutError(f"{name} did not arrive within {in_words(within_ms or 0)}")
    return read(canonical(info["value"]))
