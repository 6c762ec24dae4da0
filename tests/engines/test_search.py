"""A search reads a bounded number of jobs, says when it stopped, and continues without a gap."""

import contextlib

import pytest

from holdfast.core.model import Job, State, Where
from holdfast.engines import engine_for
from holdfast.jobs.requests import JobRequest
from holdfast.jobs.service import Jobs

SCAN = 10


@contextlib.asynccontextmanager
async def a_store(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.engines.sqlite.reads.SCAN_LIMIT", SCAN)
    engine = engine_for(f"sqlite:///{tmp_path}/x.db")
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("states", [(), (State.AVAILABLE,), (State.AVAILABLE, State.SCHEDULED, State.REVIEW)])
async def test_a_search_that_stops_says_so_and_continues_without_a_gap(tmp_path, monkeypatch, newest_first, states):
    async with a_store(tmp_path, monkeypatch) as engine:
        jobs = Jobs(engine)
        types = ["rare" if number in (3, 40, 77) else "common" for number in range(90)]
        [await jobs.submit([JobRequest(type=type)]) for type in types]
        where = Where(states=states, type="rare", newest_first=newest_first)

        found: list[Job] = []
        cuts = 0
        after: str | None = ""
        while after is not None:
            page = await engine.search(where, after, 2)
            assert page.scanned <= SCAN + 2
            found, cuts, after = [*found, *page.jobs], cuts + page.is_cut, page.next

        assert found == await engine.find(where)
    assert len(found) == 3
    assert cuts > 3


async def test_a_page_by_state_alone_is_never_cut(tmp_path, monkeypatch):
    async with a_store(tmp_path, monkeypatch) as engine:
        await Jobs(engine).submit([JobRequest(type="t") for _ in range(3 * SCAN)])

        page = await engine.search(Where(states=(State.AVAILABLE,)), "", 2 * SCAN)

    assert len(page.jobs) == 2 * SCAN
    assert not page.is_cut
