"""One attempt: a job that runs here under a lease, what it has recorded, and what it is doing right now.

Must not decide what the end of the attempt means for the job (`core`), and must not claim or beat (`loop`, `leases`).
"""

import asyncio
import concurrent.futures
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast import forking
from holdfast.background import LogOnce
from holdfast.core.codec import canonical
from holdfast.core.errors import BadValue, StoreError, StoreFull, StoreLost, StoreUnwritable
from holdfast.core.model import Change, Conflict, Job, Recorded, Retrying, Running, Signal, Step, StepState, Time
from holdfast.core.outcome import FAILED_ONCE_PATH, in_doubt
from holdfast.core.unreadable import is_unreadable, log_lines
from holdfast.engines.contract import Engine
from holdfast.jobs.service import LOG_PATH
from holdfast.jobs.status import PROGRESS_PATH, progress_record
from holdfast.safe_text import logger
from holdfast.worker.identity import Identity, above_of, made
from holdfast.worker.log_lines import Lines
from holdfast.worker.record_batch import DONE_SECONDS, RecordBatcher
from holdfast.worker.recorded_errors import line_of, module_of, storable
from holdfast.worker.registry import STEPS, JobSpec, StepSpec
from holdfast.worker.timers import Timers
from holdfast.worker.tries import LeftBehind, Stopped

T = TypeVar("T")

log = logger("holdfast.worker")

LOG_SECONDS = 2.0
"""New log lines are written with a step's record, but not more often than this."""

STORE_RETRY_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""How long to wait before asking a store again that failed; the last one repeats until the attempt is stopped."""

TOLD_TRIES = 3
"""After so many tries in vain the log tells of a store's trouble; at once, if it lasts until somebody acts."""

FENCE_SECONDS = 0.05
"""How often a step that may not start looks whether the fence has opened again."""

CANCEL_AGAIN_SECONDS = 10.0
"""How long a cancelled handler may tidy up before it is cancelled once more."""

SHORT_ID = 8
"""How many characters of a job's id the log has where a line is long: the last ones, as on the command line."""

TOLD_PATH_CHARACTERS = 200
"""How much of a step's path a beat tells."""

ARGS_PATH = "~args/"
"""Beside the record of a step with `key=`, what its arguments were, as hashes: to tell when they differ."""

RELEASED, LOST, CANCELLED = "released", "lost", "cancelled"
"""Why an attempt is stopped: handed over to others; its lease was taken; its job was cancelled."""

CUT = "cut off"
"""Why an attempt is stopped whose worker's event loop is ending, though nobody told the worker to stop."""

SUSPENDED = "suspended"
"""Why an attempt is stopped whose job waits: it goes on from the top when what it waits for is here."""

DOUBTED = "in doubt"
"""Why an attempt is stopped that came to an effect which may have happened: only a person can tell."""

ENDED = "ended"
"""Why an attempt is stopped whose handler has come to its end: what it left running may do nothing more."""


class Suspended(Stopped):
    """Raised inside a `def` job that waits, by the wait and by every later call. It goes on, from the top, later."""


