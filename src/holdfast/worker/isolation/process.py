"""The worker's side of one process for isolated steps and jobs: start it, talk to it, end it.

Must not choose which process runs what (`pool`).
"""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import msgspec

from holdfast import forking
from holdfast.safe_text import logger
from holdfast.worker.isolation.import_target import Target
from holdfast.worker.isolation.messages import (
    FRAME_LIMIT,
    HEAD,
    Attend,
    Began,
    Call,
    Done,
    Ended,
    Failed,
    Heard,
    News,
    Ready,
    Told,
    Warm,
    make_frame,
    read_heard,
)

log = logger("holdfast.worker")

GONE_SECONDS = 1.0
"""How long a process that has closed its connection may take to end, before it is killed."""

REAP_SECONDS = 10.0
"""How long the system may take to end a process that was killed."""

LOOK_SECONDS = 0.002
"""How often to check whether a process has ended."""

LAST_WORDS_LIMIT = 16_000
"""How many bytes of a crash report are read."""

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from holdfast.worker.isolation.child import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"
)

_HINTS = {
    signal.SIGSEGV: ": a crash in native code",
    signal.SIGBUS: ": a crash in native code",
    signal.SIGILL: ": a crash in native code",
    signal.SIGABRT: ": native code aborted",
    signal.SIGKILL: "; this worker did not kill it; is the machine out of memory?",
}


class Gone(Exception):
    """The process has closed its connection: it is dead, or about to be."""


class Process:
    """One process, and the connection to it. Belongs to the loop that it was started on."""

    def __init__(
        self,
        popen: "subprocess.Popen[bytes]",
        lifeline: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.pid = popen.pid
        self.is_ready = False
        self.uses = 0
        self.idle_since = 0.0
        self.last_words = ""
        """The report of a crash: Python's own list of where each thread was."""
        self.ending: asyncio.Task[int | None] | None = None
        self._popen = popen
        self._lifeline = lifeline
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, known: Sequence[Target]) -> "Process":
        """Start a process. It imports these modules in advance, and then sends Ready."""
        popen, lifeline, line = _start_process()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=line)
        except BaseException:
            line.close()
            forking.close(lifeline)
            popen.kill()
            popen.wait()
            raise
        process = cls(popen, lifeline, reader, writer)
        process.send(Warm(list(known), logging.getLogger().getEffectiveLevel()))
        return process

    # Talking.

    async def begin(self, call: Call | Attend, on_news: Callable[[News], None]) -> Began | Failed:
        """Send a call. Began means that the function runs. Raises Gone."""
        if not self.is_ready:
            word = await self._next(on_news)
            assert isinstance(word, Ready)
            self.is_ready = True
        self.send(call)
        word = await self._next(on_news)
        assert isinstance(word, Began | Failed)
        return word

    async def answer(self, on_news: Callable[[News], None]) -> Done | Failed | Ended:
        """Return the outcome of the call. Raises Gone."""
        word = await self._next(on_news)
        assert isinstance(word, Done | Failed | Ended)
        return word

    def send(self, word: Told) -> None:
        """Send a message, if it still listens. Returns at once."""
        if not self._writer.transport.is_closing():
            self._writer.write(make_frame(word))

    async def _next(self, on_news: Callable[[News], None]) -> Heard:
        """Return the next message that isn't a report of the running code. Reports are passed on."""
        while True:
            try:
                word = read_heard(await self._body())
            except (asyncio.IncompleteReadError, OSError, msgspec.DecodeError) as error:
                raise Gone from error
            if not isinstance(word, News):
                return word
            on_news(word)

    async def _body(self) -> bytes:
        parts: list[bytes] = []
        while not parts or len(parts[-1]) == FRAME_LIMIT:
            head = await self._reader.readexactly(HEAD.size)
            (size,) = HEAD.unpack(head)
            if size > FRAME_LIMIT:
                await self._hear_last_words(head)
                raise Gone
            parts.append(await self._reader.readexactly(size))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _hear_last_words(self, words: bytes) -> None:
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(GONE_SECONDS):
                while len(words) < LAST_WORDS_LIMIT and (more := await self._reader.read(LAST_WORDS_LIMIT)):
                    words += more
        self.last_words = words[:LAST_WORDS_LIMIT].decode(errors="replace")

    # Ending.

    def has_ended(self) -> bool:
        """Whether it is dead. If the system allows it, it stays unreaped, so that its pid isn't reused."""
        if not hasattr(os, "waitid"):
            return self._popen.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # Somebody else has reaped it; `poll` notices that too.
            return self._popen.poll() is not None

    def kill(self) -> None:
        """Kill it, and everything that it started and that stayed in its group. Returns at once."""
        if self._popen.returncode is None:  # Once it is reaped, its pid may belong to another process.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def end(self, patience_seconds: float) -> int | None:
        """Close the connection, give it this long to end by itself, kill what is left, and reap it.

        Returns its exit code, as `subprocess` does; None if it didn't end by itself.
        """
        self._writer.transport.abort()
        has_ended = await _within(patience_seconds, self.has_ended)
        self.kill()
        if not await _within(REAP_SECONDS, lambda: self._popen.poll() is not None):
            log.warning("process %d was killed %s s ago but still exists", self.pid, REAP_SECONDS)
        with suppress(OSError):
            await self._writer.wait_closed()
        forking.close(self._lifeline)
        return self._popen.returncode if has_ended else None


def how(code: int | None, when: str) -> str:
    """Say how a process ended that closed its connection, and when: the end of a sentence about it."""
    if code is None:
        return f"closed the connection to its worker {when}, and was killed"
    if code >= 0:
        return f"exited with code {code} {when}"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"died with signal {-code} {when}"
    return f"died with {number.name} {when}{_HINTS.get(number, '')}"


def _start_process() -> "tuple[subprocess.Popen[bytes], int, socket.socket]":
    """Start a fresh interpreter with our flags, environment, path and standard streams, in its own session.

    In its own session, Ctrl-C in the terminal doesn't reach it, and what it starts can be killed with it. It lives
    while the lifeline is open. A forked copy of this process closes the lifeline, and never has the other end of the
    connection: an open lifeline would hide that this process is gone, an open connection that the new one is.
    """
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    with forking.opening() as closed_in_copies, ExitStack() as undo:
        line, their_line = socket.socketpair()
        undo.callback(line.close)
        with their_line:
            their_lifeline, lifeline = os.pipe()
            undo.callback(os.close, lifeline)
            fds = (their_line.fileno(), their_lifeline)
            command = [sys.executable, *flags, "-u", "-P", "-c", _BOOT, *map(str, fds), json.dumps(sys.path)]
            try:
                popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, start_new_session=True)  # noqa: S603
            finally:
                os.close(their_lifeline)
        undo.pop_all()
        closed_in_copies.add(lifeline)
    return popen, lifeline, line


async def _within(seconds: float, is_so: Callable[[], bool]) -> bool:
    """Return whether this is true, or becomes true within this time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not is_so():
        if loop.time() >= end:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True
