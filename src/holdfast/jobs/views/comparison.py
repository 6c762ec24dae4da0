"""Two runs side by side: their results, steps, time and money. Must not change anything."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from holdfast.core.model import Job, Step, StepState
from holdfast.core.places import places_in
from holdfast.core.reruns import Origin, origin_of
from holdfast.core.spending import SPENT_PATH, Amounts, amounts_in, plain
from holdfast.core.summaries import is_step
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import Status
from holdfast.jobs.views.shapes import Shape, plain_value, spending_shape
from holdfast.jobs.views.step_names import name_steps

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
        return {
            "runs": [_side_shape(self.one), _side_shape(self.other)],
            "same_result": self.one.job.result == self.other.job.result,
            "steps": [
                {
                    "path": pair.path,
                    "name": pair.name,
                    "relation": pair.relation,
                    "results": [_result(pair.one), _result(pair.other)],
                    "ms": [took(pair.one), took(pair.other)],
                    "spent": [plain(pair.one_spent), plain(pair.other_spent)],
                }
                for pair in self.steps
            ],
        }


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
