"""What the store holds now, as metrics. Must not read a job's arguments, or more than a bounded number of rows."""

from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast.core.model import State, Time, Where
from holdfast.engines.contract import Engine
from holdfast.jobs.built_in import OWN_QUEUE
from holdfast.jobs.limits import LimitView, list_limits
from holdfast.jobs.queue_ages import oldest_due_ms
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.overview import is_alive
from holdfast.jobs.views.waits import WAITED_FOR, WaitedFor, waited_for
from holdfast.telemetry.metrics import (
    JOBS,
    LIMIT_CLOSED,
    LIMIT_HELD,
    OLDEST_DUE,
    QUEUE_PAUSED,
    REVIEW_DEPTH,
    SLOTS,
    STORE_UP,
    WAITING,
    WORKERS,
    Labels,
    sample_lines,
)

QUEUES_SHOWN = 1_000
"""How many queues have numbers of their own."""

QUEUES_AGED = 100
"""For how many queues the oldest waiting job is looked up, the deepest first."""

LIMITS_SHOWN = 100
"""How many shared limits have numbers of their own."""

WAITS_READ = 500
"""Of how many pending jobs it is read what they wait for, the oldest first. Further ones count as `other`."""

Counts = Mapping[tuple[str, State], int]


async def store_lines(jobs: Jobs) -> list[str]:
    """Read the store and return what it holds in Prometheus' text format."""
    engine = jobs.engine
    now, counts, pauses = await engine.now(), await engine.count(), await jobs.pauses()
    queues = sorted({queue for queue, _ in counts} | set(pauses))[:QUEUES_SHOWN]
    # A server that keeps the store in order has a heartbeat, too, but runs no jobs of users.
    alive = [one for one in await jobs.workers() if is_alive(one, now) and set(one.queues) != {OWN_QUEUE}]
    slots, busy = sum(one.slots for one in alive), sum(len(one.running) for one in alive)
    shown: dict[Labels, float] = {
        (queue, state.value): counts.get((queue, state), 0) for queue in queues for state in State
    }
    limits, totals = await list_limits(engine), _totals(counts)
    return [
        *sample_lines(JOBS, shown),
        *sample_lines(OLDEST_DUE, await _ages(engine, counts, now)),
        *sample_lines(QUEUE_PAUSED, {(queue,): int(queue in pauses) for queue in queues}),
        *sample_lines(REVIEW_DEPTH, {(): totals[State.REVIEW]}),
        *sample_lines(WORKERS, {(): len(alive)}),
        *sample_lines(SLOTS, {("busy",): busy, ("free",): max(0, slots - busy)}),
        *sample_lines(WAITING, await _waits(engine, totals, limits)),
        *_limit_lines(limits[:LIMITS_SHOWN], now),
        *sample_lines(STORE_UP, {(): 1}),
    ]


async def _ages(engine: Engine, counts: Counts, now: Time) -> dict[Labels, float]:
    """Return the seconds of the queues' oldest waiting jobs; 0 for a queue in which nothing is due."""
    waiting = {queue: number for (queue, state), number in counts.items() if state is State.AVAILABLE and number}
    deepest = sorted(waiting, key=lambda queue: (-waiting[queue], queue))[:QUEUES_AGED]
    ages: dict[Labels, float] = {(queue,): 0 for queue in sorted({queue for queue, _ in counts})[:QUEUES_SHOWN]}
    for queue in deepest:
        ages[(queue,)] = await oldest_due_ms(engine, queue, now) / 1_000
    return ages


async def _waits(engine: Engine, totals: Counter[State], limits: Iterable[LimitView]) -> dict[Labels, float]:
    """Return how many jobs wait for what. A limit says itself how many jobs it keeps waiting, in any state."""
    pending = await engine.find(Where(states=(State.PENDING,)), limit=WAITS_READ) if totals[State.PENDING] else []
    found: Counter[WaitedFor] = Counter(kind for job in pending for kind in waited_for(job.waits))
    found["time"] += totals[State.SCHEDULED] + totals[State.RETRYABLE]
    found["limit"] = sum(use.waiting for one in limits for use in one.usage)
    found["other"] += max(0, totals[State.PENDING] - len(pending))
    return {(kind,): found[kind] for kind in WAITED_FOR}


def _totals(counts: Counts) -> Counter[State]:
    totals: Counter[State] = Counter()
    for (_, state), number in counts.items():
        totals[state] += number
    return totals


def _limit_lines(views: Iterable[LimitView], now: Time) -> list[str]:
    held: dict[Labels, float] = {(one.name,): sum(use.held for use in one.usage) for one in views}
    closed: dict[Labels, float] = {(one.name,): sum(use.closed_until > now for use in one.usage) for one in views}
    return [*sample_lines(LIMIT_HELD, held), *sample_lines(LIMIT_CLOSED, closed)]
