"""A call of the command line, and stores to call it on."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.core.model import State
from tests.cli.stores import every_state


class Cli:
    """Calls verbs on one store, as a person would in its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *words: str, input: str | None = None) -> Result:
        """Call a verb."""
        return CliRunner().invoke(main, list(words), prog_name="holdfast", input=input, catch_exceptions=False)

    def ok(self, *words: str) -> str:
        """Call a verb that must succeed; answer with what it said."""
        result = self(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str) -> Any:
        """Call a verb with --json; answer with its one document."""
        return json.loads(self.ok(*words, "--json"))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store in a folder of its own. What is imported from there is forgotten: others use the same names."""
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "jobs.db"
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{tmp_path}/"):
            del sys.modules[name]


@pytest.fixture
def cli(path: Path) -> Cli:
    return Cli(path)


@pytest.fixture
def ids(path: Path) -> dict[State, str]:
    """A store with a job in every state."""
    return every_state(path)
