"""What the demo says of its store: how to look at one that is kept, and never where one was that is gone."""

import shlex
from pathlib import Path

import pytest

from holdfast.core.keys import new_id
from holdfast.demo import show
from tests.cli.conftest import Cli

ID = new_id(1_760_000_000_000, 1)


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo that is over at once: the whole of it is tried in tests/scenarios."""

    async def play(*_: object) -> str:
        return ID

    monkeypatch.setattr(show, "play", play)


def test_a_store_that_is_kept_is_told_with_how_to_look_at_it(cli: Cli, tmp_path: Path):
    said = cli.ok("demo", "--db", "my films.db")

    *_, url = shlex.split(said)
    assert said == f" inspect the store: holdfast show {ID[-8:]} --url {url}\n"
    assert url == f"sqlite:///{tmp_path}/my%20films.db"


def test_a_store_that_is_gone_is_not_told(cli: Cli):
    said = cli.ok("demo")

    assert "/" not in said
    assert "holdfast demo --db" in said
