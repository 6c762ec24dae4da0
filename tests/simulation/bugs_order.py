"""Planted bugs of schedules, unique jobs and turns."""

from dataclasses import replace
from itertools import count
from typing import Any

from msgspec.structs import replace as with_fields

import holdfast.upkeep.scheduling
from holdfast.core.schedules import SCHEDULE
from holdfast.engines.tables import Tables
from holdfast.upkeep.scheduling import Living, Scheduling
from tests.simulation.plan import Plan, orderly
from tests.simulation.planting import bug


def unanswered(plan: Plan) -> Plan:
    """An orderly plan in which many answers are lost."""
    plan = orderly(plan)
    return replace(plan, odds=replace(plan.odds, unanswered=0.1))


@bug("a tick is fired without a compare", "S45", Scheduling, "_write", unanswered)
def _(write: Any) -> Any:
    fresh = count()  # ids that are derived would hide it, for as long as the first job is kept

    async def writes_anyway(self: Any, name: str, kept: Any, new: Any, jobs: Any, now: int) -> bool:
        jobs = [with_fields(job, id=f"{job.id[:-6]}{next(fresh):06x}") for job in jobs]
        answer = await self._engine.put_record(SCHEDULE + name, new.text(), None, jobs)
        kept.one, kept.version = new, answer.version
        return True

    return writes_anyway


@bug("a tick counts as missed that is late", "S46", holdfast.upkeep.scheduling, "due_ticks", orderly)
def _(due_ticks: Any) -> Any:
    return lambda one, zone, now, since: due_ticks(one, zone, now, since and max(since, now - 300))


@bug("a tick fires that nobody has lived through", "S46", Living, "since", orderly)
def _(since: Any) -> Any:
    return lambda self, name, one: 0


@bug("unique names keep nobody out", "S47", Tables, "_same_as", orderly)
def _(same_as: Any) -> Any:
    return lambda self, job, held, fresh: None


@bug("a window ends by a clock that was set forward", "S47", Tables, "_same_as", orderly)
def _(same_as: Any) -> Any:
    return lambda self, job, held, fresh: same_as(
        self, with_fields(job, created_at=job.created_at + 2_000), held, fresh
    )


@bug("a replaced job goes on", "S47", Tables, "_apply", orderly)
def _(apply: Any) -> Any:
    def goes_on(self: Any, head: Any, change: Any) -> Any:
        replaces = change.event == "cancel" and any(job.options.unique is not None for job in change.inserts)
        return apply(
            self, head, with_fields(change, job=with_fields(head, version=change.job.version)) if replaces else change
        )

    return goes_on


@bug("every round begins with the first key", "S48", Tables, "_put_turn", orderly)
def _(put_turn: Any) -> Any:
    return lambda self, name, fair, now: None
