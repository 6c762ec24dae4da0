"""A search for jobs: what matches, and the page that is found. Must not know a store."""

from msgspec import Struct

from holdfast.core.model import Job, State, Where

SCAN_LIMIT = 10_000
"""How many jobs a search reads at most if no index serves its combination of filters."""


class Page(Struct, frozen=True, kw_only=True):
    """A page of jobs. `next` is where to continue after, None at the end.

    `scanned` is how many jobs were read for it. `is_cut` means that the search stopped at SCAN_LIMIT: more may match.
    """

    jobs: tuple[Job, ...]
    next: str | None = None
    scanned: int = 0
    is_cut: bool = False


EXPIRING = frozenset({State.SCHEDULED, State.AVAILABLE, State.PENDING, State.RETRYABLE})
"""The states in which a job can expire."""


def matches(job: Job, where: Where) -> bool:
    """Whether a job matches."""
    if where.states and job.state not in where.states:
        return False
    if (before := where.expires_before) is not None and not (
        job.expires_at is not None and job.expires_at <= before and job.state in EXPIRING
    ):
        return False
    fields = ((where.queue, job.queue), (where.type, job.type), (where.parent, job.parent), (where.key, job.key))
    return all(asked in (None, has) for asked, has in fields)
