"""Cancelling many jobs at once: each on its own, many under way together. Must not decide what a cancel does."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.errors import NotAllowed, NotFound, Refused
from holdfast.core.keys import derived_id
from holdfast.core.lifecycle import EVENT_ROWS
from holdfast.core.model import Event, State
from holdfast.jobs.service import Jobs

CANCELLABLE = EVENT_ROWS[Event.CANCEL].sources
"""The states that a cancel leads out of."""

AT_ONCE = 200
"""How many cancels are under way together: they share the store's commits."""

UNDO = "undo"
"""From this and a job's id comes the id of the job that undoes what it made (`lifecycle.undo_job`)."""


class CancelAnswer(NamedTuple):
    """What became of one cancel: why it was refused, or the job that undoes what was made, if one is needed."""

    id: str
    refused: Refused | None = None
    undo: str | None = None


async def cancel_many(jobs: Jobs, ids: Sequence[str], *, by: str, reason: str) -> list[CancelAnswer]:
    """Cancel each of these, and answer with why not where it was refused."""

    async def cancel(id: str) -> CancelAnswer:
        try:
            await jobs.cancel(id, by=by, reason=reason)
        except NotAllowed as error:
            # A child may have been cancelled with its parent, which is among these.
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
