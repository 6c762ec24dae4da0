"""Writing to a Redis store in batches: new jobs, changes, steps, and turns of a worker. On the engine's own loop.

Must not contain what an act does (`lua/`). Acts that arrive while a call of their kind runs go into the next one: that
is group commit, without a timer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from redis.exceptions import RedisError

from holdfast.core.errors import Duplicate, HoldfastError, KeyConflict, LeaseLost, StoreBusy, StoreError
from holdfast.core.model import Admission, Applied, Ask, Change, Conflict, Inserted, Job, Lease, Recorded, Step
from holdfast.core.unique import duplicate
from holdfast.engines.batch_thread import Ticket
from holdfast.engines.loop_thread import BatchQueue, LoopThread
from holdfast.engines.redis import rows
from holdfast.engines.redis.direct import Direct
from holdfast.engines.redis.store import translate_error
from holdfast.engines.redis.url import StoreUrl
from holdfast.engines.refusals import key_taken, lease_over

CALL_WEIGHT = 25
"""How much work goes into one call of a script, counted in plain changes: it blocks the server meanwhile."""

CALL_SIZE = 4 << 20
"""How many bytes go into one call."""

Part = tuple[int, list[Any]]
"""How many requests one call carries, and its arguments."""


class WriteBatches:
    """The queues of writes, and how a batch of each is executed. `script` runs one, `claim` takes jobs."""

    def __init__(
        self,
        loop_thread: LoopThread,
        url: StoreUrl,
        script: Callable[..., Awaitable[Any]],
        claim: Callable[..., Awaitable[list[Job]]],
        direct: Direct,
    ) -> None:
        self._url = url
        self._script = script
        self._claim = claim
        self._direct = direct
        self._inserts = BatchQueue(loop_thread, self._run_inserts)
        self._commits = BatchQueue(loop_thread, self._run_commits)
        self._records = BatchQueue(loop_thread, self._run_records)
        self._admits = BatchQueue(loop_thread, self._run_admits)
        self._turns = BatchQueue(loop_thread, self._run_turns, at_once=2, limit=1)

    # From any loop.

    async def insert(self, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
        """Add new jobs: a single one through the shortcut, if that is open."""
        if len(jobs) == 1:
            answer = await self._direct.insert(_order(jobs, parent))
            if answer is not None:
                return _inserted(answer, jobs, parent)
        inserted: list[Inserted] = await self._inserts.do((jobs, parent))
        return inserted

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
        """Apply changes, and claim."""
        return self._turns.do((changes, worker, queues, limit, types))

    # On the engine's own loop.

    async def _run_inserts(self, tickets: Sequence[Ticket[Any]]) -> None:
        orders: list[tuple[int, bytes]] = []
        for ticket in tickets:
            jobs, parent = ticket.work
            orders.append((len(jobs), _order(jobs, parent)))
        for ticket, answer in zip(tickets, await self._in_calls("insert", _parts(orders)), strict=True):
            if isinstance(answer, Exception):
                ticket.error = answer
                continue
            try:
                ticket.answer = _inserted(answer, *ticket.work)
            except (Duplicate, KeyConflict, LeaseLost) as error:
                ticket.error = error

    async def _run_commits(self, tickets: Sequence[Ticket[Any]]) -> None:
        changes = [change for ticket in tickets for change in ticket.work]
        parts = _parts((rows.weight(change), rows.change_row(change)) for change in changes)
        self._deal(
            tickets, await self._in_calls("commit", parts), lambda change, row: rows.answer_of(row, change.job.id)
        )

    async def _run_records(self, tickets: Sequence[Ticket[Any]]) -> None:
        steps = [step for ticket in tickets for step in ticket.work]
        words = ((1, *_step_words(step)) for step in steps)
        self._deal(tickets, await self._in_calls("record", _parts(words)), _recorded)

    async def _run_admits(self, tickets: Sequence[Ticket[Any]]) -> None:
        orders: list[tuple[int, bytes]] = []
        for ticket in tickets:
            asks, steps = ticket.work
            order = rows.pack(([_step_words(step) for step in steps], [rows.ask_row(ask) for ask in asks]))
            orders.append((len(asks) + len(steps), order))
        for ticket, answer in zip(tickets, await self._in_calls("admit", _parts(orders)), strict=True):
            if isinstance(answer, Exception):
                ticket.error = answer
                continue
            (asks, steps), (recorded, admitted) = ticket.work, answer
            ticket.answer = (
                [rows.admission_of(ask, row) for ask, row in zip(asks, admitted, strict=True)],
                [_recorded(step, row) for step, row in zip(steps, recorded, strict=True)],
            )

    async def _run_turns(self, tickets: Sequence[Ticket[Any]]) -> None:
        """The commit and the claim are sent one after the other, and answered together."""
        for ticket in tickets:
            changes, worker, queues, limit, types = ticket.work
            commits = Ticket[Any](changes, None)
            claiming = self._claim(worker, queues, limit, types) if limit and queues else _nothing()
            _, claimed = await asyncio.gather(self._run_commits([commits]), claiming, return_exceptions=True)
            ticket.error = commits.error
            ticket.answer = (commits.answer, [] if isinstance(claimed, BaseException) else claimed)

    async def _in_calls(self, name: str, parts: Iterable[Part]) -> list[Any]:
        """Do what several callers asked for, in as few calls as the limits allow, sent together.

        Returns an answer for each request: what its call returned for it, or that call's error. The other calls may
        have been executed.
        """
        parts = list(parts)
        calls = [self._script(name, *words) for _, words in parts]
        found: list[Any] = []
        for (asked, _), answer in zip(parts, await _all_of(calls), strict=True):
            if isinstance(answer, RedisError | OSError | TimeoutError | HoldfastError):
                found += [translate_error(answer, self._url)] * asked
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += answer
        return found

    def _deal(self, tickets: Sequence[Ticket[Any]], found: Iterable[Any], read: Callable[[Any, Any], Any]) -> None:
        """Distribute answers in order; `read` makes one from a request and what the script returned for it."""
        found = iter(found)
        for ticket in tickets:
            mine = list(islice(found, len(ticket.work)))
            troubles = [row for row in mine if isinstance(row, Exception)]
            if not troubles:
                ticket.answer = [read(one, row) for one, row in zip(ticket.work, mine, strict=True)]
            elif len(troubles) < len(mine) and isinstance(troubles[0], StoreBusy):
                ticket.error = StoreError(f"{self._url.shown}: only a part of it was written; check, then repeat it")
            else:
                ticket.error = troubles[0]


def _order(jobs: Sequence[Job], parent: Lease | None) -> bytes:
    """Return the insert script's arguments for one caller."""
    lease = (False, 0) if parent is None else (parent.job, parent.epoch)
    return rows.pack((*lease, [rows.job_row(job) for job in jobs]))


