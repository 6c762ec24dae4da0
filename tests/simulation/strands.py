"""Processes, threads and time that one seed drives: nothing here waits, and the same seed gives the same run.

A strand is a simulated thread with an event loop of its own. What is ready within a strand runs in asyncio's order;
which strand goes next is drawn, so only what a real machine could do happens. When nothing is ready, time jumps to the
next timer. Must not know jobs or stores.
"""

import asyncio
import contextvars
import os
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

CALLS_LIMIT = 60_000
"""More callbacks than this in one run is a storm: something asks again and again without a pause."""

WENT_ON = 99
"""The exit code of a forked child that nobody has ended before it waits for something."""

END_ROUNDS = 50
"""How often what is left at the end is cancelled before it is left alone."""


class Storm(AssertionError):
    """The run doesn't come to an end."""


class TheEnd(BaseException):
    """The run is over: raised where what is left still asks for something."""


class Call:
    """A callback that is to run. Its strand runs it in its context."""

    __slots__ = ("_callback", "_context", "_when", "args", "gone")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Any, when: float = 0.0) -> None:
        self._callback = callback
        self._context = context
        self._when = when
        self.args = args
        self.gone = False

    def run(self) -> None:
        self._context.run(self._callback, *self.args)

    def cancel(self) -> None:
        self.gone = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        return self._when


class Future(asyncio.Future):
    """A future that is known by a number, so that a set of them has the same order in every run."""

    def __init__(self, number: int, **more: Any) -> None:
        self.number = number
        super().__init__(**more)

    def __hash__(self) -> int:
        return self.number


