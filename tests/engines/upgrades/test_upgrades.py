"""Stores that an older version made: today's code opens them, finishes what can be finished, keeps what was held."""

import asyncio
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.core.codec import canonical
from holdfast.core.errors import KeyConflict
from holdfast.core.model import Job, State, Where
from holdfast.core.summaries import head_of, is_step, summarize
from holdfast.engines import engine_class
from holdfast.engines.contract import Engine, system_clock
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.service import Jobs
from tests.engines.upgrades import jobs as upgraded
from tests.engines.upgrades.stores import STORES
from tests.support.given import until

HERE = Path(__file__).parent
HOUR = 3_600_000
PATIENCE_SECONDS = 60.0
MADE = sorted(folder.name for folder in HERE.iterdir() if folder.name.startswith("format-"))

STATES = {
    "completed": State.COMPLETED,
    "scheduled": State.SCHEDULED,
    "available": State.AVAILABLE,
    "first": State.AVAILABLE,
    "staged": State.PENDING,
    "stepped": State.ACTIVE,
    "parent": State.PENDING,
    "listener": State.PENDING,
    "sleeper": State.SCHEDULED,
    "flaky": State.RETRYABLE,
    "buyer": State.REVIEW,
    "painter": State.CANCELLED,
    "taker": State.PENDING,
    "plain_taker": State.PENDING,
    "apart": State.PENDING,
    "giver": State.PENDING,
    **{f"open-{n}": State.AVAILABLE for n in range(len(upgraded.OPEN))},
    "broken-1": State.REVIEW,
    "broken-2": State.REVIEW,
    "broken-3": State.DISCARDED,
}
THEN = [f"{value} then" for value in upgraded.AS_JSON]
GIVEN = [str(value) for value in upgraded.AS_JSON]
RESULTS = {
    "completed": 2,
    "scheduled": 4,
    "available": 6,
    "first": 8,
    "staged": 10,
    "stepped": ["0 then", "1 now", "2 now"],
    "parent": 6,
    "listener": ["0 then", 7],
    "sleeper": ["0 then", "1 now"],
    "flaky": "now",
    "buyer": ["0 then", "a person says so"],
    "broken-1": "mended 1",
    "broken-2": "resolved",
    "taker": [*THEN, *THEN, *THEN, "(3, 4) now"],
    "plain_taker": [*THEN, *THEN, "(3, 4) now"],
    "apart": [*THEN, THEN[0]],
    "giver": [*GIVEN, *GIVEN],
    **{f"open-{n}": given for n, given in enumerate(GIVEN)},
}


@pytest.fixture(params=MADE)
def made(request: pytest.FixtureRequest) -> Path:
    """A folder with stores as an older version made them."""
    return HERE / request.param


