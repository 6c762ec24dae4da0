"""The file engine: a whole store in one JSON file that a person reads, edits and diffs. For one process.

Must not let a caller see what is not on the disk yet, and must not touch a file that it can't read. The rows are
those of the memory engine; one thread applies all acts that wait, writes the file once, and then answers them.

    schema       what a file says, and how it looks    reopen    a person's edits, and recovery from a crash
    checkpoint   how it is read                        checksum  what tells which fields were edited
    writer       how it is written                     disk      the seam, the atomic write and the lock
    reader       looking at it while it is in use
"""

import os
import secrets
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec import Struct

from holdfast.core.errors import (
    BadValue,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreUnwritable,
)
from holdfast.core.moves import MOVED
from holdfast.engines.batch_thread import BatchThread, Ticket
from holdfast.engines.clock import MachineClock
from holdfast.engines.contract import Clock, Guarantees, system_clock
from holdfast.engines.file.checkpoint import Foreign, read
from holdfast.engines.file.disk import (
    Disk,
    Facts,
    Lock,
    LockedBy,
    RealDisk,
    Unsettled,
    lock_name,
    replace_file,
    settle,
    sweep,
    temp_name,
    trouble,
    write_new,
)
from holdfast.engines.file.reopen import Reopened, reopen
from holdfast.engines.file.scan import Damage
from holdfast.engines.file.writer import FileText, Rows
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.refusals import not_open
from holdfast.engines.tables import Tables
from holdfast.engines.topics import job_topic
from holdfast.engines.urls import path_of
from holdfast.engines.wakeups import Wakeups
from holdfast.safe_text import logger

COMFORTABLE_JOBS = 1_000
"""Beyond this many jobs each write takes long enough to feel, and a warning says so once."""

JOB_LIMIT = 10_000
"""How many jobs a file may hold: each act writes all of it."""

ASIDE_LIMIT = 100
"""How many copies of a file that was edited while in use are kept beside it."""

ELSEWHERE = "sqlite:///jobs.db"

T = TypeVar("T")
log = logger(__name__)


class Work(Struct, frozen=True):
    """One thing to do on the engine's thread. Only what `writes` changes jobs; a `gate` opens or closes the store."""

    call: Callable[[Rows], Any]
    writes: bool = False
    gate: bool = False