class Task(asyncio.Task):
    """The same for a task."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **more: Any) -> None:
        self.number = number
        super().__init__(coroutine, **more)

    def __hash__(self) -> int:
        return self.number


class Strand(asyncio.AbstractEventLoop):
    """A thread of a simulated process, as the event loop that runs in it."""

    def __init__(self, process: "Process", name: str) -> None:
        self.process = process
        self.name = name
        self.world = process.world
        self.calls: deque[Call] = deque()
        self.tasks: list[Task] = []
        self.queued = False
        self.held = 0

    def time(self) -> float:
        return self.process.monotonic()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        call = Call(callback, args, contextvars.copy_context() if context is None else context)
        self.calls.append(call)
        if not self.queued:
            self.world.queue(self)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        call = Call(callback, args, contextvars.copy_context() if context is None else context, when)
        self.world.wake_at(self.process.moment(when), self, call)
        return call

    def due(self, call: Call) -> None:
        """A timer of this strand has come."""
        if not call.gone and self.process.alive:
            self.calls.append(call)
            if not self.queued:
                self.world.queue(self)

    def create_future(self) -> Any:
        return Future(next(self.world.numbers), loop=self)

    def create_task(self, coroutine: Any, *, name: Any = None, context: Any = None, **_: Any) -> Any:  # type: ignore[override]
        task = Task(next(self.world.numbers), coroutine, loop=self, name=name, context=context)
        self.tasks.append(task)
        return task

    def run(self) -> None:
        """Run the next callback."""
        call = self.calls.popleft()
        if call.gone:
            return
        try:
            call.run()
        except KeyboardInterrupt:
            raise
        except SystemExit:
            self.stop()
        except BaseException as error:
            self.call_exception_handler({"message": f"a callback of {self.name} failed", "exception": error})

    def stop(self) -> None:
        """Something ends this loop: `sys.exit` in a task or a callback, or code that calls this."""
        if not self.world.over:
            assert self.process.when_loop_ends is not None, f"the loop of {self.process.name}, {self.name} was ended"
            self.process.when_loop_ends()

    def call_exception_handler(self, context: Any) -> None:
        self.world.trouble(f"{self.process.name}: {context.get('message')}: {context.get('exception')!r}")

    def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override]
        raise AssertionError("a thread under simulation: there are none")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.world.over


class Process:
    """A simulated process: its strands, its own monotonic clock, and whether it runs."""

    def __init__(self, world: "World", name: str, *, offset: float = 0.0, rate: float = 1.0) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.strands: dict[str, Strand] = {}
        self.when_loop_ends: Callable[[], None] | None = None
        """What happens to this process when something ends its event loop."""
        self._offset = offset
        self._rate = rate
        world.processes.append(self)

    def monotonic(self) -> float:
        return self._offset + self._rate * self.world.now

    def moment(self, monotonic: float) -> float:
        """When the world's time is so, by this process's clock."""
        return (monotonic - self._offset) / self._rate

    def strand(self, name: str) -> Strand:
        """The thread of this name."""
        if name not in self.strands:
            self.strands[name] = Strand(self, name)  # type: ignore[abstract]
        return self.strands[name]

    def begin(self, work: Coroutine[Any, Any, Any], strand: str = "main") -> Task:
        """Run a coroutine as a task of one of the threads."""
        task: Task = self.strand(strand).create_task(work)
        return task

    def kill(self) -> None:
        """As kill -9 does it: nothing of it ever runs again, no `finally` either."""
        self.alive = False

    def hold(self, names: tuple[str, ...] = ()) -> Callable[[], None]:
        """Stop the whole process, or some of its threads, as SIGSTOP or a blocking call does; the answer lets it go."""
        held = [self.strand(name) for name in names] if names else list(self.strands.values())
        for strand in held:
            strand.held += 1

        def let_go() -> None:
            for strand in held:
                strand.held -= 1
                if strand.calls and not strand.queued:
                    self.world.queue(strand)

        return let_go


class World:
    """Everything that runs, and its time in seconds. `order` draws which strand goes next."""

    def __init__(self, order: Random, lateness: float = 0.0) -> None:
        self.now = 0.0
        self.processes: list[Process] = []
        self.numbers = count(1)
        self.running: Strand | None = None
        self.over = False
        self.is_copy = False
        """Whether this is the world of a forked child."""
        self.troubles: list[str] = []
        self.done = 0
        self._random = order.random
        self._lateness = lateness
        self._ready: list[Strand] = []
        self.timers: list[tuple[float, int, Strand | None, Any]] = []

    def queue(self, strand: Strand) -> None:
        """A strand has something to run."""
        if not strand.held and (strand.process.alive or self.over):
            strand.queued = True
            self._ready.append(strand)

    def wake_at(self, when: float, strand: Strand, call: Call) -> None:
        """A timer of a strand. Like a real one it comes a little late, never early."""
        if self._lateness:
            when += self._random() * self._lateness
        heappush(self.timers, (max(when, self.now), next(self.numbers), strand, call))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Something that happens to the world, in no process."""
        heappush(self.timers, (self.now + seconds, next(self.numbers), None, what))

    def trouble(self, text: str) -> None:
        """Something that must not happen, whatever the faults."""
        if not self.over:
            self.troubles.append(f"{self.now:.3f} {text}")

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Run until something is so, or the time is over. Asked whenever time moves on."""
        ready, timers = self._ready, self.timers
        try:
            while True:
                while ready:
                    self._run_one(ready)
                if until():
                    return True
                if not timers or timers[0][0] > limit:
                    self.now = max(self.now, limit)
                    return False
                when, _, strand, what = heappop(timers)
                self.now = when
                if strand is None:
                    self._set_running(None)
                    what()
                else:
                    strand.due(what)
        finally:
            if self.is_copy:
                os._exit(WENT_ON)
            self._set_running(None)

    def fork(self) -> int | None:
        """Fork for real, in the thread that runs now. The answer is the child's exit code; in the child it is None.

        Of all threads the child has only this one. It must have ended before it has to wait for anything.
        """
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self.is_copy = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for process in self.processes:
            for strand in process.strands.values():
                strand.held += strand is not self.running
        self.timers[:] = [(self.now, 0, None, partial(os._exit, WENT_ON))]
        return None

    def _run_one(self, ready: list[Strand]) -> None:
        place = int(self._random() * len(ready)) if len(ready) > 1 else 0
        strand = ready[place]
        if strand.held or not strand.calls or not (strand.process.alive or self.over):
            ready[place] = ready[-1]
            ready.pop()
            strand.queued = False
            return
        self._set_running(strand)
        strand.run()
        self.done += 1
        if self.done > CALLS_LIMIT:
            raise Storm(f"{CALLS_LIMIT} callbacks, and no end; the last one of {strand.process.name}, {strand.name}")

    def _set_running(self, strand: Strand | None) -> None:
        if strand is not self.running:
            events._set_running_loop(strand)
            self.running = strand

    def end(self) -> None:
        """Take down what is left. Nobody looks any more, so the dead may run their `finally` too."""
        self.over = True
        self.done = 0
        ready = self._ready
        try:
            for _ in range(END_ROUNDS):
                left = [task for process in self.processes for s in process.strands.values() for task in s.tasks]
                left = [task for task in left if not task.done()]
                if not left:
                    break
                for task in left:
                    task.cancel()
                for process in self.processes:
                    for strand in process.strands.values():
                        strand.held = 0
                        if strand.calls and not strand.queued:
                            self.queue(strand)
                while ready:
                    self._run_one(ready)
        finally:
            self._set_running(None)
        for process in self.processes:
            for strand in process.strands.values():
                for task in strand.tasks:
                    if not task.done():
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                    elif not task.cancelled():
                        task.exception()
                strand.tasks.clear()
                strand.calls.clear()
        self.timers.clear()


def world_of(strand: asyncio.AbstractEventLoop) -> World:
    """The world in which this event loop runs."""
    assert isinstance(strand, Strand)
    return strand.world
