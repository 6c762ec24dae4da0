"""Forks: no connection is open while a process forks. Must not know what an engine does.

SQLite remembers in memory which locks its process holds, and a fork copies that memory: the child believes that it
holds locks which are the parent's, and writes without any. So every connection is closed before a fork, and opened
again after it by whoever needs one.
"""

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """What can be held up for a fork."""

    def hold_up(self) -> None:
        """Finish what is under way, and close everything."""

    def go_on(self) -> None:
        """In the parent, afterwards."""

    def leave_behind(self) -> None:
        """In the child, afterwards."""


_open: "weakref.WeakSet[Forkable]" = weakref.WeakSet()
_held_up: list[Forkable] = []


def watch(engine: Forkable) -> None:
    """From now on this engine has something open."""
    _open.add(engine)


def forget(engine: Forkable) -> None:
    """This engine has closed all it had."""
    _open.discard(engine)


def _before() -> None:
    _held_up.extend(_open)
    for engine in _held_up:
        engine.hold_up()


def _in_parent() -> None:
    for engine in _held_up:
        engine.go_on()
    _held_up.clear()


def _in_child() -> None:
    for engine in _held_up:
        engine.leave_behind()
    _held_up.clear()
    _open.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