class FileEngine(MemoryEngine):
    """Jobs in one JSON file, kept whole by temp file, fsync and rename, and owned by one process at a time."""

    guarantees = Guarantees(
        name="file",
        url="file:checkpoint.json",
        use="one process, and a file that a person reads, edits and diffs",
        durable="a power cut",
        processes="one process",
        wakes="one process",
        atomic_children=True,
        clock="this machine's",
        limit=f"{COMFORTABLE_JOBS:,} jobs comfortably, {JOB_LIMIT:,} at most",
    )

    room = JOB_LIMIT

    def __init__(
        self, path: str | Path, clock: Clock = system_clock, *, disk: Disk | None = None, inline: bool = False
    ) -> None:
        super().__init__(clock)
        self.path = Path(path).absolute()
        self.recovered = 0
        """How many jobs were running when the process before this one died, and were recovered by open()."""
        self._inline = inline
        self._pid: int | None = None
        self._thread: BatchThread[Work] | None = None
        # From here on: owned by the store's thread.
        self._disk: Disk = disk or RealDisk()
        self._held: Lock | None = None
        self._file = str(self.path)
        self._facts: Facts | None = None
        self._rows = Rows()
        self._text = FileText()
        self._temps = 0
        self._warned = False

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "FileEngine":
        """Make the engine of a store's URL."""
        return cls(path_of(url), clock)

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """A name in the folder that nothing has yet."""
        return f"file:{quote(str(folder / f'checkpoint-{secrets.token_hex(4)}.json'))}"

    async def is_there(self) -> bool:
        """Tell whether there is a store to open."""
        return self.path.exists()

    async def open(self) -> None:
        """Make the store ready. A file that isn't there is an empty store; the first act writes it."""
        if self._pid != os.getpid():
            # Whatever a forked child has of its parent's, it must leave alone; its copy of the lock is closed already.
            self._pid, self._thread, self._held, self._wakeups = os.getpid(), None, None, Wakeups()
        if self._thread is None:
            self._thread = BatchThread(f"the store {self.path}", self._run, inline=self._inline)
        try:
            await self._thread.do(Work(lambda _: self._open(), gate=True))
        except StoreError:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of everything. A forked child has nothing to close: the lock is its parent's."""
        lane, self._thread = self._thread, None
        if lane is not None and self._pid == os.getpid():
            await lane.do(Work(lambda _: self._close(), gate=True))
            lane.close()

    async def _act(self, act: Callable[[Tables], T]) -> T:
        answer: T = await self._hand_in(Work(act, writes=True))
        return answer

    async def _look(self, look: Callable[[Tables], T]) -> T:
        answer: T = await self._hand_in(Work(look))
        return answer

    async def _hand_in(self, work: Work) -> Any:
        if self._thread is None or self._pid != os.getpid():
            raise not_open(self.path, is_forked=self._thread is not None)
        return await self._thread.do(work)

    # All below runs on the store's thread, one batch at a time.

    def _run(self, tickets: Sequence[Ticket[Work]]) -> None:
        for gate, group in groupby(tickets, key=lambda ticket: ticket.work.gate):
            if gate:
                for ticket in group:
                    self._try(ticket)
            else:
                self._batch(list(group))

    def _batch(self, tickets: Sequence[Ticket[Work]]) -> None:
        """Apply what waits, write the file once, then answer: all of it, or none."""
        undo: list[Callable[[], None]] = []
        news: set[str] = set()
        for ticket in tickets:
            self._apply(ticket, undo, news)
        if undo:
            try:
                self._save()
            except StoreError as error:
                self._take_back(undo, news)
                if isinstance(error.__cause__, Unsettled):
                    self._put_back()
                for ticket in tickets:
                    ticket.answer, ticket.error = None, None
                    if ticket.work.writes:
                        ticket.error = type(error)(str(error))
                    else:
                        self._try(ticket)
                return
        if news:
            self._wakeups.ring(news)

    def _apply(self, ticket: Ticket[Work], undo: list[Callable[[], None]], news: set[str]) -> None:
        """Do one piece of work in memory, with the text of the jobs that it touched. On an error it leaves no trace."""
        rows = self._rows
        before = len(rows.jobs)
        rows.journal = []
        self._try(ticket)
        try:
            if ticket.error is None and rows.journal:
                if len(rows.jobs) > max(before, JOB_LIMIT):
                    raise StoreFull(
                        f"{self.path}: a file holds up to {JOB_LIMIT:,} jobs; nothing was inserted; "
                        f"prune it, or use {ELSEWHERE} for more"
                    )
                self._text.refresh(rows, _touched(rows.news))
        except StoreFull as error:
            ticket.error = error
        except (AttributeError, RecursionError, TypeError, ValueError) as error:
            ticket.error = BadValue(f"{self.path}: what was given can't be written as JSON: {error}")
        except Damage as damage:
            ticket.error = BadValue(f"{self.path}: what was given could not be read again: {damage}")
        if ticket.error is None:
            undo += rows.journal
            news |= rows.news
            rows.journal, rows.news = None, set()
        else:
            touched = _touched(rows.news)
            rows.take_back()
            self._text.refresh(rows, touched)

    def _try(self, ticket: Ticket[Work]) -> None:
        if self._held is None and not ticket.work.gate:
            ticket.error = not_open(self.path, is_forked=False)
            return
        try:
            ticket.answer = ticket.work.call(self._rows)
        except Exception as error:
            ticket.error = error

    def _take_back(self, undo: list[Callable[[], None]], news: set[str]) -> None:
        """Go back to what was there before the batch."""
        self._rows.journal = undo
        self._rows.take_back()
        self._text.refresh(self._rows, _touched(news))

    def _put_back(self) -> None:
        """Put the old content in the place of the new one, which may not be durable and was not acknowledged."""
        try:
            self._replace()
        except OSError as error:  # A restart may find these acts done. Their answer was an error, not a no.
            log.warning("%s: what failed to be written could not be taken back (%s)", self.path, error)

    def _save(self) -> None:
        """Write the file. Any trouble becomes one StoreError."""
        assert self._held is not None
        try:
            self._held.renew()
            self._keep_edits()
            self._replace()
        except StoreError:
            raise
        except LockedBy as other:
            raise StoreBusy(self._busy(other)) from None
        except OSError as error:
            raise trouble(error, str(self.path)) from error
        except Exception as error:
            raise StoreError(f"{self.path}: it can't be written: {error!r}; nothing was changed") from error
        if len(self._rows.jobs) > COMFORTABLE_JOBS and not self._warned:
            self._warned = True
            log.warning(
                "%s: more than %d jobs in one file, and every act writes all of it; use %s for more",
                *(self.path, COMFORTABLE_JOBS, ELSEWHERE),
            )

    def _replace(self) -> None:
        self._temps += 1
        temp = temp_name(self._file, self._temps)
        try:
            replace_file(self._disk, self._file, temp, self._text.data(self._rows))
        except Unsettled:
            self._remember()
            raise
        self._remember()

    def _remember(self) -> None:
        """Know the file again that we put there."""
        self._facts = None
        with suppress(OSError):  # It is written; that it can't be looked at changes nothing.
            self._facts = self._disk.facts(self._file)

    def _keep_edits(self) -> None:
        """Save what a person wrote into the file while it was in use: the next write would wipe it out."""
        there = self._disk.facts(self._file)
        if there is None or there.same_file(self._facts):
            return
        data = self._disk.read(self._file)
        for n in range(1, ASIDE_LIMIT + 1):
            aside = f"{self._file}.edited-{n}"
            if self._disk.facts(aside) is None:
                write_new(self._disk, aside, data, there)
                log.warning("%s was edited while in use; the edited file was kept as %s", self.path, aside)
                return
        raise StoreFull(f"{self.path}: {ASIDE_LIMIT} edited copies lie beside it; remove them, then try again")

    def _open(self) -> None:
        if self._held is not None:
            return
        try:
            self._file = self._disk.resolve(str(self.path))
            self._check_place()
            self._held = self._disk.lock(lock_name(self._file))
            self._load_file()
        except BaseException as error:
            self._close()
            if isinstance(error, LockedBy):
                raise StoreBusy(self._busy(error)) from None
            if isinstance(error, OSError):
                what = f"{self.path}: it can't be opened ({error.strerror or error})"
                raise StoreUnwritable(f"{what}; make it and its folder readable and writable") from error
            raise

    def _load_file(self) -> None:
        self._facts = self._disk.facts(self._file)
        opened = Reopened(Rows(), 0, False)
        if self._facts is not None:
            settle(self._disk, self._file)
            opened = self._reopened(recover=True)
        sweep(self._disk, self._file)
        self._rows, self._text, self.recovered = opened.rows, FileText(), opened.recovered
        if opened.changed:
            self._save()
        if opened.recovered:
            jobs = "1 job was" if opened.recovered == 1 else f"{opened.recovered} jobs were"
            log.info("%s: %s running when the last process ended; recovered", self.path, jobs)

    def _reopened(self, *, recover: bool) -> Reopened:
        """What the file says, or the one line that tells why it can't be right."""
        try:
            said = read(self._disk.read(self._file))
            if isinstance(self._clock, MachineClock):  # the machine's clock may have been set back since
                self._clock.not_before(
                    max((row.entries[-1].at for row in said.rows.values() if row.entries), default=0)
                )
            # In a store that is being moved nothing is changed by the way: the other side must be equal to it.
            marked = MOVED in said.records and said.records[MOVED].value != ""
            return reopen(said, self._clock(), recover=recover and not marked)
        except Damage as damage:
            what = f"{self.path}: line {damage.line}, column {damage.column}: {damage}"
            raise StoreDamaged(f"{what}; it was not touched: mend it or move it away") from None
        except Foreign as foreign:
            raise StoreForeign(f"{self.path}: {foreign}; it was not touched: name another file") from None

    def _check_place(self) -> None:
        folder = os.path.dirname(self._file)
        place, there = self._disk.facts(folder), self._disk.facts(self._file)
        if place is None or not stat.S_ISDIR(place.mode):
            raise StoreUnwritable(f"{self.path}: there is no folder {folder}; create it, or name another file")
        self._check_kind(there)
        for path in [folder] if there is None else [self._file, folder]:
            if not self._disk.writable(path):
                raise StoreUnwritable(f"{self.path}: this process may not write {path}; give it the right to")

    def _check_kind(self, there: Facts | None) -> None:
        if there is not None and not stat.S_ISREG(there.mode):
            kind = "a folder" if stat.S_ISDIR(there.mode) else "no regular file"
            raise StoreUnwritable(f"{self.path} is {kind}; name another file")

    def _close(self) -> None:
        held, self._held = self._held, None
        self._rows, self._text = Rows(), FileText()
        if held is not None:
            held.release()

    def _busy(self, other: LockedBy) -> str:
        who = "another process" if other.pid is None else f"process {other.pid}"
        return f"{self.path} is in use by {who}; stop it, or use {ELSEWHERE} for several processes"


def _touched(news: set[str]) -> list[str]:
    """The jobs that an act changed: it tells of each of them."""
    prefix = job_topic("")
    return [topic.removeprefix(prefix) for topic in news if topic.startswith(prefix)]
