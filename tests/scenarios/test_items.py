"""run_items: a list and a function, on a file, on SQLite, on Postgres and in memory."""

import asyncio
import functools
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Settings, run_items, run_items_async
from holdfast.app.items.words import Counts
from holdfast.core.errors import HoldfastError, Invalid, StoreError, WrongColour

CHAPTERS = ["one", "two", "three", "four"]


@pytest.fixture(params=["file", "sqlite", "memory", "postgres", "redis"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request, tmp_path)


@pytest.fixture(params=["file", "sqlite", "postgres", "redis"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request, tmp_path)


def url_of(request: pytest.FixtureRequest, folder: Path) -> str:
    match request.param:
        case "file":
            return str(folder / "book.json")
        case "sqlite":
            return f"sqlite:///{folder}/book.db"
        case "postgres" | "redis" as name:
            return str(request.getfixturevalue(f"{name}_store"))
    return "memory:"


class Desk:
    """Functions of all kinds, and what they were called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.broken: set[Any] = set()

    def write(self, item: Any) -> Any:
        self.calls.append(item)
        if item in self.broken:
            raise RuntimeError(f"no ink for {item}")
        return f"text of {item}"

    async def write_async(self, item: Any) -> Any:
        await asyncio.sleep(0)
        return self.write(item)

    def write_tuple(self, item: Any) -> tuple[bool, str | None]:
        self.calls.append(item)
        return (False, f"no ink for {item}") if item in self.broken else (True, None)

    def write_awaitable(self, item: Any) -> Any:
        return self.write_async(item)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def blocks(path: Path) -> dict[str, Any]:
    return {job["key"]: job for job in json.loads(path.read_text())["jobs"]}


@pytest.mark.parametrize("kind", ["write", "write_async", "write_tuple", "write_awaitable"])
def test_every_kind_of_function_is_called_once_for_each_item_in_order(where: str, desk: Desk, kind: str):
    counts = run_items(where, CHAPTERS, getattr(desk, kind), quiet=True)

    assert desk.calls == CHAPTERS
    assert (counts.done, counts.failed, counts.pending, counts.recovered) == (4, 0, 0, 0)
    assert dict(counts) == {"PENDING": 0, "RUNNING": 0, "NEEDS_REVIEW": 0, "DONE": 4}


@pytest.mark.parametrize("kind", ["write", "write_async", "write_tuple"])
def test_an_item_whose_tries_are_spent_needs_review_and_the_others_go_on(where: str, desk: Desk, kind: str):
    desk.broken = {"two"}

    counts = run_items(where, CHAPTERS, getattr(desk, kind), retries=2, backoff=0.01, quiet=True)

    assert (counts.done, counts.failed) == (3, 1)
    assert desk.calls.count("two") == 3
    assert counts["NEEDS_REVIEW"] == 1


def test_a_failure_that_passes_costs_only_its_tries(where: str, desk: Desk):
    def flaky(item: str) -> str:
        desk.calls.append(item)
        if desk.calls.count(item) < 3:
            raise ConnectionError("try later")
        return item

    counts = run_items(where, ["a", "b"], flaky, retries=2, backoff=0.01, quiet=True)

    assert counts == Counts(done=2)
    assert len(desk.calls) == 6


def test_tries_are_a_backoff_apart_that_doubles(tmp_path: Path):
    at: list[float] = []

    def never(item: int) -> None:
        at.append(time.monotonic())
        raise RuntimeError("no")

    run_items(tmp_path / "x.json", [1], never, retries=2, backoff=0.4, quiet=True)

    first, second = at[1] - at[0], at[2] - at[1]
    assert 0.2 <= first < 1.5  # half to one and a half of 0.4, and what a busy machine adds
    assert 0.4 <= second < 2.5


def test_a_second_call_finds_everything_finished(kept: str, desk: Desk):
    desk.broken = {"two"}
    run_items(kept, CHAPTERS, desk.write, retries=0, quiet=True)
    desk.calls.clear()

    counts = run_items(kept, CHAPTERS, desk.write, retries=0, quiet=True)

    assert desk.calls == []
    assert counts == Counts(done=3, failed=1)


def test_a_longer_list_runs_only_what_is_new(kept: str, desk: Desk):
    run_items(kept, ["one", "three"], desk.write, quiet=True)

    counts = run_items(kept, CHAPTERS, desk.write, quiet=True)

    assert desk.calls == ["one", "three", "two", "four"]
    assert counts.done == 4


def test_equal_items_are_run_each_and_known_again_by_place(kept: str, desk: Desk):
    run_items(kept, ["a", "b", "a"], desk.write, quiet=True)
    assert sorted(desk.calls) == ["a", "a", "b"]

    counts = run_items(kept, ["a", "b", "a", "a"], desk.write, quiet=True)

    assert counts.done == 4
    assert sorted(desk.calls) == ["a", "a", "a", "b"]


def test_items_that_look_alike_are_not_taken_for_one_another(kept: str, desk: Desk):
    items = [1, "1", True, "true", None, "null", "a", "a#2", "a", 1.5, [1], "[1]", "*x", "", " ", "ä", "x" * 5_000]

    counts = run_items(kept, items, _note(desk), quiet=True)
    assert counts.done == len(items)
    run_items(kept, list(reversed(items)), _note(desk), quiet=True)

    assert len(desk.calls) == len(items)


def test_the_function_gets_the_lists_own_items(kept: str, desk: Desk):
    @dataclass(frozen=True)
    class Chapter:
        title: str
        words: int

    items = [Chapter("Dawn", 900), Path("a/b.txt"), ("x", 1), {"k": [1, 2]}]

    run_items(kept, items, _note(desk), quiet=True)

    assert desk.calls == items
    assert [type(call) for call in desk.calls] == [Chapter, type(Path()), tuple, dict]


def _note(desk: Desk) -> Any:
    def note(item: Any) -> None:
        desk.calls.append(item)

    return note


def test_a_key_names_an_item_however_its_value_changes(kept: str, desk: Desk):
    run_items(kept, [{"id": 1, "text": "old"}], _note(desk), key=lambda item: item["id"], quiet=True)

    run_items(kept, [{"id": 1, "text": "new"}, {"id": 2}], _note(desk), key=lambda item: item["id"], quiet=True)  # type: ignore[index]

    assert desk.calls == [{"id": 1, "text": "old"}, {"id": 2}]


def test_two_functions_in_one_store_are_two_lists(kept: str, desk: Desk, capsys: pytest.CaptureFixture[str]):
    def outline(item: str) -> None:
        desk.calls.append(f"outline {item}")

    def draft(item: str) -> None:
        desk.calls.append(f"draft {item}")

    run_items(kept, ["a"], outline)
    assert run_items(kept, ["a"], draft) == Counts(done=1)

    assert desk.calls == ["outline a", "draft a"]
    assert (
        "this is a new list, next to outline; if it is the same list, pass its name with name=…"
        in capsys.readouterr().out
    )


def test_a_renamed_function_goes_on_under_the_lists_name(kept: str, desk: Desk):
    run_items(kept, ["a"], desk.write, name="chapters", quiet=True)
    run_items(kept, ["a", "b"], desk.write_async, name="chapters", quiet=True)

    assert desk.calls == ["a", "b"]


def test_an_interrupted_list_goes_on_and_so_do_items_that_have_left_it(
    tmp_path: Path, desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    impatient = functools.partial(App, settings=Settings(grace_seconds=0.1))
    monkeypatch.setattr("holdfast.app.items.run_items.App", impatient)
    begun = asyncio.Event()

    async def write(item: str) -> None:
        desk.calls.append(item)
        begun.set()
        if len(desk.calls) == 1:
            await asyncio.sleep(60)

    async def interrupted() -> None:
        work = asyncio.create_task(run_items_async(tmp_path / "book.json", ["one", "two"], write))
        await begun.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(interrupted())
    assert "stopped: 0 done, 2 to do; start it again to continue" in capsys.readouterr().out

    counts = run_items(tmp_path / "book.json", ["two"], write)

    assert desk.calls == ["one", "one", "two"]
    assert counts == Counts(done=2)
    assert "1 unfinished item of an earlier list runs too" in capsys.readouterr().out


def test_a_review_set_to_pending_by_hand_is_run_again(tmp_path: Path, desk: Desk):
    path = tmp_path / "book.json"
    desk.broken = {"two"}
    run_items(path, CHAPTERS, desk.write, retries=0, quiet=True)
    assert blocks(path)["two"]["status"] == "NEEDS_REVIEW"
    assert blocks(path)["two"]["error"] == "RuntimeError: no ink for two"
    desk.broken, desk.calls = set(), []

    path.write_text(path.read_text().replace('"status": "NEEDS_REVIEW"', '"status": "PENDING"'))
    counts = run_items(path, CHAPTERS, desk.write, retries=0, quiet=True)

    assert desk.calls == ["two"]
    assert counts == Counts(done=4)
    assert blocks(path)["two"]["result"] == "text of two"


def test_arguments_edited_by_hand_reach_the_function(tmp_path: Path, desk: Desk):
    path = tmp_path / "book.json"
    desk.broken = {"two"}
    run_items(path, CHAPTERS, desk.write, retries=0, quiet=True)
    desk.broken, desk.calls = set(), []

    text = path.read_text().replace('"status": "NEEDS_REVIEW"', '"status": "PENDING"')
    path.write_text(text.replace('"args": ["two"]', '"args": ["two, but shorter"]'))
    run_items(path, CHAPTERS, desk.write, retries=0, quiet=True)

    assert desk.calls == ["two, but shorter"]


def test_a_value_that_cant_be_stored_doesnt_undo_the_work(where: str, capsys: pytest.CaptureFixture[str]):
    def write(item: int) -> object:
        return object()

    counts = run_items(where, [1, 2], write)

    out = capsys.readouterr().out
    assert counts == Counts(done=2)
    assert out.count("the results of write can't be stored") == 1


def test_what_is_returned_is_in_the_file(tmp_path: Path):
    def write(item: str) -> dict[str, Any]:
        return {"title": item.title(), "at": 1}

    run_items(tmp_path / "book.json", ["dawn"], write, quiet=True)

    assert blocks(tmp_path / "book.json")["dawn"]["result"] == {"title": "Dawn", "at": 1}


def test_an_empty_list_is_done_at_once(where: str, desk: Desk):
    assert run_items(where, [], desk.write, quiet=True) == Counts()


def test_so_many_run_at_once_and_no_more(where: str):
    running, most = 0, 0

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    counts = run_items(where, range(12), work, at_once=3, quiet=True)

    assert counts.done == 12
    assert most == 3


def test_the_lines_tell_what_happens(tmp_path: Path, desk: Desk, capsys: pytest.CaptureFixture[str]):
    desk.broken = {"two"}

    run_items(tmp_path / "book.json", ["one", "two"], desk.write, retries=1, backoff=0.01)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"2 items in {tmp_path / 'book.json'}"
    assert "one: done" in lines
    assert any(line.startswith("two: try 1 of 2 failed") and "no ink for two" in line for line in lines)
    assert "two: needs review: RuntimeError: no ink for two" in lines
    assert "finished: 1 done, 1 needs review" in lines
    assert lines[-1].startswith('to run one again, set its "status" to PENDING in ')


def test_quiet_says_nothing(where: str, desk: Desk, capsys: pytest.CaptureFixture[str]):
    run_items(where, ["one"], desk.write, quiet=True)

    assert capsys.readouterr().out == ""


def test_async_code_awaits_it_and_is_told_so(tmp_path: Path, desk: Desk):
    async def main() -> Counts:
        with pytest.raises(WrongColour, match="await run_items_async"):
            run_items(tmp_path / "book.json", CHAPTERS, desk.write)
        return await run_items_async(tmp_path / "book.json", CHAPTERS, desk.write_async, quiet=True)

    assert asyncio.run(main()).done == 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"items": "chapters"}, "items is a str: give a list of items"),
        ({"items": {"a": 1}}, "items is a dict: give a list of items"),
        ({"items": 7}, "items is an int: give a list of items"),
        ({"items": [object()]}, "item 1: "),
        ({"function": "write"}, "give the function to call for each item"),
        ({"function": lambda: None}, "can't be called with one item"),
        ({"function": lambda one, two: None}, "can't be called with one item"),
        ({"at_once": 0}, "at_once=0"),
        ({"at_once": 1.5}, "at_once=1.5: give a whole number"),
        ({"retries": -1}, "retries=-1"),
        ({"retries": "3"}, "retries='3': give a whole number"),
        ({"backoff": "soon"}, "'soon' is not a duration"),
        ({"name": "My List"}, "can't be a job type"),
        ({"where": 7}, "where=7: give a file"),
        ({"where": ""}, "give a file"),
        ({"where": "ftp://x/y"}, "is not the URL of a store"),
        ({"items": [1, 2], "key": lambda item: "same"}, "item 2: an earlier item has the same key same"),
    ],
)
def test_a_wrong_call_is_one_clear_error_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], words: str
):
    monkeypatch.chdir(tmp_path)
    call: dict[str, Any] = {"where": "book.json", "items": ["a"], "function": print, "quiet": True} | wrong

    with pytest.raises(Invalid) as caught:
        run_items(**call)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def chapters(item: str) -> Any:
    yield f"chapter {item}"


async def chapters_async(item: str) -> Any:
    yield f"chapter {item}"


class Chapters:
    def __call__(self, item: str) -> Any:
        yield f"chapter {item}"


@pytest.mark.parametrize("function", [chapters, chapters_async, functools.partial(chapters), Chapters()])
def test_a_generator_function_is_refused_at_the_call(tmp_path: Path, function: Any):
    """Its body would never run, and every item would count as done."""
    with pytest.raises(Invalid, match="run_items with .*a generator can't be recorded; return a list"):
        run_items(tmp_path / "book.json", CHAPTERS, function)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function", [chapters, chapters_async])
def test_an_item_for_which_a_generator_comes_back_is_not_done(where: str, function: Any):
    counts = run_items(where, ["one"], lambda item: function(item), name="made", backoff=0.01, quiet=True)

    assert (counts.done, counts.failed) == (0, 1)


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path, desk: Desk):
    (tmp_path / "book.json").write_text('{"mine": 1}')

    with pytest.raises(StoreError):
        run_items(tmp_path / "book.json", CHAPTERS, desk.write, quiet=True)

    assert (tmp_path / "book.json").read_text() == '{"mine": 1}'
    assert desk.calls == []


def test_a_missing_folder_is_one_clear_error(tmp_path: Path, desk: Desk):
    with pytest.raises(HoldfastError, match="the folder .* doesn't exist"):
        run_items(tmp_path / "no" / "book.json", CHAPTERS, desk.write, quiet=True)


@pytest.mark.parametrize(("url", "at_once"), [("memory:", 1), ("sqlite:///k.db", 8), ("k.json", 8)])
def test_a_thousand_items_take_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, desk: Desk, url: str, at_once: int
):
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()

    counts = run_items(url, range(1_000), desk.write, at_once=at_once, quiet=True)

    assert counts == Counts(done=1_000)
    assert sorted(desk.calls) == list(range(1_000))
    assert time.monotonic() - began < 60
