"""The laws of shared limits: how many at once, how many in a period, who waits, and for how long."""

from collections import defaultdict
from collections.abc import Iterator

from holdfast.core.shared_limits import UNIT, limit_of
from tests.simulation.check import ROUGH, Run, law
from tests.simulation.laws_outside import could_take, ready_since
from tests.simulation.ledger import Ledger, Waiter
from tests.simulation.plan import VIOLENT
from tests.simulation.shapes import TEMPLATE

HEALED_SECONDS = 12.0
"""So long after the faults nobody waits for an answer any more that was lost, or sleeps because it heard nothing."""

USED_SECONDS = 1.0
"""How soon a permit that is free is used by somebody who waits for it, besides the time that calls take."""


def ledger_of(run: Run) -> Ledger:
    """What the acts of a run say about permits, read once."""
    if run.ledger is None:
        run.ledger = Ledger(run.lives, run.stage.store.clock.shift_ms).read(run.acts)
    return run.ledger


@law
def no_more_permits_are_held_than_the_limit_allows(run: Run) -> Iterator[str]:
    for one in ledger_of(run).grants:
        most = one.settings.at_once
        if most is not None and one.others >= most:
            key, job, path = one.name
            yield f"S40: {path or 'a job'} of {job[-6:]} started as number {one.others + 1} of {most} under {key}"


@law
def no_window_of_a_rate_is_exceeded(run: Run) -> Iterator[str]:
    """By the store's clock, wherever somebody set it."""
    starts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    rates = {limit.name: limit for limit in TEMPLATE.registry.limits() if limit.rate is not None}
    for one in ledger_of(run).grants:
        if limit_of(one.name[0]) in rates:
            starts[one.name[0]].append((one.act.store_at, one.units))
    for key, found in starts.items():
        limit = rates[limit_of(key)]
        most, period = int((limit.rate or "").partition("/")[0]) * UNIT, limit.settings.period_ms
        found.sort()
        for at, _ in found:
            units = sum(units for other, units in found if at <= other < at + period)
            if units > most:
                yield f"S42: {units / UNIT:g} units started under {key} within {period} ms, of {limit.rate}"
                break


@law
def nothing_starts_under_a_closed_limit(run: Run) -> Iterator[str]:
    for one in ledger_of(run).grants:
        if one.closed_until > one.act.store_at:
            wait = one.closed_until - one.act.store_at
            yield f"S44: {one.name[2] or 'a job'} started under {one.name[0]}, closed for {wait} ms more"


@law
def a_permit_ends_with_the_record_of_its_step(run: Run) -> Iterator[str]:
    for act, (key, job, path) in ledger_of(run).kept:
        yield f"S43: {path} of {job[-6:]} was recorded at {act.at:.3f} and kept its permit of {key}"


@law
def a_free_permit_is_used_soon(run: Run) -> Iterator[str]:
    """By a step in line, or by a job that gave up its slot or was never claimed, if a worker has a slot for it."""
    rough = any(errand.shape in VIOLENT | ROUGH for errand in run.plan.errands)
    if rough or run.stage.store.clock.set_back_ms:  # then jobs wait for their time once more
        return
    ledger, begin = ledger_of(run), 1.0 if run.plan.is_calm else run.healed_at + HEALED_SECONDS
    bound = USED_SECONDS + 30 * run.plan.odds.quick_seconds + 20 * run.plan.lateness
    end = run.settled_at or run.now
    for one in _waiters(run, ledger):
        for since, until in ledger.room(one.key, max(begin, one.since), min(end, one.until or end)):
            if until - since > bound and _could_start(run, one, since, until):
                what = one.path or "a job"
                yield f"S41: {what} of {one.job[-6:]} waited {until - since:.2f} s from {since:.3f} for {one.key}, free"


def _waiters(run: Run, ledger: Ledger) -> Iterator[Waiter]:
    yield from ledger.waiters
    yield from ledger.parked()
    for life in run.lives.values():
        keys = [use.key for use in life.job.options.limits]
        for tenure in life.tenures.values():
            since = ready_since(life, tenure)
            if len(keys) == 1 and since is not None and tenure.claim is not None:
                yield Waiter(keys[0], life.job.id, "", tenure.epoch, since, tenure.claim.at)


def _could_start(run: Run, waiter: Waiter, since: float, until: float) -> bool:
    life = run.lives[waiter.job]
    if not waiter.path:
        return any(could_take(run, node, life, since, until) for node in run.cast.nodes)
    tenure = life.tenures[waiter.epoch]
    node = next(node for node in run.cast.nodes if node.worker.id == tenure.worker)
    leaves = [leave.at for leave in run.cast.leaves if leave.node is node]
    return not any(at < until for at in (node.died, *leaves) if at is not None)
