"""One run of a job under test: submitted, killed at one boundary, rescued, and run to its end.

Must not judge the outcome (`verdict`). There are two event loops: the killed worker's, which then stands still, and
that of the worker that continues.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Thread
from time import monotonic, sleep
from typing import Any, Self

from msgspec import Struct

from holdfast.app.app import App
from holdfast.app.job import DecoratedJob
from holdfast.app.run import Run
from holdfast.core.codec import parse
from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import Job, State, Step, WaitKind
from holdfast.jobs.questions import ASK
from holdfast.jobs.replays import doubts_left
from holdfast.jobs.service import Jobs
from holdfast.testing.memory import GRACE_SECONDS, LOOK_SECONDS, idle
from holdfast.testing.moments import AFTER_INTENT, Boundary
from holdfast.testing.store import Clock, Store, moved
from holdfast.testing.verdict import SAME, Outcome, Stuck
from holdfast.testing.watch import Mortal, Watch
from holdfast.upkeep.keeper import Keeper
from holdfast.upkeep.rescue import Rescue
from holdfast.upkeep.wake import Wake
from holdfast.worker.attempt import Attempt
from holdfast.worker.held_job import LOST

UPKEEP = "upkeep"
"""The actor of a rescue, in the history."""

BOUNDARIES_LIMIT = 2_000
"""How many boundaries a job may have. A shorter job finds the same bugs."""

THREADS_SECONDS = 10.0
"""How long the threads of a killed worker may take to end."""


class Plan(Struct, frozen=True, kw_only=True):
    """What is the same in all runs."""

    app: App
    job: DecoratedJob[Any, Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    signals: Mapping[str, Any]
    cancel_at: str | None
    doubt: Any
    within: float
    effects: Callable[[], int]


class Life:
    """One run. A context manager: its exit cleans up what the killed worker left behind."""

    def __init__(self, plan: Plan, target: Boundary | None) -> None:
        self._plan = plan
        self._clock = Clock()
        self._store = Store(self._clock)
        self._jobs = Jobs(self._store)
        self._watch = Watch(self._store, target)
        settings = plan.app.settings
        self._keeper = Keeper(
            self._store,
            UPKEEP,
            lease_seconds=settings.lease_seconds,
            look_seconds=settings.look_seconds,
            upkeep_seconds=settings.upkeep_seconds,
        )
        self._run: Run[Any]
        self._doubts: list[str] = []
        self._recorded = 0
        self._loops: dict[asyncio.AbstractEventLoop, ThreadPoolExecutor] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(moved(self._plan.app, self._store))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._unwind()
        finally:
            self._stack.close()

    def run(self) -> Outcome:
        """Run the job from the submit to its end."""
        before = self._plan.effects()
        stuck: str | None = None
        try:
            self._on_a_loop(self._live(again=False))
            if self._watch.is_killed:
                self._recorded = sum(1 for job in self._store.all_jobs() for _ in self._steps(job))
                self._let_threads_end()
                self._on_a_loop(self._live(again=True))
        except Stuck as trouble:
            stuck = str(trouble)
        return self._outcome(self._plan.effects() - before, stuck)

    # Loops.

    def _on_a_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this on a new loop until it is done or a kill stops the loop."""
        loop = asyncio.new_event_loop()
        self._loops[loop] = _new_threads(loop)
        task = loop.create_task(work)

        def stop(_: object) -> None:
            loop.stop()

        task.add_done_callback(stop)
        loop.run_forever()
        if task.done():
            task.result()
        task.remove_done_callback(stop)

    def _let_threads_end(self) -> None:
        """Threads can't be killed: let each finish its current call, then tell it to stop."""
        for threads in self._loops.values():
            ending = Thread(target=threads.shutdown, daemon=True)
            ending.start()
            ending.join(THREADS_SECONDS)
        attempts = list(self._watch.attempts.values())
        if any(attempt.threads and not attempt.spec.is_async for attempt in attempts):
            self._unwind()  # its thread waits for an answer from the loop, which stands still
        end = monotonic() + THREADS_SECONDS
        while any(attempt.threads for attempt in attempts) and monotonic() < end:
            sleep(LOOK_SECONDS)

    def _unwind(self) -> None:
        """End what is left on our loops. The store doesn't notice."""
        loops, self._loops = self._loops, {}
        attempts = list(self._watch.attempts.values())
        for attempt in attempts:
            if attempt.stop is None:
                attempt.stop = LOST
        for loop, threads in loops.items():
            self._store.unwind(loop)
            threads.shutdown(wait=False)
            more_threads = _new_threads(loop)
            loop.run_until_complete(_ended([attempt for attempt in attempts if attempt.loop is loop]))
            loop.run_until_complete(loop.shutdown_asyncgens())
            more_threads.shutdown(wait=False, cancel_futures=True)
            loop.close()

    # Living.

    async def _live(self, *, again: bool) -> None:
        plan = self._plan
        try:
            async with asyncio.timeout(plan.within) as limit:
                if again:
                    await self._rescue()
                else:
                    self._run = await plan.job.submit(*plan.args, **plan.kwargs)
                worker = Mortal(self._store, plan.app.registry, self._watch, queues=plan.app._queues())
                await worker.start()
                try:
                    await self._to_the_end(worker)
                finally:
                    await worker.stop(GRACE_SECONDS)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Stuck(f"it didn't end within {plan.within:g} s: {await self._run.status()}") from None

    async def _rescue(self) -> None:
        """Do what the upkeep of another process does when a worker dies."""
        rescue = Rescue(self._store, lease_seconds=self._plan.app.settings.lease_seconds)
        await rescue.rescue_dead(UPKEEP)
        await Wake(self._store).wake_waiting(UPKEEP)

    async def _to_the_end(self, worker: Mortal) -> None:
        """Answer waits, let time pass and resolve effects in doubt, until all jobs have settled."""
        while True:
            await idle(self._store, worker, 2 * self._plan.within, self._check)
            if await self._resolve():
                continue
            waiting = [job for job in self._store.all_jobs() if job.state not in SETTLED]
            if not waiting:
                return
            if not await self._answer(waiting):
                due = self._store.next_moment()
                if due is None:
                    raise Stuck(_nobody_answers(waiting[0]))
                self._clock.advance_to(due)
                await self._keeper.tidy()
                await asyncio.sleep(0)  # lets the timeout of this run fire, whatever happens

    def _check(self) -> None:
        if len(self._watch.boundaries) > BOUNDARIES_LIMIT:
            raise Stuck(
                f"it has more than {BOUNDARIES_LIMIT} boundaries. Give it less work; or does its code ask for "
                f"something new each time it runs? {SAME}"
            )

    async def _answer(self, waiting: list[Job]) -> bool:
        """Send the given signals to the jobs that wait for them; return whether there were any."""
        plan, sent = self._plan, False
        for job in waiting:
            for wait in job.waits if job.state is State.PENDING else ():
                if wait.kind is not WaitKind.SIGNAL:
                    continue
                name = "ask" if wait.name.startswith(ASK) else wait.name
                if plan.cancel_at in (name, wait.name) and job.id == self._run.id:
                    await self._run.cancel("crash_everywhere: cancel_at")
                    return True
                given = plan.signals.get(wait.name, plan.signals.get(name, _NOTHING))
                if given is not _NOTHING:
                    value = given(await self._question(job, wait.name)) if callable(given) else given
                    await self._jobs.signal(job.id, wait.name, value)
                    sent = True
                    break  # the job continues, and may wait for something else next
        return sent

    async def _question(self, job: Job, name: str) -> Any:
        asked = [question.value for question in await self._jobs.questions(job.id) if question.name == name]
        return asked[0] if asked else None

    async def _resolve(self) -> bool:
        """Resolve an effect in doubt, as a person would after checking; return whether there was one."""
        if not self._watch.is_killed:
            return False
        found = [
            (job.id, path)
            for job in self._store.all_jobs()
            if job.state is State.REVIEW
            for path in doubts_left(job, self._steps(job))
        ]
        for id, path in found[:1]:  # one at a time, because the last answer lets the job continue
            self._doubts.append(path)
            result, again = None, False
            try:
                result = self._happened(path)
            except LookupError:
                again = True
            await self._jobs.resolve_step(id, path, result, again=again)
        return bool(found)

    def _happened(self, path: str) -> Any:
        """The result of an effect in doubt; LookupError if it didn't happen, or if it should run again anyway."""
        doubt, watch = self._plan.doubt, self._watch
        if callable(doubt):
            return doubt(path)
        if doubt == "truth" and path in watch.happened:
            return parse(watch.happened[path].result or "null")
        if doubt == "truth" and (path, watch.target and watch.target.when) != (watch.killed_at, AFTER_INTENT):
            raise Stuck(
                f"{path} was running when its worker was killed, and only the called service knows whether its effect "
                "happened; pass doubt= a function of the path that checks: it returns the result or raises LookupError"
            )
        raise LookupError(path)

    # Looking back.

    def _steps(self, job: Job) -> list[Step]:
        return [step for step in self._store.all_steps(job.id) if not step.path.startswith("~")]

    def _outcome(self, effects: int, stuck: str | None) -> Outcome:
        jobs = self._store.all_jobs()
        made = Counter(job.type for job in jobs)
        made.update(f"{job.type}: {step.name}" for job in jobs for step in self._steps(job))
        watch = self._watch
        return Outcome(
            job=next(job for job in jobs if job.id == self._run.id),
            made=made,
            effects=effects,
            boundaries=watch.boundaries,
            is_killed=watch.is_killed,
            killed_at=watch.killed_at,
            doubts=self._doubts,
            recorded=self._recorded,
            ran_again=watch.ran_again,
            unasked=watch.unasked,
            drift=watch.drift,
            stuck=stuck,
        )


