"""Two runs side by side: their results, steps, time and money. Must not change anything."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from holdfast.core.errors import Invalid
from holdfast.core.model import Job, Step, StepState
from holdfast.core.places import places_in
from holdfast.core.reruns import Origin, origin_of
from holdfast.core.spending import SPENT_PATH, Amounts, amounts_in, plain
from holdfast.core.summaries import is_step
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import Status
from holdfast.jobs.views.shapes import Shape, plain_value, spending_shape
from holdfast.jobs.views.step_names import name_steps

PAGE_CHARACTERS = 1 << 20
"""How much text the results of one page may have together, unless a single step has more."""

Relation = Literal["same", "differs", "only in the first", "only in the second"]


class StepPair(Struct, frozen=True):
    """One step in both runs, or in one of them."""

    path: str
    name: str
    """What `holdfast show` calls it."""
    relation: Relation
    one: Step | None
    other: Step | None
    one_spent: Amounts
    other_spent: Amounts


class Side(Struct, frozen=True):
    """One of the two runs."""

    job: Job
    status: Status
    ms: int | None
    """From its first claim or submission until its end; None while it runs."""
    origin: Origin | None


class Comparison(Struct, frozen=True):
    """Two runs side by side."""

    one: Side
    other: Side
    steps: tuple[StepPair, ...]

    def shape(self) -> Shape:
        """As JSON."""
        return {**self._runs(), "steps": [_pair_shape(pair) for pair in self.steps]}

    def page(self, after: str, limit: int) -> Shape:
        """As JSON, with a page of the steps: those that differ come first. A page also ends after PAGE_CHARACTERS."""
        ordered = sorted(self.steps, key=lambda pair: pair.relation == "same")
        paths = ["", *(pair.path for pair in ordered)]
        if after not in paths:
            raise Invalid(f"after={after[:80]!r}: neither run has this step; start again with the first page")
        begin = paths.index(after)
        end = begin + _fitting(ordered[begin : begin + limit])
        is_cut = end < len(ordered)
        cut = f"steps {begin + 1:,} to {end:,} of {len(ordered):,}, those that differ first; for more, add after=NEXT"
        return {
            **self._runs(),
            "steps": [_pair_shape(pair) for pair in ordered[begin:end]],
            "same": sum(pair.relation == "same" for pair in ordered),
            "total": len(ordered),
            "next": paths[end] if is_cut else None,
            "note": cut if is_cut else "",
        }

    def _runs(self) -> Shape:
        same = self.one.job.result == self.other.job.result
        return {"runs": [_side_shape(self.one), _side_shape(self.other)], "same_result": same}


async def view_comparison(jobs: Jobs, one: Job, other: Job) -> Comparison:
    """Read two runs and compare them."""
    first, second = await jobs.engine.steps(one.id), await jobs.engine.steps(other.id)
    left, right = _steps(first), _steps(second)
    spent, spent_too = _spent(first), _spent(second)
    names = _names(other, right, second) | _names(one, left, first)
    pairs = [
        StepPair(
            path,
            names[path],
            _relate(left.get(path), right.get(path)),
            left.get(path),
            right.get(path),
            spent.get(path, {}),
            spent_too.get(path, {}),
        )
        for path in dict.fromkeys([*left, *right])
    ]
    return Comparison(await _side(jobs, one, first), await _side(jobs, other, second), tuple(pairs))


def _names(job: Job, steps: Mapping[str, Step], records: Sequence[Step]) -> dict[str, str]:
    return name_steps(job, list(steps.values()), places_in(records))


def took(step: Step | None) -> int | None:
    """How long a step took, in milliseconds."""
    return None if step is None or step.finished_at is None else step.finished_at - step.started_at


async def _side(jobs: Jobs, job: Job, records: Sequence[Step]) -> Side:
    return Side(
        job=job,
        status=await jobs.status(job.id),
        ms=None if job.finished_at is None else job.finished_at - job.created_at,
        origin=origin_of(records),
    )


def _steps(records: Sequence[Step]) -> dict[str, Step]:
    return {record.path: record for record in records if is_step(record.path)}


def _spent(records: Sequence[Step]) -> dict[str, Amounts]:
    return {one.path.removeprefix(SPENT_PATH): amounts_in(one) for one in records if one.path.startswith(SPENT_PATH)}


def _relate(one: Step | None, other: Step | None) -> Relation:
    if one is None:
        return "only in the second"
    if other is None:
        return "only in the first"
    return "same" if (one.state, one.result, one.error) == (other.state, other.result, other.error) else "differs"


def _fitting(pairs: Sequence[StepPair]) -> int:
    """How many of these fit into a page; at least one, if there is any."""
    size = 0
    for number, pair in enumerate(pairs):
        size += sum(len(step.result or "") for step in (pair.one, pair.other) if step is not None)
        if number and size > PAGE_CHARACTERS:
            return number
    return len(pairs)


def _pair_shape(pair: StepPair) -> Shape:
    return {
        "path": pair.path,
        "name": pair.name,
        "relation": pair.relation,
        "results": [_result(pair.one), _result(pair.other)],
        "ms": [took(pair.one), took(pair.other)],
        "spent": [plain(pair.one_spent), plain(pair.other_spent)],
    }


def _result(step: Step | None) -> object:
    return None if step is None or step.state is not StepState.DONE else plain_value(step.result)


def _side_shape(side: Side) -> Shape:
    job, origin = side.job, side.origin
    return {
        "id": job.id,
        "type": job.type,
        "state": job.state,
        "result": plain_value(job.result),
        "ms": side.ms,
        **spending_shape(side.status),
        "origin": None if origin is None else {"job": origin.jobs[0], "how": origin.how, "at": origin.at},
    }
