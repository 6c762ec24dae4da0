"""What a decorated job offers: plain calls, submitting, and child jobs for each item of a list.

Must not know the App, only that it opens its store. Inside a job, what is submitted is its child, under an id that is
the same however often the job is run, and a wait for it parks the job.
"""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar, overload

from msgspec.structs import replace

from holdfast.app.run import Run, failure_of
from holdfast.app.step import Key, _AsyncOne, _SyncOne, check_map
from holdfast.core.codec import Changed, Signature, canonical
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import BadValue, Invalid, LeaseLost, WrongColour
from holdfast.core.keys import derived_id
from holdfast.core.model import Entry, Inserted, Time
from holdfast.jobs.service import JobRequest, Jobs, Status
from holdfast.worker.attempt import Attempt
from holdfast.worker.cancellation import Watch
from holdfast.worker.children import check_other, child_wait, group_wait, known_children, run_wait
from holdfast.worker.context import PATH, attempt_here, check_no_tx, loop_here, plain_call
from holdfast.worker.held_job import LOST
from holdfast.worker.maps import Tally, map_async
from holdfast.worker.own_loop import await_on_loop, is_away
from holdfast.worker.registry import JobSpec
from holdfast.worker.suspension import Suspension
from holdfast.worker.tries import Stopped

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741
S = TypeVar("S")

OPTIONS = ("key", "key_for", "queue", "priority", "delay", "at", "tags", "meta", "expires", "connection")
"""What `submit` takes besides the job's own arguments."""

RESERVED = frozenset({*OPTIONS, "unique"})
"""Names that a job's parameter can't have: options that are there, or that are kept for it."""


PARTS_UNDER_WAY = 3
"""How many parts of a `submit_many` are handed to the store before an answer is waited for."""

UNBOUND = 1_000
"""How many items of a map outside a job are waited for at once."""


