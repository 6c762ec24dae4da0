"""Joins the walks of a search to one page. A walk reads jobs by one index, and stops after a bounded number.

Must not know any store.
"""

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice

from msgspec import Struct

from holdfast.core.model import Job, Where
from holdfast.core.searches import Page, matches

SHORT_SCAN = 1_000
"""How many jobs a walk reads before it reads as many as it may."""


class Walk(Struct, frozen=True):
    """What one walk found, in its order. `stopped_at` is the last id that it read, if it stopped before the end."""

    jobs: Sequence[Job]
    scanned: int
    stopped_at: str | None = None


def whole_walk(found: Sequence[Job], limit: int) -> Walk:
    """Return a walk that read only what matches: it stopped if it found a whole page."""
    return Walk(found, len(found), found[-1].id if len(found) == limit else None)


def is_dense(where: Where) -> bool:
    """Whether every job that a walk by state, parent or id reads matches."""
    return where.queue is None and where.type is None


def joined(walks: Sequence[Walk], limit: int, *, newest_first: bool) -> Page:
    """Merge walks to a page. It ends where the first of them stopped: behind that, jobs may be missing."""
    found = merge(*(walk.jobs for walk in walks), key=lambda job: job.id, reverse=newest_first)
    ends = [walk.stopped_at for walk in walks if walk.stopped_at is not None]
    end = (max if newest_first else min)(ends) if ends else None
    kept = [job for job in found if end is None or (job.id >= end if newest_first else job.id <= end)]
    scanned = sum(walk.scanned for walk in walks)
    page = tuple(islice(kept, limit))
    if len(page) == limit:
        return Page(jobs=page, next=page[-1].id, scanned=scanned)
    return Page(jobs=page, next=end, scanned=scanned, is_cut=end is not None)


def page_of_key(found: Iterable[Job], where: Where, after: str, limit: int) -> Page:
    """Return a page of the jobs that have a key: there is at most one for each type."""
    newest = where.newest_first
    behind = [job for job in found if not after or (job.id < after if newest else job.id > after)]
    fit = [job for job in behind if matches(job, where)]
    page = tuple(sorted(fit, key=lambda job: job.id, reverse=newest)[:limit])
    return Page(jobs=page, next=page[-1].id if len(page) == limit else None, scanned=len(fit))
