"""Values to what the scripts take and give, and back. Must not talk to the server.

The fields that Lua reads are in `columns`; the others are stored packed.
Unreadable values raise no error: they are read as values that keep their raw text (`core.unreadable`).
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.keys import created_at_of
from holdfast.core.lifecycle import entry_of, submit_entry
from holdfast.core.model import (
    CHILDREN_ARE_IN,
    LEASE_LOST,
    NO_SUCH_JOB,
    OUTRUN,
    UNREADABLE,
    Admission,
    Applied,
    Ask,
    Change,
    Conflict,
    Entry,
    Error,
    Event,
    Job,
    Options,
    Record,
    Signal,
    State,
    Step,
    StepState,
    Time,
    Usage,
    Use,
    WaitKind,
)
from holdfast.core.moves import HeldKey
from holdfast.core.shared_limits import frees_permits
from holdfast.core.summaries import StepCounts, StepSummary, summary_from
from holdfast.core.unique import REFUSE, UNIQUE, stamp, until
from holdfast.core.unreadable import (
    UNREADABLE_ARGS,
    raw_text,
    unreadable_error,
    unreadable_note,
    unreadable_options,
    unreadable_signal,
)
from holdfast.engines.redis.columns import (
    LETTERS,
    NUMBERED,
    STATES,
    changed_columns,
    head_columns,
    json_text,
    number,
    read_head,
    text_or_false,
    waits_text,
)


class _Trouble(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A step's error as stored, with the number of tries if there were several.

    Programs of the previous version read rows of six fields and ignore unknown fields inside an error, so the number is
    stored here.
    """

    type: str
    message: str
    traceback: str = ""
    tries: int = 1
    is_none: bool = False
    """There was no error: only the number of tries is stored."""


pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder().decode
_encode = msgspec.json.Encoder().encode
_step = msgspec.json.Decoder(tuple[int, str, int, int | None, _Trouble | None, str | None]).decode
_error = msgspec.json.Decoder(Error).decode
_name = msgspec.json.Decoder(str).decode
_decode = msgspec.json.Decoder().decode
_plain_body = msgspec.json.Decoder(tuple[str, str, int | None, int]).decode
_plain_signal = msgspec.json.Decoder(tuple[str, str, str, int]).decode
_body_with_options = msgspec.json.Decoder(tuple[str, str, int | None, int, Options]).decode

STEP_LETTERS = {StepState.STARTED: "s", StepState.DONE: "d", StepState.FAILED: "f"}
STEP_STATES = {letter: state for state, letter in STEP_LETTERS.items()}

WHY = {1: NO_SUCH_JOB, 2: LEASE_LOST, 3: OUTRUN, 4: CHILDREN_ARE_IN}

_NO_OPTIONS = Options()
_EACH_VERSION = 4
"""See `more` in `lua/store.lua`."""

_PLACE = 13
"""Where a step record starts, after its state and place."""


# Jobs.


def job_row(job: Job) -> list[Any]:
    """A new job, as the scripts insert and commit take it."""
    columns = head_columns(job)
    head = [
        *columns[:NUMBERED],
        0,
        *columns[NUMBERED:],
        [signal.version for signal in job.inbox] or False,
        f"{LETTERS[job.state]}{job.epoch}",
        (job.result is not None) + 2 * (job.error is not None) + _EACH_VERSION * job.version,
    ]
    return [
        job.id,
        head,
        _body(job),
        text_or_false(job.result),
        False if job.error is None else json_text(job.error),
        [(signal.version, _signal(signal)) for signal in job.inbox] or False,
        job.digest,
        number(job.key_until),
        number(job.created_at),
        [job.options.limits[0].key, *_uses(job.options.limits)] if job.options.limits else False,
        _unique(job),
        job.options.fair or False,
    ]


def _unique(job: Job) -> list[Any] | bool:
    unique = job.options.unique
    if unique is None:
        return False
    return [key_name(UNIQUE, unique.key), stamp(job), number(until(job)), unique.then == REFUSE]


def key_name(type: str, key: str) -> str:
    """The name under which a key is stored."""
    return f"{len(type.encode())}:{type}:{key}"


def held_key(type: str, key: str, text: bytes) -> HeldKey:
    """A key as it is stored: {job, digest or stamp, until}."""
    job, digest, until = unpack(text)
    return HeldKey(type, key, job, digest, None if until is False else int(until))


def _uses(uses: Sequence[Use]) -> list[Any]:
    return [word for use in uses for word in (use.key, number(use.units))]


def _body(job: Job) -> str:
    plain = (job.args, job.digest, job.key_until, job.created_at)
    return json_text(plain if job.options == _NO_OPTIONS else (*plain, job.options))


