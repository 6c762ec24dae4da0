"""What the tests of the file engine are given: a checkpoint file, its clock, and an engine or a desk on it."""

from pathlib import Path

import pytest

from holdfast.conformance.given import StoreClock
from holdfast.engines.file import FileEngine
from tests.engines.file.given import Desk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.json"


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock(settable=True)


@pytest.fixture
def engine(path, clock, run):
    """An open engine: the one that uses the file."""
    engine = FileEngine(path, clock)
    run(engine.open())
    yield engine
    run(engine.close())


@pytest.fixture
def desk(path, clock, run):
    desk = Desk(path, clock, run)
    yield desk
    run(desk.engine.close())
