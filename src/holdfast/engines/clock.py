"""The clock of a store on one machine: it runs evenly even if the machine's clock is changed. Must not know a store.

Time is counted by a clock of the system that nobody can set and that also runs while the machine sleeps: the steady
clock. A course says what the store's time was at some moment, and how far the machine's clock is from the steady one.
Store time approaches the machine's clock by at most a tenth of the time that passes, so it never goes back. A course is
a pure function of the steady clock: processes that share it agree to the millisecond.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import DecodeError, Struct, json

from holdfast.core.model import Time
from holdfast.engines.contract import Clock, system_clock
from holdfast.engines.live_folder import make_live_folder, open_live_file

SLEW = 10
"""Store time runs faster or slower than real time by at most one part in this many."""

JUMP_MS = 500
"""If the machine's clock differs by more than this from the expected time, somebody has set it."""

LOOK_MS = 1_000
"""How often a process checks the machine's clock, and what other processes wrote."""

KEEP_MS = 60_000
"""How often the course is written again, so that after a restart of the machine the last store time is known."""

TRUST_MS = 24 * 3_600_000
"""How far ahead of the machine's clock a stored time may be and still be accepted as the store's own."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_LOCK_TRIES, _LOCK_SECONDS = 20, 0.005


def steady_clock() -> int:
    """Return the milliseconds of a clock that all processes of this machine share and that nobody can set."""
    return time.clock_gettime_ns(_STEADY) // 1_000_000


def this_boot() -> str:
    """Return what identifies the current run of the machine; "" if the system doesn't say."""
    try:
        return _BOOT.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


class Course(Struct, frozen=True):
    """How a store's time continues: from `time`, at the moment `steady`, towards the steady clock plus `offset`."""

    boot: str
    steady: int
    time: Time
    offset: int

    def at(self, steady: int) -> Time:
        """Return the store's time at a moment of the steady clock."""
        passed = max(0, steady - self.steady)
        left = self.offset + self.steady - self.time
        most = passed // SLEW
        return self.time + passed + max(-most, min(most, left))


class MachineClock:
    """The clock of a store that is used by one process."""

    def __init__(
        self, wall: Clock = system_clock, steady: Callable[[], int] = steady_clock, boot: Callable[[], str] = this_boot
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._boot = boot()
        self._floor: Time = 0
        self._looking = threading.Lock()
        self._looked = steady()
        now = wall()
        self._course = Course(self._boot, self._looked, now, now - self._looked)
        # Until then, and on this course, store time is the steady clock plus its offset: there is nothing to approach.
        self._even: tuple[int, Course] = (0, self._course)

    def __call__(self) -> Time:
        """Return the store's time."""
        steady = self._steady()
        until, course = self._even
        if steady < until and course is self._course:
            return steady + course.offset
        if steady - self._looked >= LOOK_MS:
            self._look(steady)
        course = self._course
        now = course.at(steady)
        if now == steady + course.offset and now >= self._floor:
            self._even = (self._looked + LOOK_MS, course)
        return max(now, self._floor)

    def not_before(self, at: Time) -> None:
        """Start no earlier than this stored time. A time in the far future is an error, and is ignored."""
        steady = self._steady()
        ahead = at - self._course.at(steady)
        if 0 < ahead <= TRUST_MS:
            self._course = Course(self._boot, steady, at, self._course.offset)

    def _look(self, steady: int) -> None:
        """Check whether somebody set the machine's clock. One thread does this; the others continue."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            self._looked = steady
            self._take_over(steady)
            course, offset = self._course, self._wall() - steady
            if abs(offset - course.offset) > JUMP_MS or steady - course.steady >= KEEP_MS:
                self._course = Course(self._boot, steady, max(course.at(steady), self._floor), offset)
                self._give()
        finally:
            self._looking.release()

    def _take_over(self, steady: int) -> None:
        """Take over the course that another process wrote."""

    def _give(self) -> None:
        """Write our course for other processes."""


class SharedClock(MachineClock):
    """The clock of a store that many processes share through a small file, on which each holds a lock.

    A process that finds no other starts a new course at the machine's clock, but never before the time that the store
    had reached. If the file can't be written, a process uses its own course.
    """

    def __init__(
        self,
        path: Path,
        wall: Clock = system_clock,
        steady: Callable[[], int] = steady_clock,
        boot: Callable[[], str] = this_boot,
    ) -> None:
        super().__init__(wall, steady, boot)
        self._path = path
        self._file: int | None = None
        self.was_alone = True
        """Whether no other process had this store open when this one opened it."""

    @property
    def is_shared(self) -> bool:
        """Whether this process uses the same course as the others."""
        return self._file is not None

    def join(self, *, create: bool) -> None:
        """Take over the others' course, or start one. Without `create`, a missing file isn't created."""
        with self._looking:
            if self._file is None:
                self._join(create)

    def close(self) -> None:
        """Release the file."""
        with self._looking:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def forked(self) -> None:
        """In a forked child: close our copy of the file. This object is not used again."""
        if self._file is not None:
            os.close(self._file)

    def _join(self, create: bool) -> None:
        try:
            if create:
                make_live_folder(self._path.parent)
            file = open_live_file(self._path, create=create)
        except OSError:
            return
        self._file = file
        steady = self._steady()
        self.was_alone = alone = _locked(file, fcntl.LOCK_EX)
        kept = self._read()
        if alone:
            reached = 0 if kept is None else kept.at(steady) if kept.boot == self._boot else kept.time
            wall = self._wall()
            self._course = Course(self._boot, steady, max(wall, reached, self._course.at(steady)), wall - steady)
            self._give()
        elif kept is not None:
            self._course = kept
        for _ in range(_LOCK_TRIES):
            if _locked(file, fcntl.LOCK_SH):
                break
            time.sleep(_LOCK_SECONDS)

    def _take_over(self, steady: int) -> None:
        file = self._file
        if file is None:
            return
        if os.fstat(file).st_nlink == 0:  # somebody removed the file: write it again
            os.close(file)
            self._file = None
            self._rejoin()
        elif (kept := self._read()) is not None and kept.steady > self._course.steady:
            self._floor = max(self._floor, self._course.at(steady))
            self._course = kept

    def _rejoin(self) -> None:
        """Create the file again with the current course, unless another process has done so."""
        try:
            make_live_folder(self._path.parent)
            self._file = open_live_file(self._path)
        except OSError:
            return
        _locked(self._file, fcntl.LOCK_SH)
        if self._read() is None:
            self._give()

    def _read(self) -> Course | None:
        assert self._file is not None
        try:
            return json.decode(os.pread(self._file, 1_000, 0).partition(b"\n")[0], type=Course)
        except (OSError, DecodeError):  # empty, or being written now
            return None

    def _give(self) -> None:
        if self._file is None:
            return
        text = json.encode(self._course) + b"\n"
        try:
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))
        except OSError:  # a full disk: the others use what they know
            pass


def _locked(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
