"""`App`: jobs by decorator, submitting, runs, and a worker inside your own process. The composition root.

Must not run jobs or keep them: it brings the engine, the worker and the upkeep together.
"""

import asyncio
import concurrent.futures
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar, overload

from msgspec.structs import replace

from holdfast.core.codec import Codec, Signature
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import Invalid, LeaseLost, WrongColour
from holdfast.core.keys import check_queue, derived_id
from holdfast.core.model import Options, Retry, Time
from holdfast.engines import engine_for, masked
from holdfast.engines.contract import Engine
from holdfast.jobs import Jobs, Order
from holdfast.runs import FORKING, Portal, Run, SyncRun
from holdfast.settings import Settings, store_url
from holdfast.steps import _Step, check_options, positive, retry_of
from holdfast.upkeep.keeper import Keeper
from holdfast.worker.attempt import Stopped
from holdfast.worker.context import PATH, attempt_here, loop_here, plain_call
from holdfast.worker.loop import Worker
from holdfast.worker.registry import JobSpec, Registry, check_function, type_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

OPTIONS = ("key", "key_for", "queue", "priority", "delay", "at", "tags", "meta", "expires")
"""What `submit` takes besides the job's own arguments."""

RESERVED = frozenset({*OPTIONS, "unique", "connection"})
"""Names that a job's parameter can't have: options that are there, or that are kept for it."""

SUBMIT_AT_ONCE = 1_000
"""How many jobs of a `submit_many` go to the store in one act."""


