"""One run as a file: what export writes, import brings back, and replay makes of it; and what is refused."""

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import State
from holdfast.engines import engine_class
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.shapes import parse_time, time_text
from tests.cli.conftest import Cli
from tests.cli.stores import in_store

VIDEO = """
import os
from holdfast import App, step

app = App()

@step(key=lambda n: str(n))
async def draw(n: int) -> str:
    print("DREW", n, flush=True)
    if "BROKEN" in os.environ:
        assert n < 3, "the provider is down"
    return f"scene-{n}.png"

@app.job(queue="making", retries=0)
async def make_film(scenes: int) -> int:
    for n in range(1, scenes + 1):
        await draw(n)
    return scenes
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/colleague.db"


def exported(cli: Cli, id: str) -> dict[str, Any]:
    return json.loads(cli.ok("export", id))


def imported(cli: Cli, shape: Any, url: str, *options: str):
    file = cli.path.parent / "run.json"
    file.write_text(json.dumps(shape))
    return cli("import", str(file), "--url", url, *options)


KEPT = ("id", "type", "queue", "priority", "args", "options", "created_at", "attempt", "recoveries")


@pytest.mark.parametrize("state", State)
def test_a_run_comes_back_as_it_was(state: State, cli: Cli, ids: dict[State, str], elsewhere: str):
    file = exported(cli, ids[state])

    result = imported(cli, file, elsewhere)

    assert result.exit_code == 0, result.output
    before, after = cli.json("show", ids[state]), cli.json("show", ids[state], "--url", elsewhere)
    assert {name: after["job"][name] for name in KEPT} == {name: before["job"][name] for name in KEPT}
    assert after["steps"] == before["steps"]
    assert after["log"] == before["log"]
    assert after["before_import"] == before["history"]
    assert after["job"]["result"] == before["job"]["result"]
    assert after["job"]["state"] == (state if state in TERMINAL else "review")
    claimed = state is not State.CANCELLED  # on its way in
    assert after["job"]["epoch"] == before["job"]["epoch"] + claimed  # an epoch never goes back


@pytest.mark.parametrize("state", State)
def test_with_review_any_run_can_be_replayed(state: State, cli: Cli, ids: dict[State, str], elsewhere: str):
    imported(cli, exported(cli, ids[state]), elsewhere, "--review")

    assert cli.json("status", ids[state], "--url", elsewhere)["state"] == "review"
    cli.ok("replay", ids[state], "--url", elsewhere)
    assert cli.json("status", ids[state], "--url", elsewhere)["state"] == "available"


@pytest.mark.parametrize("state", State)
def test_nothing_that_was_imported_runs_by_itself(state: State, cli: Cli, ids: dict[State, str], elsewhere: str):
    imported(cli, exported(cli, ids[state]), elsewhere)

    async def claim(jobs: Jobs) -> list[Any]:
        return await jobs.engine.claim("w-2", ["making", "video"], 10)

    assert in_store(Path(elsewhere.removeprefix("sqlite:///")), claim) == []


def test_the_store_of_an_imported_run_is_sound(cli: Cli, ids: dict[State, str], elsewhere: str):
    for id in ids.values():
        imported(cli, exported(cli, id), elsewhere)

    checks = {one["name"]: one["level"] for one in cli.json("doctor", "--url", elsewhere)["checks"]}
    assert checks["counters"] == "ok"
    for id in ids.values():
        versions = [entry["version"] for entry in cli.json("show", id, "--url", elsewhere)["history"]]
        assert versions == list(range(1, len(versions) + 1))


def test_an_imported_run_goes_on_after_its_last_recorded_step(cli: Cli, elsewhere: str, tmp_path: Path, monkeypatch):
    (tmp_path / "video.py").write_text(VIDEO)
    monkeypatch.setenv("BROKEN", "1")
    run = in_app(tmp_path, "run = await app_module.make_film.submit(5); await settled(run); print(run.id)")
    assert run.split() == ["DREW", "1", "DREW", "2", "DREW", "3", run.split()[-1]]
    id = run.split()[-1]

    imported(cli, exported(cli, id), elsewhere)
    assert "the provider is down" in cli.ok("show", id, "--url", elsewhere)
    cli.ok("replay", id, "--url", elsewhere)

    monkeypatch.delenv("BROKEN")
    monkeypatch.setenv("HOLDFAST_URL", elsewhere)
    again = in_app(tmp_path, f"run = await app_module.app.run('{id}'); print(await run.result(20))")
    assert again.split() == ["DREW", "3", "DREW", "4", "DREW", "5", "5"]


def in_app(folder: Path, body: str) -> str:
    """Run some lines with a worker of the video App, in a process of its own."""
    code = (
        "import asyncio, video as app_module\n"
        "async def settled(run):\n"
        "    try: await run.result(20)\n"
        "    except Exception: pass\n"
        "async def main():\n"
        f"    async with app_module.app.worker(): {body}\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_signals_come_along(cli: Cli, ids: dict[State, str], elsewhere: str):
    cli.ok("signal", ids[State.REVIEW], "approved", "--json", "[1]")
    before = cli.json("show", ids[State.REVIEW])["job"]["signals"]

    imported(cli, exported(cli, ids[State.REVIEW]), elsewhere)

    after = cli.json("show", ids[State.REVIEW], "--url", elsewhere)["job"]["signals"]
    assert [(one["name"], one["value"], one["by"]) for one in after] == [("approved", [1], before[0]["by"])]


def test_a_run_whose_id_is_there_is_refused_and_left_as_it_was(cli: Cli, ids: dict[State, str]):
    before = cli.json("show", ids[State.ACTIVE])

    result = imported(cli, exported(cli, ids[State.ACTIVE]), f"sqlite:///{cli.path}")

    assert result.exit_code == 1
    assert "is already in this store" in result.stderr
    assert cli.json("show", ids[State.ACTIVE]) == before


def test_a_second_export_has_the_history_of_both_stores(cli: Cli, ids: dict[State, str], elsewhere: str):
    first = exported(cli, ids[State.REVIEW])
    imported(cli, first, elsewhere)

    second = json.loads(cli.ok("export", ids[State.REVIEW], "--url", elsewhere))

    assert second["history"][: len(first["history"])] == first["history"]
    assert second["history"][-1]["event"] == "abandon"


def test_a_run_may_come_into_a_file_that_people_edit(cli: Cli, ids: dict[State, str], tmp_path: Path):
    url = f"file:{tmp_path}/checkpoint.json"
    assert engine_class(url)

    assert imported(cli, exported(cli, ids[State.REVIEW]), url).exit_code == 0
    assert len(cli.json("show", ids[State.REVIEW], "--url", url)["steps"]) == 3


def test_the_file_is_for_its_owner_and_never_written_over(cli: Cli, ids: dict[State, str], tmp_path: Path):
    file = tmp_path / "run.json"

    cli.ok("export", ids[State.REVIEW], "--output", str(file))
    text = file.read_text()
    again = cli("export", ids[State.ACTIVE], "--output", str(file))

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (json.loads(text)["kind"], json.loads(text)["format"]) == ("holdfast run", 1)
    assert again.exit_code == 1
    assert file.read_text() == text


def without(*path: str):
    def edit(shape: dict[str, Any]) -> Any:
        part: Any = shape
        for name in path[:-1]:
            part = part[int(name)] if isinstance(part, list) else part[name]
        del part[path[-1]]
        return shape

    return edit


def with_(value: Any, *path: str):
    def edit(shape: dict[str, Any]) -> Any:
        part: Any = shape
        for name in path[:-1]:
            part = part[int(name)] if isinstance(part, list) else part[name]
        part[path[-1]] = value
        return shape

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        lambda shape: [],
        lambda shape: None,
        lambda shape: {},
        with_("something else", "kind"),
        with_(2, "format"),
        with_("1", "format"),
        without("job"),
        without("steps"),
        without("history"),
        without("log"),
        with_({}, "job"),
        with_([], "job"),
        with_("x", "steps"),
        with_("../../etc/passwd", "job", "id"),
        with_("Make Video", "job", "type"),
        with_("Video!", "job", "queue"),
        with_("asleep", "job", "state"),
        with_({"title": 1}, "job", "args"),
        with_("three", "job", "attempt"),
        with_(None, "job", "created_at"),
        with_("yesterday", "job", "created_at"),
        with_("2026-01-01T00:00:00", "job", "created_at"),
        with_({"retry": {"retries": -1}}, "job", "options"),
        with_({"retry": {"strategy": "never heard"}}, "job", "options"),
        with_(7, "job", "error"),
        with_("~log", "steps", "0", "path"),
        with_("half", "steps", "0", "state"),
        with_(None, "steps", "0", "started_at"),
        with_(None, "history", "0", "after"),
    ],
)
def test_a_file_that_is_no_whole_run_is_refused_before_a_store_is_made(
    edit: Any, cli: Cli, ids: dict[State, str], elsewhere: str
):
    result = imported(cli, edit(exported(cli, ids[State.REVIEW])), elsewhere)

    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("holdfast: ")
    assert result.stderr.count("\n") == 1
    assert not Path(elsewhere.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"nonsense"])
def test_a_file_that_is_no_json_is_refused(raw: bytes, cli: Cli, tmp_path: Path, elsewhere: str):
    (tmp_path / "run.json").write_bytes(raw)

    result = cli("import", "run.json", "--url", elsewhere)

    assert result.exit_code == 2
    assert result.stderr.startswith("holdfast: run.json: not ")


def test_a_run_may_come_through_a_pipe(cli: Cli, ids: dict[State, str], elsewhere: str):
    result = cli("import", "-", "--url", elsewhere, input=cli.ok("export", ids[State.REVIEW]))

    assert result.exit_code == 0


@pytest.mark.parametrize("at", [0, 1, 999, 1_760_000_000_123, 4_102_444_800_001])
def test_a_time_is_exact_in_text(at: int):
    assert parse_time(time_text(at)) == at


def test_a_file_that_cant_be_read_or_written_is_told_as_such(cli: Cli, ids: dict[State, str], tmp_path: Path):
    read = cli("import", str(tmp_path / "nowhere.json"))
    written = cli("export", ids[State.COMPLETED], "--output", str(tmp_path / "nowhere" / "run.json"))

    assert read.stderr == f"holdfast: {tmp_path}/nowhere.json: can't be read: No such file or directory\n"
    assert written.stderr == f"holdfast: {tmp_path}/nowhere/run.json: can't be written: No such file or directory\n"
