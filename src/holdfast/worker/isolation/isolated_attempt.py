"""The worker's side of a job in its own process: it holds the lease, and makes the calls that the process asks for.

Must not run the job's code. The attempt itself, with its steps and waits, is in the process (`child_job`). Here is what
must survive it: who owns the job, what it last reported, which effects it has started, and how it is stopped.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.core.model import (
    Applied,
    Change,
    Conflict,
    Job,
    Recorded,
    Running,
    Spending,
    State,
    Step,
    StepState,
    Time,
)
from holdfast.core.model import Ask as PermitAsk
from holdfast.core.outcome import FAILED_ONCE_PATH, in_doubt
from holdfast.core.references import may_need_blobs
from holdfast.core.spending import failed
from holdfast.core.throttling import with_throttle
from holdfast.jobs.job_events import StepRetry
from holdfast.jobs.status import progress_records
from holdfast.worker.attempt import Attempt
from holdfast.worker.context import Current
from holdfast.worker.held_job import SUSPENDED, HeldJob
from holdfast.worker.isolation.import_target import Target, target_of
from holdfast.worker.isolation.messages import (
    Ask,
    Attend,
    Doing,
    Ended,
    Failed,
    Fence,
    Leave,
    Line,
    Logged,
    News,
    Settled,
    Spent,
    Stop,
)
from holdfast.worker.isolation.messages import Progress as ProgressNews
from holdfast.worker.isolation.pool import IsolatedCall, Pool, ProcessDied, log_here
from holdfast.worker.isolation.process import Process
from holdfast.worker.isolation.remote_blobs import ServedBlobs
from holdfast.worker.isolation.remote_engine import ACTS, Reply, answered, reply
from holdfast.worker.large_results import keep_job_result
from holdfast.worker.progress import Progress
from holdfast.worker.recorded_errors import Reported
from holdfast.worker.tries import Stopped

STOP_SECONDS = 3.0
"""How long the process of a job that was asked to stop may take, before it is killed."""


class RelayedProgress(Progress):
    """The progress of code that runs in another process: what that process last reported."""

    def __init__(self, held: HeldJob) -> None:
        super().__init__(held)
        self._relayed: tuple[Running, float] | None = None

    def relay(self, running: Running) -> None:
        """Take the process's report of what it is doing."""
        if self._relayed is not None and running.waited_ms > (before := self._relayed[0].waited_ms):
            self._held.extend_timeout((running.waited_ms - before) / 1_000)
        self._relayed = (running, time.monotonic())
        self._held.changed()

    def spending(self) -> Spending | None:
        """See Progress.spending."""
        return super().spending() if self._relayed is None else self._relayed[0].spending

    def waste_loose(self) -> None:
        """See Progress.waste_loose. The process has told its spending before it failed."""
        super().waste_loose()
        if self._relayed is not None and (spending := self._relayed[0].spending) is not None:
            self._relayed = replace(self._relayed[0], spending=failed(spending)), self._relayed[1]

    def describe(self) -> Running:
        """See Progress.describe. Returns what the process last reported, and how long ago."""
        if self._relayed is None:
            return super().describe()
        running, at = self._relayed
        return replace(running, silent_ms=running.silent_ms + round((time.monotonic() - at) * 1_000))

    def final_records(
        self, now: Time, *, completes: bool = False, waits: bool = False, used: tuple[int, int] | None = None
    ) -> tuple[Step, ...]:
        """See Progress.final_records."""
        return progress_records(self._held.job, self.describe(), now, lost=False)


