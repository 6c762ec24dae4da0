"""Moving all jobs of a store to another one: what is moved, and the mark that both stores carry during the move.

Must not read or write a store. A marked store accepts no write but `load`. So nobody changes the source while it is
read, and nobody uses the target while it is incomplete.
"""

from collections.abc import Iterable, Sequence

from msgspec import DecodeError, Struct, json

from holdfast.core.errors import Invalid, Moved, Refused
from holdfast.core.model import Entry, Job, Step, Time

MOVED = "moved"
"""The name of the record that is the mark. Every write checks for it in the same atomic act."""


class Whole(Struct, frozen=True):
    """A job with everything that belongs to it: its whole history, and its steps in the order of their first writes."""

    job: Job
    entries: tuple[Entry, ...]
    steps: tuple[Step, ...] = ()


def put_together(jobs: Sequence[Job], entries: Iterable[Entry], steps: Iterable[Step]) -> list[Whole]:
    """Assemble whole jobs from rows that were read for many jobs at once."""
    histories: dict[str, list[Entry]] = {job.id: [] for job in jobs}
    records: dict[str, list[Step]] = {job.id: [] for job in jobs}
    for entry in entries:
        histories[entry.job].append(entry)
    for step in steps:
        records[step.job].append(step)
    return [Whole(job, tuple(histories[job.id]), tuple(records[job.id])) for job in jobs]


class HeldKey(Struct, frozen=True):
    """An idempotency key and its job. The key may outlive the job; its digest stays when the arguments are edited."""

    type: str
    key: str
    job: str
    digest: str
    until: Time | None = None


class Mark(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The content of the mark. `move` is the same on both sides; `store` names the other one, without secrets."""

    move: str
    away: bool
    """Whether this is the store that the jobs leave, and not the one that they enter."""
    store: str
    by: str = ""
    done: bool = False
    """Everything is in the other store, and verified: from now on, that one is used."""
    after: str = ""
    """In the store that the jobs enter: the last job that has arrived."""
    archive: bool = False
    """No job runs in this store: it only keeps jobs that ended in another one."""

    def text(self) -> str:
        """The mark as a record keeps it."""
        return json.encode(self).decode()

    def words(self) -> str:
        """Why a marked store accepts no writes, in one line."""
        if self.archive:
            return f"this store is an archive of {self.store}: it keeps jobs that have ended, and runs none"
        if not self.away:
            return (
                f"jobs are being moved into this store from {self.store}, and not all have arrived; wait until the "
                "move ends, or repeat it if it was interrupted"
            )
        if self.done:
            return f"this store's jobs were moved to {self.store}; use that store (--url, $HOLDFAST_URL)"
        return (
            f"this store's jobs are being moved to {self.store}; wait until the move ends, repeat it if it was "
            "interrupted, or undo it: holdfast move --from THIS-STORE --give-up"
        )


def mark_of(value: str) -> Mark:
    """Read a mark. A mark that can't be read closes the store, too."""
    try:
        return json.decode(value, type=Mark)
    except DecodeError:
        return Mark(move="", away=True, store="another store")


def check_unmarked(value: str | None) -> None:
    """Refuse to write to a marked store."""
    if value:
        raise Moved(mark_of(value).words())


def check_marked(value: str | None) -> None:
    """Refuse to load into a store that isn't marked, since others may be using it."""
    if not value:
        raise Refused("nothing was loaded: this store isn't marked as the target of a move")


def check_whole(whole: Whole) -> None:
    """Refuse a job whose history is incomplete."""
    job = whole.job
    if [entry.version for entry in whole.entries] != list(range(1, job.version + 1)):
        raise Invalid(f"nothing was loaded: job {job.id} is at version {job.version}, and its history is incomplete")
    if {one.job for one in whole.entries} | {one.job for one in whole.steps} != {job.id}:
        raise Invalid(f"nothing was loaded: job {job.id} came with a step or history entry of another job")