def _inserted(answer: Any, jobs: Sequence[Job], parent: Lease | None) -> list[Inserted]:
    """Return the insert script's answer to one caller, or raise its refusal."""
    match answer[0]:
        case 0:
            assert parent is not None
            raise lease_over(parent)
        case 1:
            job, holder = jobs[answer[1] - 1], answer[2].decode()
            raise key_taken(job, holder) if job.options.unique is None else duplicate(job, holder)
    return [Inserted(id.decode(), new == 1) for id, new in zip(answer[1::2], answer[2::2], strict=True)]


async def _nothing() -> list[Job]:
    return []


def _step_words(step: Step) -> tuple[Any, ...]:
    return (step.job, step.epoch, step.path, rows.STEP_LETTERS[step.state], rows.step_row(step))


def _recorded(step: Step, row: Any) -> Recorded | Conflict:
    if row == 1:
        return Recorded(step, True)
    if row[0] == 0:
        return rows.conflict_of(row, step.job)
    return Recorded(rows.step_of(step.job, step.path, row[1]), False)


def _parts(weighed: Any) -> Iterator[Part]:
    """Split (weight, argument …) into groups that fit into one call."""
    words: list[Any] = []
    count = weight = size = 0
    for one, *more in weighed:
        length = sum(len(word) for word in more if isinstance(word, bytes | str))
        if words and (weight + one > CALL_WEIGHT or size + length > CALL_SIZE):
            yield count, words
            words, count, weight, size = [], 0, 0, 0
        words += more
        count += 1
        weight += one
        size += length
    if words:
        yield count, words


async def _all_of(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    """Return what each call returns or raises. A single call, as most are, is awaited here and needs no task."""
    if len(calls) != 1:
        return await asyncio.gather(*calls, return_exceptions=True)
    try:
        return [await calls[0]]
    except Exception as error:
        return [error]
