"""Reads: acknowledged writes are visible, pages neither skip nor repeat a job, and counts equal a recount."""

from collections import Counter

import pytest
from msgspec.structs import replace

from holdfast.conformance.dump import all_jobs
from holdfast.conformance.given import HOUR, StoreClock, applied_to, claimed, done, in_state, inserted, job, signal
from holdfast.core.keys import new_id
from holdfast.core.model import PAGE_LIMIT, Event, Job, State, Where
from holdfast.engines.contract import Engine

FIRST_ID, LAST_ID = 1, 1_000_000


async def test_jobs_come_in_the_order_they_were_asked_for(engine: Engine, clock: StoreClock) -> None:
    one, two = await inserted(engine, clock), await inserted(engine, clock)
    nobody = job(clock)

    assert await engine.get([two.id, nobody.id, one.id, two.id, ""]) == [two, None, one, two, None]
    assert await engine.get([]) == []


# Finding.


async def crowd(engine: Engine, clock: StoreClock) -> list[Job]:
    """Insert jobs of several queues, types, states and parents; return them as stored, by id."""
    parent = await claimed(engine, clock, queue="a", type="t.parent")
    for number, group in ((2, "g"), (1, "h")):
        for _ in range(number):
            await engine.insert([job(clock, queue="b", parent=parent.id, group=group)], parent.lease)
    for state in State:
        await in_state(engine, clock, state, queue=f"own-{state}", type="t.state")
    jobs = await all_jobs(engine)
    assert len(jobs) == 4 + len(State)
    return jobs


FILTERS = {
    "all": Where(),
    "state": Where(states=(State.ACTIVE,)),
    "states": Where(states=(State.AVAILABLE, State.REVIEW, State.COMPLETED)),
    "queue": Where(queue="b"),
    "type": Where(type="t.state"),
    "both": Where(states=(State.AVAILABLE,), queue="b", type="test.job"),
    "nobody": Where(queue="b", type="t.state"),
    "no-queue": Where(queue=""),
}


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("name", FILTERS)
async def test_a_filter_finds_those_and_no_others_in_the_order_of_ids(
    engine: Engine, clock: StoreClock, name: str, newest_first: bool
) -> None:
    jobs = await crowd(engine, clock)
    where = FILTERS[name]
    wanted = [
        job
        for job in sorted(jobs, key=lambda job: job.id, reverse=newest_first)
        if (not where.states or job.state in where.states)
        and where.queue in (None, job.queue)
        and where.type in (None, job.type)
    ]
    where = Where(where.states, where.queue, where.type, newest_first=newest_first)

    assert await engine.find(where) == wanted
    for page in (1, 2, 5, len(wanted) or 1):
        assert await all_jobs(engine, where, page) == wanted


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("name", FILTERS)
async def test_a_search_finds_what_a_find_does_page_by_page(
    engine: Engine, clock: StoreClock, name: str, newest_first: bool
) -> None:
    await crowd(engine, clock)
    where = replace(FILTERS[name], newest_first=newest_first)
    wanted = await engine.find(where)

    for limit in (1, 3, len(wanted) + 1):
        found: list[Job] = []
        after: str | None = ""
        while after is not None:
            page = await engine.search(where, after, limit)
            assert len(page.jobs) <= limit
            found += page.jobs
            after = page.next
        assert found == wanted


async def test_a_search_finds_a_job_by_its_key(engine: Engine, clock: StoreClock) -> None:
    await crowd(engine, clock)
    one, other = job(clock, key="order-42"), job(clock, key="order-42", type="t.other")
    await engine.insert([one, other, job(clock, key="order-43")])

    page = await engine.search(Where(key="order-42"))

    assert {found.id for found in page.jobs} == {one.id, other.id}
    assert [found.id for found in await engine.find(Where(key="order-42", type="t.other"))] == [other.id]
    assert not (await engine.search(Where(key="order-44"))).jobs


async def test_children_are_found_by_their_parent(engine: Engine, clock: StoreClock) -> None:
    jobs = await crowd(engine, clock)
    [parent] = await engine.find(Where(type="t.parent"))

    found = await engine.find(Where(parent=parent.id))

    assert len(found) == 3
    assert found == [job for job in jobs if job.parent == parent.id]
    assert await engine.find(Where(parent=found[0].id)) == []


async def test_what_has_expired_is_found_while_it_can_still_expire(engine: Engine, clock: StoreClock) -> None:
    soon, late = clock.now - HOUR, clock.now + HOUR
    expiring = (State.SCHEDULED, State.AVAILABLE, State.PENDING, State.RETRYABLE)
    for state in State:
        at = late if state in (State.ACTIVE, State.COMPLETED, State.REVIEW, State.RETRYABLE, State.DISCARDED) else soon
        await in_state(engine, clock, state, expires_at=at)
    await inserted(engine, clock)

    past = await engine.find(Where(expires_before=clock.now))
    ever = await engine.find(Where(expires_before=late + HOUR))

    assert {job.state for job in past} == {State.SCHEDULED, State.AVAILABLE, State.PENDING}
    assert {job.state for job in ever} == set(expiring)


async def test_no_page_is_longer_than_the_limit(engine: Engine, clock: StoreClock) -> None:
    await engine.insert([job(clock) for _ in range(PAGE_LIMIT + 1)])

    assert len(await engine.find(Where())) == PAGE_LIMIT
    assert len(await engine.find(Where(), limit=10 * PAGE_LIMIT)) == PAGE_LIMIT
    assert len(await all_jobs(engine)) == PAGE_LIMIT + 1


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_walk_meets_each_job_once_while_others_come_and_change(
    engine: Engine, clock: StoreClock, newest_first: bool
) -> None:
    there = [job(clock, id=new_id(clock.now, n << 60), queue=f"q-{n}") for n in range(1, 10)]
    await engine.insert(there)
    where = Where(newest_first=newest_first)

    seen: list[Job] = []
    for n in range(1, 100):
        page = await engine.find(where, seen[-1].id if seen else "", 2)
        if not page:
            break
        seen += page
        # Between two pages: insert a job before those seen and one after them, and change those seen.
        await engine.insert([job(clock, id=new_id(clock.now - HOUR, n)), job(clock, id=new_id(clock.now + HOUR, n))])
        await engine.claim("w-1", [page[0].queue], 1)
        await applied_to(engine, signal(clock, page[-1])) if page[-1].queue != page[0].queue else None

    ids = [job.id for job in seen]
    assert len(ids) == len(set(ids))
    assert ids == sorted(ids, reverse=newest_first)
    assert {job.id for job in there} <= set(ids)


# Counting.


async def test_counts_equal_a_recount(engine: Engine, clock: StoreClock) -> None:
    assert await engine.count() == {}
    jobs = await crowd(engine, clock)
    for each in jobs:
        if each.state is State.ACTIVE:
            await done(engine, clock, each, Event.RELEASE)
    await engine.claim("w-2", ["a", "b"], 2)
    await engine.insert(jobs)

    recount = Counter((job.queue, job.state) for job in await all_jobs(engine))

    assert await engine.count() == dict(recount)


async def test_counts_have_no_zeros(engine: Engine, clock: StoreClock) -> None:
    held = await claimed(engine, clock)
    await done(engine, clock, held, Event.COMPLETE)

    assert await engine.count() == {(held.queue, State.COMPLETED): 1}
