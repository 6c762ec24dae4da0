"""Child jobs: what a job submits while it runs, and a child for each item of a list.

Must not know apps. A child's id is derived from its parent, so it is submitted once, however often the parent runs.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.core.budgets import drawing_on
from holdfast.core.errors import BadValue, Duplicate, Invalid, LeaseLost, NotAllowed, Refused
from holdfast.core.keys import derived_id
from holdfast.core.model import State, Time, Where
from holdfast.jobs.failures import failure_of
from holdfast.jobs.room import find_arrivals
from holdfast.jobs.service import JobRequest, Jobs
from holdfast.worker.attempt import Attempt
from holdfast.worker.children import Outcome, group_wait, known_children, window_wait
from holdfast.worker.context import PATH
from holdfast.worker.held_job import LOST
from holdfast.worker.maps import Taken, Tally, map_window
from holdfast.worker.records import record_info
from holdfast.worker.registry import JobSpec
from holdfast.worker.suspension import Suspension
from holdfast.worker.tries import Stopped

UNIQUE_PATH = "~unique/"
"""The path under which a job records which job was found instead of a unique child that it submitted."""


class TooManyChildren(NotAllowed, Invalid):
    """The code of a job submits more children than its type may. Another attempt would do the same, so it is final."""


Prepare = Callable[[Any], tuple[JobRequest, BadValue | None]]
"""Makes the request for an item. The second value says why JSON would change the item; then no child may be made."""


async def store_time(attempt: Attempt) -> Time:
    """Return the store's time. While the store is unreachable, wait for it."""
    with attempt.activity():
        return await attempt.persist(attempt.engine.now)


async def submit_children(
    attempt: Attempt, type: str, requests: Sequence[JobRequest], now: Time, refused: Mapping[str, BadValue]
) -> list[tuple[str, bool]]:
    """Submit children that each wake their parent. Return their ids, and whether each is our own child.

    A key may belong to a job that somebody else submitted. `refused` maps encoded arguments for which no new child may
    be made to the reason.
    """
    ids = [await _find_id(attempt, _submit_group(type), f"{one.args}\n{one.key or ''}") for one in requests]
    inherited = await _inherited(attempt)
    for id, request in zip(ids, requests, strict=True) if refused else ():
        if request.args in refused and id not in inherited and not await _is_submitted(attempt, id):
            raise refused[request.args]
    new = [(request, id) for request, id in zip(requests, ids, strict=True) if id not in inherited]
    asked, own = [request for request, _ in new], [id for _, id in new]
    if new and asked[0].options.unique is not None:
        accepted = await _insert_unique(attempt, asked, own, now)
    else:
        accepted = await insert_children(attempt, asked, own, own, now) if new else []
    found = dict(zip(own, accepted, strict=True))
    return [(found.get(id, id), found.get(id) == id) for id in ids]


async def _insert_unique(attempt: Attempt, requests: Sequence[JobRequest], ids: Sequence[str], now: Time) -> list[str]:
    """Insert unique children. What was found instead of one is recorded, so that the next run finds the same."""
    found = {id: info["job"] for id in ids if (info := _recorded(attempt, id))}
    if (refused := _recorded(attempt, ids[0]).get("refused")) is not None:
        raise Duplicate(refused, found[ids[0]])
    new = [(request, id) for request, id in zip(requests, ids, strict=True) if id not in found]
    inserted: list[str] = []
    if new:
        own = [id for _, id in new]
        try:
            inserted = await insert_children(attempt, [request for request, _ in new], own, own, now)
        except Duplicate as error:
            await attempt.journal.record_wait(UNIQUE_PATH + ids[0], {"job": error.id, "refused": str(error)})
            raise
    for (_, id), job in zip(new, inserted, strict=True):
        if job != id:
            found[id] = job
            await attempt.journal.record_wait(UNIQUE_PATH + id, {"job": job})
    return [found.get(id, id) for id in ids]


def _recorded(attempt: Attempt, id: str) -> dict[str, Any]:
    record = attempt.journal.records.waits.get(UNIQUE_PATH + id)
    return {} if record is None else record_info(record)


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

    own: list[str] = []
    inherited = await _inherited(attempt)

    async def insert() -> None:
        await insert_children(attempt, requests, own[-len(requests) :], [group] * len(requests), now)
        requests.clear()

    while (one := tally.take()) is not None:
        try:
            request, refusal = prepare(one.item)
        except Invalid as error:
            tally.fail(one, error)
            continue
        id = await _find_id(attempt, group, request.args if name_of is None else name_of(one.item))
        if refusal is not None and id not in inherited and not await _is_submitted(attempt, id):
            tally.fail(one, refusal)
            continue
        taken.append(one)
        ids.append(id)
        if id in inherited:
            continue
        own.append(id)
        requests.append(request)
        if len(requests) == attempt.engine.insert_at_once:
            await insert()
    if requests:
        await insert()
    outcomes = await Suspension.of(attempt).wait(group_wait(attempt, ids, group)) if ids else []
    for one, outcome in zip(taken, outcomes, strict=True):
        await _settle(attempt, spec, tally, one, outcome)
    return tally.outcome()


