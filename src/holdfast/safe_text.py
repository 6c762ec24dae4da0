"""Text from users and stores, made safe for a terminal and a log. The one place for it.

A terminal obeys what it is shown: escapes recolour it, move the cursor or set its title, and marks of direction show a
text other than it is. Must not know anything of ours.
"""

import logging
import re

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]"
)
"""Controls but tab and newline (C0, DEL, C1), marks of direction, and separators of lines that are none."""

MARK = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """Text as it may be shown: each unsafe character replaced by a mark, tabs by spaces."""
    return UNSAFE.sub(MARK, text.replace("\r\n", "\n").replace("\t", "    "))


def escaped(json_text: str) -> str:
    """JSON that is safe to show and means the same: unsafe characters stand only in its strings, as escapes."""
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


def logger(name: str) -> logging.Logger:
    """A logger of ours, whose lines are safe wherever they are shown: what is filled into them, and tracebacks."""
    found = logging.getLogger(name)
    if not any(isinstance(one, _Cleaning) for one in found.filters):
        found.addFilter(_Cleaning())
    return found


class _Cleaning(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, cleaned. One that is filled into a line stays one line."""
        if isinstance(record.args, tuple):
            record.args = tuple(_filled_in(one) for one in record.args)
        if isinstance(record.msg, str):
            record.msg = UNSAFE.sub(MARK, record.msg)
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = clean(logging.Formatter().formatException(record.exc_info))
        return True


def _filled_in(value: object) -> object:
    return value if value is None or isinstance(value, int | float) else " ".join(clean(str(value)).split("\n"))
