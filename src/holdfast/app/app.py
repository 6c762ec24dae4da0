"""`App`: declares jobs, submits them, finds runs, and runs a worker inside your own process.

The composition root. Must not run jobs or keep them: it connects the engine, the worker and the upkeep.
"""

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Literal, ParamSpec, TypeVar, overload

from holdfast import forking
from holdfast.app.events import Events
from holdfast.app.hooks import AppHooks, check_hook, check_hook_names
from holdfast.app.job import AsyncJob, DecoratedJob, SyncJob
from holdfast.app.only_app import note_app
from holdfast.app.options import (
    JOB_OPTIONS,
    check_callback,
    check_options,
    check_parameters,
    options_checked,
    parse_isolation,
    parse_limit,
    parse_most_children,
    parse_queues,
    parse_retries,
    parse_secrets,
    parse_stages,
    parse_words,
)
from holdfast.app.run import Run
from holdfast.app.schedules import Missed, Overlap, Scheduled, Schedules, define
from holdfast.app.settings import Settings, blobs_url, store_url
from holdfast.app.signatures import AnySignature, JobSignature, foreign_signature, known_signature, stored_signature
from holdfast.app.sync import SyncApp
from holdfast.app.typos import warn_of_queues, warn_of_stages
from holdfast.app.upkeep import keeper_for, upkeep_only
from holdfast.blobs.opening import blob_store
from holdfast.core.alerts import AlertEvent, declare_alerts
from holdfast.core.budgets import budget_of
from holdfast.core.codec import Codec, Signature
from holdfast.core.declared_limits import Limit, check_uses, declare
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import Invalid, Moved, NotAllowed, NotFound, StoreClosed
from holdfast.core.events import check_event
from holdfast.core.fairness import check_fair
from holdfast.core.keys import check_queue
from holdfast.core.limits import CHILDREN
from holdfast.core.model import Options, Retry, State, Where
from holdfast.core.queue_bounds import declare_queue
from holdfast.engines import engine_for
from holdfast.engines.contract import Engine
from holdfast.engines.traits import Remote
from holdfast.engines.urls import masked
from holdfast.jobs.flows import FLOW_TYPE
from holdfast.jobs.job_calls import call_from_json
from holdfast.jobs.job_events import HookName, JobEvent
from holdfast.jobs.remote import jobs_of
from holdfast.jobs.service import Jobs, Status
from holdfast.jobs.transfer.move import check_here
from holdfast.redaction import register_secrets
from holdfast.worker import context
from holdfast.worker.children import recorded_type
from holdfast.worker.context import attempt_here, check_loaded, check_no_tx, job_outside, loop_here
from holdfast.worker.registry import JobSpec, Registry, check_function, type_of
from holdfast.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D", bound=DecoratedJob[..., Any])
H = TypeVar("H", bound=Callable[[JobEvent], object])
A = TypeVar("A", bound=Callable[[AlertEvent], object])


