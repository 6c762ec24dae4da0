"""`App`: declares jobs, submits them, finds runs, and runs a worker inside your own process.

The composition root. Must not run jobs or keep them: it connects the engine, the worker and the upkeep.
"""

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, ParamSpec, TypeVar, overload

from holdfast import forking
from holdfast.app.hooks import AppHooks, check_hook, check_hook_names
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
from holdfast.jobs.job_events import HookName, JobEvent
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
H = TypeVar("H", bound=Callable[[JobEvent], object])

LOOK_PART = 0.2
"""The longest wait between two checks for dead workers, as a part of a lease.

A worker counts as dead only for an observer that has checked several times within the lease.
"""


class App:
    """Your jobs, and the store that keeps them.

    `url` names the store. Without it, the App uses $HOLDFAST_URL, or else `sqlite:///holdfast.db` in the working
    directory. An App isn't bound to an event loop: it opens the store at first use, from any loop or thread, and opens
    it again after a fork.
    """

    def __init__(
        self, url: str | None = None, *, settings: Settings | None = None, engine: Engine | None = None
    ) -> None:
        self.settings = settings or Settings()
        self.url = store_url(url)
        self.engine = engine or engine_for(self.url)
        self.registry = Registry()
        self.hooks = AppHooks()
        self.sync = SyncApp(self)
        self._jobs = Jobs(self.engine)
        self._lock = threading.Lock()
        self._opening: concurrent.futures.Future[bool] | None = None
        self._is_open = False
        self._in_child = forking.InChild(self._start_over)

    def __repr__(self) -> str:
        return f"<App {self.place()}>"

    def use(self, url: str) -> None:
        """Keep the jobs in another store. Call this before the App is first used."""
        if self._opening is not None:
            raise Invalid(f"{self!r} is open already, so it can't change its store; call use(url) before its first use")
        self.url = url
        self.engine = engine_for(url)
        self._jobs = Jobs(self.engine)
        if self.hooks:
            self.engine.observe(self.hooks)

    def place(self) -> str:
        """Return where the jobs are kept, for people: a file's absolute path, or a URL without its password."""
        path = getattr(self.engine, "path", None)
        return str(path) if path is not None else masked(self.url)

    async def open(self) -> Jobs:
        """Open the store if it isn't open, and return its jobs. Every call that needs the store does this by itself."""
        check_loaded()
        if (jobs := self._worker_store()) is not None:
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
        """Open the store for all callers that wait for `opening`.

        If it fails, they get the same error. If this caller is interrupted, another caller tries.
        """
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
        """Refuse a store whose jobs were moved away: a worker would wait there for ever."""
        try:
            await check_here(self.engine)
        except Moved:
            await self.engine.close()
            raise

    def _worker_store(self) -> Jobs | None:
        """Return the worker's store if this is the process of an isolated job of this app, else None.

        That store may not allow a second process to open it.
        """
        attempt = attempt_here()
        if attempt is None or attempt.engine is self.engine:
            return None
        spec = self.registry.get(attempt.job.type)
        return Jobs(attempt.engine) if spec is not None and spec.function is attempt.spec.function else None

    async def close(self) -> None:
        """Close the store. You don't need to before the process ends."""
        await self.hooks.drain()
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
        """Turn a function into a job: you can submit it, and a worker runs it.

        The job's type is the function's name, unless you give `name`. `retries=3` means up to four attempts. `stages`
        lists the steps that the job will go through, so that people see how far it is. `keep` is how long the job is
        kept after it ends. `cleanup` is called with the job's arguments after a cancel, an expiry or a discard, once
        all steps are undone.

        `isolate="process"` runs the job in a separate process. A crash there costs only this one attempt. A timeout
        kills the process, and so does a cancel that the job ignores. `memory_mb` limits its memory.

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

    def hook(self, *events: HookName) -> Callable[[H], H]:
        """Let a function be told what happens to jobs: `@app.hook("failed", "review")`. It gets a `JobEvent`.

        A hook runs beside the jobs, in the process where the event happens: `submitted` where the job is submitted, the
        others in a worker's process. Hooks are best effort: one that fails, hangs or can't keep up harms no job, and if
        a process is killed, its events are not repeated.
        """
        check_hook_names(events)

        def decorate(function: H) -> H:
            check_hook(function)
            self.hooks.add(events, function)
            self.engine.observe(self.hooks)
            return function

        return decorate

    def _may_block(self) -> bool:
        """Return whether the store is open and this thread can call it without an event loop."""
        return self._is_open and self.engine.may_block

    # Asking about jobs.

    async def run(self, id: str) -> "Run[Any]":
        """Return the run with this id, or raise NotFound.

        Inside a job that has recorded the outcome of this run, it is found even after the run was pruned.
        """
        spec = self.registry.get(await self._type_of(id))
        return Run(self.open, id, None if spec is None else spec.signature)

    async def _type_of(self, id: str) -> str:
        """Return the type of a job. Inside a job, wait while the store can't be reached."""

        async def read_type() -> str:
            return (await (await self.open()).get(id)).type

        attempt = attempt_here()
        if attempt is None:
            return await read_type()
        try:
            with attempt.activity():
                return await attempt.persist(read_type)
        except NotFound:
            type = recorded_type(attempt, id)
            if type is None:
                raise
            return type

    async def review(self) -> "list[Status]":
        """Return the jobs that need a person, oldest first.

        Take each with `await app.run(id)` and replay, resolve or discard it.
        """
        jobs = await self.open()
        return await jobs.statuses([job async for job in jobs.walk(Where(states=(State.REVIEW,)))])

    @property
    def jobs(self) -> Jobs:
        """Everything else you can ask about the jobs of an open store. `await app.open()` returns the same."""
        return self._worker_store() or self._jobs

    # Running jobs.

    @options_checked("app.worker")
    @asynccontextmanager
    async def worker(
        self, *, at_once: int = 8, queues: Sequence[str] | None = None, name: str | None = None
    ) -> AsyncIterator[Worker]:
        """Run a worker inside your own process until the `async with` block ends.

        At the end, running jobs have `Settings.grace_seconds` to finish; the rest are handed over to other workers.
        """
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
            hooks=self.hooks,
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
                await self.hooks.drain()

    def _queues(self) -> tuple[str, ...]:
        """Return the queues of all jobs of this app."""
        specs = [self.registry.get(type) for type in self.registry.types()]
        return tuple(dict.fromkeys(spec.queue for spec in specs if spec is not None)) or ("default",)

    def _start_over(self) -> None:
        """Run in a forked child: the store must be opened again there, and nobody holds the lock."""
        self._lock, self._opening, self._is_open = threading.Lock(), None, False


class JobDecorator:
    """`@app.job(…)` with options: called with the function, it makes the job."""

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
        """Turn the function into a job."""
        return self._app._make_job(function, **self._options)
