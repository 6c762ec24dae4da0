"""A finding of the checkup, and a bounded walk over jobs. Must not know what is checked."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.model import Job, Where
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.shapes import Shape
from holdfast.jobs.views.text import name_some, short_id

WALK_SECONDS = 5.0
"""How long one check may walk over the jobs. If that wasn't enough for all of them, its finding says so."""


JOBS_LISTED = 1_000
"""How many ids of jobs a reason lists as JSON."""


class Level(StrEnum):
    """How bad a finding is: fine, a warning, or broken."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Reason(Struct, frozen=True):
    """One reason for a finding, and the ids of the jobs that it concerns."""

    why: str
    jobs: tuple[str, ...]

    def shape(self) -> Shape:
        """Return the reason as JSON, with its first jobs."""
        return {"why": self.why, "count": len(self.jobs), "jobs": list(self.jobs[:JOBS_LISTED])}


class Finding(Struct, frozen=True):
    """One line of the doctor's report. Its text has the first reason, and its JSON all of them."""

    name: str
    level: Level
    text: str
    reasons: tuple[Reason, ...] = ()

    def shape(self) -> Shape:
        """Return the finding as JSON."""
        reasons = {"reasons": [one.shape() for one in self.reasons]} if self.reasons else {}
        return {"name": self.name, "level": self.level.value, "text": self.text, **reasons}


def reasons_of(found: Mapping[str, Sequence[Job]]) -> tuple[Reason, ...]:
    """Return the jobs that were found for each reason."""
    return tuple(Reason(why, tuple(job.id for job in jobs)) for why, jobs in found.items())


class Walk:
    """Iterates over matching jobs, newest first, for at most WALK_SECONDS. `scope` then says how far it got."""

    def __init__(self, jobs: Jobs, where: Where) -> None:
        self._jobs, self._where = jobs, replace(where, newest_first=True)
        self.scope = ""

    async def __aiter__(self) -> AsyncIterator[Job]:
        seen, end = 0, time.monotonic() + WALK_SECONDS
        async for job in self._jobs.walk(self._where):
            if seen and time.monotonic() >= end:
                which = "job" if seen == 1 else f"{seen:,} jobs"
                self.scope = f" (only the newest {which} checked: the walk took too long)"
                return
            seen += 1
            yield job


def name_jobs(jobs: Sequence[Job]) -> str:
    """Name some of these jobs by their short ids."""
    return name_some([short_id(job.id) for job in jobs])
