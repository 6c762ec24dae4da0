"""Which inserts, jobs and changes may share a statement or a transaction on Postgres. Pure; must not write."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.core.model import Change, Event, Job, Lease
from holdfast.core.unique import UNIQUE

Order = tuple[Sequence[Job], Lease | None]
"""One caller's new jobs, and the lease of their parent."""


def is_turn(changes: Sequence[Change]) -> bool:
    """Whether one statement can make all these changes: none has cargo, and no two are about the same job."""
    return all(is_light(change) for change in changes) and len({change.job.id for change in changes}) == len(changes)


def is_plain(order: Order) -> bool:
    """Whether an insert can share a statement with others: it is never refused in part."""
    jobs, parent = order
    if parent is not None:
        return False
    if len(jobs) == 1:
        return True
    are_free = all(job.key is None and job.options.unique is None for job in jobs)
    return are_free and len({job.id for job in jobs}) == len(jobs)


def is_light(change: Change) -> bool:
    """Whether a change has no cargo, so that one statement can compare and write."""
    return not (
        change.steps
        or change.drops
        or change.drops_failed
        or change.edits
        or change.signal is not None
        or change.takes
        or change.arrives
        or change.inserts
        or change.event == Event.SUSPEND
    )


def one_of_each(jobs: Iterable[Job]) -> list[Job]:
    """The jobs, only the first of each id."""
    first: dict[str, Job] = {}
    for job in jobs:
        first.setdefault(job.id, job)
    return list(first.values())


def orders_apart(orders: Sequence[Order], indexes: Sequence[int]) -> Iterator[list[int]]:
    """Split inserts into groups, so that no group holds an id or a key twice."""
    if len(indexes) == 1:  # mostly a bulk insert; a plain one holds no id or key twice
        yield list(indexes)
        return
    group: list[int] = []
    seen: set[Any] = set()
    for index in indexes:
        names = {name for job in orders[index][0] for name in _names(job)}
        if not seen.isdisjoint(names):
            yield group
            group, seen = [], set()
        group.append(index)
        seen |= names
    if group:
        yield group


def jobs_apart(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Split the jobs of one insert into groups, so that no group holds an id or a key twice."""
    orders = [((job,), None) for job in jobs]
    for indexes in orders_apart(orders, range(len(orders))):
        yield [jobs[index] for index in indexes]


def _names(job: Job) -> list[Any]:
    names: list[Any] = [job.id] if job.key is None else [job.id, (job.type, job.key)]
    return names if job.options.unique is None else [*names, (UNIQUE, job.options.unique.key)]


def waves(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """Split changes into groups that can be made at once: no two touch the same thing; light ones come alone."""
    wave: list[Change] = []
    seen: set[Any] = set()
    for change in changes:
        ids = {change.job.id, *(name for job in change.inserts for name in _names(job))}
        apart = bool(wave) and (
            bool(ids & seen)
            or is_light(change) != is_light(wave[-1])
            or Event.SUSPEND in (change.event, wave[-1].event)
        )
        if apart:
            yield wave
            wave, seen = [], set()
        wave.append(change)
        seen |= ids
    if wave:
        yield wave
