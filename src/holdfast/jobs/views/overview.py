"""What is going on in a store: queues, workers, what runs, and what needs a person. Must not change anything."""

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
"""How many jobs an overview shows; then it says how to see the rest."""

TYPES_SHOWN = 10
"""How many job types a line names."""

SILENT_MS = 10_000
"""A worker beats every two seconds; one not heard of for so long is called silent."""

ALIVE, SILENT, GONE = "alive", "silent", "gone"
"""How a worker is: heard of, not heard of for a while, seen dead."""

WORKER_MEANINGS = {
    ALIVE: "",
    SILENT: "not heard of for a while; its jobs are taken over when its lease is over",
    GONE: "it died; another worker takes over what it held",
}


class QueueSummary(Struct, frozen=True, kw_only=True):
    """A queue: its jobs by state, whether it is paused, and how many living workers serve it.

    `unknown` are the types of jobs that wait there and that none of these workers knows.
    """

    name: str
    counts: Mapping[State, int]
    pause: Pause | None
    workers: int
    unknown: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All its jobs that are kept."""
        return sum(self.counts.values())

    @property
    def ended(self) -> int:
        """Those that have ended."""
        return sum(number for state, number in self.counts.items() if state in TERMINAL)

    @property
    def waiting(self) -> int:
        """Those that want a worker, now or at their time."""
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
        """The workers that were heard of lately."""
        return [worker for worker in self.workers if is_alive(worker, self.now)]

    def total(self, state: State) -> int:
        """How many jobs are in a state, over all queues."""
        return sum(queue.counts.get(state, 0) for queue in self.queues)

    def progress(self) -> object:
        """What changes when something has happened. Time passing is not among it."""
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
    """How a worker is: alive, silent or gone."""
    if worker.gone:
        return GONE
    return SILENT if now - worker.beat_at > SILENT_MS else ALIVE


def is_alive(worker: Presence, now: Time) -> bool:
    """Whether a worker was heard of lately."""
    return worker_state(worker, now) == ALIVE


async def view_queues(jobs: Jobs) -> tuple[QueueSummary, ...]:
    """Every queue that has jobs, is paused, or is served."""
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
    """The types that wait in a queue and that none of its living workers knows. Where it has none, that is told."""
    serving = [worker.types for worker in alive if queue in worker.queues]
    if not serving or None in serving:  # one that doesn't tell its types may know any
        return ()
    known = {type for types in serving for type in types or ()}
    return tuple(type for type in await jobs.engine.ready_types(queue) if type not in known)


async def view_store(jobs: Jobs, place: str) -> Overview:
    """The store as it is now. The lists are bounded; the counts are not."""
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
    """Types of jobs that wait, named."""
    return f"{'the type' if len(types) == 1 else 'the types'} of waiting jobs {list_types(types)}"


def list_types(types: Sequence[str]) -> str:
    """Types in a row, but not too many."""
    return ", ".join(
        [*types[:TYPES_SHOWN], *([f"{len(types) - TYPES_SHOWN:,} more"] if len(types) > TYPES_SHOWN else [])]
    )