_NOTHING = object()


def _nobody_answers(job: Job) -> str:
    names = [wait.name for wait in job.waits if wait.kind is WaitKind.SIGNAL]
    if not names:
        return f"job {job.id} ({job.type}) is {job.state}, and nothing will wake it"
    name = "ask" if names[0].startswith(ASK) else names[0]
    return f"it waits for {names[0]!r}, and nothing answers it; pass signals={{{name!r}: …}}"


def _new_threads(loop: asyncio.AbstractEventLoop) -> ThreadPoolExecutor:
    """A thread pool for a loop that can be waited for while the loop stands still."""
    threads = ThreadPoolExecutor(thread_name_prefix="holdfast-testing")
    loop.set_default_executor(threads)
    return threads


async def _ended(attempts: list[Attempt]) -> None:
    """Cancel everything left on this loop, and what threads add to it, until nothing is left or time is up."""
    ours, end = asyncio.current_task(), monotonic() + THREADS_SECONDS
    seen: set[asyncio.Task[Any]] = set()
    cancelled: set[asyncio.Task[Any]] = set()
    while monotonic() < end:
        left = asyncio.all_tasks() - {ours}
        if not left and not any(attempt.threads for attempt in attempts):
            break
        for task in (left & seen) - cancelled:  # a task that hasn't started would leave its coroutine unawaited
            task.cancel()
            cancelled.add(task)  # only once: it may be cleaning up
        seen |= left
        await asyncio.sleep(LOOK_SECONDS / 2)
    for task in cancelled:
        if task.done() and not task.cancelled():
            task.exception()  # mark it as retrieved; it isn't part of the run we look at
