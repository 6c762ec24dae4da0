"""Bulk submits: many jobs that differ only in their arguments, a part of them at a time. Must not encode arguments."""

import asyncio
from collections import deque
from collections.abc import Iterable

from holdfast.core.model import Inserted
from holdfast.jobs.service import JobRequest, Jobs

PARTS_UNDER_WAY = 3
"""How many parts are handed to the store before an answer is waited for."""


async def submit_parts(jobs: Jobs, request: JobRequest, parts: Iterable[list[str]]) -> list[Inserted]:
    """Insert part after part of the arguments, as text. While the store is at some, the next part is made ready.

    A store that might change their order gets each part a little later due than the one before it; where all are due at
    a moment that was given, one must be there before the next is handed in.
    """
    in_order = jobs.engine.inserts_in_order
    most = PARTS_UNDER_WAY if in_order or request.run_at is None else 1
    now = 0
    done: list[Inserted] = []
    under_way: deque[asyncio.Future[list[Inserted]]] = deque()
    try:
        for texts in parts:
            soonest = 0 if in_order else now + 1
            now = max(await jobs.engine.now(), soonest)
            new = jobs.alike(request, texts, now)
            if len(under_way) == most:
                done += await under_way[0]
                under_way.popleft()
            under_way.append(asyncio.ensure_future(jobs.engine.insert(new)))
            await asyncio.sleep(0)  # it is handed to the store before we go on
        for part in under_way:
            done += await part
    except Exception as error:
        # An element can't be submitted, or a part can't: when we say so, nothing is under way any more.
        answers = await asyncio.gather(*under_way, return_exceptions=True)
        first = next((answer for answer in answers if isinstance(answer, Exception)), error)
        if first is not error:
            raise first from error
        raise
    except asyncio.CancelledError:
        for part in under_way:
            part.cancel()
        raise
    return done
