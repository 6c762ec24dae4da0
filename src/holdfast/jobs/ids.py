"""Job ids as people type them: complete, or a unique start or end. Must not change anything.

Ids created at the same time start alike and end differently, so lists show the ends. A start is found through the order
of the ids; an end by a bounded search that begins at the newest job.
"""

import re
from collections.abc import Sequence

from holdfast.core.errors import Invalid, NotFound
from holdfast.core.keys import check_id
from holdfast.core.model import PAGE_LIMIT, Job, Where
from holdfast.jobs.service import Jobs

SHORTEST = 6
"""The fewest characters an abbreviated id may have. Fewer would match too many jobs."""

LOOK_BACK = 200_000
"""How many of the newest jobs are searched for an id that ends with the given text."""

CANDIDATES = 5
"""How many jobs the error for an ambiguous id lists."""

_WHOLE = 36
_PART = re.compile(r"[0-9a-f-]+")


async def find_job(jobs: Jobs, text: str) -> Job:
    """Find the job that a complete or abbreviated id means. Raises NotFound, or Invalid if several jobs match."""
    return await jobs.get(await find_id(jobs, text))


async def find_ids(jobs: Jobs, texts: Sequence[str]) -> list[str]:
    """Find the complete ids of several jobs, each once."""
    return list(dict.fromkeys([await find_id(jobs, text) for text in texts]))


async def find_id(jobs: Jobs, text: str) -> str:
    """Return the complete id that was meant. A complete id isn't looked up here: the caller's next call does that."""
    part = text.strip().lower().removeprefix("…")
    if len(part) >= _WHOLE:
        return check_id(part)
    if not _PART.fullmatch(part):
        raise Invalid(
            f"{text!r} isn't part of a job id: ids have only hexadecimal digits and dashes; see holdfast jobs"
        )
    if len(part) < SHORTEST:
        raise Invalid(f"{text!r} is too short for a job id; give at least {SHORTEST} characters of its start or end")
    found = await _beginning_with(jobs, part) or await _ending_in(jobs, part)
    if not found:
        raise NotFound(
            f"no job {text} in this store (by the end of an id: of the newest {LOOK_BACK:,}); to list jobs: "
            "holdfast jobs"
        )
    if len(found) > 1:
        more = " and more" if len(found) > CANDIDATES else ""
        named = ", ".join(f"{job.id} ({job.type}, {job.state})" for job in found[:CANDIDATES])
        raise Invalid(f"{text!r} is ambiguous; it matches {named}{more}; give more characters of the start or end")
    return found[0].id


async def _beginning_with(jobs: Jobs, part: str) -> list[Job]:
    page = await jobs.engine.find(Where(), after=part, limit=CANDIDATES + 1)
    return [job for job in page if job.id.startswith(part)]


async def _ending_in(jobs: Jobs, part: str) -> list[Job]:
    found: list[Job] = []
    after, looked = "", 0
    while looked < LOOK_BACK and len(found) <= CANDIDATES:
        page = await jobs.engine.find(Where(newest_first=True), after)
        found += [job for job in page if job.id.endswith(part)]
        looked += len(page)
        if len(page) < PAGE_LIMIT:
            break
        after = page[-1].id
    return found