class _Job(Generic[P, R]):
    """What jobs of both colours share: submitting."""

    def __init__(self, open: Callable[[], Awaitable[Jobs]], spec: JobSpec) -> None:
        self._open = open
        self.spec = spec
        self.type = spec.type
        functools.update_wrapper(self, spec.function)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<job {self.type}>"

    def submit(
        self,
        *args: Any,
        key: str | None = None,
        key_for: Duration | None = None,
        queue: str | None = None,
        priority: int = 0,
        delay: Duration | None = None,
        at: datetime | None = None,
        tags: Sequence[str] = (),
        meta: dict[str, str] | None = None,
        expires: Duration | datetime | None = None,
        connection: Any = None,
        **kwargs: Any,
    ) -> "Coroutine[Any, Any, Run[R]]":
        """Submit the job with its own arguments, to be run by a worker.

        `key` gives one run for one key (for `key_for`, or while the run is kept); the same key with other arguments is
        a KeyConflict. `delay` or `at` say when, `expires` until when it is still worth running, `priority` goes from
        -100 to 100, higher first. Inside a job this is itself recorded: submitted once, however often the job is run.
        With `connection`, one of asyncpg, psycopg or SQLAlchemy to the store's own database, the job is part of the
        transaction that you have begun there: committed and rolled back with it.
        """
        self._check_colour("submit")
        options = (key, key_for, queue, priority, delay, at, tags, meta, expires)
        return self._submit_one(args, kwargs, options, connection)

    async def _submit_one(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: tuple[Any, ...], connection: Any
    ) -> "Run[R]":
        order = self._order(await self._now(), *options)
        changes: list[Changed] = []
        text = self._encoded(args, kwargs, changes)
        refused = {text: changes[0].refusal} if changes else {}
        (run,) = await self._submit([replace(order, args=text)], connection, refused)
        return run

    def _encoded(self, args: tuple[Any, ...], kwargs: dict[str, Any], changes: list[Changed]) -> str:
        """A call as text. Inside a job, one that JSON would change is noted: its child may be there already."""
        return self.spec.signature.encode(args, kwargs, None if attempt_here() is None else changes)

    def submit_many(self, calls: Iterable[Any], **options: Any) -> "Coroutine[Any, Any, list[Run[R]]]":
        """Submit the job once for each element: its one argument, or a tuple of arguments. The options are for all.

        A thousand go to the store in one act, on Redis forty, and a few acts may be under way: if one fails, those
        before it are there, and the next ones may be. Results come in the elements' order.
        """
        self._check_colour("submit_many")
        return self._submit_all(calls, options)

    def _check_colour(self, what: str) -> None:
        """In a `def` job nobody would await it: nothing would be submitted, in silence."""
        check_no_tx("submitting a job")
        if not loop_here() and attempt_here() is not None:
            raise WrongColour(f"{self.type}.{what}(…) is awaited: in a def job call app.sync.{what}({self.type}, …)")

    async def _submit_all(self, calls: Iterable[Any], options: dict[str, Any]) -> "list[Run[R]]":
        now, at_once = await self._now(), await self._at_once()
        options = _checked(self.type, options)
        connection = options.pop("connection", None)
        refused: dict[str, BadValue] = {}
        order, parts = self._order(now, **options), self._parts(calls, at_once, refused)
        if connection is not None or attempt_here() is not None:
            return [
                run
                for texts in parts
                for run in await self._submit([replace(order, args=text) for text in texts], connection, refused)
            ]
        jobs, signature = await self._open(), self.spec.signature
        return [JobRun(self._open, one.id, signature) for one in await _inserted(jobs, order, parts)]

    def _parts(self, calls: Iterable[Any], at_once: int, refused: dict[str, BadValue]) -> Iterator[list[str]]:
        """The calls as text, as many as go to the store in one act at a time. Those to refuse are noted by text."""
        texts: list[str] = []
        changes: list[Changed] = []
        for call in calls:
            texts.append(self._encoded(call if isinstance(call, tuple) else (call,), {}, changes))
            if changes:
                refused[texts[-1]] = changes[0].refusal
                changes.clear()
            if len(texts) == at_once:
                yield texts
                texts = []
        if texts:
            yield texts

    async def _now(self) -> Time:
        """The store's time. Inside a job a store that is away for a while is waited for."""
        check_no_tx("submitting a job")
        attempt = attempt_here()
        if attempt is None:
            return await (await self._open()).engine.now()
        if is_away(attempt):
            return await await_on_loop(attempt, self._now())
        with attempt.activity():
            return await attempt.persist(attempt.engine.now)

    async def _at_once(self) -> int:
        """How many jobs go to the store in one act."""
        attempt = attempt_here()
        return (attempt.engine if attempt is not None else (await self._open()).engine).insert_at_once

    async def _submit(
        self, orders: list[JobRequest], connection: Any, refused: Mapping[str, BadValue]
    ) -> "list[Run[R]]":
        """Submit them; inside a job as its children, under ids that are the same however often the job is run.

        `refused` has the arguments for which no new child may be made, as text, and why.
        """
        attempt, signature = attempt_here(), self.spec.signature
        if attempt is not None and connection is not None:
            raise Invalid(
                f"{self.type}.submit: connection= is for code outside a job; inside one, what is submitted is recorded"
            )
        if attempt is None:
            accepted = await (await self._open()).submit(orders, connection=connection)
            return [JobRun(self._open, one.id, signature) for one in accepted]
        if is_away(attempt):
            return await await_on_loop(attempt, self._submit(orders, None, refused))
        group = f"~submit:{self.type}"
        names = [f"{order.args}\n{order.key or ''}" for order in orders]
        ids = [_child_id(attempt, group, name) for name in names]
        for id, order in zip(ids, orders, strict=True) if refused else ():
            if order.args in refused and not await _is_born(attempt, id):
                raise refused[order.args]
        # Each is a group of its own, so that it wakes its parent on its own.
        accepted_ids = await self._insert_children(attempt, orders, ids, ids)
        return [
            JobRun(self._open, id, signature, attempt if id == ours else None)
            for id, ours in zip(accepted_ids, ids, strict=True)
        ]

    async def _insert_children(
        self, attempt: Attempt, orders: list[JobRequest], ids: list[str], groups: list[str]
    ) -> list[str]:
        """Insert children, unless an earlier lease of this job has done so; answer with the ids that stand for them."""
        try:
            with attempt.activity():
                known = await known_children(attempt)
                if all(id in known for id in ids):
                    return ids
                await attempt.admit()
                jobs = Jobs(attempt.engine)
                accepted = await attempt.persist(lambda: jobs.submit(orders, attempt.job.lease, ids=ids, groups=groups))
        except LeaseLost as error:
            attempt.halt(LOST)
            raise Stopped(str(error)) from error
        return [one.id for one in accepted]

    async def _map(self, items: Iterable[Any], at_once: int | None, key: Key, need: int | None) -> list[Any]:
        check_map(self.type, 1 if at_once is None else at_once, need)
        attempt = attempt_here()
        if attempt is not None and is_away(attempt):
            return await await_on_loop(attempt, self._map(list(items), at_once, key, need))
        if attempt is None or at_once is not None:
            tally: Tally[Awaitable[Any]] = Tally(
                attempt, self.type, items, need, lambda item: functools.partial(self._one, item, key)
            )
            return await map_async(tally, at_once or UNBOUND, Watch(attempt, asyncio.current_task()))
        return await self._family(attempt, Tally(attempt, self.type, items, need, lambda item: lambda: item), key)

    async def _one(self, item: Any, key: Key) -> R:
        run = await self.submit(item, key=None if key is None or attempt_here() is not None else _text(key, item))
        return await run.result()

    async def _family(self, attempt: Attempt, tally: Tally[Any], key: Key) -> list[Any]:
        """A child for each item, all in one group, so that the last one to arrive wakes the job, and no other."""
        parent, name = PATH.get(), f"~map:{self.type}"
        group = f"{name}#{attempt.journal.calls.number(parent + name)}"
        alike = self._order(await self._now())
        taken, ids = [], []
        orders: list[JobRequest] = []
        while (one := tally.take()) is not None:
            changes: list[Changed] = []
            try:
                order = replace(alike, args=self._encoded((one.item,), {}, changes))
            except Invalid as error:
                tally.fail(one, error)
                continue
            text = order.args if key is None else _text(key, one.item)
            id = _child_id(attempt, group, text)
            if changes and not await _is_born(attempt, id):
                tally.fail(one, changes[0].refusal)
                continue
            taken.append(one)
            ids.append(id)
            orders.append(order)
            if len(orders) == attempt.engine.insert_at_once:
                await self._insert_children(attempt, orders, ids[-len(orders) :], [group] * len(orders))
                orders = []
        if orders:
            await self._insert_children(attempt, orders, ids[-len(orders) :], [group] * len(orders))
        outcomes = await Suspension.of(attempt).wait(group_wait(attempt, ids, group)) if ids else []
        for one, outcome in zip(taken, outcomes, strict=True):
            if outcome.job is not None:
                tally.fail(one, failure_of(outcome.job))
            else:
                tally.succeed(one, self.spec.signature.result.decode(outcome.result or "null"))
        return tally.outcome()

    def _order(
        self,
        now: Time,
        key: str | None = None,
        key_for: Duration | None = None,
        queue: str | None = None,
        priority: int = 0,
        delay: Duration | None = None,
        at: datetime | None = None,
        tags: Sequence[str] = (),
        meta: dict[str, str] | None = None,
        expires: Duration | datetime | None = None,
    ) -> JobRequest:
        """What these options ask for; the arguments are left to be put in."""
        if delay is not None and at is not None:
            raise Invalid(f"{self.type}.submit: give delay or at, not both")
        if isinstance(tags, str):
            raise Invalid(f"tags={tags!r}: give a list of texts")
        options = self.spec.options
        if tags or meta:
            options = replace(options, tags=tuple(tags), meta=meta or {})
        return JobRequest(
            type=self.type,
            encoded=True,
            queue=queue or self.spec.queue,
            priority=priority,
            key=key,
            key_until=None if key_for is None else now + milliseconds(key_for),
            run_at=_moment(at, now) if delay is None else now + milliseconds(delay),
            expires_at=_moment(expires, now),
            options=options,
        )


