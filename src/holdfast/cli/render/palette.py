"""The colours of the lifecycle picture, light and dark, as one style sheet.

Must not use what simple renderers don't support: no variables, no `light-dark()`. The light colours are outside any
media query, and the dark ones only override them.
"""

from typing import NamedTuple


class Paint(NamedTuple):
    """What a colour applies to, and its value in light and in dark mode."""

    selector: str
    what: str
    light: str
    dark: str


SHAPES = """
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
.title,.name{font-weight:700}
.label{font-weight:600}
.caption{font-weight:600;letter-spacing:.06em}
.line{fill:none;stroke-width:1.7}
.line.takes{stroke-width:3.2}
.line.breaks{stroke-dasharray:6 4}
.frame{fill:none;stroke-width:1.3;stroke-dasharray:2 4}
.state{stroke-width:1.6}
.state.running{stroke-width:3}
.ring{fill:none;stroke-width:1}
"""

PAINTS: tuple[Paint, ...] = (
    Paint(".paper", "fill", "#ffffff", "#12161c"),
    Paint(".paper", "stroke", "#d5dbe3", "#2c333d"),
    Paint(".behind", "fill", "#ffffff", "#12161c"),
    Paint(".frame", "stroke", "#7d8896", "#7f8a99"),
    Paint(".panel", "fill", "#fdf6e3", "#211d12"),
    Paint(".title,.name", "fill", "#17202b", "#f0f4f9"),
    Paint(".words,.caption,.framed", "fill", "#4a5563", "#b3bdca"),
    Paint(".start", "fill", "#17202b", "#f0f4f9"),
    Paint(".state.waiting", "fill", "#fff0c2", "#3d3313"),
    Paint(".state.waiting", "stroke", "#c58a00", "#d9a727"),
    Paint(".state.ready", "fill", "#dcecff", "#142c4a"),
    Paint(".state.ready", "stroke", "#2f74c9", "#5a9ff0"),
    Paint(".state.running", "fill", "#e7e1ff", "#2b2350"),
    Paint(".state.running", "stroke", "#6a4bd6", "#9d86ff"),
    Paint(".state.needs", "fill", "#ffe3ec", "#47162a"),
    Paint(".state.needs", "stroke", "#c72c62", "#f06a98"),
    Paint(".state.ended", "fill", "#eceff3", "#262c35"),
    Paint(".state.ended,.ring", "stroke", "#6b7684", "#8c97a6"),
    Paint(".state.completed", "fill", "#dcf5e3", "#123421"),
    Paint(".state.completed,.ring.completed", "stroke", "#2a8a4c", "#4fbf78"),
    Paint(".line.takes", "stroke", "#6a4bd6", "#9d86ff"),
    Paint(".head.takes,.label.takes", "fill", "#5b3cc9", "#a994ff"),
    Paint(".line.needs", "stroke", "#0b7a75", "#35b8b0"),
    Paint(".head.needs,.label.needs", "fill", "#0a6b67", "#45c6be"),
    Paint(".line.breaks", "stroke", "#cc4a14", "#ff8a54"),
    Paint(".head.breaks,.label.breaks", "fill", "#b83f0e", "#ff9a69"),
    Paint(".line.none", "stroke", "#5d6876", "#98a3b2"),
    Paint(".head.none,.label.none", "fill", "#4a5563", "#b3bdca"),
)

LIGHT = "\n".join(f"{paint.selector}{{{paint.what}:{paint.light}}}" for paint in PAINTS)
DARK = "\n".join(f"{paint.selector}{{{paint.what}:{paint.dark}}}" for paint in PAINTS)

STYLE = f"{SHAPES}{LIGHT}\n@media (prefers-color-scheme:dark){{\n{DARK}\n}}\n"
