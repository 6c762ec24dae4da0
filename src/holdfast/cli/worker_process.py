"""A worker in this process, until a signal stops it or its store is lost.

Must not do what a worker does (`app.worker`). The first signal lets jobs finish, the second one stops at once.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from holdfast import forking
from holdfast.app.app import App
from holdfast.cli import lifeline
from holdfast.cli.errors import STORE_LOST, LostStore
from holdfast.cli.lifeline import say, stop_signals
from holdfast.core.errors import HoldfastError, Moved, StoreLost
from holdfast.core.suggestions import suggest
from holdfast.worker.worker import Worker

log = logging.getLogger("holdfast.worker")

BLOCKED_SECONDS = 1.0
"""How long a second signal waits for an event loop that doesn't respond."""

LISTEN_SECONDS = 0.5
"""How often a worker checks that its signal handlers are still installed."""

LEFT_SECONDS = 2.0
"""How long code that still runs after the worker has stopped may take, before the process ends without it."""

AGAIN = {
    signal.SIGTERM: "a second SIGTERM stops at once and hands over the rest",
    signal.SIGINT: "Ctrl-C again stops now and hands over the rest",
    signal.SIGHUP: "SIGTERM stops at once and hands over the rest",
}
"""How to stop at once a worker that is already stopping. A closing terminal may send SIGHUP more than once."""


async def run_worker(
    app: App,
    queues: list[str] | None,
    at_once: int,
    has: Sequence[str] = (),
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Run the jobs of an App until a signal stops the worker. Raise StoreLost or Moved if its store can't be used.

    `beside` stops what else this process does, at the same time.
    """
    stop = _StopSignals()
    stopping: asyncio.Task[None] | None = None
    try:
        async with app.worker(at_once=at_once, queues=queues, has=has) as running:
            stop.running = running
            for line in [*await unknown_queues(app, queues or ()), *useless_words(app, has)]:
                say(line, err=True)
            own = f", has {', '.join(sorted(running.has))}" if running.has else ""
            say(f"worker {running.id}: {at_once} slots, queues {', '.join(running.queues)}{own}, store {app.place()}")
            if not stop.first.done():  # otherwise stop without a pause, in which it would claim jobs
                lost = asyncio.create_task(running.until_lost())
                either: list[asyncio.Future[Any]] = [stop.first, lost]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                lost.cancel()
            if running.lost is None:
                say(f"stopping: running work may finish; {AGAIN[await stop.first]}")
            stopping = None if beside is None else asyncio.create_task(beside())
        if stopping is not None:
            await stopping
    except asyncio.CancelledError:
        if stop.running is not None and stop.running.is_cut:
            sys.exit(1)  # the worker's log says what ended the loop
        if not stop.aborted.is_set():
            raise
    lost_store = stop.running.lost if stop.running is not None else None
    if lost_store is None:
        say("stopped")
    threading.Thread(target=_cut_off_what_is_left, args=(lost_store,), daemon=True).start()
    if lost_store is not None:
        raise lost_store


async def unknown_queues(app: App, queues: Sequence[str]) -> list[str]:
    """Return a warning for each queue that no job of the App uses and the store has never seen: it may be a typo."""
    own = {spec.queue for type in app.registry.types() if (spec := app.registry.get(type)) is not None}
    if own.issuperset(queues):
        return []
    # Don't count the queues of workers: this worker, and others with the same typo, are among them.
    jobs = await app.open()
    try:
        stored = {queue for queue, _ in await jobs.engine.count()} | set(await jobs.pauses())
    except HoldfastError:  # start without the hint; the worker handles a store in trouble itself
        return []
    known = own | stored
    return [
        f"warning: no job of this App uses the queue {queue}, and this store has no job in it{suggest(queue, known)}"
        for queue in queues
        if queue not in known
    ]


def useless_words(app: App, has: Sequence[str]) -> list[str]:
    """Return a warning for each word of --has that no job of the App needs: it may be a typo."""
    needed = app.registry.needed()
    return [
        f"warning: --has {word}: no job of this App needs it{suggest(word, needed)}"
        for word in dict.fromkeys(has)
        if word not in needed
    ]


class _StopSignals(forking.Forkable):
    """Handles the signals that stop a worker. The first one lets jobs finish, the second one stops at once."""

    def __init__(self) -> None:
        self.running: Worker | None = None
        self.aborted = threading.Event()
        self._loop, self._starting = asyncio.get_running_loop(), asyncio.current_task()
        self.first: asyncio.Future[signal.Signals] = self._loop.create_future()
        self._heard = 0
        self._signals = stop_signals()
        self._replaced = False
        for one in self._signals:
            signal.signal(one, self._hear)
        forking.watch(self)
        self._listen()

    def _listen(self) -> None:
        """Install our handlers again if a job's code has replaced them: two signals must always end a worker."""
        for one in self._signals:
            if signal.getsignal(one) != self._hear:
                if not self._replaced:
                    text = "a job or a library replaced the worker's handler of %s; the worker installed its own again"
                    log.warning(text, one.name)
                self._replaced = True
                signal.signal(one, self._hear)
        self._loop.call_later(LISTEN_SECONDS, self._listen)

    def _hear(self, number: int, _: Any) -> None:
        # Not with the loop's own handlers: a job that blocks the loop would delay them.
        if self._heard and number == signal.SIGHUP:
            return
        self._heard += 1
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop, signal.Signals(number))
        if self._heard == 2:
            threading.Thread(target=_end_in_time, args=(self.aborted,), daemon=True).start()

    def _stop(self, number: signal.Signals) -> None:
        if not self.first.done():
            self.first.set_result(number)  # if the worker hasn't started yet, it stops before its first claim
            return
        self.aborted.set()
        if self.running is not None:
            self.running.abort()
        elif self._starting is not None:
            self._starting.cancel()

    def leave_behind(self) -> None:
        """See Forkable. SIGTERM ends a child, as `multiprocessing` expects. A first Ctrl-C, which all processes get,
        doesn't.
        """
        for one in self._signals:
            if signal.getsignal(one) == self._hear:
                signal.signal(one, _ignore_once if one is signal.SIGINT else signal.SIG_DFL)


def _cut_off_what_is_left(lost: StoreLost | Moved | None) -> None:
    """End this process though a job ignores its cancel or blocks a thread: the job was handed over."""
    time.sleep(LEFT_SECONDS)
    if lost is None:
        say("ending although some jobs don't stop; they were handed over", err=True)
    else:
        LostStore(f"{lost}; jobs that don't stop are cut off").show()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0 if lost is None else STORE_LOST)


def _end_in_time(aborted: threading.Event) -> None:
    """After a second signal, end a process whose event loop doesn't respond, or that can't hand over its jobs."""
    why = "a job blocks the event loop (a blocking call in async code?)"
    if aborted.wait(BLOCKED_SECONDS):
        time.sleep(lifeline.ABORT_SECONDS)
        why = f"still running {lifeline.ABORT_SECONDS:g} s after the signal to stop at once"
    say(f"{why}: ending the process now; its jobs will be recovered", err=True)
    os._exit(1)


def _ignore_once(number: int, _: Any) -> None:
    """Ignore a first Ctrl-C; the next one has its usual effect."""
    signal.signal(number, signal.default_int_handler)
