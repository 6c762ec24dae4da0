"""Ended jobs are kept for longer in another store: whole, each once, and nothing runs there."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from holdfast import App, step
from holdfast.cli import main
from holdfast.core.errors import Moved, StoreError
from holdfast.core.model import State, Where
from holdfast.engines import engine_for
from holdfast.engines.traits import Movable
from holdfast.engines.urls import named
from holdfast.jobs.transfer.archive import archive
from holdfast.jobs.transfer.move import Side

T = TypeVar("T")


@step(name="archived-draw")
async def draw(n: int) -> int:
    return n * 2


def app_on(url: str) -> tuple[App, Any]:
    app = App(url)

    @app.job(name="film", keep="1h")
    async def film(n: int) -> int:
        return await draw(n)

    return app, film


async def run_films(url: str, numbers: range) -> list[str]:
    app, film = app_on(url)
    async with app.worker():
        runs = await film.submit_many(numbers)
        assert [await run.result(20) for run in runs] == [n * 2 for n in numbers]
    await app.close()
    return [run.id for run in runs]


async def inside(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    engine = engine_for(url)
    await engine.open()
    try:
        return await work(engine)
    finally:
        await engine.close()


def called(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), prog_name="holdfast", catch_exceptions=False)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue(f"{request.param}_store"))


@pytest.fixture
def history(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'history.db'}"


def test_what_has_ended_stays_in_the_archive_when_its_own_store_has_forgotten_it(source: str, history: str) -> None:
    async def fill() -> list[str]:
        app, film = app_on(source)
        await app.open()
        waiting = await film.submit(99)
        await app.jobs.pause("default")
        await app.close()
        return [waiting.id]

    async def whole(engine: Movable, ids: list[str]) -> Any:
        jobs = [job for job in await engine.get(ids) if job is not None]
        return [(whole.job.result, whole.entries, whole.steps) for whole in await engine.wholes(jobs)]

    first = asyncio.run(run_films(source, range(5)))
    waiting = asyncio.run(fill())
    before = asyncio.run(inside(source, lambda engine: whole(engine, first)))
    told = called("archive", "--from", source, "--to", history, "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["jobs"] == 5
    assert json.loads(called("archive", "--from", source, "--to", history, "--json").stdout)["jobs"] == 0

    kept = asyncio.run(inside(history, lambda engine: whole(engine, first)))
    assert kept == before, "with history and steps, as they were"
    ended = asyncio.run(inside(history, lambda engine: engine.find(Where())))
    assert {job.id for job in ended} == set(first)
    assert all(job.prune_at is None and job.state is State.COMPLETED for job in ended)
    assert waiting[0] not in {job.id for job in ended}
    shown = called("jobs", "--url", history, "--json")
    assert shown.exit_code == 0
    assert len(json.loads(shown.stdout)["jobs"]) == 5


def test_what_is_pruned_is_still_in_the_archive(tmp_path: Path, history: str) -> None:
    source = f"sqlite:///{tmp_path / 'jobs.db'}"
    ids = asyncio.run(run_films(source, range(3)))
    assert called("archive", "--from", source, "--to", history).exit_code == 0

    async def forget() -> None:
        later = engine_for(source, lambda: 4_000_000_000_000)
        await later.open()
        assert await later.prune() == 3
        await later.close()

    asyncio.run(forget())
    assert "archived: 0 jobs" in called("archive", "--from", source, "--to", history).output
    assert {job.id for job in asyncio.run(inside(history, lambda engine: engine.find(Where())))} == set(ids)


def test_no_worker_takes_work_from_an_archive(source: str, history: str) -> None:
    asyncio.run(run_films(source, range(2)))
    called("archive", "--from", source, "--to", history)

    async def use() -> None:
        app, film = app_on(history)
        with pytest.raises(Moved, match="an archive of"):
            await film.submit(1)
        await app.close()

    asyncio.run(use())


def test_an_archive_has_one_source_and_a_working_store_becomes_none(tmp_path: Path, history: str) -> None:
    one, other = f"sqlite:///{tmp_path / 'one.db'}", f"sqlite:///{tmp_path / 'other.db'}"
    for url in (one, other):
        asyncio.run(run_films(url, range(1)))
    assert called("archive", "--from", one, "--to", history).exit_code == 0
    refused = called("archive", "--from", other, "--to", history)
    assert refused.exit_code == 1
    assert "name another archive" in refused.output
    working = called("archive", "--from", one, "--to", other)
    assert working.exit_code == 1
    assert "name a new store for the archive" in working.output


def test_a_cut_in_the_middle_costs_nothing(source: str, history: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = asyncio.run(run_films(source, range(130)))

    async def cut_off() -> int:
        here, there = engine_for(source), engine_for(history)
        await here.open()
        await there.open()
        assert isinstance(there, Movable)
        there.insert_at_once = 50
        calls, load = 0, there.load

        async def fails(*words: Any) -> int:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise StoreError("cut off")
            return await load(*words)

        monkeypatch.setattr(there, "load", fails)
        sides = Side(here, named(source)), Side(there, named(history))
        with pytest.raises(StoreError):
            await archive(*sides)
        rest = await archive(*sides)
        await here.close()
        await there.close()
        return rest

    assert asyncio.run(cut_off()) == 80
    kept = asyncio.run(inside(history, lambda engine: engine.find(Where())))
    assert {job.id for job in kept} == set(ids)
