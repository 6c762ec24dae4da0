"""What all tests share: `--soak`, which makes the random ones run long, and an end to a test that hangs."""

import asyncio
import faulthandler
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.engines import engine_class
from tests.support import postgres_server, redis_server

pytest_plugins = ["tests.support.fixtures"]

HUNG_SECONDS = 600.0
"""A test that takes so long hangs: its process tells where each thread is, and ends. With --soak nothing does."""

# Tests that run in the background ignore Ctrl-C, and under nohup a closed terminal. The processes that tests start to
# try these signals on would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="many more rounds of kills, races and random lives")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--soak"):
        config.pluginmanager.register(Watchdog())


SLOW = ("conformance", "demo", "scenarios", "simulation")
"""The folders whose tests take seconds each."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each process of pytest-xdist some of the slow modules first, so that none is left with them at the end."""
    count = getattr(config, "workerinput", {}).get("workercount", 1)
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.path.parent.name in SLOW:
            modules.setdefault(item.path, []).append(item)
    rest = [item for item in items if item.path not in modules]
    size = -(-len(items) // count)
    items.clear()
    for nth in range(count):
        slow = [item for module in list(modules.values())[nth::count] for item in module]
        room = max(0, size - len(slow))
        items += [*slow, *rest[:room]]
        rest = rest[room:]
    items += rest


def pytest_collection_finish() -> None:
    """Take what was collected out of the garbage collector's rounds: thousands of tests, and none of it garbage."""
    gc.collect()
    gc.freeze()


class Watchdog:
    """Ends the process of a test that hangs. pytest-xdist then names the test, and goes on with the rest."""

    def __init__(self) -> None:
        self._stderr = os.dup(2)  # Later on, pytest keeps what goes there to itself.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        faulthandler.dump_traceback_later(HUNG_SECONDS, file=self._stderr, exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def rounds(request: pytest.FixtureRequest):
    """How many rounds: a few, or with --soak many."""
    return lambda few, many: many if request.config.getoption("--soak") else few


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a real Postgres, started for this run; where none can be, the test is skipped."""
    with postgres_server.server_url() as url:
        yield url


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[str]:
    """The URL of an empty store on that server."""
    engine = engine_class(postgres_url)
    url = engine.scratch(postgres_url, Path())
    yield url
    asyncio.run(engine.scrap(url))


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a real Redis, started for this run; where none can be, the test is skipped."""
    with redis_server.server_url() as url:
        yield url


@pytest.fixture
def redis_store(redis_url: str) -> Iterator[str]:
    """The URL of an empty store on that server."""
    engine = engine_class(redis_url)
    url = engine.scratch(redis_url, Path())
    yield url
    asyncio.run(engine.scrap(url))
