"""The `check` of a job's block: it shows which fields a person edited, even if the editor changed the layout.

Must not decide what an edit means: `reopen` does. The check is one line of hashes: the first covers everything that
only the program writes, with the steps and the history; the others cover one field of `NAMED` each. People never need
to edit it: the next write computes it again.
"""

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from msgspec import to_builtins

from holdfast.core.model import Entry, Job, Step

FREE = ("args", "queue", "priority", "run_at", "tags")
"""What a person can edit while a job has not ended."""

NAMED = (*FREE, "type", "key", "parent", "result", "error")
"""The fields that have their own hash."""

OTHERS = "others"
"""The name for all other fields."""


def seal(job: Job, marks: Iterable[str]) -> str:
    """The check of a job, with the marks of its steps and its history in their order."""
    fields: dict[str, Any] = to_builtins(job)
    options = fields.pop("options")
    named = {name: options.pop("tags", ()) if name == "tags" else fields.pop(name) for name in NAMED}
    first = _hash([fields, options, "".join(marks)], 12)
    return "-".join([first, *(_hash(value, 6) for value in named.values())])


def mark(line: Step | Entry) -> str:
    """The hash of one step or entry."""
    fields: dict[str, Any] = to_builtins(line)
    if fields.get("tries") == 1:  # Files from before `tries` existed have checks without it, and must not look edited.
        del fields["tries"]
    return _hash(fields, 12)


def edited(check: str, job: Job, marks: Iterable[str]) -> tuple[str, ...]:
    """The fields that differ from what was written."""
    written, found = check.split("-"), seal(job, marks).split("-")
    if len(written) != len(found):
        return (OTHERS,)
    names = (OTHERS, *NAMED)
    return tuple(name for name, was, now in zip(names, written, found, strict=True) if was != now)


def _hash(value: Any, digits: int) -> str:
    # In plain ASCII, a surrogate pair looks the same as the character that a reader makes of it.
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:digits]
