"""What steps cost on the real SQLite engine, counted in its own statements and transactions, and in memory.

The law: all records of a job are read once a claim; a replayed step costs no I/O; a new one costs one fenced write.
"""

import asyncio
import tracemalloc
from collections import Counter
from typing import Any

import pytest

from holdfast import App, current, step
from holdfast.core.model import State, Step, StepState
from holdfast.worker import attempt
from holdfast.worker.journal import Journal
from tests.support.given import in_state, until
from tests.worker.sql_trace import AROUND, CALM, Trace, calm


@pytest.fixture
def app(tmp_path):
    """An App on a SQLite file."""
    return App(f"sqlite:///{tmp_path / 'jobs.db'}", settings=CALM)


@pytest.fixture
def trace():
    return Trace()


@step
async def draw(n: int) -> int:
    return n


@step(key=lambda n: f"scene-{n}")
async def keyed(n: int) -> int:
    return n


@step
def narrate(n: int) -> int:
    return n


async def one_by_one(count):
    for n in range(count):
        await draw(n)


async def one_by_one_with_keys(count):
    for n in range(count):
        await keyed(n)


async def one_by_one_in_threads(count):
    for n in range(count):
        await narrate.aio(n)


async def in_a_thread(count):
    await asyncio.to_thread(lambda: [narrate(n) for n in range(count)])


async def as_items(count):
    await draw.map(range(count), at_once=1)


WAYS = pytest.mark.parametrize("way", [one_by_one, one_by_one_with_keys, one_by_one_in_threads, in_a_thread, as_items])


@WAYS
@pytest.mark.parametrize("count", [10, 60])
async def test_a_new_step_is_one_statement_in_one_transaction_and_the_rest_does_not_grow_with_them(
    app, trace, way, count
):
    through = asyncio.Event()

    @app.job(name="walk")
    async def walk() -> None:
        await way(count)
        through.set()

    await app.open()
    await trace.watch(app.engine)
    async with app.worker():
        await calm(app, trace)
        run = await walk.submit()
        await through.wait()
        read = set(trace.read)
        await in_state(app, run, State.COMPLETED)

    transactions = trace.transactions()
    records = [one for one in transactions if "add_steps" in one]
    first, *rest = records
    assert first == ["add_steps", "add_count", "counters", "new_count"], (
        "the first one of its name begins to be counted"
    )
    assert rest == [["add_steps", "add_count"]] * (count - 1), "each was recorded on its own, and counted"
    assert 3 <= len(transactions) - count <= AROUND, transactions
    assert read <= {"next_due", "next_back", "next_look", "records"}, (
        "the worker looked when to wake up, the leader for schedules, and nobody read anything else"
    )
    await app.close()


@WAYS
async def test_a_second_claim_reads_all_records_at_once_and_a_replayed_step_costs_nothing(app, trace, way):
    count, costs = 60, {}
    through = {1: asyncio.Event(), 2: asyncio.Event()}

    @app.job(name="walk")
    async def walk() -> None:
        before = Counter(trace.everything())
        await way(count)
        costs[current().epoch] = Counter(trace.everything()) - before
        through[current().epoch].set()
        if current().epoch == 1:
            await asyncio.sleep(30)

    await app.open()
    await trace.watch(app.engine)
    run = await walk.submit()
    async with app.worker():
        await through[1].wait()
    assert (await app.jobs.get(run.id)).state is State.AVAILABLE
    assert costs[1]["add_steps"] == count

    await app.jobs.pause("default")
    async with app.worker():
        await calm(app, trace)
        await app.jobs.resume("default")
        await through[2].wait()
        await in_state(app, run, State.COMPLETED)

    assert costs[2] == Counter(), "a replayed step costs nothing"
    assert trace.read.count("steps") == 1, "all records are read at once"
    assert "add_steps" not in trace.written
    assert len(trace.transactions()) <= AROUND
    await app.close()