class App:
    """Jobs and the store they are kept in.

    `url` names the store: by default $HOLDFAST_URL, else `sqlite:///holdfast.db` in the working directory. An App
    belongs to no event loop: it opens at first use, from any loop or thread, and opens anew after a fork.
    """

    def __init__(
        self, url: str | None = None, *, settings: Settings | None = None, engine: Engine | None = None
    ) -> None:
        self.settings = settings or Settings()
        self.url = store_url(url)
        self.engine = engine or engine_for(self.url)
        self.registry = Registry()
        self.sync = SyncApp(self)
        self._jobs = Jobs(self.engine)
        self._lock = threading.Lock()
        self._opening: concurrent.futures.Future[bool] | None = None
        FORKING.add(self)

    def __repr__(self) -> str:
        return f"<App {self.url}>"

    def use(self, url: str) -> None:
        """Keep the jobs in another store than this App was made for. Only before it was first used."""
        if self._opening is not None:
            raise Invalid(f"{self!r} is open already; choose its store before its first use")
        self.url = url
        self.engine = engine_for(url)
        self._jobs = Jobs(self.engine)

    def place(self) -> str:
        """Where the jobs are kept, for a person: a file's absolute path, or a URL without its password."""
        path = getattr(self.engine, "path", None)
        return str(path) if path is not None else masked(self.url)

    async def open(self) -> Jobs:
        """Open the store, unless it is open. Called by everything that needs it."""
        while True:
            with self._lock:
                opening, first = self._opening, self._opening is None
                if opening is None:
                    opening = self._opening = concurrent.futures.Future()
            if first:
                await self._open(opening)
                return self._jobs
            if not opening.done():
                waiting = asyncio.wrap_future(opening)
                await asyncio.wait([waiting])
                waiting.exception()
            if opening.result():
                return self._jobs

    async def _open(self, opening: "concurrent.futures.Future[bool]") -> None:
        """Open the store for all who wait for `opening`. They hear what went wrong; after an interrupt they try."""
        try:
            await self.engine.open()
        except BaseException as error:
            with self._lock:
                self._opening = None
            if isinstance(error, Exception):
                opening.set_exception(error)
            else:
                opening.set_result(False)
            raise
        opening.set_result(True)

    async def close(self) -> None:
        """Close the store. Not needed before the process ends."""
        with self._lock:
            self._opening = None
        await self.engine.close()

    # Decorators.

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> "AsyncJob[P, R]": ...  # type: ignore[overload-overlap]

    @overload
    def job(self, function: Callable[P, R], /) -> "SyncJob[P, R]": ...

    @overload
    def job(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        retries: int | Retry = 3,
        timeout: Duration | None = None,
        stages: Sequence[Any] = (),
        keep: Duration | None = None,
    ) -> "JobDecorator": ...

    def job(self, function: Any = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Make a job of a function, so that it can be submitted and run by a worker.

        Its type is the function's name unless `name` says otherwise. `retries=3` means up to four attempts. `stages`
        tells everybody the steps that the job will go through, and `keep` how long it is kept after its end.
        """
        check_options("@app.job", options, ("name", "queue", "retries", "timeout", "stages", "keep"))
        return JobDecorator(self, options) if function is None else self._made(function, **options)

    def _made(
        self,
        function: Any,
        *,
        name: str | None = None,
        queue: str = "default",
        retries: int | Retry = 3,
        timeout: Duration | None = None,
        stages: Sequence[Any] = (),
        keep: Duration | None = None,
    ) -> Any:
        check_function(function, "job", name)
        taken = sorted(RESERVED & inspect.signature(function).parameters.keys())
        if taken:
            raise Invalid(
                f"job {function.__name__}: a parameter can't be called {taken[0]!r}, which is an option of submit"
            )
        keep_ms = round(self.settings.keep_days * 86_400_000) if keep is None else milliseconds(keep)
        spec = JobSpec(
            type=type_of(function, name),
            function=function,
            signature=Signature(function),
            is_async=inspect.iscoroutinefunction(function),
            queue=check_queue(queue),
            options=Options(
                retry=retry_of(retries),
                timeout_ms=positive("timeout", timeout),
                keep_ms=keep_ms,
                stages=tuple(_stage_name(stage) for stage in stages),
            ),
        )
        self.registry.add(spec)
        return AsyncJob[Any, Any](self, spec) if spec.is_async else SyncJob[Any, Any](self, spec)

    # Asking.

    async def run(self, id: str) -> "Run[Any]":
        """The run with this id, or NotFound."""
        job = await (await self.open()).get(id)
        spec = self.registry.get(job.type)
        return Run(self.open, id, Codec[Any]() if spec is None else spec.signature.result)

    @property
    def jobs(self) -> Jobs:
        """What else can be asked of the store's jobs: find, signal, replay, resolve, discard, pause."""
        return self._jobs

    # Working.

    @asynccontextmanager
    async def worker(
        self, *, at_once: int = 8, queues: Sequence[str] | None = None, name: str | None = None
    ) -> AsyncIterator[Worker]:
        """A worker inside your own process, for as long as the block lasts. It stops in peace at its end."""
        await self.open()
        settings = self.settings
        worker = Worker(
            self.engine,
            self.registry,
            queues=self._queues() if queues is None else _checked_queues(queues),
            at_once=at_once,
            beat_seconds=settings.beat_seconds,
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
            name=name,
        )
        keeper = Keeper(
            self.engine,
            worker.id,
            lease_seconds=settings.lease_seconds,
            look_seconds=settings.look_seconds,
            upkeep_seconds=settings.upkeep_seconds,
        )
        await worker.start()
        keeper.start()
        try:
            yield worker
        finally:
            try:
                await worker.stop(settings.grace_seconds)
            finally:
                await keeper.stop()

    def _queues(self) -> tuple[str, ...]:
        """The queues of all jobs that are known here."""
        specs = [self.registry.get(type) for type in self.registry.types()]
        return tuple(dict.fromkeys(spec.queue for spec in specs if spec is not None)) or ("default",)

    def _forked(self) -> None:
        """In a forked child: the store is opened anew, and nobody holds the lock."""
        self._lock, self._opening = threading.Lock(), None


class JobDecorator:
    """`@app.job(…)` with its options, waiting for the function."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        self._app = app
        self._options = options

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> "AsyncJob[P, R]": ...

    @overload
    def __call__(self, function: Callable[P, R]) -> "SyncJob[P, R]": ...

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Make a job of the function."""
        return self._app._made(function, **self._options)


class _Job(Generic[P, R]):
    """What jobs of both colours share: submitting."""

    def __init__(self, app: App, spec: JobSpec) -> None:
        self.app = app
        self.spec = spec
        self.type = spec.type
        functools.update_wrapper(self, spec.function)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<job {self.type}>"

    async def submit(
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
        **kwargs: Any,
    ) -> "Run[R]":
        """Submit the job with its own arguments, to be run by a worker.

        `key` gives one run for one key (for `key_for`, or while the run is kept); the same key with other arguments is
        a KeyConflict. `delay` or `at` say when, `expires` until when it is still worth starting, `priority` goes from
        -100 to 100, higher first. Inside a job this is itself recorded: submitted once, however often the job is run.
        """
        now = await (await self.app.open()).engine.now()
        order = self._order(args, kwargs, now, key, key_for, queue, priority, delay, at, tags, meta, expires)
        (run,) = await self._submit([order])
        return run

    async def submit_many(self, calls: Iterable[Any], **options: Any) -> "list[Run[R]]":
        """Submit the job once for each element: its one argument, or a tuple of arguments. The options are for all.

        A thousand go to the store in one act. Results come in the elements' order.
        """
        runs: list[Run[R]] = []
        now = await (await self.app.open()).engine.now()
        options = _checked(self.type, options)
        orders: list[Order] = []
        for call in calls:
            orders.append(self._order(call if isinstance(call, tuple) else (call,), {}, now, **options))
            if len(orders) == SUBMIT_AT_ONCE:
                runs += await self._submit(orders)
                orders = []
        return runs + (await self._submit(orders) if orders else [])

    async def _submit(self, orders: list[Order]) -> "list[Run[R]]":
        """Submit them; inside a job as its children, under ids that are the same however often the job is run."""
        jobs, attempt = self.app.jobs, attempt_here()
        if attempt is None:
            accepted = await jobs.submit(orders)
        else:
            await attempt.admit()
            parent = PATH.get()
            group = f"{parent}/~submit:{self.type}"
            names = [f"{order.args}\n{order.key or ''}" for order in orders]
            ids = [
                derived_id(attempt.job.id, f"{group}#{attempt.number(parent, group, name)}\n{name}") for name in names
            ]
            try:
                accepted = await attempt.persist(lambda: jobs.submit(orders, attempt.job.lease, ids=ids, group=group))
            except LeaseLost as error:
                attempt.halt("lost")
                raise Stopped(str(error)) from error
        return [Run(self.app.open, one.id, self.spec.signature.result) for one in accepted]

    def _order(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
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
    ) -> Order:
        if delay is not None and at is not None:
            raise Invalid(f"{self.type}.submit: give delay or at, not both")
        if isinstance(tags, str):
            raise Invalid(f"tags={tags!r}: give a list of texts")
        options = replace(self.spec.options, tags=tuple(tags), meta=meta or {})
        return Order(
            type=self.type,
            args=self.spec.signature.encode(args, kwargs),
            encoded=True,
            queue=queue or self.spec.queue,
            priority=priority,
            key=key,
            key_until=None if key_for is None else now + milliseconds(key_for),
            run_at=_moment(at, now) if delay is None else now + milliseconds(delay),
            expires_at=_moment(expires, now),
            options=options,
        )


class AsyncJob(_Job[P, R]):
    """A job that is an `async def` function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """A plain call, not submitted. Inside another job, its steps belong to that one's run."""
        if not loop_here() and attempt_here() is not None:
            raise WrongColour(f"{self.type} is an async job: a def job can submit it, and can't call it")
        called: Coroutine[Any, Any, R] = self.spec.function(*args, **kwargs)
        return called if attempt_here() is not None else _plainly(called)


class SyncJob(_Job[P, R]):
    """A job that is a `def` function. A worker runs it in a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """A plain call, not submitted. Inside another job, its steps belong to that one's run."""
        with nullcontext() if attempt_here() is not None else plain_call(""):
            value: R = self.spec.function(*args, **kwargs)
        return value


async def _plainly(called: Coroutine[Any, Any, R]) -> R:
    with plain_call(""):
        return await called


# For blocking code.


class SyncApp:
    """An App, for blocking code: `app.sync.submit(make_video, brief)`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._portal = Portal()

    @overload
    def submit(self, job: AsyncJob[Any, R], /, *args: Any, **options: Any) -> SyncRun[R]: ...

    @overload
    def submit(self, job: SyncJob[Any, R], /, *args: Any, **options: Any) -> SyncRun[R]: ...

    def submit(self, job: Any, /, *args: Any, **options: Any) -> SyncRun[Any]:
        """Submit a job and wait until it is accepted. See the job's own `submit`."""
        if not isinstance(job, _Job):
            what = f"{job!r} is a step, which runs inside a job" if isinstance(job, _Step) else f"{job!r} is no job"
            raise Invalid(f"app.sync.submit: {what}; give a function that @app.job decorates")
        return SyncRun(self._portal, self._portal.call(job.submit(*args, **options)))

    def submit_many(self, job: Any, calls: Iterable[Any], /, **options: Any) -> list[SyncRun[Any]]:
        """Submit a job once for each element. See the job's own `submit_many`."""
        return [SyncRun(self._portal, run) for run in self._portal.call(job.submit_many(calls, **options))]

    def run(self, id: str) -> SyncRun[Any]:
        """The run with this id, or NotFound."""
        return SyncRun(self._portal, self._portal.call(self._app.run(id)))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine of this app's, and wait for it here."""
        return self._portal.call(work)


def _moment(when: Duration | datetime | None, now: Time) -> Time | None:
    """A time as the store counts it. A datetime without a zone is refused: whose clock would it be?"""
    if when is None:
        return None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise Invalid(f"{when.isoformat()} has no time zone: give datetime.now(UTC) + …, or a delay")
        return round(when.timestamp() * 1_000)
    return now + milliseconds(when)


def _stage_name(stage: Any) -> str:
    if isinstance(stage, _Step):
        return stage.name
    if isinstance(stage, str) and stage:
        return stage
    raise Invalid(f"stages: {stage!r} is no stage; give steps, or their names")


def _checked_queues(queues: Sequence[str]) -> tuple[str, ...]:
    if isinstance(queues, str) or not queues:
        raise Invalid(f"queues={queues!r}: give a list of queues, for example ['video'], or leave it out for all")
    return tuple(check_queue(queue) for queue in queues)


def _checked(type: str, options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in OPTIONS or name == "key":
            raise Invalid(
                f"{type}.submit_many takes no {name!r}; it takes {', '.join(o for o in OPTIONS if o != 'key')}"
            )
    return options
