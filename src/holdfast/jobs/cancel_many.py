"""Cancelling many jobs at once: each separately, many at the same time. Must not decide what a cancel does."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.errors import NotAllowed, NotFound, Refused
from holdfast.core.keys import derived_id
from holdfast.core.lifecycle import EVENT_ROWS
from holdfast.core.model import Event, State
from holdfast.jobs.service import Jobs

CANCELLABLE = EVENT_ROWS[Event.CANCEL].sources
"""The states from which a job can be cancelled."""

AT_ONCE = 200
"""How many cancels run at the same time. They share the store's commits."""

UNDO = "undo"
"""With a job's id, this gives the id of the job that undoes what it made (`lifecycle.undo_job`)."""


class CancelAnswer(NamedTuple):
    """The result of one cancel: why it was refused, or the undo job, if one is needed."""

    id: str
    refused: Refused | None = None
    undo: str | None = None


async def cancel_many(jobs: Jobs, ids: Sequence[str], *, by: str, reason: str) -> list[CancelAnswer]:
    """Cancel each of these jobs. For each one that was refused, the answer says why."""

    async def cancel(id: str) -> CancelAnswer:
        try:
            await jobs.cancel(id, by=by, reason=reason)
        except NotAllowed as error:
            # It may be the child of another job in this list, and was cancelled with its parent.
            (now,) = await jobs.engine.get([id])
            if id not in live or now is None or now.state is not State.CANCELLED:
                return CancelAnswer(id, error)
        except NotFound as error:
            return CancelAnswer(id, error)
        (undo,) = await jobs.engine.get([derived_id(id, UNDO)])
        return CancelAnswer(id, undo=None if undo is None else undo.id)

    answers: list[CancelAnswer] = []
    pages = [ids[place : place + AT_ONCE] for place in range(0, len(ids), AT_ONCE)]
    found = [job for page in pages for job in await jobs.engine.get(page) if job is not None]
    live = {job.id for job in found if job.state in CANCELLABLE}
    for page in pages:
        answers += await asyncio.gather(*(cancel(id) for id in page))
    return answers
