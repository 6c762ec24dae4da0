"""What a decorated job offers: plain calls, `submit`, `submit_many` and `map`.

Must not know the App, only how to open its store. A job submitted inside a job is its child (`worker.child_jobs`).
"""

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from msgspec.structs import replace

from holdfast.app.demands import demands_of
from holdfast.app.job_map import map_jobs
from holdfast.app.mapping import AwaitedMap, I, Key, S, Takes
from holdfast.app.options import (
    MAP_OPTIONS,
    SUBMIT_MANY_OPTIONS,
    SUBMIT_OPTIONS,
    check_map,
    check_options,
    check_signature_names,
    check_submit_names,
)
from holdfast.app.run import Run
from holdfast.app.signatures import AnySignature, FollowUp, JobSignature, make_signature
from holdfast.app.submit_options import BatchOptions, SubmitOptions, request_with
from holdfast.core.codec import Changed, canonical
from holdfast.core.durations import Duration
from holdfast.core.errors import BadValue, Duplicate, Invalid, WrongColour
from holdfast.core.model import Time
from holdfast.core.unique import Unique
from holdfast.jobs.bulk import Encoded, submit_parts
from holdfast.jobs.requests import NO_DEMANDS, Demands
from holdfast.jobs.service import JobRequest, Jobs
from holdfast.worker.attempt import Attempt
from holdfast.worker.child_jobs import map_bounded, map_group, store_time, submit_children
from holdfast.worker.context import attempt_here, check_no_tx, loop_here, plain_call
from holdfast.worker.maps import Tally
from holdfast.worker.own_loop import await_on_loop, is_away
from holdfast.worker.registry import JobSpec

P = ParamSpec("P")
R = TypeVar("R")
Rest = ParamSpec("Rest")


