"""Moving all jobs of a store to another one: what is moved, and the mark that both stores bear meanwhile.

Must not read or write a store. A store that bears the mark takes nothing but `load`, so that no worker and no caller
changes what is being read on the one side, or meets the half of it on the other.
"""

from collections.abc import Iterable, Sequence

from msgspec import DecodeError, Struct, json

from holdfast.core.errors import Invalid, Moved, Refused
from holdfast.core.model import Entry, Job, Step, Time

MOVED = "moved"
"""The record that is the mark. Every act that writes looks whether it is there, in the same act."""


class Whole(Struct, frozen=True):
    """A job with all that belongs to it: its history from the first version on, its steps as first written."""

    job: Job
    entries: tuple[Entry, ...]
    steps: tuple[Step, ...] = ()


def put_together(jobs: Sequence[Job], entries: Iterable[Entry], steps: Iterable[Step]) -> list[Whole]:
    """Whole jobs of what was read for many of them at once."""
    histories: dict[str, list[Entry]] = {job.id: [] for job in jobs}
    records: dict[str, list[Step]] = {job.id: [] for job in jobs}
    for entry in entries:
        histories[entry.job].append(entry)
    for step in steps:
        records[step.job].append(step)
    return [Whole(job, tuple(histories[job.id]), tuple(records[job.id])) for job in jobs]


class HeldKey(Struct, frozen=True):
    """What an idempotency key stands for. It may outlive its job, and its digest an edit of the job's arguments."""

    type: str
    key: str
    job: str
    digest: str
    until: Time | None = None


class Mark(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the mark says. `move` is the same on both sides; `store` is the other one, as it may be shown to anybody."""

    move: str
    away: bool
    """Whether the jobs go away from here; else they come in."""
    store: str
    by: str = ""
    done: bool = False
    """All is in the other store, and verified: from here on that one counts."""
    after: str = ""
    """On the side that they come in: the last job that is there."""
    archive: bool = False
    """Nothing runs here: it keeps what has ended elsewhere, for longer."""

    def text(self) -> str:
        """The mark as a record keeps it."""
        return json.encode(self).decode()

    def words(self) -> str:
        """Why a store that bears it takes nothing, in one line."""
        if self.archive:
            return f"this store is an archive of {self.store}: it keeps jobs that have ended, and runs none"
        if not self.away:
            return (
                f"jobs are being moved into this store from {self.store}, and not all are here; repeat that move "
                "to go on, or wait for its end"
            )
        if self.done:
            return f"this store's jobs were moved to {self.store}; use that one (--url, $HOLDFAST_URL)"
        return (
            f"this store's jobs are being moved to {self.store}; wait for its end, repeat the move to go on, or "
            "take it back: holdfast move --from THIS-STORE --give-up"
        )


def mark_of(value: str) -> Mark:
    """The mark that a record keeps. One that somebody wrote in another form closes the store all the same."""
    try:
        return json.decode(value, type=Mark)
    except DecodeError:
        return Mark(move="", away=True, store="another store")


def check_unmarked(value: str | None) -> None:
    """Refuse an act in a store that bears the mark."""
    if value:
        raise Moved(mark_of(value).words())


def check_marked(value: str | None) -> None:
    """Refuse to load into a store that others may be using."""
    if not value:
        raise Refused("jobs can only be loaded into a store that is marked for it; nothing was loaded")


def check_whole(whole: Whole) -> None:
    """Refuse a job whose history is not all there."""
    job = whole.job
    if [entry.version for entry in whole.entries] != list(range(1, job.version + 1)):
        raise Invalid(f"job {job.id} is at version {job.version}, and its history is not whole; nothing was loaded")
    if {one.job for one in whole.entries} | {one.job for one in whole.steps} != {job.id}:
        raise Invalid(f"job {job.id}: an entry or a step of another job came with it; nothing was loaded")
