"""Transactional steps: the engine's thread begins a transaction, a body elsewhere uses it, and the thread commits it.

Must not decide what a body may send (`guard`). The job's row isn't locked while the body runs: otherwise a hanging body
would keep its job from being rescued. Instead, the lease is checked before, and again under the row's lock together
with the record. Bodies have their own connections, so that nothing one leaves behind reaches others.
"""

import asyncio
from types import SimpleNamespace

import asyncpg

from holdfast.core.errors import Invalid, StoreClosed
from holdfast.core.model import Conflict, Recorded, Step, StepState
from holdfast.core.moves import check_unmarked
from holdfast.engines.held_transaction import HeldTransaction, held_too_long, step_is_over
from holdfast.engines.loop_thread import LoopThread
from holdfast.engines.postgres import rows
from holdfast.engines.postgres.counting import record_crowded
from holdfast.engines.postgres.guard import Connection, Session, ended_early
from holdfast.engines.postgres.pool import Pool
from holdfast.engines.postgres.store import BODY_SETTINGS, is_broken, is_passing, translate_error
from holdfast.engines.postgres.store import Connection as Driver
from holdfast.engines.postgres.url import StoreUrl
from holdfast.engines.postgres.writes import Writes
from holdfast.engines.rows import step_of
from holdfast.engines.traits import Body

LIMIT_SECONDS = 30.0
"""How long a body may take, because it may hold rows that others wait for. The statements of `begin_step` set the same
limit on the server, in case this process dies.
"""

LEAVE_SECONDS = 3.0
"""How long a rollback may take before the connection is closed, which rolls back too."""

# The SQLSTATEs that `check_step` raises.
_ENDED, _TOUCHED = "HF001", "HF002"

Answer = Recorded | Conflict | None


class Over:
    """The end of a body, reported from any thread to the loop thread, which waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    def set(self) -> None:
        """Let the loop thread continue."""
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop thread has ended, and everything with it
            pass

    async def wait(self, seconds: float) -> bool:
        """Whether the end comes in time. On the engine's own loop."""
        try:
            async with asyncio.timeout(seconds):
                return await self._event.wait()
        except TimeoutError:
            return False