class Attempt(Identity):
    """The state of one attempt. Owned by the worker's loop; steps in threads reach it by way of the loop."""

    has_daemons = True
    """Whether the threads of its code are daemons, which never keep the process from ending."""

    children: dict[str, Job] | None = None
    """What earlier leases submitted, once it was asked for."""
    doubts: list[str] = made(list)
    """Effects that were begun and not recorded, by this attempt or an earlier one."""
    heard: set[str] = made(set)
    """Those whose own exception this attempt's code has heard: it may catch it, and answer for the effect."""
    drops: list[str] = made(list)
    """Effects whose intent was written, or may have been, and which were not begun: a release or a failure takes it
    back.
    """
    used: set[int] = made(set)
    """Signals that a wait of this job has taken or is taking, by their versions."""
    spent: set[int] = made(set)
    """Those that are recorded with a wait, or that fitted none: they leave the inbox with the next change."""
    turns: dict[int, int] = made(dict)
    """Of signals that went from wait to wait, because one was cancelled before its code had the signal: whose turn it
    is, counted from 1. Only the wait that took the signal in its last turn has it.
    """
    once: dict[str, concurrent.futures.Future[Step]] = made(dict)
    """Effects that are under way, by their paths: who asks for one again waits for it."""
    tasks: set[asyncio.Task[Any]] = made(set)
    """Other tasks that are stopped with it: those that run its steps."""
    parking: object = None
    isolate: Callable[..., Awaitable[str]]
    """Runs a step in a process of its own: the worker's pool."""
    timers: Timers = made(Timers)
    """The timers that its code has set on the loop outside its steps."""
    kept_slot = ""
    """Why it stayed in its slot while it waited, for the history."""
    starting: Callable[[str], Coroutine[Any, Any, None]] | None = None
    """Awaited with a step's path before anything of it is done: where a test kills its worker."""
    writing: LogOnce | None = None
    """The worker's: that what its attempts came to can't be written, as a log and a beat tell it."""
    stirred: Callable[[], None] | None = None
    """Called when a step ends while something is parked."""
    closing = False
    """While a suspend is being committed no step begins."""
    told: str | None = None
    """What a beat said of this attempt meanwhile: it counts, unless the suspend explains it."""
    stop: str | None = None
    threads = 0
    """Threads that run code of this job: they can't be stopped from outside."""
    own_thread: int | None = None
    """The thread that runs the function of a `def` job itself."""
    own_call: asyncio.Task[Any] | None = None
    """What that thread waits for, on the loop."""
    _stopped: threading.Event | None = None
    _told_left = False
    _cancel_again = 0.0
    _running: dict[str, StepSpec] = made(dict)
    _working = 0
    _outer: dict[str, int] = made(lambda: defaultdict(int))
    _stage = ""
    _since: dict[str, Time] = made(dict)
    _counts: dict[str, tuple[int, int | None]] = made(dict)
    _made: dict[str, int] = made(lambda: defaultdict(int))
    _said: tuple[str, int | None, int | None, str] | None = None
    _said_first: tuple[str, int] = ("", 0)
    _together: RecordBatcher | None = None
    _retrying: dict[str, Retrying] | None = None
    """The steps that have failed and are tried again, by path, the most recent last."""
    _lines: Lines = made(Lines)

    def __init__(
        self,
        job: Job,
        spec: JobSpec,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        *,
        claimed: float,
        may_start: Callable[[], bool],
        changed: Callable[[], None],
        chance: Callable[[], float],
    ) -> None:
        self.job = job
        self.spec = spec
        self.engine = engine
        self.lease = job.lease
        self.loop = loop
        self.chance = chance
        self._started = claimed  # by our clock, when the claim was sent: the store's answer took its time
        self._moved = claimed
        limit = job.options.timeout_ms
        self._overdue = inf if limit is None else claimed + limit / 1_000
        self._may_start = may_start
        self._changed = changed
        self._log_due = claimed + LOG_SECONDS
        self._copy = forking.copies

    def is_here(self) -> bool:
        """Whether it runs in this process. Where a process was forked, it runs in the parent."""
        return self._copy == forking.copies

    def load(self, steps: Iterable[Step]) -> None:
        """Take over what earlier leases of this job recorded. Once, before the handler runs."""
        for step in steps:
            if step.path == LOG_PATH:
                self._lines.load(log_lines(step))
            elif step.path == PROGRESS_PATH:
                continue
            elif is_unreadable(step.error):
                raise _unreadable_record(step)
            elif step.path.startswith(ARGS_PATH):
                self.arguments[step.path.removeprefix(ARGS_PATH)] = step.result or ""
            elif step.path.startswith("~"):
                self._know_wait(step)
            else:
                self.records[step.path] = step
                self._left.setdefault(step.name, {})[step.path] = None
                if in_doubt([step]):
                    self.unsettled[step.path] = step.name

    def now(self) -> Time:
        """The store's time, from the moment of the claim and our own clock: asking the store would cost a call."""
        return (self.job.claimed_at or 0) + round((time.monotonic() - self._started) * 1_000)

    # Waits: their records, and the signals that came.

    def inbox(self, name: str) -> list[Signal]:
        """The signals of this name that no wait has taken yet, oldest first."""
        return [signal for signal in self.job.inbox if signal.name == name and signal.version not in self.used]

    def taken(self) -> tuple[int, ...]:
        """The signals that the next change removes from the inbox."""
        return tuple(signal.version for signal in self.job.inbox if signal.version in self.spent)

    def take_hints(self, name: str) -> None:
        """Signals of this name only say that it is time to look: whoever is about to look has no more need of them."""
        versions = {signal.version for signal in self.inbox(name)}
        self.used |= versions
        self.spent |= versions

    def wait_record(self, path: str, state: StepState, info: dict[str, Any]) -> Step:
        """The record of a wait: what it asked for, or what it was answered with."""
        now = self.now()
        return Step(
            job=self.job.id,
            epoch=self.job.epoch,
            path=path,
            name=path.partition("/")[0],
            state=state,
            result=canonical(info),
            started_at=now,
            finished_at=now if state is StepState.DONE else None,
        )

    async def keep_wait(self, record: Step) -> Step:
        """Record what a wait was answered with; the answer that stands counts."""
        standing = await self._recorded([record])
        self._know_wait(standing)
        return standing

    def _know_wait(self, record: Step) -> None:
        self.waits[record.path] = record
        if record.state is StepState.DONE and "signal" in (info := record_info(record)):
            signal, turn = info["signal"], info.get("turn", 1)
            if turn > 1:
                self.turns[signal] = max(turn, self.turns.get(signal, 1))
            if not self.is_given_up(info):
                self.used.add(signal)
                self.spent.add(signal)

    def is_given_up(self, info: dict[str, Any]) -> bool:
        """Whether the job gave up a wait, by its record. It may hold a signal that went to another wait."""
        return bool(info.get("dropped")) or info.get("turn", 1) < self.turns.get(info.get("signal", 0), 1)

    def give_back(self, signal: Signal) -> None:
        """The wait that took a signal ends before its code has it: the next wait of that name takes it."""
        self.turns[signal.version] = self.turns.get(signal.version, 1) + 1
        self.used.discard(signal.version)
        self.spent.discard(signal.version)

    # Effects that an earlier lease began. The code may have changed since: the step may have lost its effect="once" or
    # its key, or have another name, or be gone.

    def is_begun(self, path: str) -> bool:
        """Whether an effect was begun under this path that has no result."""
        step = self.records.get(path)
        return step is not None and step.state is StepState.STARTED

    def failure_of(self, path: str) -> Step | None:
        """The failure that this very attempt has heard of already, so that it hears it again: of an effect in doubt, or
        of a step inside one that may be tried again.
        """
        failed = self.waits.get(FAILED_ONCE_PATH + path)
        return failed if failed is not None and record_info(failed)["attempt"] == self.job.attempt else None

    def forget_failures(self, path: str) -> None:
        """The step of this path is tried again: steps inside it that have failed may run again. Effects in doubt may
        not.
        """
        inside = f"{FAILED_ONCE_PATH}{path}/"
        for told in [told for told in self.waits if told.startswith(inside)]:
            if not self.is_begun(told.removeprefix(FAILED_ONCE_PATH)):
                del self.waits[told]

    def ask_a_person(self) -> None:
        """Stop before any code runs if an effect is in doubt: neither has this attempt heard of its failure, nor has a
        step around it a record.
        """
        if self.is_bare or not self.unsettled:
            return
        open_ones = [path for path in self.unsettled if not self.is_inside_recorded(path)]
        if doubts := [path for path in open_ones if self.failure_of(path) is None]:
            self._add_doubts(doubts)
            self._stop(DOUBTED)

    def check_unsettled(self, spec: StepSpec) -> None:
        """Stop before a step runs that may be an effect in doubt under another path: one of the same name, or any step
        when none of the effect's name is left in the code.
        """
        for path, name in list(self.unsettled.items()):
            if (name in spec.names or not self._is_left(path, name)) and not self._is_inside_asked(path):
                raise self.doubt(path)

    def _is_left(self, path: str, name: str) -> bool:
        """Whether the step that began an effect is still there: its name, in its module if that was written down."""
        failed = self.waits.get(FAILED_ONCE_PATH + path)
        place = record_info(failed).get("place") if failed is not None else None
        return any(place in (None, module_of(spec.function)) for spec in STEPS.get(name, {}).values())

    def is_unsettled(self) -> bool:
        """Whether the handler's result leaves an effect in doubt: one that it never asked for, or one that was cut off,
        so that no code has heard what came of it. A look at what is known here, not a call to the store.
        """
        if self.is_bare:
            return False
        if vars(self).get("unsettled"):
            self._add_doubts([path for path in self.unsettled if not self.is_inside_recorded(path)])
        return self.has_unheard()

    def has_unheard(self) -> bool:
        """Whether an effect is in doubt for which the code can't have answered."""
        return bool(vars(self).get("doubts")) and not self.heard.issuperset(self.doubts)

    def overlook(self, paths: Iterable[str]) -> None:
        """The failures of these steps reached no code, nor did those of the steps inside them."""
        if not self.is_bare and vars(self).get("heard"):
            outer = set(paths)
            self.heard = {path for path in self.heard if outer.isdisjoint((path, *above_of(path)))}

    def _add_doubts(self, paths: Iterable[str]) -> None:
        self.doubts += [path for path in paths if path not in self.doubts]

    def _is_inside_asked(self, path: str) -> bool:
        """Whether a step around it has a record, and this attempt's code has asked for that one."""
        outer = (self.records.get(above) for above in above_of(path))
        return any(
            step is not None and step.state is not StepState.STARTED and step.path not in self._left.get(step.name, ())
            for step in outer
        )

    # Going on, or not.

    def check(self) -> None:
        """Raise Stopped unless this attempt may go on."""
        if self.stop is not None:
            raise self.stopped()

    def stopped(self) -> Stopped:
        """What code hears that may not go on."""
        if self.stop == ENDED:
            return self._left_behind()
        kind = Suspended if self.stop == SUSPENDED else Stopped
        return kind(f"job {self.job.id}: {self.stop}")

    def _left_behind(self) -> Stopped:
        """What code hears that outlived its job. The log says so once."""
        if not self._told_left:
            self._told_left = True
            log.warning(
                "job %s (%s) has ended, and code that it left running still calls its steps or waits: nothing of that "
                "runs; await every task in the job",
                self.job.id, self.job.type,
            )  # fmt: skip
        return LeftBehind(f"job {self.job.id}: {self.stop}")

    def is_stopping(self) -> bool:
        """Whether this attempt comes to its end from outside: it was halted, or its handler's task was cancelled, as at
        the end of the loop.
        """
        return self.stop is not None or (self.root is not None and self.root.cancelling() > 0)

    def is_fenced(self) -> bool:
        """Whether no step may start just now: our last answered beat is too old, the job is about to suspend, or its
        timeout has passed while we slept.
        """
        return self.closing or not self._may_start() or time.monotonic() > self._overdue

    def is_busy(self) -> bool:
        """Whether a step runs, or something is under way that must not be cut off by a suspend."""
        return bool(self._running) or self._working > 0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Something is under way that is no step, on the loop: the job doesn't suspend meanwhile."""
        self._working += 1
        try:
            yield
        finally:
            self._working -= 1
            if self.stirred is not None:
                self.stirred()

    async def admit(self) -> None:
        """Wait until a new step may start: past the fence none does until a beat is answered. Or raise Stopped."""
        while self.stop is None and self.is_fenced():  # noqa: ASYNC110 (it opens on another thread)
            await asyncio.sleep(FENCE_SECONDS)
        self.check()

    def halt(self, why: str) -> None:
        """Stop this attempt: none of its steps starts, and async code is cancelled at an await. From any thread."""
        self._stop(why)
        try:
            self.loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop has ended, and all tasks with it
            pass

    def lose(self, why: str) -> None:
        """Our lease is not the current one: halt, but while we suspend, which may be why, only once that has failed."""
        if self.closing:
            self.told = why
        else:
            self.halt(why)

    def in_thread(self, more: int) -> None:
        """One thread more runs code of this job, or one less. From any thread."""
        with self._lock:
            self.threads += more

    async def is_still(self) -> None:
        """Wait until no step and no thread of this job runs any more."""
        while self.threads or self._running:  # noqa: ASYNC110 (a thread ends when it ends)
            await asyncio.sleep(FENCE_SECONDS)

    def end(self) -> None:
        """The handler has come to its end: what it left running may do nothing more. On the loop."""
        self._stop(ENDED)
        if not self.is_bare and vars(self).get("tasks"):
            self._cancel()

    def let_go(self) -> None:
        """Forget the tasks, which know us: or only the garbage collector could free either."""
        self.root = None
        if not self.is_bare:
            vars(self).pop("tasks", None)

    def pause(self, seconds: float) -> None:
        """Wait, in a thread of the job, but not longer than until this attempt is stopped."""
        with self._lock:
            stopped = self._stopped = self._stopped or threading.Event()
        if self.stop is None:
            stopped.wait(seconds)

    def _stop(self, why: str) -> None:
        if self.stop is None:
            self.stop = why
        if self._stopped is not None:
            self._stopped.set()

    def _cancel(self) -> None:
        """Cancel what runs, but leave it time to tidy up before it is told again: every beat may say so."""
        now = time.monotonic()
        if now < self._cancel_again:
            return
        self._cancel_again = now + CANCEL_AGAIN_SECONDS
        if self.root is not None:
            self.root.cancel()
        for task in list(self.tasks):
            task.cancel()

    async def is_suspended(self) -> bool:
        """Wait until a suspend that is being committed has gone one way or the other; which it was."""
        while self.closing:  # noqa: ASYNC110 (for a commit's time, and rarely)
            await asyncio.sleep(FENCE_SECONDS / 10)
        return self.stop == SUSPENDED

    async def persist(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do one act on the store, again and again while the store has trouble, until the attempt is stopped."""
        tries = 0
        while True:
            try:
                answer = await act()
                if tries and self.writing is not None:
                    self.writing.recovered()
                return answer
            except StoreError as error:
                # While a handler runs, it is the worker who stops it: an error of ours it might catch, and go on.
                if self.stop not in ((None,) if isinstance(error, StoreLost) else (None, ENDED)):
                    raise
                is_lasting = tries >= TOLD_TRIES or isinstance(error, StoreFull | StoreUnwritable)
                if is_lasting and self.writing is not None:
                    self.writing.say(error)
                    self._changed()
                await asyncio.sleep(STORE_RETRY_SECONDS[min(tries, len(STORE_RETRY_SECONDS) - 1)])
                tries += 1

    async def is_done(self, change: Change) -> bool:
        """Whether an end of ours that was refused is in the history: then only the answer to it was lost."""
        ours, after = (change.event, change.by, self.job.epoch), self.job.version
        while page := await self.persist(partial(self.engine.history, self.job.id, after)):
            if any((entry.event, entry.by, entry.epoch) == ours for entry in page):
                return True
            after = page[-1].version
        return False

    async def begin(self, intents: list[Step]) -> None:
        """Write what a step is about to do, before it does it."""
        self.check()
        await self._recorded(intents)
        for intent in intents:
            if intent.path.startswith(ARGS_PATH):
                continue
            if not intent.path.startswith("~"):
                self.records[intent.path] = intent
            elif (known := self.waits.get(intent.path)) is None or known.state is StepState.STARTED:
                self.waits[intent.path] = intent  # it may have been answered meanwhile

    def has_made(self) -> bool:
        """Whether this attempt has recorded any step of its own."""
        return not self.is_bare and bool(vars(self).get("_made"))

    def is_writing(self) -> bool:
        """Whether records may be under way that nobody waits for any more, or the intent of an effect."""
        return self._together is not None or (not self.is_bare and bool(vars(self).get("once")))

    async def is_written(self) -> None:
        """Wait for the records of steps that are done although nobody waits for them any more, and until effects that
        are being stopped have said whether they had begun; but not for long.
        """
        if self._together is not None:
            await self._together.done()
        end = time.monotonic() + DONE_SECONDS
        while not self.is_bare and vars(self).get("once") and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(FENCE_SECONDS / 10)

    def doubt(self, path: str) -> Stopped:
        """An effect may have happened: this attempt does nothing more, and a person is asked."""
        self._add_doubts([path])
        self.heard.discard(path)
        self.halt(DOUBTED)
        return self.stopped()

    async def keep(self, step: Step, arguments: str | None = None) -> Step:
        """Record a step under this attempt's lease; answer with the record that stands, or stop.

        What is finished while we are being told to stop is still kept, if the lease is ours.
        """
        self.check_kept()
        steps = [step]
        if arguments is not None:
            steps.append(beside(step, ARGS_PATH + step.path, StepState.DONE, arguments))
        if time.monotonic() > self._log_due:
            steps += self.log_record()
        standing = await self._recorded(steps)
        self.kept(standing)
        return standing

    def check_kept(self) -> None:
        """Raise Stopped unless what is finished now is still to be recorded."""
        if self.stop not in (None, RELEASED, CUT):
            self.check()

    def kept(self, standing: Step) -> None:
        """The record of a step is in the store: from now on it answers."""
        self.records[standing.path] = standing
        self._made[standing.name] += 1
        self._settle(standing.path)
        self.move()

    def _settle(self, path: str) -> None:
        if path in self.doubts:
            self.doubts.remove(path)

    async def _recorded(self, steps: list[Step]) -> Step:
        """Write records under this attempt's lease; answer with the one that stands for the first of them, or stop."""
        is_alone = len(self._running) < 2
        if not is_alone or self._may_be_cut(steps[0]):
            self._together = self._together or RecordBatcher(self._write)
            answer = await self._together.add(steps, at_once=is_alone)
        else:  # alone: nothing to wait for, and nothing to wait with
            answer, *_ = await self._write(steps)
        return self.granted(answer)

    def _may_be_cut(self, step: Step) -> bool:
        """Whether the handler may return while this effect is recorded, so that the record must not be cut off."""
        if step.state is not StepState.DONE or step.path not in self.doubts:
            return False
        return self.spec.is_async and asyncio.current_task() is not self.root

    def granted(self, answer: Recorded | Conflict) -> Step:
        """The record that stands; or stop, because the lease is somebody else's."""
        if isinstance(answer, Conflict):
            self.halt(LOST)
            raise Stopped(f"{answer.reason}: job {self.job.id}, epoch {self.job.epoch}")
        return answer.step

    async def _write(self, steps: Sequence[Step]) -> Sequence[Recorded | Conflict]:
        answers = await self.persist(lambda: self.engine.record(steps))
        if not self.is_bare and vars(self).get("doubts"):  # whoever waits for these records may have been cancelled
            for step, answer in zip(steps, answers, strict=True):
                if step.state is StepState.DONE and isinstance(answer, Recorded):
                    self._settle(step.path)
        return answers

    # What a person sees.

    def enter(self, path: str, spec: StepSpec, now: Time) -> None:
        """A step begins. The stage is the outermost step that runs; of several, the one that began first."""
        with self._lock:
            self._running[path] = spec
            if "/" not in path:
                if spec.name not in self._outer and spec.name != self._stage:
                    self._since[spec.name] = now
                self._outer[spec.name] += 1
                if self._stage not in self._outer:
                    self._stage = spec.name
        self.move()

    def leave(self, path: str) -> None:
        """A step has ended, well or not. Between two items of a map the stage stays as it is."""
        with self._lock:
            spec = self._running.pop(path)
            if "/" not in path:
                self._outer[spec.name] -= 1
                if not self._outer[spec.name]:
                    del self._outer[spec.name]
                if self._outer and self._stage not in self._outer:
                    self._stage = next(iter(self._outer))
            if self._retrying is not None:
                self._retrying.pop(path, None)
        self._changed()
        if self.stirred is not None:
            self.loop.call_soon_threadsafe(self.stirred)

    def retry(self, path: str, tries: int, of: int, error: BaseException, delay: float) -> None:
        """A step has failed and is tried again after so many seconds: the log says so now, and the next beat."""
        told, next_at = line_of(error), self.now() + round(delay * 1_000)
        log.warning(
            "job %s: step %s failed (try %d of %d): %s; next try in %.1f s",
            self.job.id[-SHORT_ID:], path, tries, of, told, delay,
        )  # fmt: skip
        with self._lock:
            retrying = self._retrying = self._retrying or {}
            retrying.pop(path, None)
            retrying[path] = Retrying(path[:TOLD_PATH_CHARACTERS], tries + 1, of, told, next_at)
        self._changed()

    def count(self, name: str, done: int, total: int | None) -> None:
        """So many items of a step are done."""
        self._counts[name] = (done, total)
        self.move()

    def say(self, done: int | None, total: int | None, text: str) -> None:
        """The job tells its own progress."""
        if done is not None and self._said_first[0] != self._stage:
            self._said_first = (self._stage, done)
        self._said = (self._stage, done, total, text)
        self.move()

    def move(self) -> None:
        """Something moved: the job is not stale."""
        self._moved = time.monotonic()
        self._changed()

    def running(self) -> Running:
        """What this attempt is doing, for the worker's beat. From the beat's thread."""
        with self._lock:
            stage, since = self._stage, self._since.get(self._stage)
            limits = [spec.stale_after_ms for spec in self._running.values() if spec.stale_after_ms is not None]
            retrying = None
            if self._retrying:
                retrying = next(reversed(self._retrying.values()))
                retrying = replace(retrying, others=len(self._retrying) - 1)
        done, total = self._counts.get(stage, (None, None))
        made, text = self._made.get(stage, 0), ""
        said = self._said
        if said is not None and said[0] == stage:  # what was said in an earlier stage is over
            text = said[3]
            if said[1] is not None:
                done, total = said[1], said[2]
                made = done - self._said_first[1]
        return Running(
            job=self.job.id,
            epoch=self.job.epoch,
            stage=stage,
            done=done,
            total=total,
            made=made,
            text=text,
            since=since,
            silent_ms=round((time.monotonic() - self._moved) * 1_000),
            stale_after_ms=min(limits, default=None),  # the strictest of what runs now
            retrying=retrying,
        )

    def progress_record(self, now: Time, *, completes: bool = False) -> tuple[Step, ...]:
        """How far it is, as a record that goes with its end. What a map counted is told by the steps of a job that
        completes.
        """
        if self._said is None and (completes or self.is_bare or "_counts" not in vars(self)):
            return ()
        return progress_record(self.job, self.running(), now)

    # Log lines.

    def log(self, line: str) -> None:
        """Keep a log line with the job. Safe from any thread."""
        self._lines.add(storable(line))

    def log_record(self) -> tuple[Step, ...]:
        """The log lines as a record, if there are new ones. Written with the next record or with the end."""
        if self.is_bare or "_lines" not in vars(self):
            return ()
        self._log_due = time.monotonic() + LOG_SECONDS
        lines = self._lines.fresh()
        if lines is None:
            return ()
        now = self.now()
        step = Step(
            job=self.job.id, epoch=self.job.epoch, path=LOG_PATH, name="", state=StepState.STARTED, started_at=now
        )
        return (beside(step, LOG_PATH, StepState.STARTED, canonical(lines)),)


def beside(step: Step, path: str, state: StepState, result: str) -> Step:
    """A record that goes with a step's and is none of the job's own steps: its path begins with a tilde."""
    name = path.partition("/")[0]
    return replace(step, path=path, name=name, state=state, result=result, error=None, tries=1)


def record_info(record: Step) -> dict[str, Any]:
    """What a record of a wait or an intent says."""
    try:
        return msgspec.json.decode(record.result or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        raise _unreadable_record(record) from None


def _unreadable_record(step: Step) -> BadValue:
    return BadValue(
        f"the record of {step.path} can't be read: the stored text is damaged; nothing was run: resolve or discard the "
        "job, or put the record right"
    )
