"""`app.sync` for blocking code, its runs, and the thread that runs their coroutines.

Must not do anything itself: each method calls the async method of the same name and waits for it.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast import forking
from holdfast.app.job import DecoratedJob, JobWithOptions
from holdfast.app.run import Run
from holdfast.app.signatures import AnySignature, JobSignature
from holdfast.app.step import DecoratedStep
from holdfast.app.submit_options import BatchOptions, SubmitOptions
from holdfast.core.durations import Duration
from holdfast.core.errors import Duplicate, Invalid, WrongColour
from holdfast.core.model import Entry
from holdfast.jobs.replay_plans import Plan
from holdfast.jobs.service import Status
from holdfast.jobs.views.tree import Tree
from holdfast.worker.context import attempt_here, loop_here
from holdfast.worker.own_loop import run_on_loop

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncApp(Protocol):
    """What `app.sync` needs from its App."""

    async def run(self, id: str) -> Run[Any]:
        """See App.run."""

    async def review(self) -> list[Status]:
        """See App.review."""

    async def emit(
        self, event: str, payload: Any = None, *, id: str | None = None, connection: Any = None
    ) -> list[Run[Any]]:
        """See App.emit."""


class SyncApp:
    """An App, for blocking code: `app.sync.submit(make_video, brief)`."""

    def __init__(self, app: AsyncApp) -> None:
        self._app = app
        self._portal = Portal()

    @overload
    def submit(
        self, job: DecoratedJob[P, R] | JobWithOptions[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> "SyncRun[R]": ...

    @overload
    def submit(self, job: JobSignature[R], /, **options: Unpack[SubmitOptions]) -> "SyncRun[R]": ...

    @overload
    def submit(self, job: DecoratedJob[..., R], /, *args: Any, key: str | None, **rest: Any) -> "SyncRun[R]": ...

    @overload
    def submit(
        self, job: DecoratedJob[..., R], /, *args: Any, key_for: Duration | None, **rest: Any
    ) -> "SyncRun[R]": ...

    @overload
    def submit(self, job: DecoratedJob[..., R], /, *args: Any, queue: str | None, **rest: Any) -> "SyncRun[R]": ...

    @overload
    def submit(self, job: DecoratedJob[..., R], /, *args: Any, priority: int, **rest: Any) -> "SyncRun[R]": ...

    @overload
    def submit(self, job: DecoratedJob[..., R], /, *args: Any, delay: Duration | None, **rest: Any) -> "SyncRun[R]": ...

    @overload
    def submit(self, job: DecoratedJob[..., R], /, *args: Any, at: datetime | None, **rest: Any) -> "SyncRun[R]": ...

    @overload
    def submit(self, job: DecoratedJob[..., R], /, *args: Any, tags: Sequence[str], **rest: Any) -> "SyncRun[R]": ...

    @overload
    def submit(
        self, job: DecoratedJob[..., R], /, *args: Any, meta: dict[str, str] | None, **rest: Any
    ) -> "SyncRun[R]": ...

    @overload
    def submit(
        self, job: DecoratedJob[..., R], /, *args: Any, expires: Duration | datetime | None, **rest: Any
    ) -> "SyncRun[R]": ...

    @overload
    def submit(self, job: DecoratedJob[..., R], /, *args: Any, connection: Any, **rest: Any) -> "SyncRun[R]": ...

    def submit(self, job: Any, /, *args: Any, **given: Any) -> "SyncRun[Any]":
        """Submit a job and wait until the store has it: `app.sync.submit(film, brief)`. See the job's own `submit`.

        Give options here, or with the job. With the job, a type checker checks the arguments:
        `app.sync.submit(film.with_options(key="order-42"), brief)`.
        """
        if isinstance(job, AnySignature):
            return SyncRun(self.call, self._call(job.submit, *args, **given))  # type: ignore[attr-defined]
        if not isinstance(job, DecoratedJob | JobWithOptions):
            is_step = isinstance(job, DecoratedStep)
            what = f"{job!r} is a step, which runs inside a job" if is_step else f"{job!r} is not a job"
            raise Invalid(f"app.sync.submit: {what}; pass a function decorated with @app.job, or a signature")
        if job.may_submit_here() and given.get("connection") is None and given.get("unique") is None:
            return SyncRun(self.call, run_here(job.submit(*args, **given)))
        return SyncRun(self.call, self._call(job.submit, *args, **given))

    @overload
    def submit_many(
        self, job: DecoratedJob[..., R], calls: Iterable[Any], /, **options: Unpack[BatchOptions]
    ) -> "list[SyncRun[R]]": ...

    @overload
    def submit_many(self, job: JobWithOptions[..., R], calls: Iterable[Any], /) -> "list[SyncRun[R]]": ...

    def submit_many(self, job: Any, calls: Iterable[Any], /, **options: Any) -> "list[SyncRun[Any]]":
        """Submit a job once for each element. See the job's own `submit_many`."""
        return [SyncRun(self.call, run) for run in self._call(job.submit_many, calls, **options)]

    def map(self, job: Any, items: Iterable[Any], /, **options: Any) -> list[Any]:
        """Submit a job once for each item, and wait for all of them. See the job's own `map`."""
        results: list[Any] = self._call(job.map, list(items), **options)
        return results

    def emit(
        self, event: str, payload: Any = None, *, id: str | None = None, connection: Any = None
    ) -> "list[SyncRun[Any]]":
        """Emit an event and wait until the store has its jobs. See App.emit."""
        runs = self.call(self._app.emit(event, payload, id=id, connection=connection))
        return [SyncRun(self.call, run) for run in runs]

    def run(self, id: str) -> "SyncRun[Any]":
        """Return the run with this id, or raise NotFound."""
        return SyncRun(self.call, self.call(self._app.run(id)))

    def review(self) -> list[Status]:
        """See App.review."""
        return self.call(self._app.review())

    def _call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any) -> T:
        async def call() -> T:
            return await function(*args, **options)

        try:
            return self.call(call())
        except Duplicate as error:
            error.existing = SyncRun(self.call, error.existing)
            raise

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine of this app and wait for it. In a `def` job it runs on the worker's loop."""
        attempt = attempt_here()
        return self._portal.call(work) if attempt is None or loop_here() else run_on_loop(attempt, work)


