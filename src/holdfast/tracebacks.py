"""Tracebacks that show the user's frames and fold ours and asyncio's. Also finds where in the user's code an error
arose.

Must not know anything of ours, and must not hide our own bugs: our frames that failed by accident are shown.
"""

import asyncio
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Any, NamedTuple

HOLDFAST = str(Path(__file__).resolve().parent) + os.sep
STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
LIBRARIES = {
    HOLDFAST: "holdfast",
    os.path.dirname(asyncio.__file__) + os.sep: "asyncio",
    STANDARD_LIBRARY + os.path.join("concurrent", "futures") + os.sep: "asyncio",
}
"""The folders whose frames are folded, and their names in the fold."""

USERS_OWN = tuple(HOLDFAST + name + os.sep for name in ("demo", "conformance"))
"""Our folders that contain jobs, like a user's code."""

INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
"""Matches an installed package in the path of one of its files."""

FOLD = "…"
"""The file name of a frame that replaces several. No real file has this name."""


def format_folded(error: BaseException) -> str:
    """Return an error's traceback and those of its causes, with the frames of libraries folded."""
    report = TracebackException.from_exception(error)
    found: list[tuple[TracebackException, BaseException | None]] = [(report, error)]
    seen: set[int] = set()
    while found:
        one, raised = found.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.stack = _Folded(_fold(list(one.stack), is_cancel=isinstance(raised, asyncio.CancelledError)))
        group = raised.exceptions if isinstance(raised, BaseExceptionGroup) else ()
        inner = [*zip(one.exceptions or (), group, strict=False)]
        causes = [(one.__cause__, raised and raised.__cause__), (one.__context__, raised and raised.__context__)]
        found += [(part, its) for part, its in (*inner, *causes) if part is not None]
    return "".join(report.format())


class _Folded(StackSummary):
    """A stack in which one frame may replace several."""

    def format_frame_summary(self, frame_summary: FrameSummary, **more: Any) -> str:
        if frame_summary.filename == FOLD:
            return f"  {FOLD} {frame_summary.name} {FOLD}\n"
        return super().format_frame_summary(frame_summary, **more)


def _fold(frames: list[FrameSummary], *, is_cancel: bool) -> Iterator[FrameSummary]:
    """Yield the frames without those of libraries. The first ones, which called the user's code, leave no mark."""
    tail = _bug_length(frames) if not is_cancel else 0
    visible = len(frames) - tail
    is_first = True
    for is_library, group in groupby(frames[:visible], lambda frame: _library(frame.filename) is not None):
        run = list(group)
        if not is_library:
            yield from run
        elif not is_first or len(run) == len(frames):
            names = " and ".join(dict.fromkeys(str(_library(frame.filename)) for frame in run))
            count = "1 frame" if len(run) == 1 else f"{len(run)} frames"
            yield FrameSummary(FOLD, len(run), f"{count} of {names}", line="")
        is_first = False
    yield from frames[visible:]


def _bug_length(frames: list[FrameSummary]) -> int:
    """Return how many of the last frames show a bug of ours: our code that failed and didn't raise on purpose."""
    tail = 0
    while tail < len(frames) and _is_python_or_ours(frames[-1 - tail].filename):
        tail += 1
    last = frames[len(frames) - tail :]
    is_ours = any(_library(frame.filename) == "holdfast" for frame in last)
    return tail if is_ours and not (last[-1].line or "").startswith("raise") else 0


def _is_python_or_ours(filename: str) -> bool:
    if _library(filename) is not None:
        return True
    return filename.startswith((STANDARD_LIBRARY, "<frozen")) and INSTALLED.search(filename) is None


def _library(filename: str) -> str | None:
    """Return the library of a file if its frames are folded, or None."""
    if filename.startswith(USERS_OWN):
        return None
    return next((name for folder, name in LIBRARIES.items() if filename.startswith(folder)), None)


# Where in the user's code an error arose.


class Place(NamedTuple):
    """A line of code."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{shown_path(self.filename)}:{self.line} in {self.function}"


FRAME = re.compile(r'^[ |]*File "([^"\n]+)", line (\d+)(,?) in (\S+)', re.MULTILINE)
"""A frame in the text of a traceback, also in a group. `faulthandler` writes no comma, and the deepest frame first."""

START = re.compile(r"^[ |+]*(?:Exception Group )?Traceback \(most recent call last\):|in the step's own process:", re.M)
"""Where the traceback of one error starts, among those of its causes."""


def place_in(traceback: str, *, of_cause: bool = False) -> Place | None:
    """Find the deepest frame of the user's own code in the text of a traceback.

    Searches the traceback of the error itself, or of its first cause.
    """
    found = [place for part in START.split(traceback) if (place := own_place(_frames_in(part))) is not None]
    return found[0 if of_cause else -1] if found else None


def _frames_in(text: str) -> list[Place]:
    found = list(FRAME.finditer(text))
    frames = [Place(one[1], int(one[2]), one[4]) for one in found]
    return frames if all(one[3] for one in found) else frames[::-1]


def own_place(frames: Iterable[Place]) -> Place | None:
    """Return the deepest frame in the user's own code. If that is an installed package, the one that was called."""
    others = [one for one in frames if _library(one.filename) is None and not one.filename.startswith("<frozen")]
    own = [frame for frame in others if not _is_installed(frame.filename)]
    if not own:
        installed = [frame for frame in others if INSTALLED.search(frame.filename)]
        own = [frame for frame in installed if _package(frame.filename) == _package(installed[0].filename)]
    return own[-1] if own else None


def _is_installed(filename: str) -> bool:
    return filename.startswith(STANDARD_LIBRARY) or INSTALLED.search(filename) is not None


def _package(filename: str) -> str:
    found = INSTALLED.search(filename)
    return found[1] if found else ""


def shown_path(filename: str) -> str:
    """Return a file as the user would name it here."""
    here = os.getcwd() + os.sep
    return filename.removeprefix(here)
