"""The step counters that change with a transaction: sums up what it writes and drops, and writes the sums once.

Must not begin or commit. A job's counters are valid while its `summed` equals its `version` (see the fourth migration).
"""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from msgspec import Struct

from holdfast.core.limits import STEP_NAMES
from holdfast.core.model import Step, StepState
from holdfast.core.summaries import ONE, StepCounts, is_step
from holdfast.engines.postgres import rows
from holdfast.engines.rows import Row


class _More(Struct):
    """What to add to one counter; `last` is the position of the last new step, `path` is its path."""

    counts: StepCounts = StepCounts()
    last: int = 0
    path: str = ""


class Counting:
    """What the steps of one transaction add to the counters."""

    def __init__(self, db: Any, sql: SimpleNamespace) -> None:
        self._db = db
        self._sql = sql
        self._more: dict[tuple[int, str], _More] = {}
        self._dropped: list[tuple[int, str, int]] = []

    def add(self, written: Iterable[Row]) -> None:
        """Count steps that were written. A step that isn't new has replaced a started one."""
        for n, path, name, state, place, is_new in sorted(written, key=lambda row: row[4]):
            if not is_step(path):
                continue
            more = self._more.setdefault((n, name), _More())
            more.counts += ONE[StepState(state)]
            if is_new:
                more.last, more.path = place, path
            else:
                more.counts -= ONE[StepState.STARTED]

    def drop(self, dropped: Iterable[Row]) -> None:
        """Subtract steps that were deleted."""
        for n, path, name, state, place in dropped:
            if is_step(path):
                more = self._more.setdefault((n, name), _More())
                more.counts -= ONE[StepState(state)]
                self._dropped.append((n, name, place))

    async def write(self) -> None:
        """Write the sums."""
        if self._more:
            more = [
                (n, name, one.counts.started, one.counts.done, one.counts.failed, one.last, one.path)
                for (n, name), one in self._more.items()
            ]
            await self._db.execute(self._sql.add_counts, *rows.columns(more, 7), STEP_NAMES)
        if self._dropped:
            await self._db.execute(self._sql.find_last, *rows.columns(self._dropped, 3))
            others = [(n, place) for n, _, place in self._dropped]
            await self._db.execute(self._sql.find_last_other, *rows.columns(others, 2))

    async def recount(self, jobs: Iterable[int]) -> None:
        """Count all steps of these jobs again, by the jobs' numbers. Their counters are valid from then on."""
        async with self._db.transaction():
            numbers = [row[0] for row in await self._db.fetch(self._sql.lock_uncounted, sorted(jobs))]
            if not numbers:
                return
            await self._db.execute(self._sql.forget_counts, numbers)
            await self._db.execute(self._sql.recount, numbers, STEP_NAMES)
            await self._db.execute(self._sql.set_counted, numbers)


async def record_crowded(db: Any, sql: SimpleNamespace, steps: Sequence[Step]) -> list[tuple[int, int | None]]:
    """Record steps like `add_steps`, inside a transaction, for jobs that may have no counters left for their names.

    Returns the same as that statement: the position of each written step, counted from 1, and its job's number if that
    job's counters aren't valid.
    """
    held = {row[1]: row for row in await db.fetch(sql.hold_jobs, [step.job for step in steps])}
    places: dict[tuple[int, str], int] = {}
    given: list[tuple[Any, ...]] = []
    for place, step in enumerate(steps, 1):
        lease = held.get(step.job)
        if lease is not None and lease[2] == step.epoch:
            places[lease[0], step.path] = place
            given.append(rows.step_row(step, lease[0]))
    if not given:
        return []
    written = await db.fetch(sql.set_steps, *rows.columns(given, rows.STEP_WIDTH))
    counting = Counting(db, sql)
    counting.add(written)
    await counting.write()
    uncounted = {n for n, _, _, is_counted in held.values() if not is_counted}
    return [(places[n, path], n if n in uncounted else None) for n, path, *_ in written]
