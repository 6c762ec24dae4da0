"""Forks: what stands still while this process forks, and what a forked child leaves behind. Knows none of its users.

A fork copies one thread and the whole memory. A lock that another thread holds at that moment stays locked in the child
for ever, and files and sockets that the parent closes stay open there. So whoever has a lock or a descriptor that a
child must not inherit takes part here. This is the only place with fork handlers: Python calls those of several modules
in an order that depends on imports.

Threads that fork at once take turns, from before the fork until after it. Lock order: the turn, then what `hold_up`
takes, then `opening`. Nobody may fork, or wait for a thread that forks, while holding one of the latter two.
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
"""How often a thread that waits to fork looks whether something waits for that thread."""

COPY_ENDED = 70
"""The exit code of a forked child that was ended because it returned into its parent's job."""


class Forkable:
    """Something that takes part in forks, once it is watched. Each method may be left out, and must not raise."""

    def give_way(self) -> None:
        """Before a fork, perhaps several times: break off what can't end before the forking thread goes on."""

    def hold_up(self) -> None:
        """Before a fork: finish what is under way and begin nothing more. Locks are taken by `take`."""

    def go_on(self) -> None:
        """After a fork, in the parent: undo what `hold_up` has done, even if it was interrupted."""

    def leave_behind(self) -> None:
        """After a fork, in the child: replace locks, and let go of what is the parent's. No other thread lives here."""


class InChild(Forkable):
    """Calls something in each forked child, for as long as this is kept."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        watch(self)

    def leave_behind(self) -> None:
        """See Forkable."""
        self._act()


def watch(one: Forkable) -> None:
    """From now on this takes part in forks, for as long as it lives."""
    key = id(one)
    _watched[key] = weakref.ref(one, lambda _: _watched.pop(key, None))


def forget(one: Forkable) -> None:
    """This has nothing any more that a fork would concern."""
    _watched.pop(id(one), None)


copies = 0
"""How many forks lie between the first process and this one: who compares it with an earlier value knows of a fork."""


def end_copy(error: BaseException | None = None) -> NoReturn:
    """End a forked child that has come back out of the code that forked it: the rest is for its parent to do."""
    lines = [] if error is None else traceback.format_exception(error)
    lines.append("holdfast: a forked child returned into its parent's job and was ended; end it with os._exit()\n")
    with suppress(OSError):  # not by sys.stderr: another thread may have held its lock
        os.write(2, "".join(lines).encode(errors="replace"))
    os._exit(COPY_ENDED)


class OwnLoop(Forkable):
    """The event loop that runs here, for as long as this is kept: a forked child that comes back to it ends there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        watch(self)

    def leave_behind(self) -> None:
        """See Forkable."""
        signal.set_wakeup_fd(-1)  # as Python 3.12 does: or the parent's loop would read of a signal to the child
        if self._thread == threading.get_ident() and not self._loop.is_closed():
            self._loop.call_soon(end_copy)


def take(lock: threading.Lock) -> None:
    """Wait for a lock, in a thread that is about to fork. Whoever waits for this thread gives way."""
    if lock.acquire(blocking=False):
        return
    while True:
        _each(_all(), lambda one: one.give_way())
        if lock.acquire(timeout=GIVE_WAY_SECONDS):
            return


@contextmanager
def opening() -> Iterator[set[int]]:
    """While descriptors are opened that no forked child may keep: no fork comes in between. Put them into the set."""
    with _opening:
        yield _descriptors


def close(descriptor: int) -> None:
    """Close a descriptor that was put into the set of `opening`."""
    with _opening:
        _descriptors.discard(descriptor)
        os.close(descriptor)


_watched: dict[int, "weakref.ref[Forkable]"] = {}
"""A dict and not a WeakSet: other threads may add to it while it is copied, and then a WeakSet fails."""

_turn = threading.Lock()
_forker: int | None = None
"""The thread whose turn it is."""
_depth = 0
"""More than one when a signal handler or a finalizer forks while its thread is about to fork."""
_held_up: list[Forkable] = []
_mask: set[int] | None = None
"""The signals that the forking thread had blocked, while it blocks those of ENDING too."""

ENDING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
"""What ends a process. Python drops a signal that reaches a child before its own code runs, so it waits until then."""

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
