"""The clock of a SQLite store: shared by all its processes, or given by a test. Must not know jobs."""

from pathlib import Path

from holdfast.core.model import Time
from holdfast.engines.clock import SharedClock
from holdfast.engines.contract import Clock, system_clock


class StoreClock:
    """Tells the store's time."""

    def __init__(self, clock: Clock, folder: Path) -> None:
        self._file = folder / "clock"
        self._shared = SharedClock(self._file) if clock is system_clock else None
        self._clock: Clock = clock if self._shared is None else self._shared

    def __call__(self) -> Time:
        """Milliseconds since 1970."""
        return self._clock()

    @property
    def was_alone(self) -> bool:
        """Whether no other process used the store when this one opened it."""
        return self._shared is None or self._shared.was_alone

    def share(self, *, create: bool) -> None:
        """Use the same time as the other processes of this store. A process that only reads creates no file for it."""
        if self._shared is not None and not self._shared.is_shared:
            self._shared.join(create=create)

    def close(self) -> None:
        """Stop sharing the clock."""
        if self._shared is not None:
            self._shared.close()

    def leave_behind(self) -> None:
        """Start over in a forked child: the file belongs to its parent."""
        if self._shared is not None:
            self._shared.forked()
            self._clock = self._shared = SharedClock(self._file)
