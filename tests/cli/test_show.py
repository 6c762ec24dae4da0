"""The laws of `holdfast show`: readable at any width, in words, with steps named by their arguments."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, JobFailed, chain, chord
from holdfast.app.job import DecoratedJob
from holdfast.cli.load_app import load_app
from tests.cli.conftest import Cli

APP = """
from holdfast import App, step
app = App()

@step
async def plan(title: str, chapters: int) -> list[dict[str, str]]:
    return [{"scene": "storm"}, {"scene": "harbour at night"}]

@step
async def draw(scene: str) -> str:
    if scene == "storm":
        raise RuntimeError("the provider answered: " + "no storms today " * 12)
    return scene

@step
async def chapter(number: int, *, voice: str = "calm") -> str:
    return await write(number) + voice

@step
async def write(number: int) -> str:
    return f"{number}."

@step(effect="once", key=lambda order: f"order-{order}")
async def send(order: int) -> str:
    raise RuntimeError("connection reset")

@app.job(retries=0)
async def film(title: str, scenes: list[str]) -> None:
    for scene in await plan(title, 7):
        scenes = [*scenes, scene["scene"]]
    await draw.map(scenes, need=0)
    await chapter(3, voice="an angry and very loud voice, as of a storm")
    await chapter(4, voice="an angry and very loud voice, as of the sea")
    await send(42)
"""

TITLE = "The lighthouse at the end of the world, and what its keeper saw there in the long winter of 1911"


@pytest.fixture
def shown(cli: Cli, tmp_path: Path) -> str:
    """A film that has failed, as a store keeps it; its id."""
    (tmp_path / "keeper.py").write_text(APP)
    app = load_app(str(tmp_path / "keeper.py:app"))

    spec = app.registry.get("film")
    assert spec is not None
    film = DecoratedJob[Any, None](app.open, spec)

    async def run() -> str:
        made = await film.submit(TITLE, ["sea", "sea"], key="order-42")
        async with app.worker():
            async for _ in made.follow():
                pass
        await app.close()
        return made.id

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_line_fits_and_no_continuation_begins_in_the_first_column(
    width: int, cli: Cli, shown: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", str(width))

    whole = cli.ok("show", shown)

    told, _, commands = whole.partition("In doubt:")
    assert "--step 'send#order-42' --again\n" in commands  # to copy: on one line, whatever the width
    assert [line for line in told.splitlines() if len(line) > width] == []
    headings = ("film", shown, "What happened", "Steps:", "Error", "")
    assert [line for line in told.splitlines() if line[:1] != " " and not line.startswith(headings[:-1]) and line] == []
    flat = " ".join(told.split())
    assert all(word in flat for word in TITLE.split())


@pytest.mark.parametrize("width", [40, 80, 200])
def test_steps_are_named_by_their_arguments_and_never_by_a_hash(
    width: int, cli: Cli, shown: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", str(width))

    told = cli.ok("show", shown)

    flat = " ".join(told.split())
    names = ['draw "sea"', 'draw "sea", call 2', 'draw "harbour at night"', "send order-42", "chapter, item 1"]
    assert [name for name in names if name not in flat] == []
    assert "chapter, item 2 / write 4" in flat or width == 80  # cut in a table
    assert [step["path"] for step in cli.json("show", shown)["steps"] if step["path"].split("#")[1][:16] in told] == [
        "send#order-42"
    ]


def test_a_history_holds_no_python(cli: Cli, shown: str):
    told = cli.ok("show", shown).partition("Steps:")[0]

    assert "in doubt: send#order-42\n" in told
    assert not [mark for mark in ("['", "{'", "None", "_") if mark in told.partition("What happened")[2]]


def test_a_flow_is_drawn_as_a_tree_with_what_has_not_started(cli: Cli):
    app = App()

    @app.job(retries=0)
    async def draw(scene: str) -> str:
        if scene == "storm":
            raise ValueError("no paint left")
        return scene

    @app.job
    async def join(scenes: list[str]) -> str:
        return ", ".join(scenes)

    async def fail() -> str:
        run = await chord([draw.s("harbour"), chain(draw.s("storm"), draw.s())], join.s()).submit()
        async with app.worker():
            with pytest.raises(JobFailed):
                await run.result(60)
        await app.close()
        return run.id

    id = asyncio.run(fail())

    lines = cli.ok("show", id).partition("The flow\n")[2].splitlines()
    assert [re.sub(r"[0-9a-f]{8}", "ID", line).strip() for line in lines[:6]] == [
        "chord ID: review",
        "├─ draw ID: completed",
        "├─ chain ID: review",
        "│  ├─ draw ID: review: ValueError: no paint left",
        "│  └─ draw: never started",
        "└─ join: never started",
    ]
    parts = cli.json("show", id)["tree"]["parts"]
    assert [one["name"] for one in parts] == ["draw", "chain", "join"]
    assert [one["state"] for one in parts] == ["completed", "review", None]
