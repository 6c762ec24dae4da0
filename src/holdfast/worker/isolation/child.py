"""The process of an isolated step: imports the function, runs it, and tells its result. One call at a time.

Must not be imported by a worker, which starts it as a fresh interpreter (`process`). The main thread runs the calls,
so that signals and `asyncio.run` work as anywhere.
"""

import asyncio
import contextvars
import faulthandler
import fcntl
import inspect
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import msgspec

from holdfast.core.codec import Signature
from holdfast.core.errors import Invalid
from holdfast.core.model import Error
from holdfast.worker import context
from holdfast.worker.faults import error_of, storable
from holdfast.worker.isolation.place import MAIN, Target, found
from holdfast.worker.isolation.wire import (
    HEAD,
    Began,
    Call,
    Done,
    Failed,
    Heard,
    Logged,
    Progress,
    Ready,
    Warm,
    frame,
    told,
)
from holdfast.worker.lines import LINE_CHARACTERS

PROGRESS_SECONDS = 0.05
"""Progress is told at most this often; in between only the last word counts."""

LINES_PER_SECOND = 200
"""More log lines are left out, and counted: a flood here must not keep the worker busy."""


def serve(line: int, lifeline: int) -> None:
    """Answer calls until the worker hangs up."""
    _end_with_parent(lifeline)
    for number in (signal.SIGINT, signal.SIGTERM):  # The worker decides when a step ends, not a signal to all of it.
        signal.signal(number, _ignore)
    link = Link(socket.socket(fileno=line))
    # A crash writes where it happened into the line: no frame begins like that, and none follows.
    faulthandler.enable(file=line)
    os.register_at_fork(after_in_child=link.leave)
    context.progress = _progress  # No user's module is loaded yet: all that ask for it get this one.
    with suppress(EOFError):
        _prepare(link.receive())
        link.send(Ready())
        while True:
            call = link.receive()
            assert isinstance(call, Call)
            link.send(_answer(call, link))


class Link:
    """The line to the worker. Safe to send on from any thread."""

    def __init__(self, line: socket.socket) -> None:
        self._line: socket.socket | None = line
        self._lock = threading.RLock()

    def send(self, word: Heard) -> None:
        """Tell the worker. If it has hung up, nobody wants to know, and this process ends."""
        with self._lock:
            if self._line is None:
                return
            try:
                self._line.sendall(frame(word))
            except OSError:
                os._exit(1)

    def receive(self) -> Warm | Call:
        """What the worker says next, or EOFError when it has hung up."""
        (size,) = HEAD.unpack(self._read(HEAD.size))
        return told(self._read(size))

    def leave(self) -> None:
        """In a process that the step's code forked: it is no part of the talk, and must not keep the line open."""
        faulthandler.disable()
        line, self._line, self._lock = self._line, None, threading.RLock()
        if line is not None:
            line.close()

    def _read(self, size: int) -> bytes:
        assert self._line is not None
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._line.recv(size - len(parts))
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)


# One call.


def _answer(call: Call, link: Link) -> Done | Failed:
    """Run the function, and say what came of it, whatever that is."""
    teller = Teller(link)
    here = contextvars.copy_context()
    here.run(_TELLER.set, teller)
    here.run(context.PLAIN.set, call.current)
    before = set(threading.enumerate())
    try:
        text = here.run(_run, call, link, before)
    except BaseException as error:
        is_short = isinstance(error, MemoryError)
        return Failed(_told_error(error, call), worn=is_short or _left_threads(before))
    finally:
        teller.close()
    return Done(msgspec.Raw(text.encode()), worn=_left_threads(before))


def _run(call: Call, link: Link, before: set[threading.Thread]) -> str:
    function, signature = _known(call.target)
    args, kwargs = signature.decode(bytes(call.args))
    before.update(threading.enumerate())  # What a module starts when it is imported belongs to it.
    link.send(Began())
    with _memory_limit(call.memory_mb):
        if inspect.iscoroutinefunction(function):
            return signature.result.encode(asyncio.run(function(*args, **kwargs)))
        return signature.result.encode(function(*args, **kwargs))


def _known(target: Target) -> tuple[Callable[..., Any], Signature]:
    if target not in _functions:
        function = found(target)
        _functions[target] = (function, Signature(function))
    return _functions[target]


_functions: dict[Target, tuple[Callable[..., Any], Signature]] = {}


def _told_error(error: BaseException, call: Call) -> Error:
    """An error as the worker would have seen it: its script is `__main__` there, and names nothing."""
    told = error_of(error)
    kind, message = told.type, told.message
    if call.target.module.endswith(MAIN):
        kind = kind.removeprefix(call.target.module + ".")
    if isinstance(error, MemoryError) and call.memory_mb is not None:
        message = f"it took more than its memory limit of {call.memory_mb} MB" + (f": {message}" if message else "")
    return Error(kind, message, told.traceback)


