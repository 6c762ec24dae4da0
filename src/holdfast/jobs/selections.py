"""Which jobs an act on many concerns: a selection as data, and reading what matches it. Must not change anything."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from holdfast.core.errors import Invalid
from holdfast.core.keys import check_id, check_queue, check_type
from holdfast.core.model import PAGE_LIMIT, Job, State, Where
from holdfast.core.summaries import StepSummary
from holdfast.engines.contract import Engine

IDS_LIMIT = 10_000
"""How many ids one selection may list. For more jobs, select by type, queue, error or step."""

FAILED = "(the job's own code)"
"""Stands for the step of a job that failed between its steps."""


class Selection(Struct, frozen=True, omit_defaults=True):
    """Jobs by their ids, or by what they have in common. A field that is left out matches any job."""

    ids: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    queue: str | None = None
    type: str | None = None
    error: str | None = None
    """The type of the job's error, with or without its module: "ProviderError"."""
    step: str | None = None
    """The name of the step that failed or is in doubt. See `failed_step`."""
    tag: str | None = None

    def words(self) -> str:
        """The selection in words, for a person and the history."""
        named = [
            f"{name} {value}" for name in ("type", "queue", "step", "error", "tag") if (value := getattr(self, name))
        ]
        named += [f"state {' or '.join(self.states)}"] if self.states else []
        named += [f"{len(self.ids):,} ids"] if self.ids else []
        return ", ".join(named) or "all jobs"


class Page(Struct, frozen=True):
    """The jobs of one page that match, and the id after which the next page starts; None after the last."""

    jobs: list[Job]
    after: str | None


def check_selection(chosen: Selection) -> Selection:
    """Return a selection if it is valid, or raise Invalid."""
    if len(chosen.ids) > IDS_LIMIT:
        raise Invalid(f"{len(chosen.ids):,} ids, and at most {IDS_LIMIT:,} are allowed; select by type, queue or error")
    for id in chosen.ids:
        check_id(id)
    if chosen.queue is not None:
        check_queue(chosen.queue)
    if chosen.type is not None:
        check_type(chosen.type)
    return chosen


def failed_step(summary: StepSummary) -> str:
    """The name of the step that stopped a job in review: one in doubt, else the one that failed most."""
    doubts = [name for name, counts in summary.names.items() if counts.started]
    failed = sorted((-counts.failed, name) for name, counts in summary.names.items() if counts.failed)
    return next(iter(doubts), failed[0][1] if failed else FAILED)


def error_names(job: Job) -> tuple[str, ...]:
    """The type of a job's error, with and without its module."""
    return () if job.error is None else (job.error.type, job.error.type.rpartition(".")[2])


async def read_page(engine: Engine, chosen: Selection, after: str = "", limit: int = PAGE_LIMIT) -> Page:
    """Read a page of the jobs that match."""
    if chosen.ids:
        start = chosen.ids.index(after) + 1 if after else 0
        ids = chosen.ids[start : start + limit]
        found = [job for job in await engine.get(ids) if job is not None]
        last = ids[-1] if start + len(ids) < len(chosen.ids) else None
    else:
        where = Where(states=chosen.states, queue=chosen.queue, type=chosen.type)
        found = await engine.find(where, after, limit)
        last = found[-1].id if len(found) == limit else None
    return Page(await _narrow(engine, chosen, found), last)


async def read_all(engine: Engine, chosen: Selection) -> AsyncIterator[list[Job]]:
    """Iterate over the jobs that match, page by page."""
    after: str | None = ""
    while after is not None:
        page = await read_page(engine, chosen, after)
        yield page.jobs
        after = page.after


async def count(engine: Engine, chosen: Selection) -> Counter[str]:
    """Count the jobs that match, by type."""
    return Counter([job.type async for page in read_all(engine, chosen) for job in page])


async def _narrow(engine: Engine, chosen: Selection, found: Sequence[Job]) -> list[Job]:
    """Leave out what the store can't."""
    jobs = [job for job in found if _matches(chosen, job)]
    if chosen.step is None or not jobs:
        return jobs
    summaries = await engine.summaries([job.id for job in jobs])
    return [job for job, one in zip(jobs, summaries, strict=True) if failed_step(one) == chosen.step]


def _matches(chosen: Selection, job: Job) -> bool:
    return (
        (not chosen.states or job.state in chosen.states)
        and chosen.queue in (None, job.queue)
        and chosen.type in (None, job.type)
        and (chosen.error is None or chosen.error in error_names(job))
        and (chosen.tag is None or chosen.tag in job.options.tags)
    )
