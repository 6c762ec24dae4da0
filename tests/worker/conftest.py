"""What the worker's tests share: an event loop for `async def` tests, an App in memory, and a watched engine."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App
from holdfast.engines import engine_for
from holdfast.engines.contract import system_clock
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SqliteEngine
from tests.worker.given import QUICK, Interrupted, Watched

TEST_SECONDS = 30.0
"""How long one test may take, so that a worker that hangs is told and not waited for."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test on a loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def bounded() -> None:
        async with asyncio.timeout(TEST_SECONDS):
            await test(**given)

    asyncio.run(bounded())
    return True


class Clock:
    """The store's clock: the system's, and what a test adds to it."""

    def __init__(self) -> None:
        self._ahead = 0
        self.stands = ""

    def __call__(self) -> int:
        return system_clock() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if self.stands:
            pytest.skip(self.stands)
        self._ahead += round(seconds * 1_000)


@pytest.fixture
def clock() -> Clock:
    """The clock of the store that `app` uses."""
    return Clock()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that names ENGINES runs its tests on each of them."""
    engines = getattr(metafunc.module, "ENGINES", None)
    if engines is not None and "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engines, indirect=True)


@pytest.fixture
def engine(clock: Clock, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    """An engine that counts its calls and can be told to fail: in memory, unless the module names others."""
    match getattr(request, "param", "memory"):
        case "memory":
            yield Watched(MemoryEngine(clock))
        case "sqlite":
            yield Watched(SqliteEngine(tmp_path / "jobs.db", clock))
        case "postgres":
            clock.stands = "this store goes by its server's clock, which a test can't move"
            url = request.getfixturevalue("postgres_store")
            kept = engine_for(url)
            yield Watched(kept)
            asyncio.run(kept.close())


@pytest.fixture
def app(engine: Watched) -> App:
    """An App on the watched engine, with settings for impatient people."""
    return App("memory:", settings=QUICK, engine=engine)  # type: ignore[arg-type]


@pytest.fixture
def interrupted(app: App) -> Interrupted:
    """Takes a job from its worker at a point in its code, and lets it go on."""
    return Interrupted(app)