def _left_threads(before: set[threading.Thread]) -> bool:
    """Whether the call left a thread behind that keeps a process alive. A daemon is meant to stay."""
    return any(thread not in before and not thread.daemon for thread in threading.enumerate())


@contextmanager
def _memory_limit(megabytes: int | None) -> Iterator[None]:
    """Let this call take so much address space, on top of what the interpreter and the imported modules have."""
    if megabytes is None:
        yield
        return
    try:
        with open("/proc/self/statm") as file:
            in_use = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        raise Invalid("memory_mb can only be kept on Linux: leave it out here") from None
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = in_use + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# What the code tells while it runs.


class Teller:
    """Passes on the progress and the log lines of one call, and no more of them than a worker can bear."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.RLock()
        self._open = True
        self._progress: Progress | None = None
        self._progress_due = 0.0
        self._timer: threading.Timer | None = None
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def say(self, done: int | None, total: int | None, text: str) -> None:
        """Tell progress, now or a little later; a newer word takes the place of an older one."""
        word = Progress(done, total, storable(str(text)[:LINE_CHARACTERS]))
        msgspec.json.encode(word)  # A number that can't be written is told to the code that gave it.
        with self._lock:
            if not self._open:
                return
            self._progress = word
            wait = self._progress_due - time.monotonic()
            if wait <= 0:
                self._flush()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._flush)
                self._timer.daemon = True
                self._timer.start()

    def log(self, record: logging.LogRecord, text: str) -> None:
        """Pass on a log line, unless there were too many in this second."""
        with self._lock:
            if not self._open:
                return
            second = int(time.monotonic())
            if second != self._second:
                self._own_up()
                self._second, self._lines = second, 0
            self._lines += 1
            if self._lines > LINES_PER_SECOND:
                self._left_out += 1
                return
            line = storable(text[:LINE_CHARACTERS])
            self._link.send(Logged(storable(record.name), record.levelno, line, record.created))

    def close(self) -> None:
        """The call has ended. What it left running tells nothing more: the next call is another job's."""
        with self._lock:
            self._flush()
            self._own_up()
            self._open = False

    def _flush(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._open and self._progress is not None:
                self._link.send(self._progress)
                self._progress = None
                self._progress_due = time.monotonic() + PROGRESS_SECONDS

    def _own_up(self) -> None:
        if self._left_out:
            line = f"{self._left_out} log lines left out: more than {LINES_PER_SECOND} in a second"
            self._link.send(Logged("isolation", logging.WARNING, line, time.time()))
            self._left_out = 0


_TELLER: ContextVar[Teller | None] = ContextVar("holdfast_teller", default=None)


def _progress(done: int | None = None, total: int | None = None, text: str = "") -> None:
    """Tell how far the job has come. Outside a job it does nothing."""
    teller = _TELLER.get()
    if teller is not None:
        teller.say(done, total, text)


class Forward(logging.Handler):
    """Passes log lines on. What comes from outside a call, such as a stray thread, goes where Python sends it."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler.emit."""
        teller = _TELLER.get()
        try:
            if teller is not None:
                teller.log(record, self.format(record))
            elif logging.lastResort is not None and record.levelno >= logging.lastResort.level:
                logging.lastResort.handle(record)
        except Exception:
            self.handleError(record)


# Beginning and ending.


def _prepare(warm: Warm | Call) -> None:
    """Listen to `logging`, and import ahead what earlier calls needed. What fails will fail again when it is called."""
    assert isinstance(warm, Warm)
    sys.argv[1:] = []
    root = logging.getLogger()
    root.addHandler(Forward())
    root.setLevel(warm.level)
    for target in warm.known:
        try:
            _known(target)
        except Exception as error:
            root.debug("%s can't be imported ahead: %s", target.module, error)


def _end_with_parent(lifeline: int) -> None:
    """End this process and all that it started when the worker is gone, however it went.

    The worker holds the other end of this pipe and never writes. On Linux the kernel itself then kills the group, even
    if native code holds on to the interpreter; elsewhere a thread does it.
    """
    group = os.getpgrp()
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -group)
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | fcntl.FASYNC)

    def watch() -> None:
        os.read(lifeline, 1)
        os.killpg(group, signal.SIGKILL)

    threading.Thread(target=watch, name="holdfast-lifeline", daemon=True).start()


def _ignore(number: int, frame: object) -> None:
    """A handler, and not SIG_IGN, which programs that the step starts would inherit."""