async def _is_born(attempt: Attempt, id: str) -> bool:
    """Whether an earlier lease of this job has submitted this child: then it needs no arguments from us."""
    with attempt.activity():
        return id in await known_children(attempt)


async def _inserted(jobs: Jobs, order: JobRequest, parts: Iterable[list[str]]) -> list[Inserted]:
    """Insert part after part. While the store is at some, the next one is made ready.

    A store that might change their order gets each part a little later due than the one before it; where all are due at
    a moment that was given, one must be there before the next is handed in.
    """
    in_order = jobs.engine.inserts_in_order
    most = PARTS_UNDER_WAY if in_order or order.run_at is None else 1
    now = 0
    done: list[Inserted] = []
    under_way: deque[asyncio.Future[list[Inserted]]] = deque()
    try:
        for texts in parts:
            soonest = 0 if in_order else now + 1
            now = max(await jobs.engine.now(), soonest)
            new = jobs.alike(order, texts, now)
            if len(under_way) == most:
                done += await under_way[0]
                under_way.popleft()
            under_way.append(asyncio.ensure_future(jobs.engine.insert(new)))
            await asyncio.sleep(0)  # it is handed to the store before we go on
        for part in under_way:
            done += await part
    except Exception as error:
        # An element can't be submitted, or a part can't: when we say so, nothing is under way any more.
        answers = await asyncio.gather(*under_way, return_exceptions=True)
        first = next((answer for answer in answers if isinstance(answer, Exception)), error)
        if first is not error:
            raise first from error
        raise
    except asyncio.CancelledError:
        for part in under_way:
            part.cancel()
        raise
    return done


