"""The jobs that need a person, each with its open decisions and possible actions. Must not change anything."""

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.lifecycle import EVENTS
from holdfast.core.model import PAGE_LIMIT, Job, State, Time, Where
from holdfast.jobs.selections import Selection, count
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.in_doubt import StepInDoubt, steps_in_doubt, steps_that_may_not_fit
from holdfast.jobs.views.shapes import Shape, error_shape, time_text

POSSIBLE = tuple(
    row.event.value for row in EVENTS if State.REVIEW in row.sources and {"caller", "person"} & set(row.who.split(", "))
)
"""What a person can do about a job in review."""


class ReviewView(Struct, frozen=True):
    """A job in review: since when, which steps a person must decide, and which decisions they can correct."""

    job: Job
    since: Time
    in_doubt: tuple[StepInDoubt, ...]
    may_not_fit: tuple[StepInDoubt, ...]

    def shape(self) -> Shape:
        """As JSON."""
        return {
            "id": self.job.id,
            "type": self.job.type,
            "queue": self.job.queue,
            "since": time_text(self.since),
            "failed_attempts": self.job.attempt - 1,
            "recoveries": self.job.recoveries,
            "error": error_shape(self.job.error),
            "in_doubt": [one.path for one in self.in_doubt],
            "possible": list(POSSIBLE),
        }


async def view_reviews(
    jobs: Jobs, chosen: Selection | None = None, limit: int = PAGE_LIMIT
) -> tuple[list[ReviewView], int]:
    """Return the newest jobs in review, up to a limit, and how many there are in total."""
    chosen = chosen or Selection()
    where = Where(states=(State.REVIEW,), type=chosen.type, queue=chosen.queue, newest_first=True)
    found = await jobs.engine.find(where, limit=limit)
    if len(found) < limit:
        total = len(found)
    elif chosen.type is not None:
        total = (await count(jobs.engine, replace(chosen, states=(State.REVIEW,)))).total()
    else:
        counts = (await jobs.engine.count()).items()
        total = sum(
            number for (queue, state), number in counts if state is State.REVIEW and chosen.queue in (None, queue)
        )
    return [await _view(jobs, job) for job in found], total


async def _view(jobs: Jobs, job: Job) -> ReviewView:
    steps, history = await jobs.engine.steps(job.id), await jobs.history(job.id)
    brought = [entry for entry in history if entry.before is not State.REVIEW]  # signals may have arrived since
    return ReviewView(
        job=job,
        since=brought[-1].at if brought else job.created_at,
        in_doubt=tuple(steps_in_doubt(job, steps)),
        may_not_fit=tuple(steps_that_may_not_fit(job, steps, history)),
    )
