"""A finding of the checkup, and a bounded walk over jobs. Must not know what is looked for."""

import time
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.model import Job, Where
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.shapes import Shape
from holdfast.jobs.views.text import name_some, short_id

WALK_SECONDS = 5.0
"""How long one question may walk over the jobs. A finding says so where that was too short for all of them."""


class Level(StrEnum):
    """How bad it is: nothing, worth a look, or broken."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True):
    """One line of the doctor's."""

    name: str
    level: Level
    text: str

    def shape(self) -> Shape:
        """As JSON."""
        return {"name": self.name, "level": self.level.value, "text": self.text}


class Walk:
    """The jobs of a kind, the newest first, for WALK_SECONDS at most. Then `scope` says how far it came."""

    def __init__(self, jobs: Jobs, where: Where) -> None:
        self._jobs, self._where = jobs, replace(where, newest_first=True)
        self.scope = ""

    async def __aiter__(self) -> AsyncIterator[Job]:
        seen, end = 0, time.monotonic() + WALK_SECONDS
        async for job in self._jobs.walk(self._where):
            if seen and time.monotonic() >= end:
                which = "job" if seen == 1 else f"{seen:,} jobs"
                self.scope = f" (of the newest {which} only: the look at them took too long)"
                return
            seen += 1
            yield job


def name_jobs(jobs: Sequence[Job]) -> str:
    """Jobs in a row by their short ids, but not too many."""
    return name_some([short_id(job.id) for job in jobs])