class IsolatedAttempt(Attempt):
    """An attempt whose code runs in its own process."""

    progress_kind = RelayedProgress
    pool: Pool
    fence: Callable[[], float]
    """The time until which a step may start, by the machine's monotonic clock: the worker's fence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._process: Process | None = None
        self._kill: asyncio.TimerHandle | None = None
        self._before: list[Step] = []
        self._asked: dict[int, tuple[Ask, asyncio.Task[None]]] = {}

    def load(self, steps: Iterable[Step]) -> None:
        """See Attempt.load. The process gets the steps; only the log and what is done are kept here."""
        self._before = list(steps)
        super().load([_slim(step) for step in self._before])

    async def run(self) -> str:
        """Run the job's function in a process, and take over its outcome. Cancelling this kills the process."""
        word = Attend(
            target=target_of(self.spec.function),
            job=self.job,
            args=self.args,
            steps=self._before,
            claimed=self.claimed,
            until=self.fence(),
            memory_mb=self.spec.memory_mb,
            most_children=self.spec.most_children,
            tells_retries=self.on_retry is not None,
        )
        self._before = []
        # From now on the process knows better, because it sees which of them are called.
        self.journal.effects.unsettled.clear()
        try:
            answer = await self.pool.attend(self.job.type, word, on_news=self._hear, on_begin=self._note_process)
        except ProcessDied:
            if self.stop is not None:  # it was killed because it didn't stop
                raise Stopped(f"job {self.job.id}: {self.stop}") from None
            raise
        finally:
            self._process = None
            if self._kill is not None:
                self._kill.cancel()
            await self._finish_acts()
        if isinstance(answer, Failed):
            raise Reported(answer.error, is_final=False)
        text = self._take_over(answer)
        if may_need_blobs(text) or self.job.options.keep_result_ms is not None:
            return await keep_job_result(self, text)
        return text

    def renew(self) -> None:
        """Let the process continue, because a heartbeat was answered. On the loop."""
        if self._process is not None and self.stop is None:
            self._process.send(Fence(self.fence()))

    def cancel(self) -> None:
        """Ask the process to stop, and kill it if it doesn't. One that hasn't started isn't needed any more."""
        if self._process is None:
            super().cancel()
        elif self._kill is None:
            self._process.send(Stop(self.stop or ""))
            self._kill_later(self._process)

    def _kill_later(self, process: Process) -> None:
        self._kill = self._kill or self.loop.call_later(STOP_SECONDS, process.kill)

    def _note_process(self, process: Process) -> None:
        self._process = process
        if self.stop is not None:
            self.cancel()

    def _take_over(self, ended: Ended) -> str:
        """Take over the attempt's outcome: return its result, or raise its error."""
        effects = self.journal.effects
        effects.doubts, effects.drops = ended.doubts, ended.drops
        effects.heard.update(ended.doubts)  # otherwise the process would have reported that it stopped in doubt
        self.journal.calls.take_over(ended.drift, ended.vanished, ended.places)
        self.kept_slot = ended.kept_slot
        if ended.stop is not None:
            self.note_stop(ended.stop)
        if ended.is_cut:
            raise Stopped(f"job {self.job.id}: {self.stop}")
        if ended.error is not None:
            raise with_throttle(Reported(ended.error, is_final=ended.is_final), ended.throttle)
        return bytes(ended.result).decode()

    # Messages from the process while it runs.

    def _hear(self, news: News) -> None:
        match news:
            case Ask():
                task = self.loop.create_task(self._serve(news))
                self._asked[news.number] = (news, task)
            case Leave(number):
                if number in self._asked and not ACTS[self._asked[number][0].act].writes:
                    self._asked[number][1].cancel()
            case Doing(running):
                progress = self.progress
                assert isinstance(progress, RelayedProgress)
                progress.relay(running)
            case Line(text):
                self.progress.add_log_line(text)
            case Logged():
                log_here(news)
            case StepRetry():
                if self.on_retry is not None:
                    self.on_retry(news)
            case ProgressNews() | Spent() | Settled():
                pass  # A job's progress and spending are part of its report of what it is doing.

    async def _serve(self, ask: Ask) -> None:
        """Do what was asked, and send the outcome, if the process is still there."""
        try:
            word = await answered(ask, self._act(ask.act))
            if self._process is not None:
                self._process.send(word)
        finally:
            self._asked.pop(ask.number, None)

    def _act(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Return what makes a call: the engine, unless something must be noted or converted."""
        match name:
            case "commit":
                return self._commit
            case "record":
                return self._record
            case "admit":
                return self._admit
            case "put_record":
                return self._put_record
            case "count":
                return self._count
            case "isolate":
                return self._isolate
            case "keep_blob" | "fetch_blob" | "refer_blobs" | "save_blob":
                served: Callable[..., Awaitable[Any]] = getattr(ServedBlobs(self.engine.blobs), name)
                return served
            case _:
                act: Callable[..., Awaitable[Any]] = getattr(self.engine, name)
                return act

    async def _finish_acts(self) -> None:
        """Cancel what the process still asked for when it ended; but wait for a write, to know its outcome."""
        for ask, task in list(self._asked.values()):
            if not ACTS[ask.act].writes:
                task.cancel()
        if self._asked:
            await asyncio.wait([task for _, task in self._asked.values()])

    async def _commit(self, changes: Sequence[Change]) -> list[Reply]:
        """Commit changes of other jobs, or the suspend of this job, which ends its lease here, too."""
        own = [change for change in changes if change.job.id == self.job.id and change.epoch is not None]
        if not own:
            return [reply(answer) for answer in await self.engine.commit(changes)]
        (change,) = changes
        assert change.epoch == self.job.epoch, "a job's process may only write under its own lease"
        assert change.job.state in (State.PENDING, State.SCHEDULED), "only the worker commits the end of an attempt"
        self.is_closing = True
        try:
            change = replace(change, steps=(*change.steps, *self.progress.take_log_record()))
            (answer,) = await self.engine.commit([change])
            if isinstance(answer, Applied):
                self.note_stop(SUSPENDED)
                if self._process is not None:
                    self._kill_later(self._process)
        finally:
            self.finish_closing()
        return [reply(answer)]

    async def _record(self, steps: Sequence[Step]) -> list[Reply]:
        answers = await self.engine.record(steps)
        for step, answer in zip(steps, answers, strict=True):
            self._note(step, answer)
        return [reply(answer) for answer in answers]

    async def _admit(self, asks: Sequence[PermitAsk], steps: Sequence[Step]) -> tuple[list[Reply], list[Reply]]:
        self.has_asked = True
        answers, recorded = await self.engine.admit(asks, steps)
        for step, answer in zip(steps, recorded, strict=True):
            self._note(step, answer)
        return [reply(answer) for answer in answers], [reply(answer) for answer in recorded]

    def _note(self, step: Step, answer: Recorded | Conflict) -> None:
        """Note what the process has recorded and which effects it has started, in case it dies."""
        if isinstance(answer, Conflict):
            return
        records, effects = self.journal.records, self.journal.effects
        if step.path.startswith(FAILED_ONCE_PATH):
            records.waits[step.path] = step
        if step.path.startswith("~"):
            return
        records.steps[step.path] = replace(step, result=None)
        begun = in_doubt([step])
        if begun and step.path not in effects.doubts:
            effects.doubts += begun
        elif step.state is not StepState.STARTED:
            effects.clear_doubt(step.path)

    async def _put_record(self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]) -> Reply:
        return reply(await self.engine.put_record(name, value, expected, jobs))

    async def _count(self) -> list[tuple[str, State, int]]:
        return [(queue, state, number) for (queue, state), number in (await self.engine.count()).items()]

    async def _isolate(
        self,
        step: str,
        target: Target,
        args: str,
        current: Current,
        memory_mb: int | None,
        folder: str,
        timeout: float | None,
    ) -> str:
        """Run an isolated step of this job in yet another process, so that a crash doesn't end the job."""
        call = IsolatedCall(step=step, function=target, args=args, current=current, memory_mb=memory_mb, folder=folder)
        return await self.pool.run(call, timeout=timeout, on_news=partial(self._hear_step, current.step))

    def _hear_step(self, path: str, news: News) -> None:
        if isinstance(news, Logged):
            log_here(replace(news, path=path))
        elif isinstance(news, Spent | Settled) and self._process is not None:
            self._process.send(replace(news, path=path))
        elif isinstance(news, ProgressNews) and self._process is not None:
            self._process.send(news)


def _slim(step: Step) -> Step:
    """Return a record without its result, which may be large. An intent keeps its marker."""
    is_result = step.path[0] != "~" and step.state is not StepState.STARTED
    return replace(step, result=None) if is_result else step
