"""`holdfast worker`: run the jobs of an App until told to stop. Must not do what a worker does (`app.worker`)."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import click

from holdfast import forking
from holdfast.app.app import App
from holdfast.cli import lifeline
from holdfast.cli.errors import CALLED_WRONGLY, STORE_LOST, LostStore
from holdfast.cli.lifeline import Lifeline, say, stop_signals
from holdfast.cli.load_app import load_app
from holdfast.core.errors import Invalid, Moved, StoreLost
from holdfast.engines import engine_for
from holdfast.engines.contract import Engine
from holdfast.worker.worker import Worker

log = logging.getLogger("holdfast.worker")

BLOCKED_SECONDS = 1.0
"""How long a second signal waits for an event loop that doesn't react."""

LISTEN_SECONDS = 0.5
"""How often a worker looks whether the signals still reach it."""

LEFT_SECONDS = 2.0
"""How long what still runs after the worker has stopped may take to end, before the process ends without it."""

RESTART_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""How long to wait before a worker process that died is started again; the last one repeats."""

HEALTHY_SECONDS = 60.0
"""A worker process that lived so long is started again without a wait."""

WATCH_SECONDS = 0.2
"""How often worker processes are looked at, and told what was heard meanwhile."""

AGAIN = {
    signal.SIGTERM: "a second SIGTERM stops at once and hands it over",
    signal.SIGINT: "Ctrl-C again stops now and hands it over",
    signal.SIGHUP: "SIGTERM stops at once and hands it over",
}
"""What stops a worker at once that was told to stop. A terminal that is closed may say so more than once."""


@click.command(
    epilog="""\b
Examples:
  holdfast worker video:app
  holdfast worker examples/video.py:app --at-once 4
  holdfast worker video:app --queues urgent,video --processes 4

\b
SIGTERM, Ctrl-C or a closed terminal: claims nothing more, lets work finish within the grace,
hands over the rest. A second one stops at once. Neither costs an attempt or a finished step.
With --processes, the workers also stop when the first process is gone, as after kill -9.

\b
Exit code 1: a job ended the worker's event loop (sys.exit in a task, loop.stop()).
Exit code 3: the store was emptied, or went back to an older state, while the worker ran, or
its jobs were moved elsewhere. It has written nothing more. Look before you start it again.
"""
)
@click.argument("target", metavar="MODULE:APP")
@click.option("--queues", help="Which queues, in this order, separated by commas. Default: those of the App's jobs.")
@click.option("--at-once", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Slots in each process.")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option("--url", help="The store, instead of the App's own.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def worker(target: str, queues: str | None, at_once: int, processes: int, url: str | None, log_level: str) -> None:
    """Run the jobs of MODULE:APP until told to stop."""
    line = lifeline.lifeline()
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    if url is not None:
        _check_shared(
            engine_for(url), processes
        )  # a wrong one is told as such, and not as an App that can't be imported
        os.environ["HOLDFAST_URL"] = url
    if processes > 1 and line is None:
        sys.exit(_supervise(processes))
    names = [name.strip() for name in queues.split(",") if name.strip()] if queues else None
    for one in stop_signals():  # until a worker is there that has something to hand over
        signal.signal(one, signal.default_int_handler)
    app: App | None = None
    if line is not None:
        lifeline.stop_with(line, lambda: 0.0 if app is None else app.settings.grace_seconds)
    try:
        app = load_app(target)
        if url is not None:
            app.use(url)
        _check_shared(app.engine, processes)
        asyncio.run(_work(app, names, at_once))
    except KeyboardInterrupt:
        say("stopped")
    except (StoreLost, Moved) as error:
        raise LostStore(str(error)) from error


def _check_shared(engine: Engine, processes: int) -> None:
    """Refuse several processes on a store that only one can use. Without --url each of them finds out by itself: the
    first process imports no App.
    """
    if processes > 1 and not engine.guarantees.shared:
        raise Invalid(
            f"--processes {processes}: a {engine.guarantees.name} store is for one process; leave it out and raise "
            "--at-once, or use sqlite:///jobs.db"
        )


async def _work(app: App, queues: list[str] | None, at_once: int) -> None:
    stop = _Stop()
    try:
        async with app.worker(at_once=at_once, queues=queues) as running:
            stop.running = running
            say(f"worker {running.id}: {at_once} slots, queues {', '.join(running.queues)}, store {app.place()}")
            if not stop.first.done():  # else without a pause, in which it would claim
                lost = asyncio.create_task(running.until_lost())
                either: list[asyncio.Future[Any]] = [stop.first, lost]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                lost.cancel()
            if running.lost is None:
                say(f"stopping: work that is under way may finish; {AGAIN[await stop.first]}")
    except asyncio.CancelledError:
        if stop.running is not None and stop.running.is_cut:
            sys.exit(1)  # whatever ended the loop, the worker's log has said so
        if not stop.aborted.is_set():
            raise
    lost_store = stop.running.lost if stop.running is not None else None
    if lost_store is None:
        say("stopped")
    threading.Thread(target=_end_with_what_is_left, args=(lost_store,), daemon=True).start()
    if lost_store is not None:
        raise lost_store


class _Stop(forking.Forkable):
    """Listens to the signals that stop a worker. The first one lets work finish, the second one stops at once."""

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
        """Put our handlers back where a job's code has replaced them: two signals always end a worker."""
        for one in self._signals:
            if signal.getsignal(one) != self._hear:
                if not self._replaced:
                    told = "a job or a library replaced the worker's handler of %s; the worker took it back"
                    log.warning(told, one.name)
                self._replaced = True
                signal.signal(one, self._hear)
        self._loop.call_later(LISTEN_SECONDS, self._listen)

    def _hear(self, number: int, _: Any) -> None:
        # Not by the loop's own handlers: a job that blocks the loop would keep them from being called.
        if self._heard and number == signal.SIGHUP:
            return
        self._heard += 1
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._told, signal.Signals(number))
        if self._heard == 2:
            threading.Thread(target=_end_in_time, args=(self.aborted,), daemon=True).start()

    def _told(self, number: signal.Signals) -> None:
        if not self.first.done():
            self.first.set_result(number)  # one that comes before the worker is there stops it before its first claim
            return
        self.aborted.set()
        if self.running is not None:
            self.running.abort()
        elif self._starting is not None:
            self._starting.cancel()

    def leave_behind(self) -> None:
        """See Forkable. SIGTERM ends a child, as `multiprocessing` expects; a first Ctrl-C, which all hear, doesn't."""
        for one in self._signals:
            if signal.getsignal(one) == self._hear:
                signal.signal(one, _at_next if one is signal.SIGINT else signal.SIG_DFL)


