"""Archiving: jobs that have ended are copied to another store, which keeps them for longer than their own does.

Must not take anything away from where they ran: their retention does that. An archive bears the mark of a move for
good, so that no worker ever takes work from it.
"""

from msgspec.structs import replace

from holdfast.core.errors import Refused
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import PAGE_LIMIT, Job, Where
from holdfast.core.moves import MOVED, Mark
from holdfast.engines.traits import Movable
from holdfast.jobs.transfer.move import Side, mark_in

ARCHIVE = "archive"
"""What the mark of an archive has for the name of a move."""


async def archive(source: Side, target: Side) -> int:
    """Copy the ended jobs that the archive has not got yet, each whole; answer how many. Safe to repeat."""
    kept, store = _movable(target), _movable(source)
    await _claim_archive(source, target)
    copied, after = 0, ""
    while page := await store.find(Where(states=tuple(TERMINAL)), after):
        after = page[-1].id
        known = await kept.get([job.id for job in page])
        new = [job for job, there in zip(page, known, strict=True) if there is None]
        for start in range(0, len(new), kept.insert_at_once):
            copied += await _copy(store, kept, new[start : start + kept.insert_at_once])
        if len(page) < PAGE_LIMIT:
            break
    return copied


async def _copy(store: Movable, kept: Movable, jobs: list[Job]) -> int:
    wholes = [whole for whole in await store.wholes(jobs) if len(whole.entries) == whole.job.version]
    # One that was pruned meanwhile has lost its history: it was to be copied earlier. Here nothing is ever pruned.
    return await kept.load([replace(whole, job=replace(whole.job, prune_at=None)) for whole in wholes])


async def _claim_archive(source: Side, target: Side) -> None:
    """See that the other store is the archive of this one; an empty store becomes it."""
    marked = await mark_in(target.engine)
    if marked is None:
        if await target.engine.find(Where(), limit=1):
            raise Refused(f"{target.name}: there are jobs in it that run there; name a new store for the archive")
        mark = Mark(move=ARCHIVE, away=False, store=source.name, archive=True)
        await target.engine.put_record(MOVED, mark.text(), 0)
        marked = await mark_in(target.engine)
    if marked is None or not marked[0].archive:
        raise Refused(
            f"{target.name}: it is no archive; {marked[0].words() if marked else 'somebody took its mark away'}"
        )
    if marked[0].store != source.name:
        raise Refused(f"{target.name}: {marked[0].words()}; name another one for {source.name}")


def _movable(side: Side) -> Movable:
    if not isinstance(side.engine, Movable):
        raise Refused(f"{side.name}: the jobs of this store can't be archived; use another one")
    return side.engine