async def map_bounded(
    attempt: Attempt, spec: JobSpec, tally: Tally[Any], prepare: Prepare, at_once: int, now: Time
) -> list[Any]:
    """Submit a child for each item, with at most `at_once` of them unsettled at any time."""
    taken: dict[str, Taken[Any]] = {}

    async def submit(items: Sequence[Taken[Any]]) -> None:
        ids: list[str] = []
        requests: list[JobRequest] = []
        inherited = await _inherited(attempt)
        for one in items:
            try:
                request, refusal = prepare(one.item)
            except Invalid as error:
                tally.fail(one, error)
                continue
            id = await _find_id(attempt, _submit_group(spec.type), f"{request.args}\n")
            if refusal is not None and id not in inherited and not await _is_submitted(attempt, id):
                tally.fail(one, refusal)
                continue
            taken[id] = one
            if id in inherited:
                continue
            ids.append(id)
            requests.append(request)
        if requests:
            await insert_children(attempt, requests, ids, ids, now)

    async def settle() -> None:
        for id, outcome in (await Suspension.of(attempt).wait(window_wait(attempt, list(taken)))).items():
            await _settle(attempt, spec, tally, taken.pop(id), outcome)

    return await map_window(tally, at_once, taken, submit, settle)


async def _settle(attempt: Attempt, spec: JobSpec, tally: Tally[Any], one: Taken[Any], outcome: Outcome) -> None:
    if outcome.job is not None:
        tally.fail(one, failure_of(outcome.job, is_inside=True))
    else:
        text = await attempt.engine.blobs.fetch(outcome.result or "null")
        tally.succeed(one, spec.signature.result.decode(text))


async def insert_children(
    attempt: Attempt, requests: Sequence[JobRequest], ids: Sequence[str], groups: Sequence[str], now: Time
) -> list[str]:
    """Insert children, unless an earlier lease of this job has done so. Return the ids of the jobs."""
    try:
        with attempt.activity():
            known = await known_children(attempt)
            if all(id in known for id in ids):
                return list(ids)
            jobs, lease = Jobs(attempt.engine), attempt.job.lease
            if attempt.job.options.budget:
                requests = [replace(one, options=drawing_on(attempt.job, one.options)) for one in requests]
            counted = await _count_children(attempt, requests, ids, now)
            try:
                await attempt.admit()
                accepted = await attempt.persist(lambda: jobs.submit(requests, lease, ids=ids, groups=groups, now=now))
            except (Invalid, Refused):
                attempt.journal.child_ids -= counted
                raise
            attempt.journal.child_ids -= counted
            attempt.journal.child_ids |= {one.id for one in accepted} & {*ids}
    except LeaseLost as error:
        attempt.halt(LOST)
        raise Stopped(str(error)) from error
    return [one.id for one in accepted]


async def _count_children(
    attempt: Attempt, requests: Sequence[JobRequest], ids: Sequence[str], now: Time
) -> frozenset[str]:
    """Refuse more children than a job of this type may submit, before any of them is inserted.

    Return the ids that are counted from now on. A job that has the key or unique name of a request answers for it, and
    is no child: only where the number matters does this look for such jobs.
    """
    journal, most = attempt.journal, attempt.spec.most_children
    fresh = frozenset(ids) - journal.child_ids
    if len(journal.child_ids | fresh) > most:
        jobs = Jobs(attempt.engine).new(requests, now, ids)
        arrivals = await attempt.persist(partial(find_arrivals, attempt.engine, jobs))
        fresh = frozenset(job.id for job in arrivals.new) - journal.child_ids
    number = len(journal.child_ids | fresh)
    if number > most:
        raise TooManyChildren(
            f"job {attempt.job.id} ({attempt.job.type}) would have {number:,} children, and a job of this type may "
            f"submit {most:,}; submit fewer, let the children submit some of them, or raise @app.job(most_children=…)"
        )
    journal.child_ids |= fresh
    return fresh


async def _is_submitted(attempt: Attempt, id: str) -> bool:
    """Whether an earlier lease of this job has submitted this child. Then it needs no arguments from us."""
    with attempt.activity():
        return id in await known_children(attempt)


def _submit_group(type: str) -> str:
    return f"~submit:{type}"


def call_name(attempt: Attempt, group: str, name: str) -> str:
    """Name a call of the job's code: by the step that makes it, what it says, and its number among equal calls."""
    call = f"{attempt.journal.calls.first_path(PATH.get())}/{group}\n{name}"
    return f"{call}\n{attempt.journal.calls.number(call)}"


async def _find_id(attempt: Attempt, group: str, name: str) -> str:
    """Return a child's id: the same on every run of its parent, but different for each equal child.

    If the run was made from another one, it is the id of that one's child, if that has completed.
    """
    call = call_name(attempt, group, name)
    origin = attempt.journal.records.origin
    if origin is not None:
        inherited = await _inherited(attempt)
        if (found := next((id for one in origin.jobs if (id := derived_id(one, call)) in inherited), None)) is not None:
            return found
    return derived_id(attempt.job.id, call)


async def _inherited(attempt: Attempt) -> frozenset[str]:
    """Return the completed children of the runs that this one was made from. Read once."""
    journal = attempt.journal
    if journal.inherited is None:
        origin, found = journal.records.origin, list[str]()
        for id in () if origin is None else origin.jobs:
            where, after = Where(states=(State.COMPLETED,), parent=id), ""
            while page := await attempt.persist(partial(attempt.engine.find, where, after)):
                found += [job.id for job in page]
                after = page[-1].id
        journal.inherited = frozenset(found)
    return journal.inherited
