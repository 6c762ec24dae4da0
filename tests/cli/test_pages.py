"""The laws of the made pages: they are what the code makes of them, and a stale one is named."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.core.lifecycle import EVENTS, STATES, decide
from holdfast.core.model import Job, Wait, WaitKind
from holdfast.engines import engine_class
from tools import docs_pages as pages

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("path", pages.PAGES)
def test_each_made_page_is_current(path: str) -> None:
    assert (DOCS.parent / path).read_text(encoding="utf-8") == pages.PAGES[path](), "stale: run `make docs`"


def test_check_names_the_stale_page_and_exits_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()

    written = CliRunner().invoke(pages.main)
    current = CliRunner().invoke(pages.main, ["--check"])
    (tmp_path / "docs/lifecycle.md").write_text("edited by hand")
    stale = CliRunner().invoke(pages.main, ["--check"])

    assert written.stdout.splitlines() == [f"wrote {path}" for path in pages.PAGES]
    assert (current.exit_code, current.output) == (0, "")
    assert (stale.exit_code, stale.stderr) == (1, "docs/lifecycle.md is out of date; run `make docs`\n")
    assert (tmp_path / "docs/lifecycle.md").read_text() == "edited by hand"


def test_outside_a_checkout_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)

    result = CliRunner().invoke(pages.main)

    assert result.exit_code == 1
    assert "no docs folder" in result.stderr


def test_the_page_tells_every_row_of_both_tables() -> None:
    lines = pages.lifecycle_page().splitlines()

    for state in STATES:
        assert [line for line in lines if line.startswith(f"| `{state.state}`") and state.meaning in line]
    for event in EVENTS:
        assert [line for line in lines if line.startswith(f"| `{event.event}`") and event.meaning in line]


def test_the_events_that_the_page_counts_as_failures_are_those_that_decide_counts() -> None:
    counting = set()
    for row in EVENTS:
        for source in row.sources:
            job = Job(id="j", type="t", created_at=0, state=source, attempt=7)
            facts: dict[str, Any] = {"run_at": 2, "waits": (Wait(WaitKind.TIME, until=2),)}
            if decide(job, row.event, 1, **facts).job.attempt == 8:
                counting.add(row.event)

    assert counting == set(pages.FAILURES)


def test_the_guide_to_choosing_a_store_tells_what_each_engine_promises() -> None:
    lines = pages.choosing_page().splitlines()

    for url in pages.URLS:
        told = engine_class(url).guarantees
        (row,) = [line for line in lines if line.startswith(f"| `{told.url}` |")]
        assert [
            fact for fact in (told.use, told.durable, told.processes, told.transactions, told.limit) if fact not in row
        ] == []


WORDS = (
    *("job", "stage", "step", "item", "attempt", "lease", "epoch", "worker", "slot", "queue", "outcome", "signal"),
    *("review", "entry", "record", "engine", "limit", "budget", "blob"),
)
NOT_OURS = ("task", "message", "broker", "backend", "orchestrator", "manager")


def test_the_glossary_has_each_word_once_and_says_which_words_are_not_ours() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")

    assert [word for word in WORDS if text.count(f"| **{word}** |") != 1] == []
    assert [word for word in NOT_OURS if text.count(f"\n| {word} |") != 1] == []
