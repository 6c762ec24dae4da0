"""Which jobs an act on many concerns: a selection as data, and reading what matches it. Must not change anything."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from holdfast.core.errors import Invalid, ItemsFailed
from holdfast.core.keys import check_id, check_queue, check_type
from holdfast.core.model import PAGE_LIMIT, Job, State, StepState, Where
from holdfast.core.summaries import StepSummary, is_step
from holdfast.engines.contract import Engine

IDS_LIMIT = 10_000
"""How many ids one selection may list. For more jobs, select by type, queue, error or step."""

MAPS_READ = 100
"""How many jobs with failed items are looked into at the same time."""

ITEMS_FAILED = f"{ItemsFailed.__module__}.{ItemsFailed.__name__}"

NO_ERROR = "(no error)"
"""Stands for the error of a job that has none."""

FAILED = "(the job's own code)"
"""Stands for the step of a job that failed between its steps."""


class Selection(Struct, frozen=True, omit_defaults=True):
    """Jobs by their ids, or by what they have in common. A field that is left out matches any job."""

    ids: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    queue: str | None = None
    type: str | None = None
    error: str | None = None
    """The type of the job's error, or of the items that stopped it, with or without its module: "ProviderError"."""
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


async def error_types(engine: Engine, jobs: Sequence[Job]) -> dict[str, str | None]:
    """Return the type of the error that stopped each of these jobs, by id. If items of a map have failed, it is theirs:
    the most frequent one.
    """
    types = {job.id: None if job.error is None else job.error.type for job in jobs}
    mapped = [id for id, type in types.items() if type == ITEMS_FAILED]
    for start in range(0, len(mapped), MAPS_READ):
        failed: dict[str, Counter[str]] = {}
        for step in await engine.steps_under_each(mapped[start : start + MAPS_READ], "", StepState.FAILED):
            if is_step(step.path) and step.error is not None:
                failed.setdefault(step.job, Counter())[step.error.type] += 1
        types |= {id: counts.most_common(1)[0][0] for id, counts in failed.items()}
    return types


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
    if chosen.error is not None:
        types = await error_types(engine, jobs)
        jobs = [job for job in jobs if _is_stopped_by(chosen.error, job, types[job.id])]
    if chosen.step is None or not jobs:
        return jobs
    summaries = await engine.summaries([job.id for job in jobs])
    return [job for job, one in zip(jobs, summaries, strict=True) if failed_step(one) == chosen.step]


def _matches(chosen: Selection, job: Job) -> bool:
    return (
        (not chosen.states or job.state in chosen.states)
        and chosen.queue in (None, job.queue)
        and chosen.type in (None, job.type)
        and (chosen.tag is None or chosen.tag in job.options.tags)
    )


def _is_stopped_by(name: str, job: Job, type: str | None) -> bool:
    """Whether this names the type of a job's error, with or without its module, or the type of what caused it."""
    types = [one for one in (type, None if job.error is None else job.error.type) if one is not None] or [NO_ERROR]
    return any(name in (one, one.rpartition(".")[2]) for one in types)
