"""Writing to a Postgres store in batches: new jobs, changes, steps, and turns of a worker. On the engine's own loop.

Must not contain SQL (`queries.sql`) or what an act does (`writes`). Acts that arrive while a statement of their kind
runs go into the next one: that is group commit, without a timer.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate, islice
from types import SimpleNamespace
from typing import Any

from holdfast.core.errors import StoreError
from holdfast.core.model import (
    Admission,
    Applied,
    Ask,
    Change,
    Conflict,
    Inserted,
    Job,
    Lease,
    Recorded,
    State,
    Step,
)
from holdfast.engines.batch_thread import Ticket
from holdfast.engines.contract import PROMOTE_LIMIT
from holdfast.engines.loop_thread import BatchQueue, LoopThread
from holdfast.engines.postgres.claim_cursor import ClaimCursor
from holdfast.engines.postgres.liveness import Liveness
from holdfast.engines.postgres.pool import Pool
from holdfast.engines.postgres.store import Connection
from holdfast.engines.postgres.writes import Writes
from holdfast.engines.rows import job_of
from holdfast.engines.server import ServerClock
from holdfast.engines.topics import queue_topic

INSERTS_AT_ONCE = 2
"""How many statements may be in progress: one on its way while the server runs the other. Other work needs connections,
too.
"""

BIG_TURN = 100
"""This many changes keep a server busy by themselves: such turns go one after another, and the next one is ready in
time. Smaller ones mostly wait for the disk, so two may run at once.
"""

BULK_JOBS = 2_000
"""After this many new jobs, run ANALYZE: the planner would scan a table that it takes for empty."""

FRESH_SECONDS = 60.0
"""How long the last ANALYZE counts: while jobs keep coming, the next one waits for twice as many."""

NUMBERS_KEPT = 100_000
"""For how many claimed jobs the numbers are remembered. Other jobs are looked up by their ids."""


class WriteBatches:
    """The queues of writes, and how a batch of each is executed."""

    def __init__(
        self,
        loop_thread: LoopThread,
        pool: Pool,
        liveness: Liveness,
        sql: SimpleNamespace,
        clock: ServerClock,
        *,
        inserts_at_once: int,
    ) -> None:
        self._loop_thread = loop_thread
        self._pool = pool
        self._liveness = liveness
        self._sql = sql
        self._clock = clock
        self._inserted, self._bulk, self._analyzed_at = 0, BULK_JOBS, -FRESH_SECONDS
        self._claim_cursor = ClaimCursor()
        self.numbers: dict[str, int] = {}
        """The numbers of the jobs that were claimed here, until a change that ends the lease is answered."""
        self._inserts = BatchQueue(
            loop_thread, self._run_inserts, at_once=inserts_at_once, weigh=lambda order: len(order[0])
        )
        self._commits = BatchQueue(loop_thread, self._run_commits)
        self._records = BatchQueue(loop_thread, self._run_records)
        self._admits = BatchQueue(loop_thread, self._run_admits)
        self._turns = BatchQueue(loop_thread, self._run_turns, at_once=2, limit=1)
        self._big_turns = BatchQueue(loop_thread, self._run_turns, limit=1)

    # From any loop.

    def insert(self, jobs: Sequence[Job], parent: Lease | None) -> Awaitable[list[Inserted]]:
        """Add new jobs."""
        return self._inserts.do((jobs, parent))

    def commit(self, changes: Sequence[Change]) -> Awaitable[list[Applied | Conflict]]:
        """Apply changes."""
        return self._commits.do(changes)

    def record(self, steps: Sequence[Step]) -> Awaitable[list[Recorded | Conflict]]:
        """Record steps."""
        return self._records.do(steps)

    def admit(
        self, asks: Sequence[Ask], steps: Sequence[Step]
    ) -> Awaitable[tuple[list[Admission | Conflict], list[Recorded | Conflict]]]:
        """Record steps, and give others their permits."""
        return self._admits.do((asks, steps))

    def turn(
        self, changes: Sequence[Change], worker: str, queues: list[str], limit: int, types: list[str] | None
    ) -> Awaitable[tuple[list[Applied | Conflict], list[Job]]]:
        """Apply changes without cargo, and claim; or only claim."""
        batches = self._turns if len(changes) < BIG_TURN else self._big_turns
        return batches.do((changes, worker, queues, limit, types))

    # On the engine's own loop.

    async def _run_inserts(self, tickets: Sequence[Ticket[Any]]) -> None:
        orders = [ticket.work for ticket in tickets]
        answers: dict[int, Any] = {}
        news: set[str] = set()

        async def alone(index: int) -> None:
            if index not in answers:
                await self._run_inserts([tickets[index]])

        if await self._together(tickets, lambda db: Writes(db, self._sql, news).insert(orders, answers), alone, news):
            self.note_new_jobs(sum(len(jobs) for jobs, _ in orders))
        for index, answer in answers.items():
            ticket = tickets[index]
            ticket.answer, ticket.error = (None, answer) if isinstance(answer, Exception) else (answer, None)

    def note_new_jobs(self, jobs: int) -> None:
        """Run ANALYZE when many jobs are new."""
        now = time.monotonic()
        if now > self._analyzed_at + FRESH_SECONDS:
            self._bulk = BULK_JOBS
        self._inserted += jobs
        if self._inserted >= self._bulk:
            self._inserted, self._bulk, self._analyzed_at = 0, 2 * self._bulk, now
            self._loop_thread.spawn(self._analyze())

    async def _run_commits(self, tickets: Sequence[Ticket[Any]]) -> None:
        changes = [change for ticket in tickets for change in ticket.work]
        ends = list(accumulate(len(ticket.work) for ticket in tickets))
        answers: list[Applied | Conflict] = []
        news: set[str] = set()

        async def alone(index: int) -> None:
            """The rest of one caller's changes: those already written are not tried again."""
            ticket = tickets[index]
            done = answers[ends[index] - len(ticket.work) : ends[index]]
            rest = Ticket[Any](ticket.work[len(done) :], None)
            rest.answer = []
            if rest.work:
                await self._run_commits([rest])
            ticket.answer, ticket.error = [*done, *(rest.answer or ())], rest.error

        def work(db: Connection) -> Awaitable[None]:
            return Writes(db, self._sql, news, self.numbers).commit(changes, answers)

        await self._together(tickets, work, alone, news)
        self._forget(changes[: len(answers)])
        for ticket, end in zip(tickets, ends, strict=True):
            if end <= len(answers):  # whatever happened to the others
                ticket.answer, ticket.error = answers[end - len(ticket.work) : end], None

    async def _run_records(self, tickets: Sequence[Ticket[Any]]) -> None:
        news: set[str] = set()

        async def work(db: Connection) -> None:
            answers = iter(
                await Writes(db, self._sql, news).record([step for ticket in tickets for step in ticket.work])
            )
            for ticket in tickets:
                ticket.answer = list(islice(answers, len(ticket.work)))

        async def alone(index: int) -> None:
            await self._run_records([tickets[index]])

        await self._together(tickets, work, alone, news)

    async def _run_admits(self, tickets: Sequence[Ticket[Any]]) -> None:
        news: set[str] = set()

        async def work(db: Connection) -> None:
            asks = [ask for ticket in tickets for ask in ticket.work[0]]
            steps = [step for ticket in tickets for step in ticket.work[1]]
            admissions, records = await Writes(db, self._sql, news).admit(asks, steps)
            answers, recorded = iter(admissions), iter(records)
            for ticket in tickets:
                asked, told = map(len, ticket.work)
                ticket.answer = list(islice(answers, asked)), list(islice(recorded, told))

        async def alone(index: int) -> None:
            await self._run_admits([tickets[index]])

        await self._together(tickets, work, alone, news)

    async def _together(
        self,
        tickets: Sequence[Ticket[Any]],
        work: Callable[[Connection], Awaitable[None]],
        alone: Callable[[int], Awaitable[None]],
        news: set[str],
    ) -> bool:
        """Do what several callers asked for, and notify others. Return whether it was done."""
        try:
            await self._pool.act(work)
        except StoreError as error:
            for ticket in tickets:
                ticket.error = error
            return False
        except Exception as error:
            # One of many may be the cause, so each is retried alone. Trouble with the store itself concerns everybody.
            if len(tickets) == 1:
                tickets[0].error = error
                return False
            for index in range(len(tickets)):
                await alone(index)
            return False
        finally:
            if news:
                self._liveness.tell(news)
        return True

    async def _run_turns(self, tickets: Sequence[Ticket[Any]]) -> None:
        for ticket in tickets:
            try:
                ticket.answer = await self._run_turn(*ticket.work)
            except Exception as error:
                ticket.error = error

    async def _run_turn(
        self, changes: Sequence[Change], worker: str, queues: Sequence[str], limit: int, types: Sequence[str] | None
    ) -> tuple[list[Applied | Conflict], list[Job]]:
        """Changes and a claim, or only a claim: one statement. In a long drain it starts where the last one did."""
        began = time.monotonic()
        claim = (worker, queues, limit, PROMOTE_LIMIT, types, *self._claim_cursor.ahead(queues, types, began))

        async def work(db: Connection) -> tuple[list[Applied | Conflict], list[Any], set[str]]:
            if not changes:
                return [], await db.fetch(self._sql.claim, *claim), set()
            acts = Writes(db, self._sql, None, self.numbers)
            return *await acts.turn(changes, *claim), acts.news

        answers, rows, news = await self._pool.act(work)
        self._forget(changes)
        found = [row for row in rows if row[0] is not None]
        news.update(queue_topic(row[3]) for row in rows if row[0] is None)  # something was promoted there
        if news:
            self._liveness.tell(news)
        jobs = [job_of(row) for row in found]
        if jobs:
            if len(self.numbers) > NUMBERS_KEPT:
                self.numbers.clear()
            self.numbers.update(zip([job.id for job in jobs], [row[0] for row in found], strict=True))
            spots = [(job.queue, job.priority, job.run_at or 0, row[0]) for job, row in zip(jobs, found, strict=True)]
            self._claim_cursor.note(queues, types, limit, spots, began)
            self._clock.note(jobs[-1].claimed_at or 0)
        elif limit:
            self._claim_cursor.reset()
        return answers, jobs

    def _forget(self, changes: Sequence[Change]) -> None:
        """Forget answered changes: except for signals, their leases are over."""
        for change in changes:
            if change.job.state is not State.ACTIVE:
                self.numbers.pop(change.job.id, None)

    async def _analyze(self) -> None:
        try:
            await self._pool.act(lambda db: db.execute(self._sql.analyze))
        except Exception:  # noqa: S110 (a role that may not analyse leaves it to autovacuum)
            pass