class DecoratedJob(AwaitedMap, Generic[P, R]):
    """A function that `@app.job` decorates. Has what async and `def` jobs share: submitting."""

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

    @overload
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, key: str | None, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, key_for: Duration | None, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, queue: str | None, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, priority: int, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, delay: Duration | None, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, at: datetime | None, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, tags: Sequence[str], **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, meta: dict[str, str] | None, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, expires: Duration | datetime | None, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, unique: Unique | None, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, connection: Any, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    @overload
    def submit(self, *args: Any, budget: Mapping[str, float] | None, **rest: Any) -> Coroutine[Any, Any, Run[R]]: ...

    def submit(self, *args: Any, **given: Any) -> Coroutine[Any, Any, Run[R]]:
        """Submit the job with these arguments. A worker runs it.

        `key` is an idempotency key: a second submit with the same key returns the same run, for `key_for` or as long as
        the run is kept. The same key with other arguments raises KeyConflict. `delay` or `at` says when to run the job.
        A job that isn't running when `expires` passes is discarded. `priority` is -100 to 100; higher runs first.
        `unique` says what happens if there is a job like it already (see `Unique`).
        `budget` is what it may spend, `{"usd": 5}`, instead of its decorator's. A child draws on its parent's budget.

        Inside a job, a submit is recorded: the child is submitted once, however often the job runs. Pass `connection`
        (asyncpg, psycopg or SQLAlchemy, connected to the store's own database) to submit the job in the transaction
        that you have begun there: the job is committed or rolled back with it.

        Without options in the call, a type checker checks the job's arguments. With options it can't tell the two
        apart; write `job.with_options(key="order-42").submit(…)` to have the arguments checked.
        """
        options = {name: given.pop(name) for name in SUBMIT_OPTIONS if name in given}
        return self._submit(args, given, options)

    @overload
    def s(self, *args: P.args, **kwargs: P.kwargs) -> JobSignature[R]: ...

    @overload
    def s(self: "DecoratedJob[Concatenate[Any, Rest], R]", *args: Rest.args, **kwargs: Rest.kwargs) -> FollowUp[R]: ...

    def s(self, *args: Any, **kwargs: Any) -> AnySignature[R]:
        """Return a signature: the job with these arguments, as data, for flows and schedules. Submits nothing.

        The arguments are checked now. In a flow, a job gets the result before it as its first argument, so there the
        signature leaves it out: `chain(fetch.s(url), parse.s())`. For options of `submit`, write
        `job.with_options(queue="slow").s(…)`.
        """
        return self._sign(args, kwargs, {})

    def _sign(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> AnySignature[R]:
        check_signature_names(self.type, kwargs, self.spec.signature)
        return make_signature(self._open, self.spec, args, kwargs, options)

    def with_options(self, **options: Unpack[SubmitOptions]) -> "JobWithOptions[P, R]":
        """Return the job with these options for `submit`. Its `submit` takes only the job's own arguments.

        `await film.with_options(key="order-42", queue="video").submit(brief)` does the same as `film.submit(brief,
        key="order-42", queue="video")`, and a type checker checks `brief`.
        """
        check_options(f"{self.type}.with_options", options, SUBMIT_OPTIONS)
        return JobWithOptions(self, options)

    def _submit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Run[R]]:
        self._check_colour("submit")
        if kwargs:
            check_submit_names(self.type, kwargs, self.spec.signature)
        return self._submit_one(args, kwargs, options)

    async def _submit_one(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> Run[R]:
        connection, options = _split_connection(options)
        attempt = attempt_here()
        if attempt is not None:
            self._check_no_connection(connection)
            return await self._submit_child(attempt, args, kwargs, options)
        jobs = await self._open()
        now = await jobs.engine.now()
        request = request_with(self._plain_request, now, **options)
        text = self.spec.signature.encode(args, kwargs)
        request = _with_call(request, text, self._demands(request, text, args, kwargs))
        with self._naming_existing():
            (accepted,) = await jobs.submit([request], now=now, connection=connection)
        return Run(self._open, accepted.id, self.spec.signature)

    async def _submit_child(
        self, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Run[R]:
        if is_away(attempt):
            return await await_on_loop(attempt, self._submit_child(attempt, args, kwargs, options))
        now = await store_time(attempt)
        plain = request_with(self._plain_request, now, **options)
        request, refusal = self._request_inside(plain, args, kwargs)
        refused = {} if refusal is None else {request.args: refusal}
        (run,) = await self._submit_children(attempt, [request], now, refused)
        return run

    async def _submit_children(
        self, attempt: Attempt, requests: Sequence[JobRequest], now: Time, refused: dict[str, BadValue]
    ) -> list[Run[R]]:
        with self._naming_existing():
            accepted = await submit_children(attempt, self.spec.type, requests, now, refused)
        return [Run(self._open, id, self.spec.signature, attempt if is_ours else None) for id, is_ours in accepted]

    @contextmanager
    def _naming_existing(self) -> Iterator[None]:
        """Give a Duplicate the run of the job that exists."""
        try:
            yield
        except Duplicate as error:
            error.existing = Run[R](self._open, error.id, self.spec.signature)
            raise

    def may_submit_here(self) -> bool:
        """Return whether `submit` can finish in this thread, without an event loop and without suspending."""
        return self._may_block() and attempt_here() is None and not loop_here()

    def submit_many(self, calls: Iterable[Any], **options: Unpack[BatchOptions]) -> Coroutine[Any, Any, list[Run[R]]]:
        """Submit the job once for each element: a single argument, or a tuple of arguments. Return the runs in order.

        The options are those of `submit` except `key`, and apply to every job. Jobs go to the store in batches of a
        thousand (of forty on Redis), and a few batches may be sent at the same time. If a batch fails, all jobs of the
        batches before it are in the store, and jobs of the batches after it may be.
        """
        check_options(f"{self.type}.submit_many", options, SUBMIT_MANY_OPTIONS)
        return self._submit_many(calls, options)

    def _submit_many(self, calls: Iterable[Any], options: Mapping[str, Any]) -> Coroutine[Any, Any, list[Run[R]]]:
        self._check_colour("submit_many")
        return self._submit_all(calls, options)

    async def _submit_all(self, calls: Iterable[Any], options: Mapping[str, Any]) -> list[Run[R]]:
        connection, options = _split_connection(options)
        attempt = attempt_here()
        if attempt is None:
            return await self._submit_all_outside(calls, options, connection)
        self._check_no_connection(connection)
        if is_away(attempt):
            return await await_on_loop(attempt, self._submit_all(list(calls), options))
        now = await store_time(attempt)
        alike = request_with(self._plain_request, now, **options)
        runs: list[Run[R]] = []
        refused: dict[str, BadValue] = {}
        for part in self._parts(calls, attempt.engine.insert_at_once, alike, refused):
            requests = [_with_call(alike, text, demands) for text, demands in part]
            runs += await self._submit_children(attempt, requests, now, refused)
        return runs

    async def _submit_all_outside(
        self, calls: Iterable[Any], options: Mapping[str, Any], connection: Any
    ) -> list[Run[R]]:
        jobs = await self._open()
        now = await jobs.engine.now()
        alike = request_with(self._plain_request, now, **options)
        parts = self._parts(calls, jobs.engine.insert_at_once, alike)
        with self._naming_existing():
            if connection is None:
                accepted = await submit_parts(jobs, alike, parts)
            else:
                accepted = []
                for part in parts:
                    requests = [_with_call(alike, text, demands) for text, demands in part]
                    accepted += await jobs.submit(requests, connection=connection)
        return [Run(self._open, one.id, self.spec.signature) for one in accepted]

    def _parts(
        self, calls: Iterable[Any], size: int, request: JobRequest, refused: dict[str, BadValue] | None = None
    ) -> Iterator[list[Encoded]]:
        """Yield the calls as text, a batch at a time. `refused` collects the calls that JSON would change."""
        part: list[Encoded] = []
        for call in calls:
            changes: list[Changed] | None = None if refused is None else []
            args = call if isinstance(call, tuple) else (call,)
            text = self.spec.signature.encode(args, {}, changes)
            part.append((text, self._demands(request, text, args, {})))
            if refused is not None and changes:
                refused[text] = changes[0].refusal
            if len(part) == size:
                yield part
                part = []
        if part:
            yield part

    def _demands(self, request: JobRequest, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Demands:
        return demands_of(self.spec, request, text, functools.partial(self.spec.signature.bound, args, kwargs))

    def _map(
        self, items: Iterable[Any], at_once: int | None, key: Key, need: int | None
    ) -> Coroutine[Any, Any, list[Any]]:
        return self._map_with({}, items, at_once, key, need)

    def _map_with(
        self, options: Mapping[str, Any], items: Iterable[Any], at_once: int | None, key: Key, need: int | None
    ) -> Coroutine[Any, Any, list[Any]]:
        self._check_colour("map")
        return self._map_items(options, items, at_once, key, need)

    async def _map_items(
        self, options: Mapping[str, Any], items: Iterable[Any], at_once: int | None, key: Key, need: int | None
    ) -> list[Any]:
        check_map(self.type, 1 if at_once is None else at_once, need)
        attempt = attempt_here()
        if attempt is not None and is_away(attempt):
            return await await_on_loop(attempt, self._map_items(options, list(items), at_once, key, need))
        name_of = None if key is None else functools.partial(_name_item, key)
        tally: Tally[Any] = Tally(attempt, self.type, items, need, lambda item: lambda: item)
        if attempt is None:
            jobs = await self._open()
            plain = (
                request_with(self._plain_request, await jobs.engine.now(), **options)
                if options
                else self._plain_request
            )

            def prepare(item: Any) -> JobRequest:
                text = self.spec.signature.encode((item,), {})
                request = _with_call(plain, text, self._demands(plain, text, (item,), {}))
                return request if name_of is None else replace(request, key=name_of(item))

            return await map_jobs(jobs, self.spec.signature, tally, prepare, at_once)
        now = await store_time(attempt)
        alike = request_with(self._plain_request, now, **options)

        def prepare_child(item: Any) -> tuple[JobRequest, BadValue | None]:
            return self._request_inside(alike, (item,), {})

        if at_once is None:
            return await map_group(attempt, self.spec, tally, prepare_child, name_of, now)
        return await map_bounded(attempt, self.spec, tally, prepare_child, at_once, now)

    def _request_inside(
        self, request: JobRequest, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[JobRequest, BadValue | None]:
        """Return the request with these arguments, inside a job.

        If JSON would change the arguments, the refusal comes with the request: an earlier version of the job may have
        submitted the child already, with other arguments.
        """
        changes: list[Changed] = []
        text = self.spec.signature.encode(args, kwargs, changes)
        demands = self._demands(request, text, args, kwargs)
        return _with_call(request, text, demands), changes[0].refusal if changes else None

    def _check_no_connection(self, connection: Any) -> None:
        if connection is not None:
            raise Invalid(
                f"{self.type}.submit: connection= works only outside jobs; inside a job, submits are recorded"
            )

    def _check_colour(self, what: str) -> None:
        """Refuse a submit in a `def` job: without an await, it would silently submit nothing."""
        check_no_tx("submitting a job")
        if not loop_here() and attempt_here() is not None:
            raise WrongColour(f"{self.type}.{what}(…) is async; in a def job, call app.sync.{what}({self.type}, …)")


class JobWithOptions(Generic[P, R]):
    """A job with options for `submit`. `job.with_options(…)` returns it."""

    def __init__(self, job: DecoratedJob[P, R], options: Mapping[str, Any]) -> None:
        self._job = job
        self._options = options

    def __repr__(self) -> str:
        return f"<job {self._job.type} with {', '.join(self._options) or 'no options'}>"

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Run[R]]:
        """Submit the job with these arguments and the chosen options."""
        return self._job._submit(args, kwargs, self._options)

    @overload
    def s(self, *args: P.args, **kwargs: P.kwargs) -> JobSignature[R]: ...

    @overload
    def s(
        self: "JobWithOptions[Concatenate[Any, Rest], R]", *args: Rest.args, **kwargs: Rest.kwargs
    ) -> FollowUp[R]: ...

    def s(self, *args: Any, **kwargs: Any) -> AnySignature[R]:
        """Return a signature with these arguments and the chosen options. See the job's own `s`."""
        return self._job._sign(args, kwargs, self._options)

    def submit_many(self, calls: Iterable[Any]) -> Coroutine[Any, Any, list[Run[R]]]:
        """Submit the job once for each element, with the chosen options. See the job's own `submit_many`."""
        check_options(f"{self._job.type}.with_options(…).submit_many", self._options, SUBMIT_MANY_OPTIONS)
        return self._job._submit_many(calls, self._options)

    @overload
    async def map(
        self: "SubmitsOne[I, S]", items: Iterable[I], *, at_once: int | None = None, key: Key = None, need: None = None
    ) -> list[S]: ...

    @overload
    async def map(
        self: "SubmitsOne[I, S]", items: Iterable[I], *, at_once: int | None = None, key: Key = None, need: int
    ) -> list[S | None]: ...

    def map(
        self: Any, items: Iterable[Any], *, at_once: int | None = None, key: Key = None, need: int | None = None
    ) -> Coroutine[Any, Any, list[Any]]:
        """Submit the job once for each item, with the chosen options, and wait for all. See the job's own `map`."""
        check_options(f"{self._job.type}.with_options(…).map", self._options, MAP_OPTIONS)
        results: Coroutine[Any, Any, list[Any]] = self._job._map_with(self._options, items, at_once, key, need)
        return results

    def may_submit_here(self) -> bool:
        """Return whether `submit` can finish in this thread without an event loop."""
        needs_loop = self._options.get("connection") is not None or self._options.get("unique") is not None
        return not needs_loop and self._job.may_submit_here()


class SubmitsOne(Protocol[Takes, S]):
    """Anything that submits a job for one item. As `self` of `map`, it ties the items' type to that parameter."""

    def submit(self, item: Takes, /) -> Coroutine[Any, Any, Run[S]]: ...


class AsyncJob(DecoratedJob[P, R]):
    """A job that is an `async def` function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function directly; nothing is submitted. Inside another job, its steps belong to that job."""
        if not loop_here() and attempt_here() is not None:
            raise WrongColour(f"{self.type} is an async job, so a def job can't call it; use app.sync.submit")
        called: Coroutine[Any, Any, R] = self.spec.function(*args, **kwargs)
        return called if attempt_here() is not None else _call_plainly(called)


class SyncJob(DecoratedJob[P, R]):
    """A job that is a `def` function. A worker runs it in a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly; nothing is submitted. Inside another job, its steps belong to that job."""
        with nullcontext() if attempt_here() is not None else plain_call(""):
            value: R = self.spec.function(*args, **kwargs)
        return value


async def _call_plainly(called: Coroutine[Any, Any, R]) -> R:
    with plain_call(""):
        return await called


def _with_call(request: JobRequest, text: str, demands: Demands) -> JobRequest:
    """Return the request with the arguments of a call, and what the call needs."""
    if demands == NO_DEMANDS:
        return replace(request, args=text)
    return replace(request, args=text, options=demands.added_to(request.options))


def _split_connection(options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the connection among these options, or None, and the other options."""
    rest = dict(options)
    return rest.pop("connection", None), rest


def _name_item(key: Key, item: Any) -> str:
    given = key(item) if callable(key) else key
    return given if isinstance(given, str) else canonical(given)
