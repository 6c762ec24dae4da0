"""What tests of jobs share: an event loop for `async def` tests, an App in memory, and a watched engine."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.engines import engine_for
from holdfast.engines.contract import Engine, system_clock
from holdfast.engines.file import FileEngine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SqliteEngine
from tests.support.given import QUICK, Interrupted, Watched

TEST_SECONDS = 180.0
"""How long one test may take, so that a worker that hangs is told and not waited for."""

LEFT_SECONDS = 5.0
"""How long what a test left running, its tasks and threads, may take to end once the test is over."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test on a loop of its own, which its fixture `new_loop` makes, if it asks for one."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def bounded() -> None:
        async with asyncio.timeout(TEST_SECONDS):
            await test(**given)

    run_bounded(bounded(), pyfuncitem.funcargs.get("new_loop", asyncio.new_event_loop))  # type: ignore[arg-type]
    return True


NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    """Each kind of event loop, for tests that must hold on all of them."""
    if request.param == "asyncio":
        return asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        print("uvloop is not installed here: not tested on it")
        pytest.skip("uvloop is not installed here")
    make: NewLoop = uvloop.new_event_loop
    return make


def run_bounded(work: Coroutine[Any, Any, None], new_loop: NewLoop = asyncio.new_event_loop) -> None:
    """As `asyncio.run`, which waits for ever for a task that swallows its cancel, and for a thread that blocks."""
    loop = new_loop()
    try:
        loop.run_until_complete(work)
    finally:
        left = loop.run_until_complete(_left(loop))
        loop.close()
    assert not left, f"still running {LEFT_SECONDS:g} s after the test: {', '.join(left)}"


async def _left(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Cancel all tasks and wait for them, and for the threads of `to_thread`, with a bound; what does not end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    end = loop.time() + LEFT_SECONDS
    if tasks:
        await asyncio.wait(tasks, timeout=LEFT_SECONDS)
    await loop.shutdown_asyncgens()
    executor = getattr(loop, "_default_executor", None)
    threads = [] if executor is None else executor._threads
    if executor is not None:
        executor.shutdown(wait=False, cancel_futures=True)
    while any(thread.is_alive() for thread in threads) and loop.time() < end:  # noqa: ASYNC110 (threads set no event)
        await asyncio.sleep(0.01)
    stuck = [task.get_name() for task in tasks if not task.done()]
    return stuck + [thread.name for thread in threads if thread.is_alive()]


class Clock:
    """The store's clock: the system's, and what a test adds to it."""

    def __init__(self) -> None:
        self._ahead = 0
        self.server: Any = None
        """The engine whose server's clock is to be moved, too."""

    def __call__(self) -> int:
        return system_clock() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let time pass. The test's own loop stands still meanwhile."""
        self._ahead += round(seconds * 1_000)
        if self.server is not None:
            with ThreadPoolExecutor(1) as beside:
                if not beside.submit(asyncio.run, self.server.shift_clock(round(seconds * 1_000))).result():
                    pytest.skip("this store goes by its server's clock, which a test can't move")


@pytest.fixture
def clock() -> Clock:
    """The clock of the store that `app` uses."""
    return Clock()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that names ENGINES runs its tests on each of them, but those that name their own."""
    engines = getattr(metafunc.module, "ENGINES", None)
    named = any(mark.args[0] == "engine" for mark in metafunc.definition.iter_markers("parametrize"))
    if engines is not None and not named and "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engines, indirect=True)


@pytest.fixture
def engine(clock: Clock, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    """An engine that counts its calls and can be told to fail: in memory, unless the module names others."""
    match getattr(request, "param", "memory"):
        case "memory":
            kept: Engine = MemoryEngine(clock)
        case "sqlite":
            kept = SqliteEngine(tmp_path / "jobs.db", clock)
        case "file":
            kept = FileEngine(tmp_path / "jobs.json", clock)
        case "postgres" | "redis" as name:
            url = request.getfixturevalue(f"{name}_store")
            clock.server = kept = engine_for(url)
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


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store_url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of an empty store that many processes may use."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue(f"{request.param}_store"))