@pytest.fixture(params=list(STORES))
def url(made: Path, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """An old store of each engine, loaded."""
    match request.param:
        case "sqlite":
            url = f"sqlite:///{tmp_path / 'jobs.db'}"
        case "file":
            url = f"file:{tmp_path / 'jobs.json'}"
        case name:
            url = request.getfixturevalue(f"{name}_store")
    STORES[request.param].load(made, url)  # type: ignore[attr-defined]
    return url


@pytest.fixture
def names(made: Path, request: pytest.FixtureRequest, url: str) -> dict[str, str]:
    """The ids of its jobs."""
    found: dict[str, str] = json.loads((made / f"{request.node.callspec.params['url']}-names.json").read_text())
    return found


async def opened(url: str) -> Engine:
    """The store, two hours later than it is: what was to wait for an hour is due, however new the store is."""
    engine = engine_class(url).from_url(url, lambda: system_clock() + 2 * HOUR)
    await engine.open()
    await engine.shift_clock(2 * HOUR)
    return engine


async def all_jobs(engine: Engine) -> dict[str, Job]:
    return {job.id: job async for job in Jobs(engine).walk(Where())}


async def check_whole(engine: Engine) -> None:
    """Counters and summaries equal to a recount, and histories without a gap."""
    found = await all_jobs(engine)
    assert Counter((job.queue, job.state) for job in found.values()) == await engine.count()
    for job in found.values():
        history = await engine.history(job.id)
        assert [entry.version for entry in history] == list(range(1, job.version + 1)), job
        assert history[-1].after is job.state
        for before, after in pairwise(history):
            assert after.before in (before.after, None), job
    for job, summary in zip(found.values(), await engine.summaries(list(found)), strict=True):
        steps = await engine.steps(job.id)
        assert summary == summarize(job.id, steps)
        assert await engine.steps_page(job.id) == [head_of(step) for step in steps if is_step(step.path)]


def test_an_old_store_shows_what_it_held(url: str, names: dict[str, str]) -> None:
    async def look() -> None:
        engine = await opened(url)
        jobs = await all_jobs(engine)
        recovered = not engine.guarantees.shared  # a store of one process recovers its jobs when it is opened
        wanted = STATES | ({"stepped": State.AVAILABLE} if recovered else {})
        assert {name: jobs[id].state for name, id in names.items()} == wanted
        assert set(STATES.values()) == set(State)
        await check_whole(engine)
        listener = jobs[names["listener"]]
        assert [(signal.name, signal.value) for signal in listener.inbox] == [("other", "7")]
        assert [step.result for step in await engine.steps(listener.id) if step.name == "draw"] == ['"0 then"']
        assert jobs[names["broken-1"]].error.message == "broken then"
        assert [(record.name, record.value) for record in await engine.records("note/")] == [("note/kept", "kept")]
        gone = await engine.put_record("note/gone", "again")
        assert gone.version == 3
        assert await engine.missing(names["parent"], jobs_group(jobs, names)) == 3
        assert await engine.claim("w-1", ["later"], 9, []) == []
        assert await engine.ready_types("later") == [
            f"upgrades.{name}" for name in ("child", "given", "plain", "shown")
        ]
        await engine.close()

    asyncio.run(look())


def jobs_group(jobs: dict[str, Job], names: dict[str, str]) -> str:
    (group,) = {job.group for job in jobs.values() if job.parent == names["parent"]}
    assert group is not None
    return group


def test_old_jobs_are_claimed_in_their_order_by_who_knows_them(url: str, names: dict[str, str]) -> None:
    async def claim() -> None:
        engine = await opened(url)
        held = await engine.claim("w-1", ["later"], 9, ["upgrades.plain"])
        assert [job.id for job in held] == [names[name] for name in ("first", "available", "scheduled")]
        others = await engine.claim("w-1", ["later"], 9, ["upgrades.child"])
        assert [job.args for job in others] == ["[0]", "[1]", "[2]"]
        open_ones = await engine.claim("w-1", ["later"], 99, ["upgrades.shown", "upgrades.given"])
        assert Counter(job.args for job in open_ones) == Counter(3 * [canonical([value]) for value in upgraded.AS_JSON])
        assert await engine.claim("w-1", ["later"], 9) == []
        await engine.close()

    asyncio.run(claim())


def test_a_worker_finishes_what_an_older_version_began(url: str, names: dict[str, str]) -> None:
    async def live() -> None:
        engine = await opened(url)
        app, submits = upgraded.build(url, engine)
        jobs = await app.open()
        upgraded.UNDONE.clear()
        async with app.worker(queues=["default", "later"]):
            await jobs.resume("default")
            for name in ("listener", "taker", "plain_taker", "apart"):
                await jobs.signal(names[name], "go", 7)
            await jobs.activate(names["staged"])
            await jobs.replay(names["broken-1"])
            await jobs.resolve(names["broken-2"], "resolved")
            (doubt,) = [step.path for step in await engine.steps(names["buyer"]) if step.name == "pay"]
            await jobs.resolve_step(names["buyer"], doubt, "a person says so")
            for name, wanted in RESULTS.items():
                assert await (await app.run(names[name])).result(PATIENCE_SECONDS) == wanted, name
            (undo,) = [job for job in (await all_jobs(engine)).values() if job.type == UNDO_TYPE]
            await until(lambda: is_in(engine, undo.id, State.COMPLETED), PATIENCE_SECONDS)
            assert upgraded.UNDONE == ["1 then now"]
            again = await submits["plain"].submit(1, key="k-1")
            assert again.id == names["completed"]
            with pytest.raises(KeyConflict):
                await submits["plain"].submit(2, key="k-1")
            assert (await submits["plain"].submit(4, key="k-2")).id == names["first"]
        ended = {name: (await jobs.get(id)).state for name, id in names.items()}
        assert ended == dict.fromkeys(names, State.COMPLETED) | {
            "painter": State.CANCELLED,
            "broken-3": State.DISCARDED,
        }
        assert {job.state for job in (await all_jobs(engine)).values()} <= set(ended.values())
        await check_whole(engine)
        await app.close()

    asyncio.run(live())


async def is_in(engine: Engine, id: str, state: State) -> bool:
    (job,) = await engine.get([id])
    return job is not None and job.state is state
