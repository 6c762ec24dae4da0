"""The log of `holdfast worker` and `holdfast dev`: text for a person, or one JSON object per line.

Must not know what is logged. Neither format lets a control sequence through to a terminal, whoever wrote the line.
"""

import logging
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import click
import msgspec

from holdfast.redaction import redact
from holdfast.safe_text import clean, escaped
from holdfast.tracebacks import format_folded

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""The attributes that every log record has. All others came with `extra=`."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

log_format_option = click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Text, or one JSON object per line.",
)
log_level_option = click.option(
    "--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True
)


def set_up_logging(level: str, format: str) -> None:
    """Write this process's log to stderr. An App that sets up logging itself replaces this."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def is_json() -> bool:
    """Return whether this process logs JSON, so that nothing else may be printed between the lines."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


class Lines(logging.Formatter):
    """What both formats share: tracebacks show the user's frames."""

    def formatException(self, ei: ExcInfo) -> str:
        """See logging.Formatter."""
        return "" if ei[1] is None else format_folded(ei[1]).rstrip("\n")


class TextLines(Lines):
    """One line for a person: time, level, logger, message; then a traceback, if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        return clean(redact(super().format(record)))


class JsonLines(Lines):
    """One JSON object per line: ts, level, logger, message, every field of `extra=`, and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        ts = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields: dict[str, Any] = {name: value for name, value in vars(record).items() if name not in STANDARD}
        fixed = {"ts": ts, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        fields = fixed | {name: value for name, value in fields.items() if name not in fixed}
        if record.exc_info or record.exc_text:
            fields["traceback"] = record.exc_text or self.formatException(record.exc_info)  # type: ignore[arg-type]
        if record.stack_info:
            fields["stack"] = record.stack_info
        return escaped(redact(_encode(fields)))


def _encode(fields: dict[str, Any]) -> str:
    """Return the fields as JSON. A value that JSON can't hold becomes text."""
    try:
        return msgspec.json.encode(fields, enc_hook=str).decode()
    except Exception:
        texts = {str(name): _as_text(value) for name, value in fields.items()}
        return msgspec.json.encode(texts).decode()


def _as_text(value: object) -> str:
    try:
        text = str(value)
    except Exception as error:
        text = f"({type(value).__name__}: its text raised {type(error).__name__})"
    return text.encode("utf-8", "backslashreplace").decode()
