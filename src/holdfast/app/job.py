"""What a decorated job offers: plain calls, `submit`, `submit_many` and `map`.

Must not know the App, only that it opens its store. Inside a job, what is submitted is its child (`worker.child_jobs`).
"""

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar

from msgspec.structs import replace

from holdfast.app.job_map import map_jobs
from holdfast.app.mapping import AwaitedMap, Key
from holdfast.app.options import SUBMIT_MANY_OPTIONS, check_map, check_options
from holdfast.app.run import Run
from holdfast.core.codec import Changed, canonical
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import BadValue, Invalid, WrongColour
from holdfast.core.model import Time
from holdfast.jobs.bulk import submit_parts
from holdfast.jobs.service import JobRequest, Jobs
from holdfast.worker.attempt import Attempt
from holdfast.worker.child_jobs import map_bounded, map_group, store_time, submit_children
from holdfast.worker.context import attempt_here, check_no_tx, loop_here, plain_call
from holdfast.worker.maps import Tally
from holdfast.worker.own_loop import await_on_loop, is_away
from holdfast.worker.registry import JobSpec

P = ParamSpec("P")
R = TypeVar("R")


class DecoratedJob(AwaitedMap, Generic[P, R]):
    """A function that `@app.job` decorates. Holds what jobs of both colours share: submitting."""

    def __init__(
        self, open: Callable[[], Awaitable[Jobs]], spec: JobSpec, may_block: Callable[[], bool] = lambda: False
    ) -> None:
        self._open = open
        self._may_block = may_block
        self.spec = spec
        self.type = spec.type
        self._plain_request = JobRequest(type=spec.type, encoded=True, queue=spec.queue, options=spec.options)
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
        """Submit the job with its own arguments, so that a worker runs it.

        `key` is an idempotency key: the same key gives the same run (for `key_for`, or as long as the run is kept). The
        same key with other arguments is a KeyConflict. `delay` or `at` say when to run the job, and `expires` until
        when it is still worth running. `priority` goes from -100 to 100, higher first.

        Inside a job, a submit is recorded: the child is submitted once, however often the job runs. With `connection`,
        a connection of asyncpg, psycopg or SQLAlchemy to the store's own database, the job is part of the transaction
        that you have begun there: it is committed or rolled back with it.
        """
        self._check_colour("submit")
        options = (key, key_for, queue, priority, delay, at, tags, meta, expires)
        return self._submit_one(args, kwargs, options, connection)

    async def _submit_one(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: tuple[Any, ...], connection: Any
    ) -> Run[R]:
        attempt = attempt_here()
        if attempt is not None:
            return await self._submit_child(attempt, args, kwargs, options, connection)
        jobs = await self._open()
        now = await jobs.engine.now()
        request = self._request(now, *options)
        request = replace(request, args=self.spec.signature.encode(args, kwargs))
        (accepted,) = await jobs.submit([request], now=now, connection=connection)
        return Run(self._open, accepted.id, self.spec.signature)

    async def _submit_child(
        self,
        attempt: Attempt,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: tuple[Any, ...],
        connection: Any,
    ) -> Run[R]:
        self._check_no_connection(connection)
        if is_away(attempt):
            return await await_on_loop(attempt, self._submit_child(attempt, args, kwargs, options, connection))
        now = await store_time(attempt)
        request, refusal = self._request_inside(self._request(now, *options), args, kwargs)
        refused = {} if refusal is None else {request.args: refusal}
        (run,) = await self._submit_children(attempt, [request], now, refused)
        return run

    async def _submit_children(
        self, attempt: Attempt, requests: Sequence[JobRequest], now: Time, refused: dict[str, BadValue]
    ) -> list[Run[R]]:
        return [
            Run(self._open, id, self.spec.signature, attempt if is_ours else None)
            for id, is_ours in await submit_children(attempt, self.spec, requests, now, refused)
        ]

    def may_submit_here(self) -> bool:
        """Whether `submit` runs to its end in this thread, without an event loop and without suspending."""
        return self._may_block() and attempt_here() is None and not loop_here()

    def submit_many(self, calls: Iterable[Any], **options: Any) -> "Coroutine[Any, Any, list[Run[R]]]":
        """Submit the job once for each element: its one argument, or a tuple of arguments. Return the runs in order.

        The options are those of `submit`, without `key`, and hold for all of the jobs. A thousand jobs go to the store
        in one act (on Redis forty), and a few acts may be under way. If one act fails, the jobs of the acts before it
        are in the store, and those of the next ones may be.
        """
        self._check_colour("submit_many")
        return self._submit_all(calls, options)

    async def _submit_all(self, calls: Iterable[Any], options: dict[str, Any]) -> list[Run[R]]:
        check_options(f"{self.type}.submit_many", options, SUBMIT_MANY_OPTIONS)
        options = dict(options)
        connection = options.pop("connection", None)
        attempt = attempt_here()
        if attempt is None:
            return await self._submit_all_outside(calls, options, connection)
        self._check_no_connection(connection)
        if is_away(attempt):
            return await await_on_loop(attempt, self._submit_all(list(calls), options))
        now = await store_time(attempt)
        alike = self._request(now, **options)
        runs: list[Run[R]] = []
        refused: dict[str, BadValue] = {}
        for texts in self._parts(calls, attempt.engine.insert_at_once, refused):
            requests = [replace(alike, args=text) for text in texts]
            runs += await self._submit_children(attempt, requests, now, refused)
        return runs

    async def _submit_all_outside(self, calls: Iterable[Any], options: dict[str, Any], connection: Any) -> list[Run[R]]:
        jobs = await self._open()
        now = await jobs.engine.now()
        alike, parts = self._request(now, **options), self._parts(calls, jobs.engine.insert_at_once)
        if connection is None:
            accepted = await submit_parts(jobs, alike, parts)
        else:
            accepted = []
            for texts in parts:
                requests = [replace(alike, args=text) for text in texts]
                accepted += await jobs.submit(requests, connection=connection)
        return [Run(self._open, one.id, self.spec.signature) for one in accepted]

    def _parts(
        self, calls: Iterable[Any], size: int, refused: dict[str, BadValue] | None = None
    ) -> Iterator[list[str]]:
        """The calls as text, so many at a time. With `refused`, calls that JSON would change are noted there."""
        texts: list[str] = []
        for call in calls:
            changes: list[Changed] | None = None if refused is None else []
            texts.append(self.spec.signature.encode(call if isinstance(call, tuple) else (call,), {}, changes))
            if refused is not None and changes:
                refused[texts[-1]] = changes[0].refusal
            if len(texts) == size:
                yield texts
                texts = []
        if texts:
            yield texts

    def _map(
        self, items: Iterable[Any], at_once: int | None, key: Key, need: int | None
    ) -> Coroutine[Any, Any, list[Any]]:
        self._check_colour("map")
        return self._map_items(items, at_once, key, need)

    async def _map_items(self, items: Iterable[Any], at_once: int | None, key: Key, need: int | None) -> list[Any]:
        check_map(self.type, 1 if at_once is None else at_once, need)
        attempt = attempt_here()
        if attempt is not None and is_away(attempt):
            return await await_on_loop(attempt, self._map_items(list(items), at_once, key, need))
        name_of = None if key is None else functools.partial(_name_item, key)
        tally: Tally[Any] = Tally(attempt, self.type, items, need, lambda item: lambda: item)
        plain = self._plain_request
        if attempt is None:

            def prepare(item: Any) -> JobRequest:
                text = self.spec.signature.encode((item,), {})
                return replace(plain, args=text, key=None if name_of is None else name_of(item))

            return await map_jobs(await self._open(), self.spec.signature, tally, prepare, at_once)

        def prepare_child(item: Any) -> tuple[JobRequest, BadValue | None]:
            return self._request_inside(plain, (item,), {})

        now = await store_time(attempt)
        if at_once is None:
            return await map_group(attempt, self.spec, tally, prepare_child, name_of, now)
        return await map_bounded(attempt, self.spec, tally, prepare_child, at_once, now)

    def _request_inside(
        self, request: JobRequest, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[JobRequest, BadValue | None]:
        """The request with these arguments, inside a job. Arguments that JSON would change come with the refusal: the
        child may have been submitted already, by a version of the job that gave others.
        """
        changes: list[Changed] = []
        text = self.spec.signature.encode(args, kwargs, changes)
        return replace(request, args=text), changes[0].refusal if changes else None

    def _request(
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
        return replace(
            self._plain_request,
            queue=queue or self.spec.queue,
            priority=priority,
            key=key,
            key_until=None if key_for is None else now + milliseconds(key_for),
            run_at=_moment(at, now) if delay is None else now + milliseconds(delay),
            expires_at=_moment(expires, now),
            options=options,
        )

    def _check_no_connection(self, connection: Any) -> None:
        if connection is not None:
            raise Invalid(
                f"{self.type}.submit: connection= is for code outside a job; inside one, what is submitted is recorded"
            )

    def _check_colour(self, what: str) -> None:
        """Refuse a submit in a `def` job, where nobody would await it: nothing would be submitted, in silence."""
        check_no_tx("submitting a job")
        if not loop_here() and attempt_here() is not None:
            raise WrongColour(f"{self.type}.{what}(…) is awaited: in a def job call app.sync.{what}({self.type}, …)")


class AsyncJob(DecoratedJob[P, R]):
    """A job that is an `async def` function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function; nothing is submitted. Inside another job, its steps belong to that job's run."""
        if not loop_here() and attempt_here() is not None:
            raise WrongColour(f"{self.type} is an async job: a def job can submit it, and can't call it")
        called: Coroutine[Any, Any, R] = self.spec.function(*args, **kwargs)
        return called if attempt_here() is not None else _call_plainly(called)


class SyncJob(DecoratedJob[P, R]):
    """A job that is a `def` function. A worker runs it in a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; nothing is submitted. Inside another job, its steps belong to that job's run."""
        with nullcontext() if attempt_here() is not None else plain_call(""):
            value: R = self.spec.function(*args, **kwargs)
        return value


async def _call_plainly(called: Coroutine[Any, Any, R]) -> R:
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


def _name_item(key: Key, item: Any) -> str:
    given = key(item) if callable(key) else key
    return given if isinstance(given, str) else canonical(given)