def _signal(signal: Signal) -> str:
    return json_text((signal.name, signal.value, signal.by, signal.at))


def _read_body(id: str, text: bytes) -> tuple[str, str, int | None, int, Options]:
    try:
        if text[-2:] == b"}]":
            return _body_with_options(text)
        return (*_plain_body(text), _NO_OPTIONS)
    except (msgspec.DecodeError, TypeError):  # also if the body is gone
        return UNREADABLE_ARGS, "", None, created_at_of(id), unreadable_options(text or "")


def _read_error(text: bytes) -> Error:
    try:
        return _error(text)
    except msgspec.DecodeError:
        return unreadable_error(text)


def _read_signal(version: int, text: bytes) -> Signal:
    try:
        return Signal(version, *_plain_signal(text))
    except (msgspec.DecodeError, TypeError):
        return unreadable_signal(text or "", version)


def job_of(row: Sequence[Any]) -> Job:
    """A job from a script's answer: id, head, body, result, error, signals."""
    id, head, body, result, error, signals = row
    id = id.decode()
    args, digest, key_until, created_at, options = _read_body(id, body)
    *columns, inbox, _, _ = unpack(head)
    del columns[NUMBERED]
    return Job(
        id=id,
        args=args,
        digest=digest,
        key_until=key_until,
        created_at=created_at,
        options=options,
        result=None if result is None else result.decode("utf-8", "backslashreplace"),
        error=None if error is None else _read_error(error),
        inbox=()
        if inbox is False
        else tuple(_read_signal(version, text) for version, text in zip(inbox, signals, strict=True)),
        **read_head(columns),
    )


# Changes.


def change_row(change: Change) -> bytes:
    """A change, as commit takes it."""
    job = change.job
    return pack(
        (
            job.id,
            number(change.epoch),
            number(change.version),
            *changed_columns(job),
            change.arrives,
            waits_text(job.waits),
            False if job.error is None else json_text(job.error),
            text_or_false(job.result),
            entry_text(entry_of(change, 0)),
            _cargo(change),
            frees_permits(change),
        )
    )


def _cargo(change: Change) -> Any:
    """The cargo of a change; False if it has none."""
    suspends = change.event == Event.SUSPEND
    if not (
        change.steps
        or change.drops
        or change.drops_failed
        or change.edits
        or change.signal is not None
        or change.takes
        or change.inserts
        or suspends
    ):
        return False
    signal: str | bool = False
    if change.signal is not None:
        signal = json_text((*change.signal, change.by, change.at))
    waits = change.job.waits if suspends else ()
    return (
        _body(change.job) if change.edits else False,
        [(step.path, STEP_LETTERS[step.state], step_row(step)) for step in change.steps],
        change.drops,
        change.drops_failed,
        signal,
        change.takes,
        [job_row(job) for job in change.inserts],
        [wait.name for wait in waits if wait.kind is WaitKind.CHILDREN],
    )


def weight(change: Change) -> int:
    """How much work a change is, measured in plain changes."""
    return 1 + len(change.steps) + len(change.drops) + len(change.inserts)


def answer_of(row: Any, job: str) -> Applied | Conflict:
    """The outcome of a change, or of a step's fence."""
    if row[0] == 1:
        return Applied(row[1], row[2])
    return conflict_of(row, job)


def conflict_of(row: Any, job: str) -> Conflict:
    """Why the store refused it."""
    if row[1] == 1:
        return Conflict(job, NO_SUCH_JOB)
    return Conflict(job, WHY[row[1]], STATES[row[2].decode()], int(row[3]), int(row[4]))


# Permits.


def ask_row(ask: Ask) -> tuple[Any, ...]:
    """What a step asks for, as admit takes it."""
    return (ask.job, number(ask.epoch), ask.path, ask.try_number, _uses(ask.uses), _uses(ask.settles))


def admission_of(ask: Ask, row: Any) -> Admission | Conflict:
    """The answer to a step that asks for permits."""
    if row == 1:
        return Admission(True)
    if row[0] == 0:
        return conflict_of(row, ask.job)
    return Admission(False, row[1].decode(), row[2])


def usage_of(key: str, row: Any) -> Usage | None:
    """How much of a key is used; None if nothing is."""
    held, waiting, tokens, closed_until, burst = row
    if held or waiting or closed_until or (burst is not None and tokens != burst):
        return Usage(key, held, waiting, tokens if burst else None, closed_until)
    return None


# History.


def entry_text(entry: Entry) -> str:
    """An entry without its job and version, which are in its key."""
    before = None if entry.before is None else LETTERS[entry.before]
    plain = (entry.at, str.__str__(entry.event), before, LETTERS[entry.after], entry.by, entry.epoch)
    return json_text((*plain, entry.note) if entry.note else plain)


