"""Bulk submits: many jobs that differ only in their arguments, in parts. Must not encode arguments."""

import asyncio
from collections import deque
from collections.abc import Iterable

from holdfast.core.model import Inserted
from holdfast.jobs.requests import Demands
from holdfast.jobs.service import JobRequest, Jobs

PARTS_UNDER_WAY = 3
"""How many parts may be on their way to the store at the same time."""


Encoded = tuple[str, Demands]
"""The arguments of one job as text, and what they say about the job."""


async def submit_parts(jobs: Jobs, request: JobRequest, parts: Iterable[list[Encoded]]) -> list[Inserted]:
    """Insert the arguments part by part. While the store writes some parts, the next one is prepared.

    If the store may reorder inserts, each part is due slightly later than the one before. If all jobs are due at a
    given time, a part is sent only after the one before it is stored.
    """
    in_order = jobs.engine.inserts_in_order
    most = PARTS_UNDER_WAY if in_order or request.run_at is None else 1
    now = 0
    done: list[Inserted] = []
    under_way: deque[asyncio.Future[list[Inserted]]] = deque()
    try:
        for calls in parts:
            soonest = 0 if in_order else now + 1
            now = max(await jobs.engine.now(), soonest)
            new = jobs.alike(request, calls, now)
            if len(under_way) == most:
                done += await under_way[0]
                under_way.popleft()
            under_way.append(asyncio.ensure_future(jobs.insert(new)))
            await asyncio.sleep(0)  # let it reach the store before the next part is prepared
        for part in under_way:
            done += await part
    except Exception as error:
        # An element or a part can't be submitted. Wait for the parts under way before raising, so none is left running.
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
