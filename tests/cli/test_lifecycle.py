"""The laws of `holdfast lifecycle`: each format says what the tables say, no more and no less."""

import json
import re
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.render.lifecycle_text import LEASE_WORDS, as_json, as_mermaid, as_text
from holdfast.core.lifecycle import EVENTS, STATES, LeaseRule

EDGES = {(source, row.event, target) for row in EVENTS for source in row.sources or ("[*]",) for target in row.targets}


@pytest.mark.parametrize("form", ["text", "mermaid", "svg", "json"])
def test_each_format_names_every_state_and_event(form: str) -> None:
    result = CliRunner().invoke(main, ["lifecycle", "--format", form])

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("\n")
    for name in [*(row.state for row in STATES), *(row.event for row in EVENTS)]:
        assert re.search(rf"\b{name}\b", result.stdout), name


def test_text_is_what_is_shown_when_nothing_is_asked() -> None:
    shown = CliRunner().invoke(main, ["lifecycle"]).stdout

    assert shown == CliRunner().invoke(main, ["lifecycle", "--format", "text"]).stdout


@pytest.mark.parametrize(("asked", "widest"), [(40, 80), (80, 80), (91, 91), (100, 100), (250, 100)])
def test_text_fits_its_terminal_and_is_plain(asked: int, widest: int) -> None:
    text = as_text(asked)

    assert max(len(line) for line in text.splitlines()) <= widest
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize("width", [80, 100])
def test_text_cuts_no_word_of_a_meaning(width: int) -> None:
    shown = as_text(width).split()

    meanings = [*(row.meaning for row in STATES), *(row.meaning for row in EVENTS), *LEASE_WORDS.values()]
    assert {word for meaning in meanings for word in meaning.split()} <= set(shown)
    assert set(LEASE_WORDS) == set(LeaseRule)


def test_json_agrees_with_the_table_edge_by_edge() -> None:
    told = json.loads(as_json())
    edges = {(s, row["event"], t) for row in told["events"] for s in row["from"] or ["[*]"] for t in row["to"]}

    assert edges == EDGES
    assert [(row["event"], row["who"], row["meaning"]) for row in told["events"]] == [
        (row.event, row.who, row.meaning) for row in EVENTS
    ]
    assert [row["lease"] for row in told["events"]] == [
        "none" if row.lease is LeaseRule.NONE else row.lease.value for row in EVENTS
    ]


def test_json_has_every_column_of_every_state() -> None:
    assert json.loads(as_json())["states"] == [
        {
            "state": row.state.value,
            "meaning": row.meaning,
            "owner": row.owned,
            "terminal": row.terminal,
            "ojs": row.ojs,
            "celery": row.celery,
            "checkpoint": row.checkpoint,
        }
        for row in STATES
    ]


def test_mermaid_has_exactly_the_edges_of_the_table() -> None:
    first, *lines = as_mermaid().splitlines()
    arrows = [re.fullmatch(r" +(\S+) --> (\w+): (\w+)( \(breaks lease\))?", line) for line in lines]
    found = [arrow.groups() for arrow in arrows if arrow]
    rest = [line.strip() for line, arrow in zip(lines, arrows, strict=True) if not arrow]

    assert first == "stateDiagram-v2"
    assert {(source, event, target) for source, target, event, _ in found} == EDGES
    assert len(found) == len(EDGES)
    assert {event for _, _, event, mark in found if mark} == {
        row.event for row in EVENTS if row.lease is LeaseRule.BREAKS
    }
    assert rest == ["direction LR", *(f"{row.state} --> [*]" for row in STATES if row.terminal)]


def test_svg_is_well_formed_and_needs_nothing_else() -> None:
    svg = CliRunner().invoke(main, ["lifecycle", "--format", "svg"]).stdout
    tags = {element.tag.split("}")[1] for element in ElementTree.fromstring(svg).iter()}

    assert tags <= {"svg", "title", "style", "g", "rect", "path", "polygon", "circle", "text"}
    assert re.findall(r"https?://[^\"]+", svg) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in svg
    assert "@import" not in svg