def entries_of(job: str, after: int, limit: int, row: Sequence[Any]) -> list[Entry]:
    """The history from its script's answer: head, body, first entry or nothing, entries.

    The first entry is stored only if it can't be derived from the head and the body.
    """
    if len(row) < 3:
        return []
    entries: list[Entry] = []
    if after < 1 <= after + limit and row[2] is not None:
        entries.append(_entry_of(job, 1, row[2]))
    elif after < 1 <= after + limit:
        head = unpack(row[0])
        parent, first = head[14], head[21]
        made = Job(
            id=job,
            type=head[18],
            parent=None if parent is False else parent,
            created_at=_read_body(job, row[1])[3],
            state=STATES[first[0]],
            epoch=int(first[1:]),
        )
        entries.append(submit_entry(made))
    entries += (_entry_of(job, version, text) for version, text in enumerate(row[3:], max(after + 1, 2)))
    return entries


def _entry_of(job: str, version: int, text: bytes) -> Entry:
    try:
        return _plain_entry_of(job, version, text)
    except (msgspec.DecodeError, ValueError, KeyError, TypeError):  # not JSON, not in our format, or missing
        at, note = created_at_of(job), unreadable_note(text or "")
        return Entry(
            job=job,
            version=version,
            at=at,
            event=UNREADABLE,
            before=None,
            after=State.REVIEW,
            by="",
            epoch=0,
            note=note,
        )


def _plain_entry_of(job: str, version: int, text: bytes) -> Entry:
    at, event, before, to, by, epoch, *note = _decode(text)
    return Entry(
        job=job,
        version=version,
        at=at,
        event=event,
        before=None if before is None else STATES[before],
        after=STATES[to],
        by=by,
        epoch=int(epoch),
        note=msgspec.convert(note[0], dict[str, Any]) if note else {},
    )


# Steps.


def step_row(step: Step) -> str:
    """A step record without its job, path and state, which are stored next to it."""
    error: Error | _Trouble | None = step.error
    if step.tries != 1:
        cause = step.error or Error("", "")
        error = _Trouble(cause.type, cause.message, cause.traceback, step.tries, step.error is None)
    return json_text((step.epoch, step.name, step.started_at, step.finished_at, error, step.result))


def step_of(job: str, path: str, row: bytes) -> Step:
    """A step record as read from the store."""
    state = STEP_STATES.get(chr(row[0]) if row else "", StepState.STARTED)
    error, tries = None, 1
    try:
        epoch, name, started_at, finished_at, trouble, result = _step(row[_PLACE:])
    except msgspec.DecodeError:
        epoch, name, error, result = 0, path, unreadable_error(row), None
        started_at = finished_at = created_at_of(job)
    else:
        if trouble is not None:
            tries = trouble.tries
            error = None if trouble.is_none else Error(trouble.type, trouble.message, trouble.traceback)
    return Step(
        job=job,
        epoch=epoch,
        path=path,
        name=name,
        state=state,
        result=result,
        error=error,
        started_at=started_at,
        finished_at=finished_at,
        tries=tries,
    )


def summary_of(job: str, row: Sequence[bytes]) -> StepSummary:
    """A summary from its last path and its counters. Keys that start with = say which names have counters."""
    counts: dict[str, StepCounts] = {}
    for field, count in zip(row[1::2], row[2::2], strict=True):
        state = STEP_STATES.get(chr(field[0]))
        if state is not None:
            name = _name(b'"%b"' % field[1:])
            counts[name] = counts.get(name, StepCounts()) + StepCounts(**{state.value: int(count)})
    return summary_from(job, counts, row[0].decode())


def steps_of(job: str, row: Sequence[bytes]) -> list[Step]:
    """All step records of a job, in the order in which they were first written."""
    found = sorted(zip(row[1::2], row[0::2], strict=True), key=lambda one: one[0][1:_PLACE])
    return [step_of(job, path.decode(), text) for text, path in found]


def score(text: Any) -> Time | None:
    """A time that the store keeps as a score."""
    return None if text is None else int(float(text))


# Records.

_record = msgspec.msgpack.Decoder(tuple[int, Time, str], strict=False).decode


def record_of(name: bytes, ever: bytes | None, text: bytes | None) -> Record:
    """A record; a removed one with its last version. An unreadable one keeps its raw text and its version."""
    version, _, at = (ever or b"0").partition(b" ")
    if text is None:
        return Record(name.decode(), "", int(version), int(at or 0))
    try:
        found, written_at, value = _record(text)
    except ValueError:
        return Record(name.decode(), raw_text(text), int(version), 0)
    return Record(name.decode(), value, found, written_at)
