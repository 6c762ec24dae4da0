"""Takes log lines apart: when, in which step, how serious, and what was said. Must not read a store."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from holdfast.jobs.views.pages.job import LogLine
from holdfast.safe_text import clean

_LINE = re.compile(r"(?P<at>\d\S*) (?:\[(?P<step>[^]]+)] )?(?P<level>[A-Z]\S*) (?P<text>.*)", re.DOTALL)
"""As `worker/log_lines` writes it. Older lines have no step, and what Holdfast itself says has none of these parts."""


def log_lines_shown(lines: Iterable[str], names: Mapping[str, str]) -> tuple[LogLine, ...]:
    """Return log lines with their time, step and level taken apart, where they have them. `names` are those of steps,
    by path; a step without one has only the name of its function.
    """
    return tuple(_shown(line, names) for line in lines)


def _shown(line: str, names: Mapping[str, str]) -> LogLine:
    found = _LINE.fullmatch(line)
    if found is None or not found["level"].isupper():
        return LogLine(text=clean(line))
    step = found["step"] or ""
    name = names.get(step) or unquote(step.rpartition("/")[2].partition("#")[0])
    return LogLine(
        text=clean(found["text"]), level=found["level"].lower(), at=clean(found["at"]), step=step, name=clean(name)
    )
