"""How each state looks: its glyph and its colours, light and dark. The dashboard's style sheet is written from it.

Must not know a page. `tools.dashboard` writes the CSS and the glyphs for the browser from this table.
"""

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.core.model import State


class Colours(NamedTuple):
    """One state's colours: for text, at least 4.5 : 1 on every ground, and for areas without letters."""

    text: str
    fill: str


class StateLook(NamedTuple):
    """A state's glyph, as SVG elements in a square of 16 px, and its colours in both themes."""

    glyph: tuple[Mapping[str, str | float], ...]
    light: Colours
    dark: Colours


_NONE: Mapping[str, str | float] = {}


def _ring(more: Mapping[str, str | float] = _NONE) -> Mapping[str, str | float]:
    return {"is": "circle", "cx": 8, "cy": 8, "r": 6.25, "fill": "none", "stroke": "currentColor", **more}


def _stroke(d: str, more: Mapping[str, str | float] = _NONE) -> Mapping[str, str | float]:
    return {"is": "path", "d": d, "fill": "none", "stroke": "currentColor", "stroke-linecap": "round", **more}


def _cut(d: str) -> Mapping[str, str | float]:
    """A line on a full disc, in the colour of the ground."""
    return _stroke(d, {"stroke": "var(--ground)", "stroke-width": 1.7, "stroke-linejoin": "round"})


_DISC: Mapping[str, str | float] = {"is": "circle", "cx": 8, "cy": 8, "r": 7, "fill": "currentColor"}
_PIE: Mapping[str, str | float] = {"is": "pie", "cx": 8, "cy": 8, "r": 4}
"""The part of a job that is done. The page draws it, because its size changes."""

LOOKS: Mapping[State, StateLook] = {
    State.SCHEDULED: StateLook(
        (_ring({"stroke-dasharray": "2.2 2.2"}), _stroke("M8 4.8V8l2.2 1.4")),
        Colours("#4c6480", "#7f96af"),
        Colours("#8fa8c6", "#6f87a3"),
    ),
    State.AVAILABLE: StateLook(
        (_ring({"stroke-width": 1.5}),), Colours("#1a66c2", "#4a90ec"), Colours("#62a7fb", "#4d8fe0")
    ),
    State.PENDING: StateLook(
        (_ring({"stroke-width": 1.4}), _stroke("M6.4 5.8v4.4M9.6 5.8v4.4", {"stroke-width": 1.5})),
        Colours("#866000", "#c08800"),
        Colours("#dcae3c", "#c79a2e"),
    ),
    State.ACTIVE: StateLook(
        (_ring({"stroke-width": 1.5}), _PIE), Colours("#5b3fd6", "#7a62ee"), Colours("#9d88ff", "#8b74f5")
    ),
    State.RETRYABLE: StateLook(
        (
            _stroke("M13.4 8.6A5.5 5.5 0 1 1 11.6 4", {"stroke-width": 1.5}),
            _stroke("M12.2 1.4v3h-3", {"stroke-width": 1.5, "stroke-linejoin": "round"}),
        ),
        Colours("#ad4d07", "#e2762b"),
        Colours("#f2984a", "#de8437"),
    ),
    State.REVIEW: StateLook(
        (_DISC, _cut("M8 4.4v4.2M8 11.4v.1")), Colours("#c01a55", "#e2447b"), Colours("#ff6f9b", "#ef5d8b")
    ),
    State.COMPLETED: StateLook(
        (_DISC, _cut("M4.9 8.3l2.1 2.1 4.1-4.5")), Colours("#187741", "#39a56b"), Colours("#4cc27b", "#3fa86a")
    ),
    State.DISCARDED: StateLook(
        (_DISC, _cut("M5.6 5.6l4.8 4.8M10.4 5.6l-4.8 4.8")),
        Colours("#7c565b", "#a98a90"),
        Colours("#b98f95", "#8d6d72"),
    ),
    State.CANCELLED: StateLook(
        (_ring({"stroke-width": 1.5}), _stroke("M4 12l8-8", {"stroke-width": 1.5})),
        Colours("#646b76", "#8d94a0"),
        Colours("#98a0ac", "#767d88"),
    ),
}

GROUNDS: Mapping[str, tuple[str, str]] = {
    "bg": ("#fafafb", "#0a0b0d"),
    "panel": ("#ffffff", "#101216"),
    "raised": ("#f4f5f7", "#171a1f"),
    "hover": ("#f1f2f5", "#15181d"),
    "line": ("#e7e9ed", "#1f2329"),
    "line-2": ("#d6dae0", "#2d323a"),
    "text": ("#14161a", "#eceef2"),
    "muted": ("#565d69", "#a0a7b4"),
    "faint": ("#636a76", "#868e9b"),
}
"""The other colours, light and dark: grounds, lines and text."""
