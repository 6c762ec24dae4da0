"""Secrets that must never be stored or logged: what `App(secrets=…)` names is replaced wherever text leaves a job.

The secrets of all Apps of a process count together, because a log line belongs to no App. Must not know anything else
of ours.
"""

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

REDACTED = "[redacted]"
"""What stands in place of a secret."""

LEAST_CHARACTERS = 6
"""A shorter secret would also match ordinary text."""

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


def register_secrets(secrets: Iterable[str]) -> None:
    """Replace these texts from now on, also as they look in JSON, in a `repr` and in a URL."""
    global _pattern
    for secret in secrets:
        forms = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret), quote(secret, safe="")}
        _known.update(forms)
    longest_first = sorted(_known, key=lambda form: (-len(form), form))
    _pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def redact(text: str) -> str:
    """Return a text without the registered secrets."""
    return text if _pattern is None else _pattern.sub(REDACTED, text)


def redact_value(value: Any) -> Any:
    """Return a JSON value without the registered secrets, in its texts and in the names of its fields."""
    if _pattern is None:
        return value
    match value:
        case str():
            return redact(value)
        case list():
            return [redact_value(one) for one in value]
        case dict():
            return {redact_value(name): redact_value(one) for name, one in value.items()}
    return value
