"""One thread that does blocking work for callers on any event loop, in order, in batches without a timer.

Work that arrives while a batch runs forms the next batch: that is group commit. Must not know what the work is.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from holdfast.core.errors import StoreClosed

Work = TypeVar("Work")

BATCH_LIMIT = 1_000
"""How many pieces of work go into one batch, so that no caller waits long."""

CLOSE_SECONDS = 30.0
"""How long close() waits for the running batch."""


class Ticket(Generic[Work]):
    """One piece of work, and where its answer goes: to a future on the caller's loop, a blocked thread, or nobody."""

    __slots__ = ("answer", "error", "future", "is_answered", "loop", "work")

    def __init__(self, work: Work, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.work = work
        self.answer: Any = None
        self.error: BaseException | None = None
        self.loop = loop
        self.future: asyncio.Future[Any] | None = None if loop is None else loop.create_future()
        self.is_answered: threading.Lock | None = None
        """Held until a thread without a loop may continue."""

    @classmethod
    def make(cls, work: Work) -> "Ticket[Work]":
        """Make a ticket for the caller: for a task of the loop that runs here, or else for this thread."""
        try:
            return cls(work, asyncio.get_running_loop())
        except RuntimeError:
            ticket = cls(work)
            ticket.is_answered = threading.Lock()
            ticket.is_answered.acquire()
            return ticket

    def block(self) -> Any:
        """Block this thread until the work is done, and return its answer."""
        assert self.is_answered is not None
        self.is_answered.acquire()
        if self.error is not None:
            raise self.error
        return self.answer


class BatchThread(Generic[Work]):
    """Runs `run(tickets)` on its own thread for all waiting work; `run` fills in answers or errors.

    With `inline=True` there is no thread: each piece runs at once in the caller, as a simulation needs it. The thread
    is a daemon and idles without polling. `done` is called once, after the last piece of work. Work that `alone`
    selects is a batch by itself, so that nobody waits for more than one such piece.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[Ticket[Work]]], None],
        *,
        inline: bool = False,
        done: Callable[[], None] = lambda: None,
        alone: Callable[[Work], bool] | None = None,
    ) -> None:
        self._name = name
        self._run = run
        self._inline = inline
        self.done = done
        self._is_alone = alone
        self._queue: SimpleQueue[Ticket[Work] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self.gate = threading.Lock()
        """Held while a batch runs. Holding it stops the thread between two batches."""

    async def do(self, work: Work) -> Any:
        """Submit work and wait for its answer. Where no loop runs, this blocks and never suspends."""
        if self._inline:
            if self._closed:
                raise StoreClosed(self._ended())
            ticket = Ticket(work)
            self._run([ticket])
            if ticket.error is not None:
                raise ticket.error
            return ticket.answer
        ticket = Ticket.make(work)
        self._put(ticket)
        return ticket.block() if ticket.future is None else await ticket.future

    def close(self) -> None:
        """Finish all submitted work, then stop the thread. Blocks."""
        with self._starting:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join(CLOSE_SECONDS)
        self.done()

    def _put(self, ticket: Ticket[Work]) -> None:
        # Under the lock: work after the end of the queue would never be answered.
        with self._starting:
            if self._closed:
                raise StoreClosed(self._ended())
            self._queue.put(ticket)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def _ended(self) -> str:
        return f"{self._name} is closed; open the store again before using it"

    def _work(self) -> None:
        alone: deque[Ticket[Work]] = deque()
        is_open = True
        while is_open or alone:
            batch, is_open = self._collect(wait=not alone) if is_open else ([], False)
            if self._is_alone is not None:
                alone.extend([ticket for ticket in batch if self._is_alone(ticket.work)])
                if alone:
                    batch = [ticket for ticket in batch if not self._is_alone(ticket.work)]
            if batch:
                self._do(batch)
            if alone:
                self._do([alone.popleft()])

    def _collect(self, *, wait: bool) -> tuple[list[Ticket[Work]], bool]:
        """Return the waiting work, and whether more may come."""
        batch: list[Ticket[Work]] = []
        try:
            while len(batch) < BATCH_LIMIT:
                ticket = self._queue.get(block=wait and not batch)
                if ticket is None:
                    return batch, False
                batch.append(ticket)
        except Empty:
            pass
        return batch, True

    def _do(self, batch: list[Ticket[Work]]) -> None:
        try:
            with self.gate:
                self._run(batch)
        except BaseException as error:
            for ticket in batch:
                ticket.error = error
        hand_back(batch)


def hand_back(batch: Sequence[Ticket[Any]]) -> None:
    """Answer all callers, from any thread. One call into each loop, because waking a loop costs far more than an
    answer.
    """
    loops: dict[asyncio.AbstractEventLoop, list[Ticket[Any]]] = {}
    for ticket in batch:
        if ticket.loop is not None:
            loops.setdefault(ticket.loop, []).append(ticket)
        elif ticket.is_answered is not None:
            ticket.is_answered.release()
    for loop, tickets in loops.items():
        try:
            loop.call_soon_threadsafe(_answer, tickets)
        except RuntimeError:  # the loop is closed, so nobody waits for these answers
            pass


def _answer(tickets: Sequence[Ticket[Any]]) -> None:
    for ticket in tickets:
        future = ticket.future
        assert future is not None
        if future.done():  # cancelled; the work was done anyway
            continue
        if ticket.error is not None:
            future.set_exception(ticket.error)
        else:
            future.set_result(ticket.answer)
