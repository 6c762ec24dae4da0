"""Archiving: ended jobs are copied to another store, which keeps them longer than their own store does.

Must not remove anything from the store where the jobs ran: their retention does that. An archive keeps the mark of a
move forever, so no worker ever claims jobs from it.
"""

from msgspec.structs import replace

from holdfast.core.errors import Refused
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import PAGE_LIMIT, Job, Where
from holdfast.core.moves import MOVED, Mark
from holdfast.engines.traits import Movable
from holdfast.jobs.transfer.move import Side, copy_blobs, mark_in

ARCHIVE = "archive"
"""The value of `move` in the mark of an archive."""


async def archive(source: Side, target: Side) -> int:
    """Copy the ended jobs that the archive doesn't have yet; return how many. Safe to repeat."""
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
    # A job pruned during the copy has lost its history; it can't be archived any more. An archive never prunes.
    await kept.blobs.ready(create=True)
    await copy_blobs(store, kept, wholes)
    return await kept.load([replace(whole, job=replace(whole.job, prune_at=None)) for whole in wholes])


async def _claim_archive(source: Side, target: Side) -> None:
    """Check that the target is the archive of this store. An empty store becomes one."""
    marked = await mark_in(target.engine)
    if marked is None:
        if await target.engine.find(Where(), limit=1):
            raise Refused(f"{target.name} is in use: it has jobs that run there; name a new store for the archive")
        mark = Mark(move=ARCHIVE, away=False, store=source.name, archive=True)
        await target.engine.put_record(MOVED, mark.text(), 0)
        marked = await mark_in(target.engine)
    if marked is None or not marked[0].archive:
        raise Refused(
            f"{target.name} isn't an archive: {marked[0].words() if marked else 'its mark was removed meanwhile'}"
        )
    if marked[0].store != source.name:
        raise Refused(f"{target.name}: {marked[0].words()}; name another archive for {source.name}")


def _movable(side: Side) -> Movable:
    if not isinstance(side.engine, Movable):
        raise Refused(f"{side.name}: jobs can't be archived from or to this kind of store; use another one")
    return side.engine
