"""The process of isolated steps and jobs: imports the function, runs it, and returns its result. One call at a time.

Must not be imported by a worker, which starts it as a fresh interpreter (`process`). The main thread runs the calls, so
signals and `asyncio.run` work as usual.
"""

import asyncio
import contextvars
import faulthandler
import fcntl
import inspect
import logging
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from holdfast import forking
from holdfast.blobs.here import PLACE
from holdfast.core.codec import Signature
from holdfast.core.errors import Invalid
from holdfast.core.model import Error
from holdfast.core.throttling import throttle_of
from holdfast.worker import context
from holdfast.worker.isolation.child_job import Host
from holdfast.worker.isolation.child_reports import (
    TELLER,
    Forward,
    Teller,
    report_progress,
    report_settle,
    report_spend,
)
from holdfast.worker.isolation.import_target import Target, find_function
from holdfast.worker.isolation.lent_blobs import borrowed
from holdfast.worker.isolation.messages import (
    FRAME_LIMIT,
    HEAD,
    Attend,
    Began,
    Call,
    Done,
    Failed,
    Heard,
    Ready,
    Told,
    Warm,
    make_frame,
    read_told,
)
from holdfast.worker.recorded_errors import error_of

LAST_WORD_SECONDS = 5.0
"""How long the worker may take to read the last message of a process that has to end."""

DEAF = 70
"""The exit code of this process when it can't serve its worker any more, for example for lack of memory."""


def serve(line: int, lifeline: int) -> None:
    """Answer calls until the worker closes the connection."""
    _end_with_parent(lifeline)
    for number in (signal.SIGINT, signal.SIGTERM):  # The worker decides when a step ends, not a signal to the group.
        signal.signal(number, _ignore)
    link = Link(socket.socket(fileno=line))
    # A crash report is written to the same connection: no frame starts like one, and none follows it.
    faulthandler.enable(file=line)
    # No user module is loaded yet, so all of them import these functions.
    context.progress = report_progress
    context.spend = report_spend
    context.settle = report_settle
    with suppress(EOFError):
        _prepare(link.receive())
        link.send(Ready())
        inbox = Inbox(link)
        while True:
            _answer(inbox.next(), link)
    link.close()


class Inbox:
    """The worker's next call. While a job runs, a thread listens, because messages for it can arrive at any time.

    During a step no thread listens: a step that closes all file descriptors must close the connection, and a reading
    thread would keep it open.
    """

    def __init__(self, link: "Link") -> None:
        self._link = link
        self._heard: queue.SimpleQueue[Call | Host | None] = queue.SimpleQueue()
        self._is_listening = False

    def next(self) -> "Call | Host":
        """Wait for the next call. Raises EOFError if the worker has closed the connection."""
        if self._is_listening:
            call = self._heard.get()
        else:
            word = self._link.receive()
            assert isinstance(word, Call | Attend)
            call = word if isinstance(word, Call) else Host(word)
        if call is None:
            raise EOFError
        if isinstance(call, Host) and not self._is_listening:
            threading.Thread(target=self._listen, args=(call,), name="holdfast-line", daemon=True).start()
        self._is_listening = isinstance(call, Host)
        return call

    def _listen(self, host: Host) -> None:
        """Pass messages to the running job, whatever its code does, until the next call of a step."""
        try:
            while True:
                word = self._link.receive()
                if isinstance(word, Call):
                    self._heard.put(word)
                    return
                if isinstance(word, Attend):
                    host = Host(word)
                    self._heard.put(host)
                elif not isinstance(word, Warm):
                    host.hear(word)
        except EOFError:
            self._heard.put(None)
        except BaseException:
            os._exit(DEAF)


class Link(forking.Forkable):
    """The connection to the worker. Any thread may send."""

    def __init__(self, line: socket.socket) -> None:
        self._line: socket.socket | None = line
        self._lock = threading.RLock()
        forking.watch(self)

    def send(self, word: Heard) -> None:
        """Send a message to the worker. If it has closed the connection, this process ends."""
        with self._lock:
            if self._line is None:
                return
            try:
                self._line.sendall(make_frame(word))
            except OSError:
                os._exit(1)

    def receive(self) -> Told:
        """Return the worker's next message, or raise EOFError if it has closed the connection."""
        parts: list[bytes] = []
        while not parts or len(parts[-1]) == FRAME_LIMIT:
            (size,) = HEAD.unpack(self._read(HEAD.size))
            parts.append(self._read(size))
        return read_told(b"".join(parts))

    def leave_behind(self) -> None:
        """See Forkable. A process that the step's code forks must not keep the connection open."""
        self._lock = threading.RLock()
        self.close()
        TELLER.set(None)

    def close(self) -> None:
        """Close the connection. Messages sent from now on are dropped."""
        faulthandler.disable()
        with self._lock:
            line, self._line = self._line, None
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


