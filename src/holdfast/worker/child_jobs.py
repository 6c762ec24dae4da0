"""Child jobs: what a job submits while it runs, and a child for each item of a list.

Must not know apps. A child's id is derived from its parent, so it is submitted once, however often the parent runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.errors import BadValue, Invalid, LeaseLost
from holdfast.core.keys import derived_id
from holdfast.core.model import Time
from holdfast.jobs.failures import failure_of
from holdfast.jobs.service import JobRequest, Jobs
from holdfast.worker.attempt import Attempt
from holdfast.worker.children import Outcome, group_wait, known_children, window_wait
from holdfast.worker.context import PATH
from holdfast.worker.held_job import LOST
from holdfast.worker.maps import Taken, Tally, map_window
from holdfast.worker.registry import JobSpec
from holdfast.worker.suspension import Suspension
from holdfast.worker.tries import Stopped

Prepare = Callable[[Any], tuple[JobRequest, BadValue | None]]
"""Makes the request for an item. The second value says why JSON would change the item; then no child may be made."""


async def store_time(attempt: Attempt) -> Time:
    """Return the store's time. While the store is unreachable, wait for it."""
    with attempt.activity():
        return await attempt.persist(attempt.engine.now)


async def submit_children(
    attempt: Attempt, spec: JobSpec, requests: Sequence[JobRequest], now: Time, refused: Mapping[str, BadValue]
) -> list[tuple[str, bool]]:
    """Submit children that each wake their parent. Return their ids, and whether each is our own child.

    A key may belong to a job that somebody else submitted. `refused` maps encoded arguments for which no new child may
    be made to the reason.
    """
    ids = [_derive_id(attempt, _submit_group(spec), f"{one.args}\n{one.key or ''}") for one in requests]
    for id, request in zip(ids, requests, strict=True) if refused else ():
        if request.args in refused and not await _is_submitted(attempt, id):
            raise refused[request.args]
    accepted = await _insert(attempt, requests, ids, ids, now)
    return [(id, id == ours) for id, ours in zip(accepted, ids, strict=True)]


async def map_group(
    attempt: Attempt,
    spec: JobSpec,
    tally: Tally[Any],
    prepare: Prepare,
    name_of: Callable[[Any], str] | None,
    now: Time,
) -> list[Any]:
    """Submit a child for each item, all in one group: only the last one to settle wakes the parent.

    `name_of` identifies an item's child by a value of the item instead of by its arguments.
    """
    name = f"~map:{spec.type}"
    group = f"{name}#{attempt.journal.calls.number(PATH.get() + name)}"
    taken: list[Taken[Any]] = []
    ids: list[str] = []
    requests: list[JobRequest] = []

    async def insert() -> None:
        await _insert(attempt, requests, ids[-len(requests) :], [group] * len(requests), now)
        requests.clear()

    while (one := tally.take()) is not None:
        try:
            request, refusal = prepare(one.item)
        except Invalid as error:
            tally.fail(one, error)
            continue
        id = _derive_id(attempt, group, request.args if name_of is None else name_of(one.item))
        if refusal is not None and not await _is_submitted(attempt, id):
            tally.fail(one, refusal)
            continue
        taken.append(one)
        ids.append(id)
        requests.append(request)
        if len(requests) == attempt.engine.insert_at_once:
            await insert()
    if requests:
        await insert()
    outcomes = await Suspension.of(attempt).wait(group_wait(attempt, ids, group)) if ids else []
    for one, outcome in zip(taken, outcomes, strict=True):
        _settle(spec, tally, one, outcome)
    return tally.outcome()


async def map_bounded(
    attempt: Attempt, spec: JobSpec, tally: Tally[Any], prepare: Prepare, at_once: int, now: Time
) -> list[Any]:
    """Submit a child for each item, with at most `at_once` of them unsettled at any time."""
    taken: dict[str, Taken[Any]] = {}

    async def submit(items: Sequence[Taken[Any]]) -> None:
        ids: list[str] = []
        requests: list[JobRequest] = []
        for one in items:
            try:
                request, refusal = prepare(one.item)
            except Invalid as error:
                tally.fail(one, error)
                continue
            id = _derive_id(attempt, _submit_group(spec), f"{request.args}\n")
            if refusal is not None and not await _is_submitted(attempt, id):
                tally.fail(one, refusal)
                continue
            taken[id] = one
            ids.append(id)
            requests.append(request)
        if requests:
            await _insert(attempt, requests, ids, ids, now)

    async def settle() -> None:
        for id, outcome in (await Suspension.of(attempt).wait(window_wait(attempt, list(taken)))).items():
            _settle(spec, tally, taken.pop(id), outcome)

    return await map_window(tally, at_once, taken, submit, settle)


def _settle(spec: JobSpec, tally: Tally[Any], one: Taken[Any], outcome: Outcome) -> None:
    if outcome.job is not None:
        tally.fail(one, failure_of(outcome.job, is_inside=True))
    else:
        tally.succeed(one, spec.signature.result.decode(outcome.result or "null"))


async def _insert(
    attempt: Attempt, requests: Sequence[JobRequest], ids: Sequence[str], groups: Sequence[str], now: Time
) -> list[str]:
    """Insert children, unless an earlier lease of this job has done so. Return the ids of the jobs."""
    try:
        with attempt.activity():
            known = await known_children(attempt)
            if all(id in known for id in ids):
                return list(ids)
            await attempt.admit()
            jobs, lease = Jobs(attempt.engine), attempt.job.lease
            accepted = await attempt.persist(lambda: jobs.submit(requests, lease, ids=ids, groups=groups, now=now))
    except LeaseLost as error:
        attempt.halt(LOST)
        raise Stopped(str(error)) from error
    return [one.id for one in accepted]


async def _is_submitted(attempt: Attempt, id: str) -> bool:
    """Whether an earlier lease of this job has submitted this child. Then it needs no arguments from us."""
    with attempt.activity():
        return id in await known_children(attempt)


def _submit_group(spec: JobSpec) -> str:
    return f"~submit:{spec.type}"


def _derive_id(attempt: Attempt, group: str, name: str) -> str:
    """Return a child's id: the same on every run of its parent, but different for each equal child."""
    call = f"{attempt.journal.calls.first_path(PATH.get())}/{group}\n{name}"
    return derived_id(attempt.job.id, f"{call}\n{attempt.journal.calls.number(call)}")