class JobRun(Run[R]):
    """A run as we hand it out. Inside a job of the same store, waiting for its result parks that job."""

    def __init__(
        self,
        open: Callable[[], Awaitable[Jobs]],
        id: str,
        signature: Signature | None,
        parent: Attempt | None = None,
    ) -> None:
        super().__init__(open, id, signature)
        self._parent = parent
        """The attempt that submitted it as its child. Any other one waits for it as for somebody else's."""

    async def result(self, timeout: Duration | None = None) -> R:
        """See Run.result."""
        attempt = attempt_here()
        if attempt is None or not await self._is_within(attempt):
            return await super().result(timeout)
        limit = None if timeout is None else milliseconds(timeout)
        waiting = child_wait if attempt is self._parent else run_wait
        outcome = await Suspension.of(attempt).wait(waiting(attempt, self.id, limit))
        if outcome.job is not None:
            raise failure_of(outcome.job)
        value: R = self._codec.decode(outcome.result or "null")
        return value

    async def follow(self) -> AsyncIterator[Entry | Status]:
        """See Run.follow."""
        attempt = attempt_here()
        if attempt is not None:
            check_other(attempt, self.id)
        async for one in super().follow():
            yield one

    async def _is_within(self, attempt: Attempt) -> bool:
        """Whether it is in the store of the job that waits for it: nobody wakes a job for the end of one elsewhere."""
        return attempt is self._parent or (await attempt.persist(self._open)).engine is attempt.engine


class AsyncJob(_Job[P, R]):
    """A job that is an `async def` function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """A plain call, not submitted. Inside another job, its steps belong to that one's run."""
        if not loop_here() and attempt_here() is not None:
            raise WrongColour(f"{self.type} is an async job: a def job can submit it, and can't call it")
        called: Coroutine[Any, Any, R] = self.spec.function(*args, **kwargs)
        return called if attempt_here() is not None else _plainly(called)

    @overload
    async def map(
        self: "_AsyncOne[I, S]",
        items: Iterable[I],
        *,
        at_once: int | None = None,
        key: Key = None,
        need: None = None,
    ) -> list[S]: ...

    @overload
    async def map(
        self: "_AsyncOne[I, S]",
        items: Iterable[I],
        *,
        at_once: int | None = None,
        key: Key = None,
        need: int,
    ) -> list[S | None]: ...

    def map(
        self: Any, items: Iterable[Any], *, at_once: int | None = None, key: Key = None, need: int | None = None
    ) -> Coroutine[Any, Any, list[Any]]:
        """Submit the job once for each item, to be run by all workers, and wait for all; results in the items' order.

        Inside a job they are its children: it gives up its slot, and the last of them wakes it. `at_once` bounds how
        many are submitted and not settled. All settle; raises ItemsFailed when fewer than `need` (default: all) did
        well. `key` names an item's child by a value of its own instead of by its arguments.
        """
        self._check_colour("map")
        results: Coroutine[Any, Any, list[Any]] = self._map(items, at_once, key, need)
        return results


class SyncJob(_Job[P, R]):
    """A job that is a `def` function. A worker runs it in a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """A plain call, not submitted. Inside another job, its steps belong to that one's run."""
        with nullcontext() if attempt_here() is not None else plain_call(""):
            value: R = self.spec.function(*args, **kwargs)
        return value

    @overload
    async def map(
        self: "_SyncOne[I, S]",
        items: Iterable[I],
        *,
        at_once: int | None = None,
        key: Key = None,
        need: None = None,
    ) -> list[S]: ...

    @overload
    async def map(
        self: "_SyncOne[I, S]",
        items: Iterable[I],
        *,
        at_once: int | None = None,
        key: Key = None,
        need: int,
    ) -> list[S | None]: ...

    def map(
        self: Any, items: Iterable[Any], *, at_once: int | None = None, key: Key = None, need: int | None = None
    ) -> Coroutine[Any, Any, list[Any]]:
        """See AsyncJob.map."""
        self._check_colour("map")
        results: Coroutine[Any, Any, list[Any]] = self._map(items, at_once, key, need)
        return results


async def _plainly(called: Coroutine[Any, Any, R]) -> R:
    with plain_call(""):
        return await called


def _moment(when: Duration | datetime | None, now: Time) -> Time | None:
    """A time as the store counts it. A datetime without a zone is refused: whose clock would it be?"""
    if when is None:
        return None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise Invalid(f"{when.isoformat()} has no time zone: give datetime.now(UTC) + …, or a delay")
        return round(when.timestamp() * 1_000)
    return now + milliseconds(when)


def _checked(type: str, options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in OPTIONS or name == "key":
            raise Invalid(
                f"{type}.submit_many takes no {name!r}; it takes {', '.join(o for o in OPTIONS if o != 'key')}"
            )
    return options


def _child_id(attempt: Attempt, group: str, name: str) -> str:
    """The id of a child: the same however often its parent runs, another one for an equal child."""
    call = f"{attempt.journal.calls.first_path(PATH.get())}/{group}\n{name}"
    return derived_id(attempt.job.id, f"{call}\n{attempt.journal.calls.number(call)}")


def _text(key: Key, item: Any) -> str:
    given = key(item) if callable(key) else key
    return given if isinstance(given, str) else canonical(given)