def run_here(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends in this thread, so that no other thread or loop has to wake up."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise RuntimeError("submit suspended in blocking code, though the engine's may_block is true")


class SyncRun(Generic[R]):
    """One submitted job, for blocking code."""

    def __init__(self, call: Callable[[Coroutine[Any, Any, Any]], Any], run: Run[R]) -> None:
        self.id = run.id
        self._call = call
        self._run = run

    def __repr__(self) -> str:
        return f"<SyncRun {self.id}>"

    def status(self) -> Status:
        """See Run.status."""
        status: Status = self._call(self._run.status())
        return status

    def result(self, timeout: Duration | None = None) -> R:
        """See Run.result."""
        value: R = self._call(self._run.result(timeout))
        return value

    def cancel(self, reason: str = "") -> None:
        """See Run.cancel."""
        self._call(self._run.cancel(reason))

    def add_budget(self, *, usd: float = 0, tokens: float = 0, reason: str = "") -> None:
        """See Run.add_budget."""
        self._call(self._run.add_budget(usd=usd, tokens=tokens, reason=reason))

    def signal(self, name: str, value: object = None) -> None:
        """See Run.signal."""
        self._call(self._run.signal(name, value))

    def preview_replay(self, *, args: Sequence[Any] | str | None = None) -> Plan:
        """See Run.preview_replay."""
        plan: Plan = self._call(self._run.preview_replay(args=args))
        return plan

    def replay(self, *, args: Sequence[Any] | str | None = None, reason: str = "") -> None:
        """See Run.replay."""
        self._call(self._run.replay(args=args, reason=reason))

    def rerun(
        self,
        *steps: str,
        args: Sequence[Any] | str | None = None,
        feedback: str = "",
        allow: Collection[str] = (),
        reason: str = "",
    ) -> "SyncRun[R]":
        """See Run.rerun."""
        run: Run[R] = self._call(self._run.rerun(*steps, args=args, feedback=feedback, allow=allow, reason=reason))
        return self if run is self._run else SyncRun(self._call, run)

    def fork(
        self,
        until: str | None = None,
        *,
        args: Sequence[Any] | str | None = None,
        allow: Collection[str] = (),
        reason: str = "",
    ) -> "SyncRun[R]":
        """See Run.fork."""
        return SyncRun(self._call, self._call(self._run.fork(until, args=args, allow=allow, reason=reason)))

    def resolve(self, result: object = None, *, reason: str = "") -> None:
        """See Run.resolve."""
        self._call(self._run.resolve(result, reason=reason))

    def resolve_step(self, path: str, result: object = None, *, again: bool = False, reason: str = "") -> None:
        """See Run.resolve_step."""
        self._call(self._run.resolve_step(path, result, again=again, reason=reason))

    def discard(self, *, reason: str = "") -> None:
        """See Run.discard."""
        self._call(self._run.discard(reason=reason))

    def tree(self) -> Tree:
        """See Run.tree."""
        tree: Tree = self._call(self._run.tree())
        return tree

    def history(self) -> list[Entry]:
        """See Run.history."""
        entries: list[Entry] = self._call(self._run.history())
        return entries

    def follow(self) -> Iterator[Entry | Status]:
        """See Run.follow."""
        following = self._run.follow()

        async def next_one() -> Entry | Status | None:
            return await anext(following, None)

        while (one := self._call(next_one())) is not None:
            yield one


class Portal(forking.Forkable):
    """A thread with an event loop that blocking code calls into. It starts at first use, and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        forking.watch(self)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on that thread and wait for it. An interrupt here cancels it there."""
        if loop_here():
            work.close()
            raise WrongColour("app.sync would block the event loop of this thread; await the async call instead")
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="holdfast-sync", daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def leave_behind(self) -> None:
        """See Forkable. The thread doesn't exist in the child."""
        self._lock, self._loop = threading.Lock(), None
