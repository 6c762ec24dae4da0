"""What users import comes from `holdfast` itself: every error that the guides name, and what their type hints need."""

import re
from pathlib import Path

import pytest

import holdfast
from holdfast.core import errors
from holdfast.core.model import SIGNAL, Event

ROOT = Path(__file__).parents[1]
GUIDES = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"]
ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}


def test_there_are_guides_that_name_errors():
    named = {word for guide in GUIDES for word in re.findall(r"\b[A-Z]\w+\b", guide.read_text())}

    assert len(GUIDES) > 10
    assert len(named & ERRORS) > 10


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_every_error_that_a_guide_names_comes_from_the_package(guide: Path):
    named = {word for word in re.findall(r"\b[A-Z]\w+\b", guide.read_text()) if word in ERRORS}

    assert not {name for name in named if getattr(holdfast, name, None) is not getattr(errors, name)}


@pytest.mark.parametrize(
    "name", ["Run", "Status", "Invalid", "StoreBusy", "StoreUnwritable", "EffectInDoubt", "Suspended", *sorted(ERRORS)]
)
def test_what_users_need_comes_from_the_package(name: str):
    assert name in dir(holdfast)
    assert isinstance(getattr(holdfast, name), type)


ASKED = (
    re.compile(r'\bevent\s*(?:==|!=|in|not in)\s*\(?((?:"\w+",?\s*)+)'),
    re.compile(r'("\w+")\s+(?:not )?in\s+(?:\w+_)?events\b'),
)
"""Questions after the kind of a history entry: of one, or whether one is among some."""


def events_asked_for() -> dict[str, set[str]]:
    """The kinds of history entries that tests ask for, also in the text of their programs, and where."""
    found: dict[str, set[str]] = {}
    for path in sorted(ROOT.glob("tests/**/*.py")):
        asked = " ".join(words for pattern in ASKED for words in pattern.findall(path.read_text()))
        for name in re.findall(r'"(\w+)"', asked):
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


def test_every_event_that_a_test_asks_for_can_happen():
    asked = events_asked_for()

    assert {"claim", "lapse", "release"} <= asked.keys()
    assert not {name: where for name, where in asked.items() if name not in {*map(str, Event), SIGNAL}}