def _end_with_what_is_left(lost: StoreLost | Moved | None) -> None:
    """A job that swallows its cancel, or that blocks a thread, must not keep this process: it was handed over."""
    time.sleep(LEFT_SECONDS)
    if lost is None:
        say("what does not stop is cut off; its jobs were handed over", err=True)
    else:
        LostStore(f"{lost}; what does not stop is cut off").show()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0 if lost is None else STORE_LOST)


def _end_in_time(aborted: threading.Event) -> None:
    """After a second signal: end a process whose event loop doesn't hear of it, or that can't hand over its jobs."""
    why = "a job blocks the event loop (a blocking call in async code?)"
    if aborted.wait(BLOCKED_SECONDS):
        time.sleep(lifeline.ABORT_SECONDS)
        why = f"still running {lifeline.ABORT_SECONDS:g} s after it was told to stop at once"
    say(f"{why}: ended at once; its jobs are recovered", err=True)
    os._exit(1)


def _at_next(number: int, _: Any) -> None:
    """A first Ctrl-C does nothing; the next one does what it always does."""
    signal.signal(number, signal.default_int_handler)


def _supervise(processes: int) -> int:
    """Keep so many worker processes running, with the same arguments; pass signals on to them."""
    command = [sys.executable, "-m", "holdfast.cli", *sys.argv[1:]]
    line = Lifeline()
    heard: list[int] = []
    children: list[subprocess.Popen[bytes]] = []
    due = [0.0] * processes
    began = [0.0] * processes
    deaths = [0] * processes
    passed_on = 0

    def pass_on(numbers: list[int]) -> None:
        for number in numbers:
            for child in children:
                if child.poll() is None:
                    child.send_signal(number)

    def start(place: int) -> None:
        began[place] = time.monotonic()
        children[place : place + 1] = [line.start(command)]

    for one in stop_signals():
        # Only noted: a child that is just being started would else not be told.
        signal.signal(one, lambda number, _: heard.append(number))
    for place in range(processes):
        start(place)
    while not heard or any(child.poll() is None for child in children):
        numbers = heard[passed_on:]
        passed_on += len(numbers)
        pass_on(numbers)
        time.sleep(WATCH_SECONDS)
        for place, child in enumerate(children):
            if heard or child.poll() is None or time.monotonic() < due[place]:
                continue
            if child.returncode == CALLED_WRONGLY:
                pass_on([signal.SIGTERM])
                return CALLED_WRONGLY
            if child.returncode == STORE_LOST:  # the others stop, too, and none is started on what is left
                heard.append(signal.SIGTERM)
                break
            if due[place] == 0.0:
                deaths[place] = 0 if time.monotonic() - began[place] > HEALTHY_SECONDS else deaths[place] + 1
                due[place] = time.monotonic() + RESTART_SECONDS[min(deaths[place], len(RESTART_SECONDS) - 1)]
                say(f"worker process {child.pid} ended with {child.returncode}; starting another", err=True)
                continue
            due[place] = 0.0
            start(place)
    if any(child.returncode == STORE_LOST for child in children):
        return STORE_LOST
    # One that was stopped before it could listen had nothing to hand over.
    return max(0 if -child.returncode in heard else abs(child.returncode) for child in children)