async def test_claims_wait_for_no_disk_and_all_else_does(app, trace):
    @app.job(name="walk")
    async def walk() -> None:
        await one_by_one(3)

    await app.open()
    await trace.watch(app.engine)
    async with app.worker():
        await calm(app, trace)
        for _ in range(3):
            await (await walk.submit()).result(timeout=10)

    modes: dict[str, list[Any]] = {"lazily": [], "durably": []}
    mode = "durably"
    for name in trace.written:
        mode = name if name in modes else mode
        modes[mode].append(name)
    claims = {
        "lazily",
        "begin",
        "commit",
        "records",
        "record",
        "due",
        "ready_among",
        "ready",
        "keys_to_look_at",
        "has_fair",
        "update_job",
        "add_entry",
        "add_tally",
    }
    assert set(modes["lazily"]) <= claims
    assert modes["lazily"].count("update_job") >= 3, "each claim was such a one"
    assert {"add_lone_job", "add_steps", "add_count"} <= set(modes["durably"])
    await app.close()


async def test_what_comes_at_once_shares_a_statement_and_a_transaction(app, trace):
    count = 400

    @app.job(name="spread")
    async def spread() -> int:
        return len(await draw.map(range(count), at_once=100))

    await app.open()
    await trace.watch(app.engine)
    async with app.worker():
        await calm(app, trace)
        run = await spread.submit()
        await in_state(app, run, State.COMPLETED)

    records = [one for one in trace.transactions() if "add_steps" in one]
    assert all(one[:2] == ["add_steps", "add_count"] for one in records)
    assert all(len(one) == 2 for one in records[1:])
    assert len(records) < count / 2
    assert len(await app.engine.steps(run.id)) == count + 1  # and the fingerprint of the code
    await app.close()


# Memory.

ITEMS, EARLY = 10_000, 2_000


def needed(job, count):
    """Bytes that a map of so many items can't do without: its results, a record of each, and which calls were made."""
    tracemalloc.start()
    results, records, calls = list[Any](), dict[str, Any](), Counter[Any]()
    for n in range(count):
        # Each number and text is one of its own, as it is when an item has run.
        path, at = f"nothing#{n:016x}", 1_700_000_000_000 + n
        fields = {"job": job, "epoch": 1, "name": "nothing", "state": StepState.DONE}
        records[path] = Step(path=path, result=f"{n}", started_at=at, finished_at=at + 1, **fields)
        calls["", "nothing", f"{n:016x}"] += 1
        results.append(int(f"{n}"))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size


async def test_a_map_of_ten_thousand_items_keeps_nothing_but_results_records_and_calls(app):
    peaks = {}

    @step(name="nothing")
    async def nothing(n: int) -> int:
        if n == EARLY:
            peaks[EARLY] = tracemalloc.get_traced_memory()[1]
        return n

    @app.job(name="spread")
    async def spread(count: int) -> int:
        results = await nothing.map(range(count), at_once=100)
        peaks[count] = tracemalloc.get_traced_memory()[1]
        return len(results)

    allowed = needed("0" * 36, ITEMS) - needed("0" * 36, EARLY)
    async with app.worker():
        await (await spread.submit(500)).result(20)  # what is made once, at the first use
        tracemalloc.start()
        try:
            assert await (await spread.submit(ITEMS)).result(50) == ITEMS
        finally:
            tracemalloc.stop()

    grown, more = peaks[ITEMS] - peaks[EARLY], ITEMS - EARLY
    print(f"{grown / more:.0f} bytes an item; results, records and calls need {allowed / more:.0f}")
    assert grown <= allowed * 1.2, (grown / more, allowed / more)
    await app.close()


@pytest.fixture
def journals(monkeypatch):
    """The journals that attempts have made, with the type of each job."""
    made: list[tuple[str, Journal]] = []

    def make(held, progress):
        made.append((held.job.type, Journal(held, progress)))
        return made[-1][1]

    monkeypatch.setattr(attempt, "Journal", make)
    return made


async def test_a_job_that_uses_nothing_of_ours_has_no_journal(app, journals):
    @app.job
    async def plain() -> int:
        return 1

    @app.job
    async def drawn() -> int:
        return await draw(1)

    async with app.worker():
        assert await (await plain.submit()).result() == 1
        assert journals == []
        assert await (await drawn.submit()).result() == 1
        assert [type for type, _ in journals] == ["drawn"]


async def test_what_a_job_recorded_is_freed_with_its_end_and_waits_for_no_garbage_collector(app, journals):
    @app.job
    async def drawn() -> list[int]:
        return [await keyed(n) for n in range(3)]

    async with app.worker():
        assert await (await drawn.submit()).result() == [0, 1, 2]
        ((_, journal),) = journals
        await until(lambda: not journal.records.steps)
