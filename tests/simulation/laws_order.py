"""The laws of who comes when: ticks of a schedule, unique jobs, and keys that take turns."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations

from holdfast.core.model import Record, Time
from holdfast.core.schedules import SCHEDULE, iso, schedule_in
from holdfast.jobs.schedules import META_TICK
from tests.simulation.callers import SCHEDULED
from tests.simulation.check import TERMINAL, Run, law
from tests.simulation.lives import Life
from tests.simulation.orderly import SPELL_SECONDS
from tests.simulation.wire import START_AT

# Schedules.


@law
def a_tick_fires_at_most_once(run: Run) -> Iterator[str]:
    for tick, times in Counter(life.job.options.meta[META_TICK] for life in _ticked(run)).items():
        if times > 1:
            yield f"S45: the tick {tick} has {times} jobs"


@law
def a_tick_fires_if_a_worker_lives_through_it_and_only_then(run: Run) -> Iterator[str]:
    """Where nobody falls silent who lives: then it is known who lived through what."""
    if not run.plan.every or not run.only("kill", "massacre", "stop"):
        return
    fired = {life.job.options.meta[META_TICK] for life in _ticked(run)}
    lives = _lives_of_workers(run)
    for at in _ticks(run):
        there = [until for since, until in lives if since <= at and (until is None or at <= until)]
        if None in there and iso(at) not in fired:
            yield f"S46: the tick {iso(at)} never fired, and a worker has lived since before it"
        if not there and iso(at) in fired:
            yield f"S46: the tick {iso(at)} fired, and nobody lived then"


def _ticked(run: Run) -> list[Life]:
    return [life for life in run.lives.values() if META_TICK in life.job.options.meta]


def _ticks(run: Run) -> range:
    """The ticks from the declaration of the schedule on, until the faults were over."""
    for act in run.acts:
        if act.name == "put_record" and act.args[0] == SCHEDULE + SCHEDULED and isinstance(act.answer, Record):
            one = schedule_in(act.answer)
            assert one is not None
            every = one.definition.every_ms
            return range(one.start + every, _store_time(run.healed_at), every)
    return range(0)


def _lives_of_workers(run: Run) -> list[tuple[Time, Time | None]]:
    """Since when each worker lived, as it told the store, and until when: None if it outlived the schedule."""
    started: dict[str, Time] = {}
    for act in run.acts:
        if act.name == "beat":
            started.setdefault(act.args[0].worker, act.args[0].started_at)
    nodes = {node.worker.id: node for node in run.cast.nodes}
    ended = run.settled_at or run.now
    return [
        (since, None if (died := nodes[worker].died) is None or died > ended else _store_time(died))
        for worker, since in started.items()
    ]


def _store_time(at: float) -> Time:
    return START_AT + round(at * 1_000)


# Unique jobs.


@law
def of_unique_jobs_there_is_one(run: Run) -> Iterator[str]:
    """The next one comes when the last one has ended or its window is over, or in the act that cancels it."""
    alike: defaultdict[str, list[Life]] = defaultdict(list)
    for life in run.lives.values():
        if life.job.options.unique is not None:
            alike[life.job.options.unique.key].append(life)
    for lives in alike.values():
        lives.sort(key=lambda life: life.made[1].number)
        for old, new in combinations(lives, 2):
            between = new.job.created_at - old.job.created_at
            if new.job.type == "spell":
                if between < SPELL_SECONDS * 1_000:
                    yield f"S47: {new.name} was submitted {between} ms after {old.name}"
            elif old.job.state not in TERMINAL or old.made[old.job.version].number > new.made[1].number:
                yield f"S47: {new.name} was submitted while there was {old.name}, which is {old.job.state}"


# Turns.


@law
def between_two_starts_of_a_key_each_other_key_starts_once(run: Run) -> Iterator[str]:
    """As long as jobs of it wait. Those for whose time the clock has gone back don't."""
    if run.stage.store.clock.set_back_ms:
        return
    lives = [life for life in run.lives.values() if life.job.options.fair]
    starts: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for act in run.acts:
        if act.name == "claim" and act.ok:
            for place, job in enumerate(act.answer):
                if job.options.fair:
                    starts[job.queue].append((act.number, place, job.options.fair))
    for life in lives:
        claim = next((one.claim for one in life.tenures.values()), None)
        if claim is None:
            continue
        place = next(place for place, job in enumerate(claim.answer) if job.id == life.job.id)
        own = life.job.options.fair
        others: Counter[str] = Counter()
        for number, at, key in starts[life.job.queue]:
            if number <= life.made[1].number or (number, at) >= (claim.number, place):
                continue
            if key == own:
                others.clear()
            else:
                others[key] += 1
        if any(times > 1 for times in others.values()):
            yield f"S48: {life.name} of key {own} waited for {dict(others)} jobs of the other keys"
