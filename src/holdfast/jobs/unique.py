"""Unique jobs that replace the one like them. Must not decide who counts (`core.unique`), and must not know apps."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.errors import Invalid, Outrun
from holdfast.core.model import Applied, Event, Inserted, Job, Lease
from holdfast.core.unique import REPLACE
from holdfast.engines.contract import Engine
from holdfast.jobs.consequences import cancel_children, end_change, notify_others
from holdfast.jobs.waiters import CHANGE_TRIES


def replaces(job: Job, holder: str) -> bool:
    """Whether a job that wasn't inserted is to replace the one that was found instead."""
    unique = job.options.unique
    return unique is not None and unique.then == REPLACE and holder != job.id


def check_within(jobs: Sequence[Job]) -> None:
    """Refuse what a caller's own transaction can't do."""
    for job in jobs:
        if job.options.unique is not None and job.options.unique.then == REPLACE:
            raise Invalid(
                f"{job.type}: unique= with then='replace' can't be part of your transaction (connection=), because it "
                "cancels a job; use then='return' or 'refuse', or submit after the commit"
            )


async def replace_existing(engine: Engine, job: Job, holder: str, parent: Lease | None) -> Inserted:
    """Cancel the job that holds a unique name, with all that follows from it, and insert the new one.

    Both are one act: no crash leaves neither. A child needs its parent's lease for the insert, which then follows the
    cancel; if its parent crashes in between, the parent's next run submits it.
    """
    unique = job.options.unique
    assert unique is not None
    note = {"reason": f"replaced by job {job.id}, which is the same as unique= says"}
    for _ in range(CHANGE_TRIES):
        (held,) = await engine.get([holder])
        if held is not None and held.state in unique.states:
            change = await end_change(engine, held, Event.CANCEL, await engine.now(), by="caller", note=note)
            if parent is None:
                change = replace(change, inserts=(*change.inserts, job))
            (answer,) = await engine.commit([change])
            if isinstance(answer, Applied):
                await notify_others(engine, change, answer, by=change.by)
                await cancel_children(engine, holder, by=change.by)
                if parent is None:
                    engine.announce_inserts([job], [Inserted(job.id, True)])
                    return Inserted(job.id, True)
        (found,) = await engine.insert([job], parent)
        if found.id == job.id:
            return found
        holder = found.id
    raise Outrun(
        f"{job.type}: other callers submitted jobs like it {CHANGE_TRIES} times during this call, so it was not "
        "submitted; find out who submits so many, or use then='return'"
    )
