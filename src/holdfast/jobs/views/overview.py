"""The state of a store: queues, workers, running jobs, and jobs that need a person. Must not change anything."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Job, Presence, State, Time, Where
from holdfast.jobs.pauses import Pause
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import Status
from holdfast.jobs.views.shapes import Shape, error_shape, status_shape, time_text

ACTIVE_SHOWN = 20
REVIEW_SHOWN = 5
"""How many jobs an overview shows. It then says how to see the rest."""

TYPES_SHOWN = 10
"""How many job types a line names."""

SILENT_MS = 10_000
"""A worker sends a heartbeat every two seconds. Without one for this long, it is called silent."""

ALIVE, SILENT, GONE = "alive", "silent", "gone"
"""The state of a worker: alive, without a heartbeat for a while, known to be dead."""

WORKER_MEANINGS = {
    ALIVE: "",
    SILENT: "no heartbeat for a while; when its lease expires, another worker takes over its jobs",
    GONE: "it died; another worker takes over its jobs",
}


class QueueSummary(Struct, frozen=True, kw_only=True):
    """A queue: its jobs by state, whether it is paused, and how many living workers serve it.

    `unknown` are the types of waiting jobs that none of these workers knows.
    """

    name: str
    counts: Mapping[State, int]
    pause: Pause | None
    workers: int
    unknown: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All stored jobs."""
        return sum(self.counts.values())

    @property
    def ended(self) -> int:
        """Jobs that have ended."""
        return sum(number for state, number in self.counts.items() if state in TERMINAL)

    @property
    def waiting(self) -> int:
        """Jobs that wait for a worker, now or when they are due."""
        return sum(self.counts.get(state, 0) for state in (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE))

    def shape(self) -> Shape:
        """As JSON."""
        return {
            "name": self.name,
            "paused": self.pause is not None,
            "paused_by": None if self.pause is None else self.pause.by,
            "paused_at": None if self.pause is None else time_text(self.pause.at),
            "reason": None if self.pause is None else self.pause.reason,
            "workers": self.workers,
            "unknown_types": list(self.unknown),
            "jobs": {state.value: self.counts.get(state, 0) for state in State},
        }


class Overview(Struct, frozen=True, kw_only=True):
    """A whole store at one moment."""

    place: str
    now: Time
    queues: tuple[QueueSummary, ...]
    workers: tuple[Presence, ...]
    active: tuple[Status, ...]
    review: tuple[Job, ...]

    @property
    def alive(self) -> list[Presence]:
        """Workers with a recent heartbeat."""
        return [worker for worker in self.workers if is_alive(worker, self.now)]

    def total(self, state: State) -> int:
        """Return how many jobs are in a state, in all queues."""
        return sum(queue.counts.get(state, 0) for queue in self.queues)

    def progress(self) -> object:
        """Return a value that changes when something happens, but not just because time passes."""
        counts = [(queue.name, queue.pause, tuple(sorted(queue.counts.items()))) for queue in self.queues]
        return counts, [(one.id, one.progress()) for one in self.active], [worker.worker for worker in self.workers]

    def shape(self) -> Shape:
        """As JSON."""
        return {
            "store": self.place,
            "at": time_text(self.now),
            "queues": [queue.shape() for queue in self.queues],
            "workers": len(self.alive),
            "active": [status_shape(one) for one in self.active],
            "review": [
                {"id": job.id, "type": job.type, "queue": job.queue, "error": error_shape(job.error)}
                for job in self.review
            ],
        }


def worker_state(worker: Presence, now: Time) -> str:
    """Return the state of a worker: alive, silent or gone."""
    if worker.gone:
        return GONE
    return SILENT if now - worker.beat_at > SILENT_MS else ALIVE


def is_alive(worker: Presence, now: Time) -> bool:
    """Return whether a worker has a recent heartbeat."""
    return worker_state(worker, now) == ALIVE


async def view_queues(jobs: Jobs) -> tuple[QueueSummary, ...]:
    """Return every queue that has jobs, is paused, or is served by a worker."""
    counts, pauses, now = await jobs.engine.count(), await jobs.pauses(), await jobs.engine.now()
    alive = [worker for worker in await jobs.workers() if is_alive(worker, now)]
    names = {queue for queue, _ in counts} | set(pauses) | {queue for worker in alive for queue in worker.queues}
    found = [
        QueueSummary(
            name=name,
            counts={state: number for (queue, state), number in counts.items() if queue == name},
            pause=pauses.get(name),
            workers=sum(name in worker.queues for worker in alive),
            unknown=await _unknown_types(jobs, name, alive) if counts.get((name, State.AVAILABLE)) else (),
        )
        for name in sorted(names)
    ]
    return tuple(found)


async def _unknown_types(jobs: Jobs, queue: str, alive: Sequence[Presence]) -> tuple[str, ...]:
    """Return the types of waiting jobs that none of the queue's living workers knows. Empty if it has no workers."""
    serving = [worker.types for worker in alive if queue in worker.queues]
    if not serving or None in serving:  # a worker that doesn't report its types may know any
        return ()
    known = {type for types in serving for type in types or ()}
    return tuple(type for type in await jobs.engine.ready_types(queue) if type not in known)


async def view_store(jobs: Jobs, place: str) -> Overview:
    """Return the store as it is now. The lists are bounded; the counts are not."""
    engine = jobs.engine
    active = await engine.find(Where(states=(State.ACTIVE,)), limit=ACTIVE_SHOWN)
    return Overview(
        place=place,
        now=await engine.now(),
        queues=await view_queues(jobs),
        workers=tuple(await jobs.workers()),
        active=tuple(await jobs.statuses(active)),
        review=tuple(await engine.find(Where(states=(State.REVIEW,), newest_first=True), limit=REVIEW_SHOWN)),
    )


def type_words(types: Sequence[str]) -> str:
    """Name the types of waiting jobs."""
    return f"{'the type' if len(types) == 1 else 'the types'} of waiting jobs {list_types(types)}"


def list_types(types: Sequence[str]) -> str:
    """List types, but not too many."""
    return ", ".join(
        [*types[:TYPES_SHOWN], *([f"{len(types) - TYPES_SHOWN:,} more"] if len(types) > TYPES_SHOWN else [])]
    )
