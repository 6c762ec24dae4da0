"""Waiting inside a job: `sleep`, `wait_for` and `ask`, each with a `.sync` for `def` jobs.

Must not know how a job is suspended (`worker.suspension`). A waiting job holds no slot. Later it continues from the
top, and its records answer what it did before; so `finally` blocks run at every wait.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar, overload
from urllib.parse import quote

from typing_extensions import TypeForm

from holdfast.core.codec import Codec, canonical
from holdfast.core.durations import Duration, in_words, milliseconds
from holdfast.core.errors import Invalid, WrongColour
from holdfast.core.keys import digest
from holdfast.core.limits import SIGNAL_NAME_CHARACTERS
from holdfast.jobs.questions import ASK, WAIT_PATH
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import NoJob, attempt_here, loop_here
from holdfast.worker.own_loop import run_on_loop
from holdfast.worker.pending_wait import PendingWait
from holdfast.worker.suspension import Suspension
from holdfast.worker.waits import signal_wait, time_wait

T = TypeVar("T")

NAME_LIMIT = SIGNAL_NAME_CHARACTERS


class Sleep:
    """`await sleep("2h")`: a durable pause. In a `def` job: `sleep.sync("2h")`."""

    def __call__(self, duration: Duration, *, key: str | None = None) -> Coroutine[Any, Any, None]:
        """Continue after this time, on whichever worker. `key` tells apart sleeps of the same length."""
        attempt = async_attempt("sleep")
        if attempt is None:
            return asyncio.sleep(milliseconds(duration) / 1_000)
        return Suspension.of(attempt).wait(self._make_wait(attempt, duration, key))

    def sync(self, duration: Duration, *, key: str | None = None) -> None:
        """The same in a `def` job."""
        attempt = sync_attempt("sleep")
        if attempt is None:
            time.sleep(milliseconds(duration) / 1_000)
        else:
            block_until(attempt, self._make_wait(attempt, duration, key))

    def _make_wait(self, attempt: Attempt, duration: Duration, key: str | None) -> PendingWait[None]:
        span = milliseconds(duration)
        return time_wait(attempt, wait_path(attempt, f"sleep:{key or in_words(span)}"), span)


class WaitFor:
    """`await wait_for("approved", as_=Decision, within="2d")`: wait for a named value from outside."""

    @overload
    def __call__(self, name: str, *, as_: type[T], within: Duration | None = None) -> Coroutine[Any, Any, T]: ...

    @overload
    def __call__(self, name: str, *, as_: TypeForm[T], within: Duration | None = None) -> Coroutine[Any, Any, T]: ...

    @overload
    def __call__(self, name: str, *, within: Duration | None = None) -> Coroutine[Any, Any, Any]: ...

    def __call__(self, name: str, *, as_: Any = Any, within: Duration | None = None) -> Coroutine[Any, Any, Any]:
        """Wait for a signal with this name, sent by `run.signal(…)` or `holdfast signal`.

        A signal that arrived earlier is taken at once, the oldest first. Each signal answers one wait. Its value must
        fit the type `as_`. Raises TimeoutError if no signal arrives `within` this time.
        """
        attempt = require_job(async_attempt("wait_for"), "wait_for")
        return Suspension.of(attempt).wait(_wait_for_signal(attempt, name, as_, within))

    @overload
    def sync(self, name: str, *, as_: type[T], within: Duration | None = None) -> T: ...

    @overload
    def sync(self, name: str, *, as_: TypeForm[T], within: Duration | None = None) -> T: ...

    @overload
    def sync(self, name: str, *, within: Duration | None = None) -> Any: ...

    def sync(self, name: str, *, as_: Any = Any, within: Duration | None = None) -> Any:
        """The same in a `def` job."""
        attempt = require_job(sync_attempt("wait_for"), "wait_for")
        return block_until(attempt, _wait_for_signal(attempt, name, as_, within))


class Ask:
    """`await ask(draft, form=Verdict, within="2d")`: ask a person, who answers with a typed form."""

    @overload
    def __call__(self, value: object, *, form: type[T], within: Duration | None = None) -> Coroutine[Any, Any, T]: ...

    @overload
    def __call__(
        self, value: object, *, form: TypeForm[T], within: Duration | None = None
    ) -> Coroutine[Any, Any, T]: ...

    def __call__(self, value: object, *, form: Any, within: Duration | None = None) -> Coroutine[Any, Any, Any]:
        """Show `value` to a person and wait for an answer of the type `form`. See `holdfast ask`.

        Raises TimeoutError if nobody answers `within` this time.
        """
        attempt = require_job(async_attempt("ask"), "ask")
        return Suspension.of(attempt).wait(_wait_for_answer(attempt, value, form, within))

    @overload
    def sync(self, value: object, *, form: type[T], within: Duration | None = None) -> T: ...

    @overload
    def sync(self, value: object, *, form: TypeForm[T], within: Duration | None = None) -> T: ...

    def sync(self, value: object, *, form: Any, within: Duration | None = None) -> Any:
        """The same in a `def` job."""
        attempt = require_job(sync_attempt("ask"), "ask")
        return block_until(attempt, _wait_for_answer(attempt, value, form, within))


sleep = Sleep()
wait_for = WaitFor()
ask = Ask()


def _wait_for_signal(attempt: Attempt, name: str, as_: Any, within: Duration | None) -> PendingWait[Any]:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT:
        raise Invalid(f"wait_for({name!r}): the signal's name must have 1 to {NAME_LIMIT} characters")
    codec = Codec[Any](as_, f"signal {name}")
    return _make_signal_wait(attempt, name, codec, within, {})


def _wait_for_answer(attempt: Attempt, value: object, form: Any, within: Duration | None) -> PendingWait[Any]:
    text = canonical(value)
    codec = Codec[Any](form, "the answer")
    nth = attempt.journal.calls.number(f"{ASK}{text}")
    name = f"{ASK}{digest(text)[:8]}" + (f".{nth}" if nth > 1 else "")
    return _make_signal_wait(attempt, name, codec, within, {"question": text})


def _make_signal_wait(
    attempt: Attempt, name: str, codec: Codec[Any], within: Duration | None, info: dict[str, Any]
) -> PendingWait[Any]:
    path = wait_path(attempt, name)
    limit = None if within is None else milliseconds(within)
    asked = {**info, "name": name, "schema": codec.schema()}
    return signal_wait(attempt, path, name, codec.decode, limit, asked)


def wait_path(attempt: Attempt, name: str) -> str:
    """Return the path of a wait's record: the wait's name, and a number if the name repeats."""
    nth = attempt.journal.calls.number(f"{WAIT_PATH}{name}")
    return f"{WAIT_PATH}{quote(name, safe=' :')}" + (f"#{nth}" if nth > 1 else "")


def async_attempt(what: str) -> Attempt | None:
    attempt = attempt_here()
    if attempt is not None and not loop_here():
        raise WrongColour(f"{what}(…) is for async jobs; in a def job, call {what}.sync(…)")
    return attempt


def sync_attempt(what: str) -> Attempt | None:
    if loop_here():
        raise WrongColour(f"{what}.sync(…) would block the event loop; in async code, call await {what}(…)")
    return attempt_here()


def require_job(attempt: Attempt | None, what: str) -> Attempt:
    if attempt is None:
        raise NoJob(f"{what}: nobody can answer outside a job; submit the job, or test it with holdfast.testing")
    return attempt


def block_until(attempt: Attempt, parked: PendingWait[T]) -> T:
    return run_on_loop(attempt, Suspension.of(attempt).wait(parked))
