"""Transactional steps: what the body writes with `tx()` and the step's record are one transaction of the store.

Must not know any store: an engine whose guarantees include transactions has the trait `Transactional`.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from msgspec.structs import replace

from holdfast.core.errors import Invalid, StoreBusy, StoreError, StoreFull, StoreUnwritable
from holdfast.core.model import Conflict, Recorded, Step, StepState, Time
from holdfast.core.outcome import ARGS_PATH, TRANSACTION
from holdfast.core.references import may_need_blobs
from holdfast.engines.contract import Guarantees
from holdfast.engines.traits import Transactional
from holdfast.worker.bodies import run_timed
from holdfast.worker.call import Body, Call
from holdfast.worker.cancellation import Watch
from holdfast.worker.context import TX
from holdfast.worker.drift import tags_text
from holdfast.worker.records import beside
from holdfast.worker.registry import StepSpec

BUSY_TRIES = 3
"""How often one try of a step starts over because of others, for example because a table was altered."""


class _Raised(Exception):
    """Wraps a store error that is a failure of this try and isn't waited out: the body raised it, or its transaction
    was lost.
    """

    def __init__(self, error: StoreError) -> None:
        self.error = error


class TransactionCall(Call):
    """A call whose record is written together with the body's writes. For `run_async`, its value is that record."""

    is_timed_here = False  # its timeout starts when its transaction does
    _standing: Step | None = None

    def in_transaction(self, body: Body) -> Body:
        """Return the same body, with a transaction of the store around each try."""

        def transact(_: Call) -> Coroutine[Any, Any, Step]:
            return self._transact(body)

        return transact

    async def _transact(self, body: Body) -> Step:
        """Run the body in a transaction; return the record in the store.

        While the store is unreachable, wait for it, until the body has started. An error after that is a failure of
        this try, unless the record is stored and only the answer was lost.
        """
        attempt, journal = self.attempt, self.journal
        check_store(self.spec, attempt.engine.guarantees)
        engine = cast(Transactional, attempt.engine)
        await attempt.engine.blobs.ready(create=True)  # not in the transaction, which may be the only one
        await self.wait_for_threads()  # here, where nobody waits for us
        started_at = attempt.now()
        begun = replace(self.make_record(StepState.STARTED, started_at), finished_at=None)
        runs, lost = 0, None

        async def fill(connection: Any) -> list[Step]:
            nonlocal runs
            if lost is not None:
                raise _Raised(lost) from lost
            runs += 1
            token = TX.set(connection)
            try:
                with Watch(attempt, asyncio.current_task()):  # the store may run this in another task
                    value = await run_timed(self, body)
            except StoreError as error:
                raise _Raised(error) from error
            finally:
                TX.reset(token)
            journal.check_recordable()
            return await self._make_records(value, started_at)

        async def act() -> Recorded | Conflict:
            nonlocal lost
            try:
                return await engine.transact(begun, fill)
            except StoreError as error:
                if runs and not _may_start_over(error, runs):
                    lost = lost or error
                raise

        try:
            answer = await attempt.persist(act)
        except _Raised as raised:
            raise raised.error from raised.error.__cause__
        self._standing = attempt.standing_step(answer)
        journal.note_recorded(self._standing)
        return self._standing

    async def _make_records(self, value: Any, started_at: Time) -> list[Step]:
        """Return what is recorded with the effect: the result and the undo intent. So an undo is never in doubt."""
        done = super().make_done(value, started_at)
        if may_need_blobs(done.result or ""):
            text = await self.attempt.engine.blobs.keep(done.result or "", done.job, f"result of {done.name}")
            self._done = done = replace(done, result=text)
        records = [done, *self.make_intents(started_at)]
        if self.keyed:
            records.append(beside(done, ARGS_PATH + self.path, StepState.DONE, tags_text(self.text)))
        if self.attempt.progress.ledger is not None:
            records += self.attempt.progress.ledger.records_of(done)
        return records

    def has_intents(self) -> bool:
        """See Call.has_intents. Its undo intent is written with the record."""
        return False

    def undo_info(self, info: dict[str, str]) -> dict[str, str]:
        """See Call.undo_info. Its undo is a transaction, too."""
        return info | {"effect": TRANSACTION}

    def make_done(self, value: Any, started_at: Time) -> Step:
        """Return the record, which the transaction has already written."""
        assert isinstance(value, Step)
        return value

    async def record(self, step: Step) -> Step:
        """Record a failure. A success is already recorded."""
        return step if step is self._standing else await super().record(step)


def _may_start_over(error: StoreError, runs: int) -> bool:
    """Whether a body whose transaction was rolled back for this reason runs again automatically: others were in its
    way, or a person has to free space, which the log and the status report.
    """
    return isinstance(error, StoreFull | StoreUnwritable) or (isinstance(error, StoreBusy) and runs <= BUSY_TRIES)


def check_store(spec: StepSpec, store: Guarantees) -> None:
    """Refuse a transactional step if the store has no transactions, or none for sync or async code like this."""
    if store.transactions == "no":
        raise Invalid(
            f"step {spec.name}: effect='transaction' needs an SQL store, which {store.name} isn't; "
            "keep the jobs in sqlite:///… or postgresql://…, or use effect='once' with key="
        )
    if spec.is_async and store.transactions == "def steps":
        raise Invalid(
            f"step {spec.name}: on {store.name} a transaction blocks the only writer, which must not wait for async "
            "code; make it a def step"
        )
