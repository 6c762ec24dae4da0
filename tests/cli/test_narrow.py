"""The laws of lists on a narrow screen: ids stay whole, every line fits, and further lines are indented."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.job import DecoratedJob
from holdfast.cli.load_app import load_app
from holdfast.core.model import State
from tests.cli.conftest import Cli

APP = """
from typing import Literal
from holdfast import App, ask, step
app = App()

@step
async def illustrate(scene: str) -> str:
    raise ValueError("the provider has no ink left for this scene, and says so at length")

@app.job(name="publishing.illustrate_a_chapter", queue="illustrations-of-books", retries=0)
async def chapter(scenes: list[str]) -> list[str]:
    return await illustrate.map(scenes)

@app.job(name="publishing.approve_a_book", queue="illustrations-of-books")
async def book(title: str) -> str:
    question = f"Shall we print {title}, which somebody has to read first?"
    return await ask(question, form=Literal["publish", "rewrite"], within="2d")
"""


@pytest.fixture
def ids(cli: Cli, tmp_path: Path) -> list[str]:
    """A job in review and one with an open question, as a store keeps them; their ids."""
    (tmp_path / "books.py").write_text(APP)
    app = load_app(str(tmp_path / "books.py:app"))

    async def run() -> list[str]:
        runs = []
        calls = {"publishing.illustrate_a_chapter": ["sea", "storm"], "publishing.approve_a_book": "Kelp"}
        for type, args in calls.items():
            spec = app.registry.get(type)
            assert spec is not None
            runs.append(await DecoratedJob[Any, Any](app.open, spec).submit(args))
        async with app.worker(queues=["illustrations-of-books"]):
            for run in runs:
                async for _ in run.follow():
                    if (await run.status()).state in (State.REVIEW, State.PENDING):
                        break
        await app.close()
        return [run.id[-8:] for run in runs]

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("verb", ["jobs", "review", "ask", "status"])
def test_lists_show_whole_ids_in_lines_that_fit(
    verb: str, width: int, cli: Cli, ids: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", str(width))

    lines = cli.ok(verb).splitlines()

    assert [line for line in lines if len(line) > width and os.sep not in line] == []
    shown = [id for id in ids if any(id in line for line in lines)]
    assert shown == {"review": ids[:1], "ask": ids[1:]}.get(verb, ids)


@pytest.mark.parametrize("verb", ["jobs", "review", "ask"])
def test_only_a_job_begins_in_the_first_column_of_a_narrow_list(
    verb: str, cli: Cli, ids: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "40")

    listed = [part for part in cli.ok(verb).split("\n\n") if any(id in part for id in ids)]

    first = [line for line in "\n".join(listed).splitlines() if not line.startswith(" ")]
    assert first
    assert [line for line in first if not re.match("|".join(ids), line)] == []


def test_only_headings_and_queues_begin_in_the_first_column_of_a_narrow_status(
    cli: Cli, ids: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "40")

    needs = cli.ok("status").partition("Needs a person\n")[2].splitlines()

    assert "submitted" in " ".join(needs)
    assert [line for line in needs if line and line[0] != " "] == ["Waits for an answer"]


def test_status_names_jobs_that_wait_for_an_answer(cli: Cli, ids: list[str]):
    told = cli.ok("status")

    assert re.search(rf"publishing.approve_a_book {ids[1]}  waiting for a person's answer, (2 d|1 d 23 h) left", told)
    assert "  to answer: holdfast ask\n" in told
    (asking,) = cli.json("status")["asking"]
    assert asking["id"].endswith(ids[1])
    assert asking["until"].endswith("Z")


def test_a_history_names_a_question_and_our_errors_in_words(cli: Cli, ids: list[str]):
    failed, asked = (cli.ok("show", id) for id in ids)

    assert "holdfast.core.errors." not in failed
    assert "error: ItemsFailed: illustrate: 2 of 2 items failed" in failed
    assert "first failure: item 1 of 2" in " ".join(failed.split())
    assert "waits: a person's answer, for 2 d at most" in asked


FAMILY = """
from holdfast import App, sleep, wait_for
app = App()

@app.job(queue="families")
async def page(number: int) -> int:
    return await wait_for(f"page-{number}", as_=int)

@app.job(queue="families")
async def book(pages: int) -> list[int]:
    return await page.map(range(pages))

@app.job(queue="families")
async def nap() -> None:
    await sleep("2h")

@app.job(queue="families")
async def parent() -> int:
    return await (await page.submit(9)).result()
"""


def test_a_history_and_a_list_of_children_show_no_names_that_only_holdfast_uses(cli: Cli, tmp_path: Path):
    (tmp_path / "family.py").write_text(FAMILY)
    app = load_app(str(tmp_path / "family.py:app"))

    async def run() -> list[str]:
        runs = []
        for type, args in {"book": [2], "nap": [], "parent": []}.items():
            spec = app.registry.get(type)
            assert spec is not None
            runs.append(await DecoratedJob[Any, Any](app.open, spec).submit(*args))
        async with app.worker():
            for run in runs:
                async for _ in run.follow():
                    if (await run.status()).state in (State.SCHEDULED, State.PENDING):
                        break
        await app.close()
        return [run.id for run in runs]

    book, nap, parent = (cli.ok("show", id) for id in asyncio.run(asyncio.wait_for(run(), 60)))

    assert "waits: children of page.map()" in book
    assert re.search(r"page +pending +page\.map\(\)$", book, re.MULTILINE)
    assert "waits: 2 h\n" in nap
    assert re.search(r"waits: child [0-9a-f]{8}$", parent, re.MULTILINE)
    assert "~" not in book + parent