class App:
    """Your jobs, and the store that keeps them.

    `url` names the store. Without it, the App uses $HOLDFAST_URL, or else `sqlite:///holdfast.db` in the working
    directory. An App isn't bound to an event loop: it opens the store at first use, from any loop or thread, and opens
    it again after a fork.

    With the URL of a Holdfast server, `http://…`, the App submits, follows and acts through it, with a `token` of
    `holdfast token create` (or $HOLDFAST_TOKEN). It has no worker then.

    `blobs` names where large values and files are kept: a folder, or a URL such as `s3://bucket/folder`. Without it,
    the App uses $HOLDFAST_BLOBS, or else the store's own place: a folder beside the file, a table on Postgres.

    `secrets` are texts such as API keys that must not be stored: they are replaced in the errors, tracebacks, progress
    and log lines of jobs, and in the worker's log. Arguments and results are stored as they are.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        blobs: str | None = None,
        settings: Settings | None = None,
        engine: Engine | None = None,
        secrets: Collection[str] = (),
    ) -> None:
        register_secrets(parse_secrets(secrets))
        self.settings = settings or Settings()
        self.url = store_url(url)
        self._blobs = None if (place := blobs_url(blobs)) is None else blob_store(place)
        self.engine = self._with_blobs(engine or engine_for(self.url))
        if token is not None:
            self._use_token(token)
        self.registry = Registry()
        self.registry.on_settle = lambda limit, units: context.settle(limit, units)  # an isolated step has its own
        self.hooks = AppHooks()
        self.sync = SyncApp(self)
        self._jobs = jobs_of(self.engine, self.registry.bounds)
        self._lock = threading.Lock()
        self._opening: concurrent.futures.Future[bool] | None = None
        self._is_open = False
        self.schedules = Schedules(self.open, self.registry)
        self._events = Events(self.open, self.registry)
        self._in_child = forking.InChild(self._start_over)
        note_app(self)

    def __repr__(self) -> str:
        return f"<App {self.place()}>"

    def use(self, url: str) -> None:
        """Keep the jobs in another store. Call this before the App is first used."""
        if self._opening is not None:
            raise Invalid(f"{self!r} is open already, so it can't change its store; call use(url) before its first use")
        before, self.url = self.engine, url
        self.engine = self._with_blobs(engine_for(url))
        self.engine.observe_like(before)
        self._jobs = jobs_of(self.engine, self.registry.bounds)

    def _use_token(self, token: str) -> None:
        if not isinstance(self.engine, Remote):
            raise Invalid(f"{self.place()}: token= is for a server, http://…; a store needs none")
        self.engine.use_token(token)

    def _with_blobs(self, engine: Engine) -> Engine:
        if self._blobs is not None:
            engine.keep_blobs_in(self._blobs)
        return engine

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
        """Refuse a store whose jobs were moved away: a worker would wait there forever. And refuse a store in memory in
        an isolated step's process, which no other process would see.
        """
        if job_outside() is not None and self.engine.guarantees.durable == "nothing":
            await self.engine.close()
            raise StoreClosed(
                f"{self.url}: this isolated step has a process of its own, which can't reach the store of its job; use "
                "the store in the job's code, isolate the whole job, or take a store that processes share"
            )
        try:
            await check_here(self.engine)
        except Moved:
            await self.engine.close()
            raise
        except NotAllowed:
            if not isinstance(self.engine, Remote):
                raise  # otherwise the token may only submit, and the server refuses it if the jobs were moved

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
        keep_result: Duration | None = None,
        cleanup: Callable[..., Any] | None = None,
        isolate: Literal["process"] | None = None,
        memory_mb: int | None = None,
        limit: Limit | Sequence[Limit] | None = None,
        most_children: int = CHILDREN,
        fair: str | None = None,
        needs: Collection[str] = (),
        budget: Mapping[str, float] | None = None,
    ) -> "JobDecorator": ...

    def job(self, function: Any = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Turn a function into a job: you can submit it, and a worker runs it.

        The job's type is the function's name, unless you give `name`. `retries=3` means up to four attempts. `stages`
        lists the steps that the job will go through, so that people see how far it is. `keep` is how long the job is
        kept after it ends, and `keep_result` its result and its files, if that is shorter. `cleanup` is called with the
        job's arguments after a cancel, an expiry or a discard, once all steps are undone.

        `isolate="process"` runs the job in a separate process. A crash there costs only this one attempt. A timeout
        kills the process, and so does a cancel that the job ignores. `memory_mb` limits its memory.

        `limit` is what `app.limit(…)` returns, or a list: a worker takes the job once there is a permit of each, and
        the job holds them while it runs. `most_children` is how many children one such job may submit.

        `fair="{customer}"`, with the name of an argument, lets customers take turns: in one queue and priority, a
        customer's next job starts after at most one job of every other customer that waits.

        `needs={"gpu"}` leaves the job to workers that have all of this: `holdfast worker --has gpu`.

        `budget` is what the job and its children may spend: `{"usd": 5, "tokens": 200_000}`. Once that is spent, no
        further step starts until a person adds to it (`holdfast budget ID --add usd=5`) or cancels the job.
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
        keep_result: Duration | None = None,
        cleanup: Any = None,
        isolate: Any = None,
        memory_mb: Any = None,
        limit: Any = None,
        most_children: int = CHILDREN,
        fair: Any = None,
        needs: Any = (),
        budget: Any = None,
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
                keep_result_ms=None if keep_result is None else milliseconds(keep_result),
                stages=parse_stages(stages),
                cleanup=cleanup is not None,
                budget={} if budget is None else budget_of(f"job {type}", budget),
            ),
            cleanup=check_callback("cleanup", cleanup),
            isolated=parse_isolation("job", function, isolate, memory_mb),
            memory_mb=memory_mb,
            limits=self._check_limits(type, check_uses(f"job {type}", limit, signature.names, is_job=True)),
            most_children=parse_most_children(type, most_children),
            fair=check_fair(f"job {type}", fair, signature.names),
            needs=parse_words(f"job {type}: needs", needs),
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

    @options_checked("app.schedule")
    def schedule(
        self,
        cron: str | None = None,
        *,
        job: Scheduled,
        name: str,
        every: Duration | None = None,
        at: datetime | None = None,
        tz: str = "UTC",
        missed: Missed = "skip",
        overlap: Overlap = "allow",
        jitter: Duration | None = None,
    ) -> None:
        """Submit a job by the clock: `app.schedule("0 9 * * mon-fri", job=report.s("daily"), name="morning")`.

        The ticks come from a cron expression in the time zone `tz`, from `every="15m"`, or once from `at`. `missed`
        says what becomes of ticks at which no worker with this code was running: "skip", "once" for all together, or
        "all". `overlap` says what a tick does while the last job still runs: "allow" both, "skip" the tick, "wait" for
        the end of that job, or "cancel_previous". `jitter` delays each job by a random time up to this.

        The store isn't opened: a worker writes the schedule there when it starts. Each tick submits at most one job,
        however many workers there are.
        """
        self.registry.add_schedule(name, define(name, cron, job, every, at, tz, missed, overlap, jitter))

    def s(self, type: str, /, *args: Any) -> JobSignature[Any]:
        """Return the signature of a job by its type. Another program may run it, so the arguments are plain JSON.

        A job of this App is checked by its own type hints. In a flow, it leaves out the argument that it gets from the
        job before it, as `job.s(…)` does. For options of `submit`, write `app.s(…).with_options(…)`.
        """
        spec = self.registry.get(type)
        if spec is None:
            return foreign_signature(self.open, type, args)
        made: Any = known_signature(self.open, spec, args)  # a type checker can't tell which of the two kinds it is
        return made  # type: ignore[no-any-return]

    def signature_from(self, value: Any) -> AnySignature[Any]:
        """Return the signature that `as_json` wrote. Arguments that no longer fit the job's type hints are refused."""
        call = call_from_json(value)
        return stored_signature(self.open, call, self.registry.get(call.type))

    @overload
    def on(self, event: str, /) -> Callable[[D], D]: ...

    @overload
    def on(self, event: str, /, **options: Any) -> "JobDecorator": ...

    def on(self, event: str, /, **options: Any) -> Any:
        """Run a job once for each event of this name: `@app.on("order.paid")` above `@app.job`.

        The job gets the event's payload as its only argument. With options of `app.job`, or alone above a function,
        it makes the job, too: `@app.on("order.paid", queue="mail")`. One job can be subscribed to several events.
        """
        check_event(event)
        check_options(f"@app.on({event!r})", options, JOB_OPTIONS)

        def decorate(function: Any) -> Any:
            if isinstance(function, DecoratedJob) and options:
                raise Invalid(f"@app.on({event!r}) on {function!r}: give the job's options to @app.job")
            job = function if isinstance(function, DecoratedJob) else self._make_job(function, **options)
            self._events.subscribe(event, job)
            return job

        return decorate

    async def emit(
        self, event: str, payload: Any = None, *, id: str | None = None, connection: Any = None
    ) -> "list[Run[Any]]":
        """Emit an event: submit each job that is subscribed to it, once for this `id`. Return their runs.

        All jobs are submitted in one operation, or none. Emitting the same `id` again submits nothing new, and raises
        KeyConflict if the payload differs. The payload must fit the type hint of every subscriber in this program, or
        it raises BadValue. With `connection`, the jobs become part of your own transaction, as in `submit`. Inside a
        job, an event without an id gets the same one whenever the job runs again with the same payload.

        Subscribers in other programs get the event, too, once a worker with their code has been started.
        """
        check_no_tx("emitting an event")
        return await self._events.emit(check_event(event), payload, id, connection)

    @options_checked("app.queue")
    def queue(self, name: str, *, most_waiting: int, when_full: str = "refuse") -> None:
        """Declare how many jobs may wait in a queue: those that are available or scheduled.

        A submit that finds the queue full raises QueueFull, or with `when_full="shed_oldest"` cancels the oldest jobs
        that never started. What a running job submits is always accepted. The store isn't opened: a worker writes the
        bound there when it starts, and a person's (`holdfast queues set`) beats it.
        """
        self.registry.add_bound(declare_queue(name, most_waiting, when_full))

    @options_checked("app.alert")
    def alert(
        self,
        *,
        queue: str | None = None,
        depth: int | None = None,
        age: Duration | None = None,
        review: int | None = None,
    ) -> None:
        """Log a line, and call the hooks for "alert", when a threshold is reached, and once more when that is over.

        `app.alert(queue="video", depth=1_000)` is on how many jobs of a queue could start, `age="10m"` on how long one
        of them has waited for that. `app.alert(review=10)` is on how many jobs need a person, in all queues or in one.
        The workers of this App check; of all workers of the store, one tells it.
        """
        self.registry.alerts.update(dict.fromkeys(declare_alerts(queue, depth, age, review)))

    @overload
    def hook(self, event: Literal["alert"], /) -> Callable[[A], A]: ...

    @overload
    def hook(self, *events: HookName) -> Callable[[H], H]: ...

    def hook(self, *events: Any) -> Any:
        """Call this function when these events happen to a job: `@app.hook("failed", "review")`. It gets a `JobEvent`.

        A hook for "alert" gets an `AlertEvent` when a threshold of `app.alert` is reached, and when that is over.

        A hook runs beside the jobs, in the process where the event happens: `submitted` where the job is submitted, the
        others in a worker's process. Hooks are best effort: one that fails, hangs or can't keep up harms no job, and if
        a process is killed, its events are not repeated.
        """
        check_hook_names(events)

        def decorate(function: Any) -> Any:
            check_hook(function)
            self.hooks.add(events, function)
            self.engine.observe(self.hooks)
            return function

        return decorate

    def _may_block(self) -> bool:
        """Return whether the store is open and this thread can call it without an event loop."""
        return self._is_open and self.engine.may_block and not self.registry.bounds

    # Asking about jobs.

    async def run(self, id: str) -> "Run[Any]":
        """Return the run with this id, or raise NotFound.

        Inside a job that has recorded the outcome of this run, it is found even after the run was pruned.
        """
        type = await self._type_of(id)
        if type == FLOW_TYPE:
            return Run(self.open, id, None, result_of=self._result_of)
        spec = self.registry.get(type)
        return Run(self.open, id, None if spec is None else spec.signature)

    def _result_of(self, type: str) -> Codec[Any] | None:
        spec = self.registry.get(type)
        return None if spec is None else spec.signature.result

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
        self,
        *,
        at_once: int = 8,
        queues: Sequence[str] | None = None,
        name: str | None = None,
        has: Collection[str] = (),
    ) -> AsyncIterator[Worker]:
        """Run a worker inside your own process until the `async with` block ends.

        `has={"gpu"}` is what this worker has: it takes only jobs that need nothing else.

        At the end, running jobs have `Settings.grace_seconds` to finish; the rest are handed over to other workers.
        """
        await self.open()
        settings = self.settings
        served = self._queues() if queues is None else parse_queues(queues)
        warn_of_queues(served, self._queues())
        warn_of_stages(self.registry)
        worker = Worker(
            self.engine,
            self.registry,
            queues=served,
            at_once=at_once,
            beat_seconds=settings.beat_seconds,
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
            limit_seconds=settings.limit_seconds,
            name=name,
            hooks=self.hooks,
            has=parse_words("has", has),
        )
        keeper = keeper_for(self.engine, self.registry, self.hooks, settings, worker.id)
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

    @asynccontextmanager
    async def upkeep(self) -> AsyncIterator[Worker]:
        """Keep the store in order without running jobs, as `holdfast serve` does, until the `async with` block ends."""
        await self.open()
        async with upkeep_only(self.engine, self.hooks, self.settings) as worker:
            yield worker

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
