"""The state of a store: queues, workers, running jobs, and jobs that need a person. Must not change anything."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.core.alerts import ALERT, Raised, event_of, raised_in
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Job, Presence, State, Time, Wait, Where
from holdfast.core.queue_bounds import depth_of
from holdfast.engines.contract import Engine
from holdfast.jobs.full_queues import BoundRecord, read_bounds
from holdfast.jobs.pauses import Pause
from holdfast.jobs.questions import asks, is_question
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import Status
from holdfast.jobs.views.shapes import Shape, error_shape, status_shape, time_text

ACTIVE_SHOWN = 20
REVIEW_SHOWN = 5
ASKING_SHOWN = 5
"""How many jobs an overview shows. It then says how to see the rest."""

PENDING_LOOKED_AT = 200
"""How many pending jobs an overview looks at for open questions, oldest first."""

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
    """A queue: its jobs by state, whether it is paused, and how many running workers serve it.

    `unknown` are the types of waiting jobs that none of these workers knows.
    """

    name: str
    counts: Mapping[State, int]
    pause: Pause | None
    workers: int
    unknown: tuple[str, ...] = ()
    lacking: Mapping[str, tuple[str, ...]] = {}
    """Types of waiting jobs that running workers know and can't run, and what they lack for it."""
    bound: BoundRecord = BoundRecord()

    @property
    def depth(self) -> int:
        """Jobs that wait to start, which the queue's bound counts."""
        return depth_of({(self.name, state): number for state, number in self.counts.items()}, self.name)

    @property
    def most_waiting(self) -> int | None:
        """How many jobs may wait, if the queue has a bound."""
        found = self.bound.now(self.name)
        return None if found is None else found.most_waiting

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
            "depth": self.depth,
            "most_waiting": self.most_waiting,
            "when_full": None if (bound := self.bound.now(self.name)) is None else bound.when_full,
            "bound_set_by": None if self.bound.person is None else self.bound.person.by,
            "lacking": {type: list(words) for type, words in self.lacking.items()},
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
    asking: tuple[Job, ...] = ()
    """Suspended jobs that wait for a person's answer; one more than is shown if there are more."""
    alerts: tuple[Raised, ...] = ()

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
        asking = [job.id for job in self.asking]
        return counts, [(one.id, one.progress()) for one in self.active], asking, [one.worker for one in self.workers]

    def shape(self) -> Shape:
        """As JSON."""
        return {
            "store": self.place,
            "at": time_text(self.now),
            "queues": [queue.shape() for queue in self.queues],
            "workers": len(self.alive),
            "alerts": [
                {
                    "kind": one.alert.kind,
                    "queue": one.alert.queue or None,
                    "since": time_text(one.since),
                    "text": raised_words(one),
                }
                for one in self.alerts
            ],
            "active": [status_shape(one) for one in self.active],
            "review": [
                {"id": job.id, "type": job.type, "queue": job.queue, "error": error_shape(job.error)}
                for job in self.review
            ],
            "asking": [
                {"id": job.id, "type": job.type, "queue": job.queue, "until": time_text(question_wait(job).until)}
                for job in self.asking[:ASKING_SHOWN]
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
    bounds = await read_bounds(jobs.engine)
    names = {queue for queue, _ in counts} | set(pauses) | {queue for worker in alive for queue in worker.queues}
    names |= set(bounds)
    stuck = {
        name: await _unserved_types(jobs, name, alive) if counts.get((name, State.AVAILABLE)) else ((), {})
        for name in names
    }
    found = [
        QueueSummary(
            name=name,
            counts={state: number for (queue, state), number in counts.items() if queue == name},
            pause=pauses.get(name),
            workers=sum(name in worker.queues for worker in alive),
            unknown=stuck[name][0],
            lacking=stuck[name][1],
            bound=bounds.get(name, BoundRecord()),
        )
        for name in sorted(names)
    ]
    return tuple(found)


async def _unserved_types(
    jobs: Jobs, queue: str, alive: Sequence[Presence]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the types of waiting jobs that none of the queue's running workers takes. Empty if it has no workers.

    First those that none knows; then those that some know and lack something for, with what they lack.
    """
    serving = [worker for worker in alive if queue in worker.queues]
    if not serving or any(worker.types is None for worker in serving):  # one that reports no types may know any
        return (), {}
    known = {type for worker in serving for type in worker.types or ()}
    lacks = {type: words for worker in serving for type, words in worker.lacks.items()}
    left = [type for type in await jobs.engine.ready_types(queue) if type not in known]
    return tuple(type for type in left if type not in lacks), {type: lacks[type] for type in left if type in lacks}


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
        asking=await _asking(engine),
        alerts=tuple(one for record in await engine.records(ALERT) if (one := raised_in(record)) is not None),
    )


async def _asking(engine: Engine) -> tuple[Job, ...]:
    pending = await engine.find(Where(states=(State.PENDING,)), limit=PENDING_LOOKED_AT)
    return tuple([job for job in pending if asks(job)][: ASKING_SHOWN + 1])


def question_wait(job: Job) -> Wait:
    """Return the wait of a suspended job for a person's answer."""
    return next(wait for wait in job.waits if is_question(wait))


def raised_words(one: Raised) -> str:
    """Say what a raised alert is about: how it was when it was raised."""
    return str(event_of(one, one.value, one.since, is_over=False))


def type_words(types: Sequence[str]) -> str:
    """Name the types of waiting jobs."""
    return f"{'the type' if len(types) == 1 else 'the types'} of waiting jobs {list_types(types)}"


def lacking_words(queue: QueueSummary) -> list[str]:
    """Say which jobs of a queue nobody can run, and what workers lack for it."""
    return [
        f"{queue.name}: no running worker can run the waiting jobs of type {type}, which need {' and '.join(words)}"
        for type, words in queue.lacking.items()
    ]


def list_types(types: Sequence[str]) -> str:
    """List types, but not too many."""
    return ", ".join(
        [*types[:TYPES_SHOWN], *([f"{len(types) - TYPES_SHOWN:,} more"] if len(types) > TYPES_SHOWN else [])]
    )
