"""Transactional steps: what the body writes with `tx()` and the step's record are one transaction of the store.

Must not know any store: an engine whose guarantees say so has the trait `Transactional`.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from msgspec.structs import replace

from holdfast.core.errors import Invalid, StoreBusy, StoreError, StoreFull, StoreUnwritable
from holdfast.core.model import Conflict, Recorded, Step, StepState, Time
from holdfast.core.outcome import TRANSACTION
from holdfast.engines.contract import Guarantees
from holdfast.engines.traits import Transactional
from holdfast.worker.attempt import ARGS_PATH, Attempt, beside
from holdfast.worker.cancellation import Watch
from holdfast.worker.context import TX
from holdfast.worker.drift import tags_text
from holdfast.worker.registry import StepSpec
from holdfast.worker.steps import Body, Call, body_of, timed

BUSY_TRIES = 3
"""How often one try of a step begins anew because others were in its way, as when a table was altered meanwhile."""


def call_of(
    attempt: Attempt,
    spec: StepSpec,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: Any,
    *,
    item: Watch | None = None,
) -> Call:
    """One call of a step, of whichever kind."""
    kind = TransactionCall if spec.effect == TRANSACTION else Call
    return kind(attempt, spec, args, kwargs, key, item=item)


def whole_body(spec: StepSpec, body: Body | None = None) -> Body:
    """What to await for a call: its function or another body, and around it the transaction, if it has one."""
    inner = body or body_of(spec)
    if spec.effect != TRANSACTION:
        return inner

    def transact(call: Call) -> Coroutine[Any, Any, Step]:
        assert isinstance(call, TransactionCall)
        return call.transact(inner)

    return transact


class _Raised(Exception):
    """Around an error of the store's that is this try's failure, and is not waited out: the body raised it, or its
    transaction was lost.
    """

    def __init__(self, error: StoreError) -> None:
        self.error = error


class TransactionCall(Call):
    """A call whose record is written together with what its body does. To `run_async`, its value is that record."""

    _standing: Step | None = None

    async def transact(self, body: Body) -> Step:
        """Run the body in a transaction; answer with the record that stands.

        A store that is away is waited for, until the body has begun. Trouble after that is this try's failure, unless
        the record is there and only the answer was lost.
        """
        attempt = self.attempt
        check_store(self.spec, attempt.engine.guarantees)
        engine = cast(Transactional, attempt.engine)
        await self.is_still()  # here, where nobody waits for us
        started_at = attempt.now()
        begun = replace(self._step(StepState.STARTED, started_at), finished_at=None)
        runs, lost = 0, None

        async def fill(connection: Any) -> list[Step]:
            nonlocal runs
            if lost is not None:
                raise _Raised(lost) from lost
            runs += 1
            token = TX.set(connection)
            try:
                with Watch(attempt, asyncio.current_task()):  # the store may run this in a task of its own
                    value = await timed(self, body)
            except StoreError as error:
                raise _Raised(error) from error
            finally:
                TX.reset(token)
            attempt.check_kept()
            return self._records(value, started_at)

        async def act() -> Recorded | Conflict:
            nonlocal lost
            try:
                return await engine.transact(begun, fill)
            except StoreError as error:
                if runs and not _may_begin_anew(error, runs):
                    lost = lost or error
                raise

        try:
            answer = await attempt.persist(act)
        except _Raised as raised:
            raise raised.error from raised.error.__cause__
        self._standing = attempt.granted(answer)
        attempt.kept(self._standing)
        return self._standing

    def _records(self, value: Any, started_at: Time) -> list[Step]:
        """What is recorded with the effect: the result, and that it can be undone. So an undo never has a doubt."""
        done = super().done(value, started_at)
        records = [done, *self.intents(started_at)]
        if self.keyed:
            records.append(beside(done, ARGS_PATH + self.path, StepState.DONE, tags_text(self.text)))
        return records

    def done(self, value: Any, started_at: Time) -> Step:
        """The record, which `transact` has written already."""
        assert isinstance(value, Step)
        return value

    async def keep(self, step: Step) -> Step:
        """Record a failure. What succeeded has been kept."""
        return step if step is self._standing else await super().keep(step)


def _may_begin_anew(error: StoreError, runs: int) -> bool:
    """Whether a body whose transaction was taken back so runs again by itself: others were in its way, or a person has
    to make room, of which the log and the status tell.
    """
    return isinstance(error, StoreFull | StoreUnwritable) or (isinstance(error, StoreBusy) and runs <= BUSY_TRIES)


def check_store(spec: StepSpec, store: Guarantees) -> None:
    """Refuse a transactional step where the store has no transactions, or none for its colour."""
    if store.transactions == "no":
        raise Invalid(
            f"step {spec.name}: effect='transaction' needs an SQL store, and {store.name} is none; "
            "keep the jobs in sqlite:///… or postgresql://…, or use effect='once' with key="
        )
    if spec.is_async and store.transactions == "def steps":
        raise Invalid(
            f"step {spec.name}: on {store.name} a transaction holds the one writer, which must not wait for async "
            "code; write it as a def step"
        )
