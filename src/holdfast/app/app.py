"""`App`: jobs by decorator, submitting, runs, and a worker inside your own process. The composition root.

Must not run jobs or keep them: it brings the engine, the worker and the upkeep together.
"""

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, ParamSpec, TypeVar, overload

from holdfast import forking
from holdfast.app.job import AsyncJob, SyncJob
from holdfast.app.options import (
    JOB_OPTIONS,
    check_callback,
    check_options,
    check_parameters,
    options_checked,
    parse_isolation,
    parse_limit,
    parse_queues,
    parse_retries,
    parse_stages,
)
from holdfast.app.run import Run
from holdfast.app.settings import Settings, store_url
from holdfast.app.sync import SyncApp
from holdfast.core.codec import Signature
from holdfast.core.declared_limits import Limit, check_uses, declare
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import Invalid, Moved, NotFound
from holdfast.core.keys import check_queue
from holdfast.core.model import Options, Retry, State, Where
from holdfast.engines import engine_for
from holdfast.engines.contract import Engine
from holdfast.engines.urls import masked
from holdfast.jobs.service import Jobs, Status
from holdfast.jobs.transfer.move import check_here
from holdfast.upkeep.keeper import Keeper
from holdfast.worker.children import recorded_type
from holdfast.worker.context import attempt_here, check_loaded, loop_here
from holdfast.worker.registry import JobSpec, Registry, check_function, type_of
from holdfast.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LOOK_PART = 0.2
"""However much a look costs, there are several of them in a lease: silence counts only for who has looked all along."""


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
        self._is_open = False
        self._in_child = forking.InChild(self._forked)

    def __repr__(self) -> str:
        return f"<App {self.place()}>"

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
        check_loaded()
        if (jobs := self._from_afar()) is not None:
            return jobs
        if self._is_open:
            return self._jobs
        while True:
            with self._lock:
                opening, first = self._opening, self._opening is None
                if opening is None:
                    opening = self._opening = concurrent.futures.Future()
            if first:
                await self._open(opening)
                return self._jobs
            if not opening.done() and loop_here():
                waiting = asyncio.wrap_future(opening)
                await asyncio.wait([waiting])
                waiting.exception()
            if opening.result():
                return self._jobs

    async def _open(self, opening: "concurrent.futures.Future[bool]") -> None:
        """Open the store for all who wait for `opening`. They hear what went wrong; after an interrupt they try."""
        try:
            await self.engine.open()
            await self._check_here()
        except BaseException as error:
            with self._lock:
                self._opening = None
            if isinstance(error, Exception):
                opening.set_exception(error)
            else:
                opening.set_result(False)
            raise
        with self._lock:
            self._is_open = self._opening is opening
        opening.set_result(True)

    async def _check_here(self) -> None:
        """Refuse a store whose jobs were moved: else a worker would wait there for ever."""
        try:
            await check_here(self.engine)
        except Moved:
            await self.engine.close()
            raise

    def _from_afar(self) -> Jobs | None:
        """In the process of an isolated job of this app: the worker's store, which may be open to no other process."""
        attempt = attempt_here()
        if attempt is None or attempt.engine is self.engine:
            return None
        spec = self.registry.get(attempt.job.type)
        return Jobs(attempt.engine) if spec is not None and spec.function is attempt.spec.function else None

    async def close(self) -> None:
        """Close the store. Not needed before the process ends."""
        with self._lock:
            self._opening, self._is_open = None, False
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
        cleanup: Callable[..., Any] | None = None,
        isolate: Literal["process"] | None = None,
        memory_mb: int | None = None,
        limit: Limit | Sequence[Limit] | None = None,
    ) -> "JobDecorator": ...

    def job(self, function: Any = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Make a job of a function, so that it can be submitted and run by a worker.

        Its type is the function's name unless `name` says otherwise. `retries=3` means up to four attempts. `stages`
        tells everybody the steps that the job will go through, and `keep` how long it is kept after its end. `cleanup`
        is called with the job's arguments after a cancel, an expiry or a discard, when all its steps are undone.

        `isolate="process"` runs it in a process of its own: a crash there is one failed attempt and nothing else, and a
        timeout, or a cancel that it doesn't heed, kills it; `memory_mb` limits what it may take there.

        `limit` is what `app.limit(…)` returns, or a list: a worker takes the job once there is a permit of each, and
        the job holds them while it runs.
        """
        check_options("@app.job", options, JOB_OPTIONS)
        return JobDecorator(self, options) if function is None else self._make_job(function, **options)

    def _make_job(
        self,
        function: Any,
        *,
        name: str | None = None,
        queue: str = "default",
        retries: int | Retry = 3,
        timeout: Duration | None = None,
        stages: Sequence[Any] = (),
        keep: Duration | None = None,
        cleanup: Any = None,
        isolate: Any = None,
        memory_mb: Any = None,
        limit: Any = None,
    ) -> Any:
        check_function(function, "job", name)
        check_parameters(function)
        signature, type = Signature(function), type_of(function, name)
        keep_ms = round(self.settings.keep_days * 86_400_000) if keep is None else milliseconds(keep)
        spec = JobSpec(
            type=type,
            function=function,
            signature=signature,
            is_async=inspect.iscoroutinefunction(function),
            queue=check_queue(queue),
            options=Options(
                retry=parse_retries(retries),
                timeout_ms=parse_limit("timeout", timeout),
                keep_ms=keep_ms,
                stages=parse_stages(stages),
                cleanup=cleanup is not None,
            ),
            cleanup=check_callback("cleanup", cleanup),
            isolated=parse_isolation("job", function, isolate, memory_mb),
            memory_mb=memory_mb,
            limits=self._check_limits(type, check_uses(f"job {type}", limit, signature.names, is_job=True)),
        )
        self.registry.add(spec)
        kind: Any = AsyncJob if spec.is_async else SyncJob
        return kind(self.open, spec, self._may_block)

    def _check_limits(self, type: str, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
        for limit in limits:
            if limit.home is not self.registry:
                raise Invalid(
                    f"job {type}: limit {limit.name} belongs to another App; declare it with this App's limit"
                )
        return limits

    @options_checked("app.limit")
    def limit(
        self,
        name: str,
        *,
        at_once: int | None = None,
        rate: str | None = None,
        per: str = "",
        burst: float | None = None,
    ) -> Limit:
        """Declare a limit that all workers of the store share, for `@step(limit=…)` and `@app.job(limit=…)`.

        `at_once` is how many may run at the same time, and `rate` how many may start in a period: "500/m", in seconds,
        minutes, hours or days (s, m, h, d). At most `burst` of them start at the same moment; by default a tenth.

        `per` counts each value on its own: `per="{model}"`, with the name of an argument, or "{host}", "{queue}" or
        "{type}". The store isn't opened: a worker writes the settings there when it starts, and a person's setting
        (`holdfast limits set`) beats them.
        """
        return self.registry.add_limit(declare(name, at_once, rate, burst, per, self.registry))

    def _may_block(self) -> bool:
        """Whether the store is open and can be asked in this thread, without an event loop."""
        return self._is_open and self.engine.may_block

    # Asking.

    async def run(self, id: str) -> "Run[Any]":
        """The run with this id, or NotFound. A job that was told what became of it has it also after it was pruned."""
        spec = self.registry.get(await self._type_of(id))
        return Run(self.open, id, None if spec is None else spec.signature)

    async def _type_of(self, id: str) -> str:
        """The type of a job. Inside a job a store that is away for a while is waited for."""

        async def look() -> str:
            return (await (await self.open()).get(id)).type

        attempt = attempt_here()
        if attempt is None:
            return await look()
        try:
            with attempt.activity():
                return await attempt.persist(look)
        except NotFound:
            told = recorded_type(attempt, id)
            if told is None:
                raise
            return told

    async def review(self) -> "list[Status]":
        """The jobs that need a person, oldest first: replay, resolve or discard each by `await app.run(id)`."""
        jobs = await self.open()
        return await jobs.statuses([job async for job in jobs.walk(Where(states=(State.REVIEW,)))])

    @property
    def jobs(self) -> Jobs:
        """What else can be asked of the store's jobs, once it is open (`await app.open()` gives the same)."""
        return self._from_afar() or self._jobs

    # Working.

    @options_checked("app.worker")
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
            queues=self._queues() if queues is None else parse_queues(queues),
            at_once=at_once,
            beat_seconds=settings.beat_seconds,
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
            limit_seconds=settings.limit_seconds,
            name=name,
        )
        seldom = min(self.engine.look_seconds, settings.lease_seconds * LOOK_PART)
        keeper = Keeper(
            self.engine,
            worker.id,
            lease_seconds=settings.lease_seconds,
            look_seconds=max(settings.look_seconds, seldom),
            upkeep_seconds=max(settings.upkeep_seconds, 5 * seldom),
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
        self._lock, self._opening, self._is_open = threading.Lock(), None, False


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
        return self._app._make_job(function, **self._options)