class _Own(Exception):
    """Wraps an error of the body itself, as opposed to trouble with the store: it is raised unchanged."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Transactions:
    """The connections that bodies run on, as many as the engine has others. Lives on the engine's own loop."""

    def __init__(self, loop_thread: LoopThread, url: StoreUrl, sql: SimpleNamespace) -> None:
        self._loop_thread, self._url, self._sql = loop_thread, url, sql
        self._pool = Pool(url, BODY_SETTINGS)
        self._holds: set[HeldTransaction[Over]] = set()
        self._stopped = False
        self.sockets = self._pool.sockets

    async def run(self, step: Step, body: Body) -> Recorded | Conflict:
        """Run a body inside its own transaction. On the caller's loop."""
        hold = HeldTransaction(step, Over(self._loop_thread.loop))
        return await hold.run_body(body, self._loop_thread.call(lambda: self._answered(hold)))

    async def stop(self) -> None:
        """Roll back what is running: closing doesn't wait for bodies."""
        self._stopped = True
        for hold in self._holds:
            hold.over.set()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    async def _answered(self, hold: HeldTransaction[Over]) -> Answer:
        """Run one transaction. The caller gets its answer before the connection is cleaned for the next one."""
        answer: asyncio.Future[Answer] = self._loop_thread.loop.create_future()

        async def work() -> None:
            try:
                async with self._pool.connection() as db:
                    try:
                        answer.set_result(await self._carried_out(db, hold))
                    except Exception as error:
                        answer.set_exception(self._translate(error))
                    finally:
                        await self._leave(db)
            except BaseException as error:
                if not answer.done():
                    answer.set_exception(self._translate(error) if isinstance(error, Exception) else self._was_closed())

        self._loop_thread.spawn(work())
        return await answer

    async def _carried_out(self, db: Driver, hold: HeldTransaction[Over]) -> Answer:
        standing = await self._standing(db, hold.step)
        if standing is not None:
            return standing
        await db.execute(self._sql.begin_step)
        failed = await self._let_fill(db, hold)
        if hold.steps:
            await self._check(db, hold.step, failed)
            return await self._record(db, hold)
        # It may have failed because of what an earlier try wrote, whose answer was lost.
        await db.execute(self._sql.rollback_step)
        standing = await self._standing(db, hold.step)
        return standing if isinstance(standing, Recorded) else None

    async def _standing(self, db: Driver, step: Step) -> Recorded | Conflict | None:
        """The existing record, or a conflict if the lease is over; None if the body should run."""
        row = await db.fetchrow(self._sql.look_step, step.job, step.epoch, step.path)
        if row is None:
            return (await Writes(db, self._sql).standing([step]))[step.job, step.path]
        *record, mark = row
        if record[2] is None or record[4] == StepState.STARTED.value:
            check_unmarked(mark)
            return None
        return Recorded(step_of(record), False)

    async def _let_fill(self, db: Driver, hold: HeldTransaction[Over]) -> BaseException | None:
        """Wait for the body, with a bound; return the error of its last failed statement."""
        session = Session(db, self._loop_thread.loop)
        self._holds.add(hold)
        try:
            if self._stopped:
                raise self._was_closed()
            hold.open(Connection(session))
            in_time = await hold.over.wait(LIMIT_SECONDS)
        finally:
            self._holds.discard(hold)
        await session.end(step_is_over if in_time else lambda: held_too_long(hold.step, LIMIT_SECONDS))
        if self._stopped and not hold.steps:
            raise self._was_closed()
        if session.trouble is not None:
            raise session.trouble
        if not in_time:
            raise _Own(held_too_long(hold.step, LIMIT_SECONDS))
        if hold.steps and not db.is_in_transaction():
            raise ended_early()
        return session.failed

    async def _check(self, db: Driver, step: Step, failed: BaseException | None) -> None:
        """Check that the body's work can be committed; deferred constraints are checked here."""
        try:
            await db.execute(self._sql.check_step)
        except asyncpg.InFailedSQLTransactionError as error:
            raise Invalid(
                f"step {step.name}: one of its statements failed ({_line(failed) or 'it was cancelled'}), so Postgres "
                "keeps nothing of the transaction: let the error propagate, or use a savepoint: tx().transaction()"
            ) from (failed or error)
        except asyncpg.PostgresError as error:
            if error.sqlstate == _ENDED:
                raise ended_early() from error
            if error.sqlstate == _TOUCHED:
                raise Invalid(
                    f"step {step.name}: {_line(error)} is Holdfast's own, so nothing this step wrote is kept; use "
                    "your own tables, and ask current() or app.jobs about jobs"
                ) from error
            if _is_the_stores(error):
                raise
            raise _Own(error) from error

    async def _record(self, db: Driver, hold: HeldTransaction[Over]) -> Recorded | Conflict:
        """Record and commit under the lock of the job's row, if the lease is still ours and there is no record yet."""
        step = hold.steps[0]
        try:
            found = await db.fetch(self._sql.add_steps, *rows.steps_given(hold.steps))
            written = {row[0] for row in found or await record_crowded(db, self._sql, hold.steps)}
        except asyncpg.PostgresError as error:
            if _is_the_stores(error):
                raise
            raise Invalid(
                f"step {step.name}: can't write its record together with its changes ({_line(error)}); did the step "
                "change Holdfast's tables or their rights?"
            ) from error
        if 1 not in written:  # the first of them is the step itself
            await db.execute(self._sql.rollback_step)
            return (await Writes(db, self._sql).standing([step]))[step.job, step.path]
        try:
            await db.execute(self._sql.commit_step)
        except asyncpg.PostgresError as error:
            if _is_the_stores(error):
                raise
            raise _Own(error) from error
        return Recorded(step, True)

    async def _leave(self, db: Driver) -> None:
        """Roll back what is open, and reset what a body left on the connection: settings, locks, temporary tables."""
        if db.is_closed():
            return
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                if db.is_in_transaction():
                    await db.execute(self._sql.rollback_step)
                if not self._url.pooled:  # through a pooler, the session isn't ours
                    await db.execute(self._sql.tidy_session)
        except Exception:
            db.terminate()

    def _translate(self, error: Exception) -> BaseException:
        return error.error if isinstance(error, _Own) else translate_error(error, self._url)

    def _was_closed(self) -> Exception:
        return StoreClosed(f"{self._url.shown}: the store was closed during a transaction, which was rolled back")


def _line(error: BaseException | None) -> str:
    """The first line of an error's message."""
    return "" if error is None else str(error).partition("\n")[0]


def _is_the_stores(error: asyncpg.PostgresError) -> bool:
    """Whether this is trouble with the store, so that another try may succeed."""
    return is_passing(error) or is_broken(error) or isinstance(error, _PASSING)


_PASSING = (
    asyncpg.DiskFullError,
    asyncpg.OutOfMemoryError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.InvalidCachedStatementError,
)
