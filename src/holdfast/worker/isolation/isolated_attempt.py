"""The worker's side of a job that runs in a process of its own: it holds the lease, and does what the process asks.

Must not run the job's code. The attempt itself, its steps and its waits, is in the process (`child_job`); here is what
must outlive it: who owns the job, what it was seen to do, which effects it has begun, and how it is stopped.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.model import Applied, Change, Conflict, Recorded, Running, State, Step, StepState, Time
from holdfast.core.outcome import FAILED_ONCE_PATH, in_doubt
from holdfast.jobs.status import progress_record
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
    Stop,
)
from holdfast.worker.isolation.messages import Progress as ProgressNews
from holdfast.worker.isolation.pool import IsolatedCall, Pool, ProcessDied, log_here
from holdfast.worker.isolation.process import Process
from holdfast.worker.isolation.remote_engine import ACTS, Reply, answered, reply
from holdfast.worker.progress import Progress
from holdfast.worker.recorded_errors import Reported
from holdfast.worker.tries import Stopped

STOP_SECONDS = 3.0
"""How long the process of a job that was told to stop may take for it, before it is killed."""


class RelayedProgress(Progress):
    """The progress of code that runs in another process: what that process last said."""

    def __init__(self, held: HeldJob) -> None:
        super().__init__(held)
        self._relayed: tuple[Running, float] | None = None

    def relay(self, running: Running) -> None:
        """The process has said what it is doing."""
        self._relayed = (running, time.monotonic())
        self._held.changed()

    def describe(self) -> Running:
        """See Progress.describe: what the process last said, and how long ago that was."""
        if self._relayed is None:
            return super().describe()
        running, at = self._relayed
        return replace(running, silent_ms=running.silent_ms + round((time.monotonic() - at) * 1_000))

    def final_record(self, now: Time, *, completes: bool = False) -> tuple[Step, ...]:
        """See Progress.final_record."""
        return progress_record(self._held.job, self.describe(), now)


class IsolatedAttempt(Attempt):
    """An attempt whose code runs in a process of its own."""

    progress_kind = RelayedProgress
    pool: Pool
    fence: Callable[[], float]
    """Until when a step may start, by the machine's monotonic clock: the worker's fence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._process: Process | None = None
        self._kill: asyncio.TimerHandle | None = None
        self._before: list[Step] = []
        self._asked: dict[int, tuple[Ask, asyncio.Task[None]]] = {}

    def load(self, steps: Iterable[Step]) -> None:
        """See Attempt.load. The process is given them; what is kept here is the log and what is done."""
        self._before = list(steps)
        super().load([_slim(step) for step in self._before])

    async def run(self) -> str:
        """Run the job's function in a process, and take over what came of it. Cancelling this kills the process."""
        word = Attend(
            target=target_of(self.spec.function),
            job=self.job,
            steps=self._before,
            claimed=self.claimed,
            until=self.fence(),
            memory_mb=self.spec.memory_mb,
        )
        self._before = []
        # From here on the process knows better: it sees which of them are asked for.
        self.journal.effects.unsettled.clear()
        try:
            answer = await self.pool.attend(self.job.type, word, on_news=self._hear, on_begin=self._note_process)
        except ProcessDied:
            if self.stop is not None:  # it was killed because it did not stop
                raise Stopped(f"job {self.job.id}: {self.stop}") from None
            raise
        finally:
            self._process = None
            if self._kill is not None:
                self._kill.cancel()
            await self._finish_acts()
        if isinstance(answer, Failed):
            raise Reported(answer.error, is_final=False)
        return self._take_over(answer)

    def renew(self) -> None:
        """A heartbeat was answered: the process may go on. On the loop."""
        if self._process is not None and self.stop is None:
            self._process.send(Fence(self.fence()))

    def cancel(self) -> None:
        """Tell the process to stop, and kill it if it doesn't. One that has not begun is not needed any more."""
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
        """Take over what the attempt came to there: its result, or raise its error."""
        effects = self.journal.effects
        effects.doubts, effects.drops = ended.doubts, ended.drops
        effects.heard.update(ended.doubts)  # else the process would have said that it stopped in doubt
        self.journal.calls.take_over(ended.drift, ended.vanished)
        self.kept_slot = ended.kept_slot
        if ended.stop is not None:
            self.note_stop(ended.stop)
        if ended.is_cut:
            raise Stopped(f"job {self.job.id}: {self.stop}")
        if ended.error is not None:
            raise Reported(ended.error, is_final=ended.is_final)
        return bytes(ended.result).decode()

    # What the process says while it runs.

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
            case ProgressNews():
                pass  # A job's progress comes with what it is doing.

    async def _serve(self, ask: Ask) -> None:
        """Do what was asked, and tell what came of it, if the process is still there."""
        try:
            word = await answered(ask, self._act(ask.act))
            if self._process is not None:
                self._process.send(word)
        finally:
            self._asked.pop(ask.number, None)

    def _act(self, name: str) -> Callable[..., Awaitable[Any]]:
        """What does an act: the engine, unless there is something to note or to put into another form."""
        match name:
            case "commit":
                return self._commit
            case "record":
                return self._record
            case "put_record":
                return self._put_record
            case "count":
                return self._count
            case "isolate":
                return self._isolate
            case _:
                act: Callable[..., Awaitable[Any]] = getattr(self.engine, name)
                return act

    async def _finish_acts(self) -> None:
        """The process is through: what it still asked for is left, but a write is waited for, to know what it did."""
        for ask, task in list(self._asked.values()):
            if not ACTS[ask.act].writes:
                task.cancel()
        if self._asked:
            await asyncio.wait([task for _, task in self._asked.values()])

    async def _commit(self, changes: Sequence[Change]) -> list[Reply]:
        """Changes of other jobs, or the one in which this job suspends: then its lease ends here, too."""
        own = [change for change in changes if change.job.id == self.job.id and change.epoch is not None]
        if not own:
            return [reply(answer) for answer in await self.engine.commit(changes)]
        (change,) = changes
        assert change.epoch == self.job.epoch, "a process speaks for its own lease only"
        assert change.job.state in (State.PENDING, State.SCHEDULED), "its worker commits every other end"
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

    def _note(self, step: Step, answer: Recorded | Conflict) -> None:
        """Know, should the process die, what it has recorded, and which effects it has begun."""
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

    async def _put_record(self, name: str, value: str | None, expected: int | None) -> Reply:
        return reply(await self.engine.put_record(name, value, expected))

    async def _count(self) -> list[tuple[str, State, int]]:
        return [(queue, state, number) for (queue, state), number in (await self.engine.count()).items()]

    async def _isolate(
        self, step: str, target: Target, args: str, current: Current, memory_mb: int | None, timeout: float | None
    ) -> str:
        """An isolated step of this job: in yet another process, so that its end is not the job's."""
        call = IsolatedCall(step=step, function=target, args=args, current=current, memory_mb=memory_mb)
        return await self.pool.run(call, timeout=timeout, on_news=self._hear_step)

    def _hear_step(self, news: News) -> None:
        if isinstance(news, Logged):
            log_here(news)
        elif isinstance(news, ProgressNews) and self._process is not None:
            self._process.send(news)


def _slim(step: Step) -> Step:
    """A record without its result, which may be large; but an intent says of itself that it is one."""
    is_result = step.path[0] != "~" and step.state is not StepState.STARTED
    return replace(step, result=None) if is_result else step