def _answer(call: Call | Host, link: Link) -> None:
    """Run the function and send its outcome, whatever that is."""
    teller = Teller(link.send)
    here = contextvars.copy_context()
    here.run(TELLER.set, teller)
    before, copies = set(threading.enumerate()), forking.copies
    word = call if isinstance(call, Call) else call.word
    if isinstance(call, Call):
        here.run(context.PLAIN.set, call.current)
        here.run(PLACE.set, borrowed(call.folder, call.current.job_id))
    try:
        here.run(_run, call, link, teller, before)
    except BaseException as error:
        if forking.copies != copies:
            forking.end_copy(error)
        is_short = isinstance(error, MemoryError)
        teller.close()
        throttle = throttle_of(error, time.time())
        link.send(Failed(_make_error(error, word.memory_mb), worn=is_short or _left_threads(before), throttle=throttle))
    else:
        if forking.copies != copies:
            forking.end_copy()


def _run(call: Call | Host, link: Link, teller: Teller, before: set[threading.Thread]) -> None:
    if isinstance(call, Host):
        _attend(call, link, teller, before)
        return
    function, signature = _find_function(call.target)
    args, kwargs = signature.decode(bytes(call.args))
    before.update(threading.enumerate())  # Threads that a module starts on import belong to the module.
    link.send(Began())
    with _memory_limit(call.memory_mb):
        value = function(*args, **kwargs)
        text, _ = signature.result.part(asyncio.run(value) if inspect.iscoroutinefunction(function) else value)
    teller.close()
    link.send(Done(msgspec.Raw(text.encode()), worn=_left_threads(before)))


def _attend(host: Host, link: Link, teller: Teller, before: set[threading.Thread]) -> None:
    """Run a job's attempt. Its end is sent before the loop closes, which may wait for what the job left running."""
    function, signature = _find_function(host.word.target)
    before.update(threading.enumerate())
    link.send(Began())
    is_sent = False

    async def run() -> None:
        nonlocal is_sent
        ended = await host.run(function, signature, link.send, teller)
        teller.close()
        error = ended.error
        if error is not None and error.type == "MemoryError":
            error = _name_limit(error, host.word.memory_mb)
        ours = asyncio.current_task()
        is_loop_ending = ours is not None and ours.cancelling() > 0
        worn = ended.worn or is_loop_ending or _left_threads(before)
        is_sent = True
        link.send(msgspec.structs.replace(ended, error=error, worn=worn))

    try:
        with _memory_limit(host.word.memory_mb):
            asyncio.run(run())
    except BaseException:
        if is_sent:  # the loop didn't close properly, and everything is sent: this process is of no more use
            # The worker ends a worn process once it has read that. If this process ended first, the worker's next write
            # would fail, and the worker would lose what it hasn't read yet.
            time.sleep(LAST_WORD_SECONDS)
            os._exit(DEAF)
        raise


def _find_function(target: Target) -> tuple[Callable[..., Any], Signature]:
    if target not in _functions:
        function = find_function(target)
        _functions[target] = (function, Signature(function))
    return _functions[target]


_functions: dict[Target, tuple[Callable[..., Any], Signature]] = {}


def _make_error(error: BaseException, memory_mb: int | None) -> Error:
    data = error_of(error)
    return _name_limit(data, memory_mb) if isinstance(error, MemoryError) else data


def _name_limit(error: Error, memory_mb: int | None) -> Error:
    """Add the limit to the message of a MemoryError."""
    if memory_mb is None:
        return error
    message = f"it exceeded its memory limit of {memory_mb} MB" + (f": {error.message}" if error.message else "")
    return Error(error.type, message, error.traceback)


def _left_threads(before: set[threading.Thread]) -> bool:
    """Whether the call left a thread behind that keeps a process alive. Daemon threads are meant to stay."""
    return any(thread not in before and not thread.daemon for thread in threading.enumerate())


@contextmanager
def _memory_limit(megabytes: int | None) -> Iterator[None]:
    """Limit this call's address space, on top of what the interpreter and the imported modules use."""
    if megabytes is None:
        yield
        return
    try:
        with open("/proc/self/statm") as file:
            in_use = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        raise Invalid("memory_mb is only supported on Linux; leave it out on this system") from None
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = in_use + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# Starting and ending.


def _prepare(warm: Told) -> None:
    """Listen to `logging`, and import in advance what earlier calls needed. An import that fails fails again later."""
    assert isinstance(warm, Warm)
    sys.argv[1:] = []
    root = logging.getLogger()
    root.addHandler(Forward())
    root.setLevel(warm.level)
    for target in warm.known:
        try:
            _find_function(target)
        except Exception as error:
            root.debug("%s can't be imported in advance: %s", target.module, error)


def _end_with_parent(lifeline: int) -> None:
    """End this process and everything that it started when the worker is gone, for whatever reason.

    The worker holds the other end of this pipe and never writes. On Linux the kernel then kills the process group, even
    if native code holds the GIL; elsewhere a thread does it.
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
    """Do nothing. Unlike SIG_IGN, a handler isn't inherited by programs that the step starts."""
