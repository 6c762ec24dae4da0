"""The step counters: changes of one transaction are added up and written once. Must not begin or commit.

A job's counters are correct while its `summed` equals its `version` (see the fourth migration).
"""

import sqlite3
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

from holdfast.core.limits import STEP_NAMES
from holdfast.core.model import Step, StepState
from holdfast.core.summaries import OTHERS, OWN
from holdfast.engines.sqlite.rows import Params

Written = tuple[str, str, str, int, int]
"""A step that was written or dropped: its job, name and state, its number, and whether it is one of our own records."""

_STATES = tuple(state.value for state in StepState)
_PLACES = {state: place for place, state in enumerate(_STATES)}
_STARTED, _DONE, _FAILED = (_PLACES[state] for state in ("started", "done", "failed"))
_LAST = len(_STATES)


class Counting:
    """What the steps of one transaction add to the counters."""

    def __init__(self, connection: sqlite3.Connection, sql: SimpleNamespace) -> None:
        self._db = connection
        self._sql = sql
        self._more: dict[tuple[str, str], list[int]] = {}
        """For each job and name: how many are added in each state, and the highest number of a new step."""

    def highest(self) -> int:
        """The highest number of a step: later steps get higher ones."""
        (highest,) = self._db.execute(self._sql.last_step).fetchone()
        return int(highest)

    def add_new(self, steps: Sequence[Step], last: int) -> None:
        """Count new steps that one statement wrote; `last` is the number of the last one."""
        more, of_job, of_name = [], "", ""
        for n, step in enumerate(steps, last - len(steps) + 1):
            if step.path[:1] == OWN:
                continue
            if step.name != of_name or step.job != of_job:  # Usually they are all items of one map.
                of_job, of_name = step.job, step.name
                more = self._of(of_job, of_name)
            state = step.state
            more[_DONE if state is StepState.DONE else _FAILED if state is StepState.FAILED else _STARTED] += 1
            more[_LAST] = n

    def add(self, written: Iterable[Written], fence: int) -> None:
        """Count steps that were written. A step with a number up to the fence has replaced a started one."""
        for job, name, state, n, is_own in written:
            if is_own:
                continue
            more = self._of(job, name)
            more[_PLACES[state]] += 1
            if n > fence:
                more[_LAST] = max(more[_LAST], n)
            else:
                more[_STARTED] -= 1

    def drop(self, dropped: Sequence[Written], n: int) -> None:
        """Subtract deleted steps. All belong to one job, which has this number."""
        steps = [one for one in dropped if not one[-1]]
        for job, name, state, _, _ in steps:
            self._of(job, name)[_PLACES[state]] -= 1
        if steps:
            self.write()  # So that the counters show which step is the last one.
        for _, name, _, place, _ in steps:
            params = {"n": n, "name": name, "last": place}
            if not self._db.execute(self._sql.find_last, params).rowcount:
                self._db.execute(self._sql.find_last_other, params)

    def _of(self, job: str, name: str) -> list[int]:
        more = self._more.get((job, name))
        if more is None:
            more = self._more[job, name] = [0] * (_LAST + 1)
        return more

    def write(self) -> None:
        """Write what was added up."""
        if not self._more:
            return
        added, self._more = self._more, {}
        recounted: set[str] = set()
        for (job, name), more in added.items():
            started, done, failed, last = more
            params: Params = {
                "job": job, "name": name, "started": started, "done": done, "failed": failed, "last": last
            }  # fmt: skip
            if job in recounted or self._db.execute(self._sql.add_count, params).rowcount:
                continue
            n, is_right, names = self._db.execute(self._sql.counters, {"job": job}).fetchone()
            if is_right:
                self._begin({**params, "n": n}, OTHERS if names >= STEP_NAMES else name)
            else:
                self.recount(n)  # This includes the added steps.
                recounted.add(job)

    def _begin(self, params: Params, counter: str) -> None:
        """Create a counter for a name that has none; the counter of all other names may exist."""
        params["name"] = counter
        if counter != OTHERS or not self._db.execute(self._sql.add_count, params).rowcount:
            self._db.execute(self._sql.new_count, params)

    def recount(self, n: int) -> None:
        """Count all steps of a job again, by its number. From now on its counters are correct."""
        self._db.execute(self._sql.forget_summary, {"n": n})
        self._db.execute(self._sql.recount, {"n": n, "most": STEP_NAMES})
        self._db.execute(self._sql.set_summed, {"n": n})
