"""`callback`: a token to hand to a provider, which answers the job's wait. Must not know how a token is made.

async with callback(as_=Result, within="2h") as cb:
    await order(webhook=cb.token)
    result = await cb.wait()
"""

import os
from typing import Any, Generic, TypeVar, overload

from typing_extensions import TypeForm

from holdfast.app.waiting import async_attempt, block_until, require_job, sync_attempt, wait_path
from holdfast.core.codec import Codec
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import Invalid
from holdfast.core.limits import SIGNAL_NAME_CHARACTERS
from holdfast.core.model import StepState
from holdfast.jobs.callbacks import CALLBACK, callback_secret, make_token
from holdfast.worker.attempt import Attempt
from holdfast.worker.own_loop import await_on_loop, is_away, run_on_loop
from holdfast.worker.pending_wait import PendingWait, until_of
from holdfast.worker.suspension import Suspension
from holdfast.worker.waits import signal_wait

T = TypeVar("T")

PUBLIC_URL = "HOLDFAST_PUBLIC_URL"
"""The environment variable with the address under which providers reach `holdfast serve`."""


class Callback(Generic[T]):
    """One callback of a job: its token, and the wait for its answer."""

    token: str
    """What a provider sends back with its answer: `holdfast.jobs.callbacks.answer_callback`, or the URL."""

    def __init__(self, attempt: Attempt, codec: Codec[T], within_ms: int | None, key: str | None) -> None:
        self._attempt = attempt
        base = CALLBACK if key is None else f"{CALLBACK}:{key}"
        nth = attempt.journal.calls.number(f"~{base}")
        self.name = base if nth == 1 else f"{base}.{nth}"
        """The name of the signal that stands in for the token: `holdfast signal ID NAME --json VALUE`."""
        if len(self.name) > SIGNAL_NAME_CHARACTERS:
            raise Invalid(f"callback(key={base[:40]!r}…): the key is too long; give at most 180 characters")
        self._wait_path = wait_path(attempt, self.name)
        self._codec = codec
        self._within_ms = within_ms
        self._info = {"name": self.name, "schema": codec.schema()}

    @property
    def url(self) -> str:
        """The address to which a provider POSTs its answer as JSON. Needs `holdfast serve`, and $HOLDFAST_PUBLIC_URL
        unless it runs this job itself on loopback.
        """
        base = os.environ.get(PUBLIC_URL, "").rstrip("/")
        if not base:
            raise Invalid(f"set ${PUBLIC_URL} to the address under which providers reach holdfast serve, or use .token")
        return f"{base}/callback/{self.token}"

    async def open(self) -> None:
        """Make the token, and record until when its answer may come: a job that runs again has the same ones."""
        attempt, journal = self._attempt, self._attempt.journal
        with attempt.activity():
            secret = await attempt.persist(lambda: callback_secret(attempt.engine))
            self.token = make_token(secret, attempt.job.id, self.name)
            if self._wait_path not in journal.records.waits:
                until = until_of(attempt, self._wait_path, self._within_ms)
                info = {**self._info, "until": until}
                await journal.write_intents([journal.wait_record(self._wait_path, StepState.STARTED, info)])

    def make_wait(self) -> PendingWait[T]:
        """Make the wait for the answer."""
        return signal_wait(
            self._attempt, self._wait_path, self.name, self._codec.decode, self._within_ms, dict(self._info)
        )


class AsyncCallback(Callback[T]):
    """A callback of an async job."""

    async def wait(self) -> T:
        """Wait for the answer, which must fit `as_`. Raises TimeoutError if it doesn't come `within` its time."""
        return await Suspension.of(self._attempt).wait(self.make_wait())


class SyncCallback(Callback[T]):
    """A callback of a `def` job."""

    def wait(self) -> T:
        """See AsyncCallback.wait."""
        return block_until(self._attempt, self.make_wait())


class _AsyncContext(Generic[T]):
    def __init__(self, as_: Any, within: Duration | None, key: str | None) -> None:
        self._given = (Codec[T](as_, "the answer"), None if within is None else milliseconds(within), key)

    async def __aenter__(self) -> AsyncCallback[T]:
        attempt = require_job(async_attempt("callback"), "callback")
        made = AsyncCallback(attempt, *self._given)
        await (await_on_loop(attempt, made.open()) if is_away(attempt) else made.open())
        return made

    async def __aexit__(self, *_: object) -> None:
        """The token stays valid until its time is over: the answer may be under way."""


class _SyncContext(Generic[T]):
    def __init__(self, as_: Any, within: Duration | None, key: str | None) -> None:
        self._given = (Codec[T](as_, "the answer"), None if within is None else milliseconds(within), key)

    def __enter__(self) -> SyncCallback[T]:
        attempt = require_job(sync_attempt("callback"), "callback")
        made = SyncCallback(attempt, *self._given)
        run_on_loop(attempt, made.open())
        return made

    def __exit__(self, *_: object) -> None:
        """See _AsyncContext.__aexit__."""


class MakeCallback:
    """`async with callback(as_=Result, within="2h") as cb`; in a `def` job, `with callback.sync(…) as cb`."""

    @overload
    def __call__(self, *, as_: type[T], within: Duration | None = None, key: str | None = None) -> _AsyncContext[T]: ...

    @overload
    def __call__(
        self, *, as_: TypeForm[T], within: Duration | None = None, key: str | None = None
    ) -> _AsyncContext[T]: ...

    @overload
    def __call__(self, *, within: Duration | None = None, key: str | None = None) -> _AsyncContext[Any]: ...

    def __call__(self, *, as_: Any = Any, within: Duration | None = None, key: str | None = None) -> _AsyncContext[Any]:
        """Make a token whose answer this job waits for. `key` tells several callbacks of a job apart.

        `within` counts from here. The answer may come before the wait. A token works once.
        """
        return _AsyncContext(as_, within, key)

    @overload
    def sync(self, *, as_: type[T], within: Duration | None = None, key: str | None = None) -> _SyncContext[T]: ...

    @overload
    def sync(self, *, as_: TypeForm[T], within: Duration | None = None, key: str | None = None) -> _SyncContext[T]: ...

    @overload
    def sync(self, *, within: Duration | None = None, key: str | None = None) -> _SyncContext[Any]: ...

    def sync(self, *, as_: Any = Any, within: Duration | None = None, key: str | None = None) -> _SyncContext[Any]:
        """The same in a `def` job."""
        return _SyncContext(as_, within, key)


callback = MakeCallback()
