"""How long the stages of a job type usually take, from its recent runs. Must not change anything."""

from collections.abc import Mapping
from statistics import median

from holdfast.core.model import State, StepState, Where
from holdfast.core.summaries import StepHead
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.pages.items import Usual

RUNS_READ = 20
"""How many of the newest completed jobs of a type are looked at."""

STEPS_READ = 200
"""How many steps of each are looked at: the first ones of every stage are enough for its items."""


async def usual_times(jobs: Jobs, type: str) -> Mapping[str, Usual]:
    """Return how long each stage usually takes: the median of the newest completed jobs of this type."""
    where = Where(states=(State.COMPLETED,), type=type, newest_first=True)
    stages: dict[str, list[int]] = {}
    items: dict[str, list[int]] = {}
    for job in (await jobs.engine.search(where, limit=RUNS_READ)).jobs:
        groups: dict[str, list[StepHead]] = {}
        heads = await jobs.engine.steps_page(job.id, limit=STEPS_READ)
        for head in heads:
            if "/" not in head.path and head.state is StepState.DONE and head.finished_at is not None:
                groups.setdefault(head.name, []).append(head)
        for name, group in groups.items():
            items.setdefault(name, []).extend((head.finished_at or 0) - head.started_at for head in group)
            if len(heads) < STEPS_READ:
                began, ended = min(head.started_at for head in group), max(head.finished_at or 0 for head in group)
                stages.setdefault(name, []).append(ended - began)
    return {
        name: Usual(stage_ms=round(median(stages[name])), item_ms=round(median(items[name])))
        for name in stages
        if name in items
    }
