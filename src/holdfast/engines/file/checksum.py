"""The `check` of a job's block: it tells which fields a person edited, whatever the editor did to the layout.

Must not decide what an edit means: `reopen` does. It is one line of hashes: first of all that only the program writes,
with the steps and the history, then of each field in `NAMED`. Nobody has to touch it: the next write makes it anew.
"""

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from msgspec import to_builtins

from holdfast.core.model import Entry, Job, Step

FREE = ("args", "queue", "priority", "run_at", "tags")
"""What a person may edit while a job has not ended."""

NAMED = (*FREE, "type", "key", "parent", "result", "error")
"""The fields that are told apart."""

OTHERS = "others"
"""Stands for all fields that are not told apart."""


def seal(job: Job, marks: Iterable[str]) -> str:
    """The check of a job, with the marks of its steps and its history in their order."""
    told: dict[str, Any] = to_builtins(job)
    options = told.pop("options")
    named = {name: options.pop("tags", ()) if name == "tags" else told.pop(name) for name in NAMED}
    first = _hash([told, options, "".join(marks)], 12)
    return "-".join([first, *(_hash(value, 6) for value in named.values())])


def mark(line: Step | Entry) -> str:
    """The hash of one step or entry."""
    told: dict[str, Any] = to_builtins(line)
    if told.get("tries") == 1:  # files of before it was told have other checks: they are not to look edited
        del told["tries"]
    return _hash(told, 12)


def edited(check: str, job: Job, marks: Iterable[str]) -> tuple[str, ...]:
    """Which fields are others than those that were written."""
    written, found = check.split("-"), seal(job, marks).split("-")
    if len(written) != len(found):
        return (OTHERS,)
    names = (OTHERS, *NAMED)
    return tuple(name for name, was, now in zip(names, written, found, strict=True) if was != now)


def _hash(value: Any, digits: int) -> str:
    # In plain ASCII a pair of lone surrogates is the same as the letter that a reader will make of it.
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:digits]
