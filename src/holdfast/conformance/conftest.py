"""The fixtures of this package: an empty store of each named kind, a clock, and an event loop.

Must not affect tests outside this package: pytest applies a conftest only to its own folder.
"""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.conformance.given import Another, StoreClock
from holdfast.conformance.kinds import THIS_MACHINE, Kind, kind_of
from holdfast.conformance.plugin import ENGINES, EXAMPLES, HOW_TO_CALL
from holdfast.conformance.race import RACERS
from holdfast.conformance.texts import TEXTS
from holdfast.engines.contract import Engine

DIFFERENTIAL = Path(__file__).with_name("test_differential.py")

TEST_SECONDS = 120.0
"""How long one test may take, so that an engine that hangs is reported."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test once for each engine that was named."""
    if "kind" not in metafunc.fixturenames:
        return
    kinds = [kind_of(text) for text in metafunc.config.getoption(ENGINES)]
    if kinds:
        metafunc.parametrize("kind", kinds, ids=[kind.engine.guarantees.name for kind in kinds])
    else:
        metafunc.parametrize("kind", [pytest.param(None, marks=pytest.mark.skip(reason=HOW_TO_CALL))], ids=["none"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the random lives last: if a law is broken, its own test reports that sooner and more clearly."""
    items.sort(key=lambda item: item.path == DIFFERENTIAL)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test on the loop on which its engine was opened."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    runner = pyfuncitem.funcargs["runner"]
    assert isinstance(runner, asyncio.Runner)

    async def bounded() -> None:
        async with asyncio.timeout(TEST_SECONDS):
            await test(**given)

    runner.run(bounded())
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """If no engine was named, print how to call the suite: pytest doesn't print why tests were skipped."""
    if not config.getoption(ENGINES):
        terminalreporter.write_line(f"holdfast.conformance was skipped; {HOW_TO_CALL}")


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of one test and its fixtures."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def clock(kind: Kind) -> StoreClock:
    """The store's time as the test sees it. It can be moved if the engine uses a clock that we pass."""
    return StoreClock(settable=kind.engine.guarantees.clock == THIS_MACHINE)


@pytest.fixture
def url(kind: Kind, tmp_path: Path, runner: asyncio.Runner) -> Iterator[str]:
    """An empty store."""
    url = kind.scratch(tmp_path)
    yield url
    runner.run(kind.engine.scrap(url))


@pytest.fixture
def another(kind: Kind, url: str, clock: StoreClock, runner: asyncio.Runner) -> Iterator[Another]:
    """Opens further engine objects on the test's store; all are closed at the end."""
    another = Another(kind, url, clock)
    yield another
    runner.run(another.close_all())


@pytest.fixture
def engine(another: Another, runner: asyncio.Runner) -> object:
    """The engine under test, opened on an empty store."""
    return runner.run(another())


@pytest.fixture
def examples(pytestconfig: pytest.Config) -> int:
    """How many random lives to compare."""
    number: int = pytestconfig.getoption(EXAMPLES)
    return number


@pytest.fixture(params=list(TEXTS))
def text(request: pytest.FixtureRequest) -> str:
    """A text that some store might change."""
    return TEXTS[request.param]


@pytest.fixture
def engines(engine: Engine, another: Another, runner: asyncio.Runner) -> list[Engine]:
    """Return an engine for each racer: its own if the store can be shared, otherwise the same one."""
    if not engine.guarantees.shared:
        return [engine] * RACERS
    return [engine, *(runner.run(another()) for _ in range(RACERS - 1))]
