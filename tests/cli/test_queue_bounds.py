"""`holdfast queues set|reset`: what they change and show, and what they refuse in one line."""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast import App
from holdfast.jobs.full_queues import declare_bounds
from tests.cli.conftest import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store whose code has bounded the queue `video`, where two jobs wait."""
    monkeypatch.setenv("HOLDFAST_URL", f"file:{tmp_path}/jobs.json")
    monkeypatch.setenv("COLUMNS", "120")
    app = App()
    app.queue("video", most_waiting=10)

    @app.job(queue="video")
    async def clip(n: int) -> None: ...

    async def fill() -> None:
        await clip.submit_many([1, 2])
        await declare_bounds(app.engine, list(app.registry.bounds.values()), by="w-1")
        await app.close()

    asyncio.run(fill())
    return Cli(tmp_path / "jobs.json")


def test_queues_show_depth_and_bound(cli: Cli):
    assert "2 of 10 waiting" in cli.ok("queues")
    (video,) = json.loads(cli.ok("queues", "--json"))["queues"]
    assert (video["depth"], video["most_waiting"], video["when_full"]) == (2, 10, "refuse")
    assert video["bound_set_by"] is None


def test_a_persons_bound_counts_until_it_is_reset(cli: Cli):
    assert "video: at most 1 waiting; 2 wait now" in cli.ok(
        "queues", "set", "video", "--most-waiting", "1", "--reason", "x"
    )
    assert "2 of 1 waiting" in cli.ok("queues")
    (video,) = json.loads(cli.ok("queues", "--json"))["queues"]
    assert video["most_waiting"] == 1
    assert video["bound_set_by"]

    assert "video: at most 10 waiting, refuse, as code declares" in cli.ok("queues", "reset", "video")
    assert "2 of 10 waiting" in cli.ok("queues")
