"""The file engine: a whole store in one JSON file that a person can read, edit and diff. For one process.

Must not show a caller anything that isn't on disk yet, and must not change a file that it can't read. The rows are
those of the memory engine. One thread applies all waiting acts, writes the file once, and then answers them.

    schema       what a file can contain               reopen    a person's edits, and recovery from a crash
    checkpoint   how it is read                        checksum  which fields were edited
    writer       how it is written                     disk      disk access, the atomic write and the lock
    reader       reading it while it is in use
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

from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.store import BlobStore
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
"""Beyond this many jobs, writes become noticeably slow, and a warning says so once."""

JOB_LIMIT = 10_000
"""How many jobs a file can hold. There is a limit because each act writes the whole file."""

ASIDE_LIMIT = 100
"""How many copies of a file that was edited while in use are kept next to it."""

ELSEWHERE = "sqlite:///jobs.db"

T = TypeVar("T")
log = logger(__name__)


class Work(Struct, frozen=True):
    """One piece of work for the engine's thread. Only work with `writes` changes jobs; a `gate` opens or closes."""

    call: Callable[[Rows], Any]
    writes: bool = False
    gate: bool = False


class FileEngine(MemoryEngine):
    """Jobs in one JSON file, written atomically (temp file, fsync, rename), and owned by one process at a time."""

    guarantees = Guarantees(
        name="file",
        url="file:checkpoint.json",
        use="one process, and a file that a person can read, edit and diff",
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
        """How many jobs open() recovered: they were running when the previous process died."""
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

    def own_blobs(self) -> BlobStore:
        """Keep blobs in a folder beside the file."""
        return FolderBlobs(Path(f"{self.path}.blobs"))

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """An unused name in the folder."""
        return f"file:{quote(str(folder / f'checkpoint-{secrets.token_hex(4)}.json'))}"

    async def is_there(self) -> bool:
        """Whether the file exists."""
        return self.path.exists()

    async def open(self) -> None:
        """Make the store ready. A missing file is an empty store; the first act creates it."""
        if self._pid != os.getpid():
            # A forked child must not touch what it inherited from its parent; its copy of the lock is already closed.
            self._pid, self._thread, self._held, self._wakeups = os.getpid(), None, None, Wakeups()
        if self._thread is None:
            self._thread = BatchThread(f"the store {self.path}", self._run, inline=self._inline)
        try:
            await self._thread.do(Work(lambda _: self._open(), gate=True))
        except StoreError:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the store. A forked child has nothing to close: the lock belongs to its parent."""
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

    # Everything below runs on the store's thread, one batch at a time.

    def _run(self, tickets: Sequence[Ticket[Work]]) -> None:
        for gate, group in groupby(tickets, key=lambda ticket: ticket.work.gate):
            if gate:
                for ticket in group:
                    self._try(ticket)
            else:
                self._batch(list(group))

    def _batch(self, tickets: Sequence[Ticket[Work]]) -> None:
        """Apply all waiting acts, write the file once, then answer: all of them succeed, or none."""
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
        """Do one piece of work in memory, and update the text of the changed jobs. An error leaves no trace."""
        rows = self._rows
        before = len(rows.jobs)
        rows.journal = []
        self._try(ticket)
        try:
            if ticket.error is None and rows.journal:
                if len(rows.jobs) > max(before, JOB_LIMIT):
                    raise StoreFull(
                        f"{self.path}: nothing was inserted: a file holds up to {JOB_LIMIT:,} jobs; "
                        f"prune old jobs, or use {ELSEWHERE} for more"
                    )
                self._text.refresh(rows, _touched(rows.news))
        except StoreFull as error:
            ticket.error = error
        except (AttributeError, RecursionError, TypeError, ValueError) as error:
            ticket.error = BadValue(f"{self.path}: nothing was written: a value can't be written as JSON: {error}")
        except Damage as damage:
            ticket.error = BadValue(f"{self.path}: nothing was written: a value could not be read back: {damage}")
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
        """Undo the whole batch in memory."""
        self._rows.journal = undo
        self._rows.take_back()
        self._text.refresh(self._rows, _touched(news))

    def _put_back(self) -> None:
        """Write the old content back over the new one, which may not be durable and was not acknowledged."""
        try:
            self._replace()
        except OSError as error:  # These acts may exist after a restart. Their callers got an error, not a refusal.
            log.warning(
                "%s: a failed write could not be undone; it may be there after a restart (%s)", self.path, error
            )

    def _save(self) -> None:
        """Write the file. Any failure becomes one StoreError."""
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
            raise StoreError(f"{self.path}: could not be written, and nothing was changed: {error!r}") from error
        if len(self._rows.jobs) > COMFORTABLE_JOBS and not self._warned:
            self._warned = True
            log.warning(
                "%s has more than %d jobs, and gets slow because every change writes the whole file; use %s for more",
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
        """Remember the file that we just wrote, to notice if somebody replaces it."""
        self._facts = None
        with suppress(OSError):  # The file is written, even if its facts can't be read.
            self._facts = self._disk.facts(self._file)

    def _keep_edits(self) -> None:
        """Save a copy of a file that a person edited while it was in use: the next write would overwrite the edits."""
        there = self._disk.facts(self._file)
        if there is None or there.same_file(self._facts):
            return
        data = self._disk.read(self._file)
        for n in range(1, ASIDE_LIMIT + 1):
            aside = f"{self._file}.edited-{n}"
            if self._disk.facts(aside) is None:
                write_new(self._disk, aside, data, there)
                log.warning("%s was edited while in use; the edited file was saved as %s", self.path, aside)
                return
        raise StoreFull(
            f"{self.path}: was edited while in use, and {ASIDE_LIMIT} edited copies already exist; "
            f"remove {self.path}.edited-*, then try again"
        )

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
                what = f"{self.path}: can't be opened ({error.strerror or error})"
                raise StoreUnwritable(f"{what}; make the file and its folder readable and writable") from error
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
        """The content of the file, or an error that says in one line what is wrong with it."""
        try:
            said = read(self._disk.read(self._file))
            if isinstance(self._clock, MachineClock):  # The machine's clock may have been set back since then.
                self._clock.not_before(
                    max((row.entries[-1].at for row in said.rows.values() if row.entries), default=0)
                )
            # Don't recover jobs in a store that is being moved: the target must be equal to it.
            marked = MOVED in said.records and said.records[MOVED].value != ""
            return reopen(said, self._clock(), recover=recover and not marked)
        except Damage as damage:
            what = f"{self.path}: line {damage.line}, column {damage.column}: {damage}"
            raise StoreDamaged(f"{what}; the file was not changed: correct it, or move it away") from None
        except Foreign as foreign:
            raise StoreForeign(f"{self.path}: {foreign}; the file was not changed: use another file name") from None

    def _check_place(self) -> None:
        folder = os.path.dirname(self._file)
        place, there = self._disk.facts(folder), self._disk.facts(self._file)
        if place is None or not stat.S_ISDIR(place.mode):
            raise StoreUnwritable(f"{self.path}: the folder {folder} doesn't exist; create it, or use another path")
        self._check_kind(there)
        for path in [folder] if there is None else [self._file, folder]:
            if not self._disk.writable(path):
                raise StoreUnwritable(f"{self.path}: this process has no permission to write {path}; grant it")

    def _check_kind(self, there: Facts | None) -> None:
        if there is not None and not stat.S_ISREG(there.mode):
            kind = "a folder" if stat.S_ISDIR(there.mode) else "not a regular file"
            raise StoreUnwritable(f"{self.path} is {kind}; use another path")

    def _close(self) -> None:
        held, self._held = self._held, None
        self._rows, self._text = Rows(), FileText()
        if held is not None:
            held.release()

    def _busy(self, other: LockedBy) -> str:
        who = "another process" if other.pid is None else f"process {other.pid}"
        return f"{self.path} is in use by {who}; stop that process, or use {ELSEWHERE} for several processes"


def _touched(news: set[str]) -> list[str]:
    """The ids of the jobs that an act changed, from its topics."""
    prefix = job_topic("")
    return [topic.removeprefix(prefix) for topic in news if topic.startswith(prefix)]
