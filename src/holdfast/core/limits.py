"""Every limit that a user can meet, in one place, and how the size of a text is measured. Must not hold anything else.

`docs/reference/limits.md` is generated from `LIMITS`. Holdfast refuses a value before it calls the store, and cuts only
texts that are shown to people.
"""

from typing import NamedTuple


def size_of(text: str) -> int:
    """How many bytes a text has as UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


PAYLOAD_BYTES = 64 << 20
"""The largest value as JSON text: the arguments of a job, a result. Larger ones are files: `Blob`."""

LARGE_BYTES = 64 << 10
"""A value larger than this as JSON text is kept in the blob store, if there is one."""

INLINE_BYTES = 1 << 20
"""The largest value as JSON text that a record holds, where there is no blob store."""

JOB_KEY_CHARACTERS = 255
"""The longest idempotency key."""

PRIORITIES = 100
"""Priorities go from minus this to plus this; higher comes first."""

LABELS, TAG_CHARACTERS, META_CHARACTERS = 50, 100, 4_000
"""How many tags and how many meta entries a job may have, and how long each may be."""

OPTIONS_BYTES = 1 << 20
"""The largest options of a job as JSON text: tags, meta, stages, error types that are never retried."""

SIGNAL_NAME_CHARACTERS, SIGNAL_BYTES = 200, 512 << 10
"""How long a signal's name may be, and how large its value as JSON text."""

INBOX_SIGNALS, INBOX_BYTES = 1_000, 2 << 20
"""How many untaken signals a job's inbox may hold, and how large their names and values may be in all."""

WAITS = 10_000
"""How many things a job may wait for at once."""

CHILDREN = 100_000
"""How many children one job may submit, unless `@app.job(most_children=…)` says otherwise."""

WAITERS = 1_000
"""How many other jobs may wait for the end of one job, besides its parent."""

REASON_CHARACTERS, ACTOR_CHARACTERS = 2_000, 255
"""How long a person's reason for a change may be, and the name of who asked for it."""

NOTE_CHARACTERS, NOTE_ITEMS = 4_000, 100
"""How much of a long text, and of a long list, the history keeps. Error messages in it are cut to this, too."""

PATH_CHARACTERS = 2_000
"""How long the path of a step may be: its own name and key, and those of all steps around it."""

STORED_PATH_CHARACTERS = PATH_CHARACTERS + 100
"""The same for Holdfast's own records, whose paths have a prefix."""

STEP_NAMES = 100
"""How many step names a job's summary counts separately. Steps with other names are counted together."""

RECORD_NAME_CHARACTERS, RECORD_BYTES = 500, INLINE_BYTES
"""How long the name of a store record, such as a pause, may be, and its text."""

ERROR_CHARACTERS, TRACEBACK_CHARACTERS = 4_000, 16_000
"""How much of an error's message and of its traceback is kept."""

LOG_LINES, LOG_LINE_CHARACTERS, LOG_CHARACTERS = 500, 2_000, 100_000
"""How many of a job's last log lines are kept, how long each may be, and how long all of them together."""

PROGRESS_CHARACTERS = 500
"""How much of the text of `progress()` is shown."""


class Limit(NamedTuple):
    """One line of the page: what is limited, the limit, and what happens beyond it."""

    what: str
    most: str
    then: str


_REFUSED, _CUT = "refused", "cut"
_REFUSED_OR_HELD = "refused (`BadValue`); a text that is a result is held in a file"

LIMITS: tuple[Limit, ...] = (
    Limit("arguments or result of a job or step, as JSON", f"{PAYLOAD_BYTES >> 20} MiB", _REFUSED_OR_HELD),
    Limit("the same on a store without a blob store", f"{INLINE_BYTES >> 20} MiB", _REFUSED_OR_HELD),
    Limit("arguments of a submit with `connection=`", f"{INLINE_BYTES >> 20} MiB, without a `Blob`", "refused"),
    Limit("idempotency key", f"{JOB_KEY_CHARACTERS} characters", _REFUSED),
    Limit("priority", f"from -{PRIORITIES} to {PRIORITIES}", _REFUSED),
    Limit("tags", f"{LABELS} of {TAG_CHARACTERS} characters each", _REFUSED),
    Limit("meta", f"{LABELS} entries of {META_CHARACTERS:,} characters each, name and value together", _REFUSED),
    Limit("all options of a job, as JSON", f"{OPTIONS_BYTES >> 20} MiB", _REFUSED),
    Limit("name of a signal", f"{SIGNAL_NAME_CHARACTERS} characters", _REFUSED),
    Limit("value of a signal, as JSON", f"{SIGNAL_BYTES >> 10} KiB", _REFUSED),
    Limit(
        "inbox of a job: signals that it has not taken",
        f"{INBOX_SIGNALS:,} signals, and {INBOX_BYTES >> 20} MiB of names and values",
        "refused (`NotAllowed`), unless it is the first signal that the job waits for",
    ),
    Limit("things that a job waits for at the same time", f"{WAITS:,}", _REFUSED),
    Limit(
        "children that one job submits",
        f"{CHILDREN:,}, or `@app.job(most_children=…)`",
        "refused (`NotAllowed`); what was submitted before stays",
    ),
    Limit("jobs that wait for the end of one job, besides its parent", f"{WAITERS:,}", "refused (`NotAllowed`)"),
    Limit("path of a step, with the steps around it", f"{PATH_CHARACTERS:,} characters", "refused before it runs"),
    Limit("step names that a job's summary counts separately", f"{STEP_NAMES}", "the others are counted together"),
    Limit(
        "reason for a cancel, replay, resolve, discard, pause or limit", f"{REASON_CHARACTERS:,} characters", _REFUSED
    ),
    Limit(
        "name of the person or token that makes a change (`by`)",
        f"{ACTOR_CHARACTERS} characters",
        "refused (`BadValue`)",
    ),
    Limit("a text or a list in a history entry", f"{NOTE_CHARACTERS:,} characters; {NOTE_ITEMS} items", _CUT),
    Limit("error message; traceback", f"{ERROR_CHARACTERS:,}; {TRACEBACK_CHARACTERS:,} characters", _CUT),
    Limit(
        "log lines kept with a job",
        f"the last {LOG_LINES}, of {LOG_LINE_CHARACTERS:,} characters each, {LOG_CHARACTERS:,} in all",
        "the oldest lines are dropped",
    ),
    Limit("text of `progress()`", f"{PROGRESS_CHARACTERS} characters", _CUT),
    Limit(
        "a record of the store, such as a pause",
        f"{RECORD_BYTES >> 20} MiB; a name of {RECORD_NAME_CHARACTERS} characters",
        _REFUSED,
    ),
)
