"""Forks: what pauses while this process forks, and what a forked child drops. Must not know its users.

A fork copies one thread and the whole memory. A lock that another thread holds at that moment stays locked in the child
forever, and files and sockets that the parent closes stay open in the child. So everything that has a lock or a
descriptor that a child must not inherit registers here. This is the only place with fork handlers: Python calls those
of several modules in an order that depends on imports.

Threads that fork at the same time take turns, from before the fork until after it. Lock order: the turn, then what
`hold_up` takes, then `opening`. Nobody may fork, or wait for a thread that forks, while holding one of the latter two.
"""

import asyncio
import os
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from holdfast.safe_text import logger

log = logger("holdfast.forking")

GIVE_WAY_SECONDS = 0.02
"""How often a thread that waits to fork checks whether something waits for it."""

COPY_ENDED = 70
"""The exit code of a forked child that was ended because it returned into its parent's job."""


class Forkable:
    """Something that takes part in forks, once it is watched. Each method is optional and must not raise."""

    def give_way(self) -> None:
        """Before a fork, perhaps several times: abort what can't finish before the forking thread continues."""

    def hold_up(self) -> None:
        """Before a fork: finish what is running and start nothing new. Take locks with `take`."""

    def go_on(self) -> None:
        """After a fork, in the parent: undo what `hold_up` has done, even if it was interrupted."""

    def leave_behind(self) -> None:
        """After a fork, in the child: replace locks and drop what belongs to the parent. There are no other threads."""


class InChild(Forkable):
    """Calls a function in each forked child, for as long as this object is kept."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        watch(self)

    def leave_behind(self) -> None:
        """See Forkable."""
        self._act()


def watch(one: Forkable) -> None:
    """Let this object take part in forks for as long as it lives."""
    key = id(one)
    _watched[key] = weakref.ref(one, lambda _: _watched.pop(key, None))


def forget(one: Forkable) -> None:
    """Stop: this object no longer has anything to do around a fork."""
    _watched.pop(id(one), None)


copies = 0
"""How many forks lie between the first process and this one. A changed value means that the process was forked."""


def end_copy(error: BaseException | None = None) -> NoReturn:
    """End a forked child that has returned from the code that forked it: the rest is its parent's work."""
    lines = [] if error is None else traceback.format_exception(error)
    lines.append("holdfast: a forked child returned into its parent's job and was stopped; end it with os._exit()\n")
    with suppress(OSError):  # not through sys.stderr: another thread may have held its lock
        os.write(2, "".join(lines).encode(errors="replace"))
    os._exit(COPY_ENDED)


class OwnLoop(Forkable):
    """The event loop that runs here, for as long as this object is kept: a forked child that returns to it is ended."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        watch(self)

    def leave_behind(self) -> None:
        """See Forkable."""
        signal.set_wakeup_fd(-1)  # as Python 3.12 does; otherwise the parent's loop would read the child's signals
        if self._thread == threading.get_ident() and not self._loop.is_closed():
            self._loop.call_soon(end_copy)


def take(lock: threading.Lock) -> None:
    """Wait for a lock, in a thread that is about to fork. Whatever waits for this thread gives way."""
    if lock.acquire(blocking=False):
        return
    while True:
        _each(_all(), lambda one: one.give_way())
        if lock.acquire(timeout=GIVE_WAY_SECONDS):
            return


@contextmanager
def opening() -> Iterator[set[int]]:
    """Open descriptors that no forked child may keep: no fork happens meanwhile. Put the descriptors into the set."""
    with _opening:
        yield _descriptors


def close(descriptor: int) -> None:
    """Close a descriptor that was put into the set of `opening`."""
    with _opening:
        _descriptors.discard(descriptor)
        os.close(descriptor)


_watched: dict[int, "weakref.ref[Forkable]"] = {}
"""A dict and not a WeakSet, because a WeakSet fails if another thread adds to it while it is copied."""

_turn = threading.Lock()
_forker: int | None = None
"""The thread whose turn it is."""
_depth = 0
"""More than one if a signal handler or a finalizer forks while its thread is about to fork."""
_held_up: list[Forkable] = []
_mask: set[int] | None = None
"""The signals that the forking thread had blocked, while it also blocks those of ENDING."""

ENDING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
"""Signals that end a process. Python drops a signal that reaches a child before its own code runs, so we delay them."""

_opening = threading.Lock()
_has_opening = False
_descriptors: set[int] = set()


def _all() -> list[Forkable]:
    return [one for ref in list(_watched.values()) if (one := ref()) is not None]


def _each(ones: list[Forkable], act: Callable[[Forkable], None]) -> None:
    for one in ones:
        try:
            act(one)
        except Exception:  # Python would drop it and skip the others
            log.exception("%r failed around a fork", one)


def _before() -> None:
    global _forker, _depth, _has_opening, _mask
    me = threading.get_ident()
    if _forker == me:
        _depth += 1
        return
    take(_turn)
    _forker, _depth = me, 1
    for one in _all():
        _held_up.append(one)
        _each([one], lambda one: one.hold_up())
    take(_opening)
    _has_opening = True
    _mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def _in_parent() -> None:
    global _forker, _depth, _has_opening, _mask
    if _forker != threading.get_ident():  # an interrupt kept it from taking its turn
        return
    _depth -= 1
    if _depth:
        return
    if _has_opening:
        _has_opening = False
        _opening.release()
    _each(_held_up, lambda one: one.go_on())
    _held_up.clear()
    _forker, mask, _mask = None, _mask, None
    _turn.release()
    if mask is not None:  # last: a signal that waited interrupts this thread here
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    global copies, _turn, _forker, _depth, _opening, _has_opening, _mask
    copies += 1
    _turn, _forker, _depth = threading.Lock(), None, 0
    _opening, _has_opening = threading.Lock(), False
    _held_up.clear()
    for descriptor in _descriptors:
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()
    _each(_all(), lambda one: one.leave_behind())
    mask, _mask = _mask, None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
