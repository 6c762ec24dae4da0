"""The contract checks for all engines: none of them stands in the way of a check, and none checks again."""

import ast
from pathlib import Path

import pytest

from holdfast.engines import checks, engine_class
from holdfast.engines.contract import Engine
from holdfast.engines.file.reader import FileReader
from holdfast.engines.traits import Movable, Transactional
from holdfast.testing.store import Store
from holdfast.worker.isolation.remote_engine import RemoteEngine

CONTRACT = (Engine, Movable, Transactional)
CHECKED = {name[1:] for kind in CONTRACT for name in vars(kind) if name.startswith("_") and hasattr(kind, name[1:])}
"""The methods that check, and then call the engine's own with an underscore in front."""

URLS = ("memory:", "file:jobs.json", "sqlite:///jobs.db", "postgresql://host/database", "redis://host")
ENGINES = [*map(engine_class, URLS), FileReader, Store, RemoteEngine]
SOURCES = Path(checks.__file__).parent


def test_every_method_that_takes_something_from_callers_is_one_that_checks():
    assert {"insert", "insert_within", "claim", "turn", "commit", "record", "beat", "put_record", "prune"} <= CHECKED
    assert {"get", "find", "steps", "history", "records", "wait", "load", "in_order", "keys", "transact"} <= CHECKED


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
def test_no_engine_puts_its_own_method_in_the_place_of_one_that_checks(engine: type[Engine]):
    own = [kind for kind in engine.__mro__ if kind not in CONTRACT and kind not in Engine.__mro__]

    assert [(kind.__name__, name) for kind in own for name in vars(kind) if name in CHECKED] == []


@pytest.mark.parametrize("path", sorted(SOURCES.glob("*/*.py")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_engine_repeats_a_check(path: Path):
    names = {name for name in vars(checks) if name.startswith("check_") or name == "at_most"}
    asked = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    taken = {alias.name for node in asked if node.module == "holdfast.engines.checks" for alias in node.names}

    assert taken & names == set()
