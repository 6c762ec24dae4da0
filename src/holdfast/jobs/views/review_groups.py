"""The jobs that need a person, grouped by what stopped them: type, step and error. Must not change anything."""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from holdfast.core.model import PAGE_LIMIT, Job, State, Time, Where
from holdfast.jobs.selections import NO_ERROR, Selection, error_types, failed_step
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.shapes import Shape, time_text
from holdfast.jobs.views.text import error_line

GROUPED = 10_000
"""How many of the newest jobs in review are grouped."""

READS_AT_ONCE = 100
"""How many histories are read at the same time."""

EXAMPLES = 3
"""How many of its newest jobs a group names."""


class ReviewGroup(Struct, frozen=True, kw_only=True):
    """Jobs in review of one type that were stopped by the same kind of error in the same step."""

    type: str
    step: str
    error: str
    count: int
    first: Time
    """When the first of them began to need a person."""
    last: Time
    in_doubt: int
    """How many of them have an effect in doubt."""
    message: str
    """The newest one's error."""
    examples: tuple[str, ...]
    """The ids of the newest ones."""

    def selection(self) -> Selection:
        """Return what selects the jobs of this group, for an act on all of them."""
        return Selection(states=(State.REVIEW,), type=self.type, step=self.step, error=self.error)

    def shape(self) -> Shape:
        """As JSON."""
        return {
            "type": self.type,
            "step": self.step,
            "error": self.error,
            "count": self.count,
            "first": time_text(self.first),
            "last": time_text(self.last),
            "in_doubt": self.in_doubt,
            "message": self.message,
            "examples": list(self.examples),
        }


async def view_groups(jobs: Jobs, chosen: Selection | None = None) -> list[ReviewGroup]:
    """Return the groups of the newest jobs in review, the largest first."""
    chosen = chosen or Selection()
    where = Where(states=(State.REVIEW,), type=chosen.type, queue=chosen.queue, newest_first=True)
    members: dict[tuple[str, str, str], list[tuple[Job, Time, bool]]] = {}
    after, seen = "", 0
    while seen < GROUPED and (page := await jobs.engine.find(where, after)):
        summaries = await jobs.engine.summaries([job.id for job in page])
        times = await _times_since(jobs, page)
        types = await error_types(jobs.engine, page)
        for job, summary, since in zip(page, summaries, times, strict=True):
            members.setdefault((job.type, failed_step(summary), types[job.id] or NO_ERROR), []).append(
                (job, since, bool(summary.total.started))
            )
        seen, after = seen + len(page), page[-1].id
        if len(page) < PAGE_LIMIT:
            break
    groups = [_group(kind, found) for kind, found in members.items()]
    return sorted(groups, key=lambda group: (-group.count, -group.last))


def _group(kind: tuple[str, str, str], members: Sequence[tuple[Job, Time, bool]]) -> ReviewGroup:
    type, step, error = kind
    newest = sorted(members, key=lambda member: -member[1])
    return ReviewGroup(
        type=type,
        step=step,
        error=error,
        count=len(members),
        first=newest[-1][1],
        last=newest[0][1],
        in_doubt=sum(doubt for _, _, doubt in members),
        message=error_line(newest[0][0].error),
        examples=tuple(job.id for job, _, _ in newest[:EXAMPLES]),
    )


async def _times_since(jobs: Jobs, page: Sequence[Job]) -> list[Time]:
    """Return since when each of these jobs has needed a person."""
    times: list[Time] = []
    for start in range(0, len(page), READS_AT_ONCE):
        times += await asyncio.gather(*(_time_since(jobs, job) for job in page[start : start + READS_AT_ONCE]))
    return times


async def _time_since(jobs: Jobs, job: Job) -> Time:
    entries = await jobs.engine.history(job.id, job.version - 1)
    if entries and entries[-1].before is State.REVIEW:  # signals have arrived since
        entries = [entry for entry in await jobs.history(job.id) if entry.before is not State.REVIEW]
    return entries[-1].at if entries else job.created_at
