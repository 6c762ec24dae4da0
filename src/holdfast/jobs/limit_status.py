"""Which limit a job waits for, and about how long: for its status. Must not change anything.

The facts come from the job's row, its worker's last heartbeat, and how much of the limit is used now.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.core.budgets import is_budget
from holdfast.core.model import Job, Running, State, Time, Usage, WaitKind
from holdfast.core.shared_limits import LIMIT, NO_LIMIT, UNIT, Settings, limit_of, settings_of
from holdfast.engines.contract import Engine
from holdfast.jobs.budgets import Budget, BudgetWait, budget_wait
from holdfast.jobs.views.text import one_line, span


class LimitWait(Struct, frozen=True, kw_only=True):
    """The limit that a job waits for. `held` of `at_once` permits are in use; `ms` is when there may be room, if known.

    `steps` is how many steps of a running job wait for it. `needs` are the units of the rate that the job needs, if
    they are above the limit's `burst`, so that it can never have them.
    """

    key: str
    held: int = 0
    at_once: int | None = None
    ms: int | None = None
    closed: bool = False
    steps: int = 0
    needs: float | None = None
    burst: float | None = None

    def __str__(self) -> str:
        """Say it in words: "waiting for limit openai (20 of 20 in use, about 40 s)"."""
        facts = []
        if self.closed:
            facts.append("closed")
        if self.at_once is not None and self.held >= self.at_once:
            facts.append(f"{self.held:,} of {self.at_once:,} in use")
        if self.needs is not None:
            facts.append(
                f"needs {self.needs:g}, above the burst of {self.burst:g}, so it can't start; see holdfast limits"
            )
        elif self.ms:
            facts.append(f"about {span(self.ms)}")
        return f"waiting for limit {one_line(self.key, 60)}" + (f" ({', '.join(facts)})" if facts else "")


async def limit_waits(
    engine: Engine,
    jobs: Sequence[Job],
    running: Mapping[tuple[str, int], Running],
    now: Time,
    budgets: Mapping[str, Budget],
) -> dict[str, LimitWait | BudgetWait]:
    """Return what each of these jobs waits for, by the job's id; a job that waits for no limit is left out.

    `budgets` are those of the jobs.
    """
    asked = {job.id: keys for job in jobs if (keys := _keys(job, running.get((job.id, job.epoch))))}
    if not asked:
        return {}
    found: dict[str, LimitWait | BudgetWait] = {}
    for id, keys in asked.items():
        if id in budgets and (spent := [key for key in keys if is_budget(key)]):
            found[id] = budget_wait(spent[0], budgets[id])
    if len(found) == len(asked):
        return found
    settings = {one.name.removeprefix(LIMIT): settings_of(one.value) for one in await engine.records(LIMIT)}
    names = {limit_of(key) for keys in asked.values() for key in keys if not is_budget(key)}
    used = {one.key: one for name in sorted(names) for one in await engine.usage(name)}
    for job in jobs:
        doing = running.get((job.id, job.epoch))
        for key in asked.get(job.id, ()):
            told = _told(key, settings.get(limit_of(key), NO_LIMIT), used.get(key), now, _units(job, key))
            if doing is not None and doing.limited is not None:
                at = doing.limited.at
                ms = max(0, at - now) if at is not None else told.ms
                told = LimitWait(
                    key=key, held=told.held, at_once=told.at_once, ms=ms, closed=told.closed, steps=doing.limited.steps
                )
            elif job.state is State.AVAILABLE and not _is_stopped(told):
                continue  # there is room: it waits for a worker
            found.setdefault(job.id, told)
    return found


def _keys(job: Job, doing: Running | None) -> list[str]:
    """The keys that a job may be waiting for."""
    match job.state:
        case State.ACTIVE:
            return [doing.limited.key] if doing is not None and doing.limited is not None else []
        case State.PENDING:
            return [wait.name for wait in job.waits if wait.kind is WaitKind.LIMIT]
        case State.AVAILABLE:
            return [use.key for use in job.options.limits]
        case _:
            return []


def _units(job: Job, key: str) -> int:
    """What a job itself needs under a key, in millionths of a unit."""
    return next((use.units for use in job.options.limits if use.key == key), 0)


def _told(key: str, settings: Settings, used: Usage | None, now: Time, units: int) -> LimitWait:
    held = 0 if used is None else used.held
    if settings.burst is not None and units > settings.burst:
        needs, burst = units / UNIT, settings.burst / UNIT
        return LimitWait(key=key, held=held, at_once=settings.at_once, needs=needs, burst=burst)
    if used is not None and used.closed_until > now:
        return LimitWait(key=key, held=held, at_once=settings.at_once, ms=used.closed_until - now, closed=True)
    ms = None
    if used is not None and used.tokens is not None and settings.burst and settings.refill:
        missing = min(UNIT, settings.burst) - used.tokens
        ms = -(-missing * settings.period_ms // settings.refill) if missing > 0 else None
    return LimitWait(key=key, held=held, at_once=settings.at_once, ms=ms)


def _is_stopped(told: LimitWait) -> bool:
    """Whether the limit itself keeps the job from starting, and not that all workers are busy."""
    is_full = told.at_once is not None and told.held >= told.at_once
    return told.closed or bool(told.ms) or is_full or told.needs is not None
