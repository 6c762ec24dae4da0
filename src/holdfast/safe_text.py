"""Makes text from users and stores safe for a terminal and a log. The only place that does.

A terminal obeys what it prints: escape sequences change colours, move the cursor or set its title, and direction marks
make a text look different from what it is. Must not know anything else of ours but what to leave out (`redaction`).
"""

import logging
import re

from holdfast.redaction import redact

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]"
)
"""Control characters other than tab and newline (C0, DEL, C1), direction marks, and unusual line separators."""

MARK = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """Text that is safe to show: a mark replaces each unsafe character, spaces replace tabs."""
    return UNSAFE.sub(MARK, text.replace("\r\n", "\n").replace("\t", "    "))


def escaped(json_text: str) -> str:
    """JSON that is safe to show and means the same: unsafe characters appear only in its strings, as escapes."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


def logger(name: str) -> logging.Logger:
    """A logger whose lines are safe to show anywhere, including their arguments and tracebacks, and hold no secret."""
    found = logging.getLogger(name)
    if not any(isinstance(one, _Cleaning) for one in found.filters):
        found.addFilter(_Cleaning())
    return found


class _Cleaning(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, cleaned. Each argument is put on one line."""
        if isinstance(record.args, tuple):
            record.args = tuple(_filled_in(one) for one in record.args)
        if isinstance(record.msg, str):
            record.msg = UNSAFE.sub(MARK, redact(record.msg))
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = clean(redact(logging.Formatter().formatException(record.exc_info)))
        return True


def _filled_in(value: object) -> object:
    return value if value is None or isinstance(value, int | float) else " ".join(clean(redact(str(value))).split("\n"))
