"""What waiting jobs ask for: the records of their waits, and the questions for people.

Must not change a job. A wait is recorded when the job suspends for it, or waits in its slot, with the schema of the
expected value. The record stays open until the wait is answered or the job gives it up.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.canonical import canonical, line
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.forms import check_form
from holdfast.core.lifecycle import SETTLED
from holdfast.core.limits import SIGNAL_BYTES, SIGNAL_NAME_CHARACTERS, size_of
from holdfast.core.model import Job, Signal, State, Step, StepState, Time, Wait, WaitKind
from holdfast.core.open_hints import change_in
from holdfast.core.unreadable import record_content

WAIT_PATH = "~wait/"
"""The path under which waits are recorded, next to the job's own steps."""

WITHDRAWN = "withdrawn"
"""Marks the record of a wait that the job gave up while it kept its slot. Its code may ask again from the top."""

ASK = "ask:"
"""The prefix of the signals that answer a job's questions."""


def is_question(wait: Wait) -> bool:
    """Whether this is the wait for a person's answer."""
    return wait.kind is WaitKind.SIGNAL and wait.name.startswith(ASK)


def asks(job: Job) -> bool:
    """Whether a suspended job waits for a person's answer."""
    return any(map(is_question, job.waits))


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the job itself refused after it was sent: its name, the sender, and the reason."""

    name: str
    by: str
    why: str


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks a person. `name` distinguishes it from the job's other questions."""

    job: str
    type: str
    name: str
    value: Any
    schema: dict[str, Any]
    asked_at: Time
    until: Time | None
    refused: Refusal | None = None
    """The last answer that the job itself refused."""


def questions_of(job: Job, steps: Sequence[Step]) -> list[Question]:
    """Return the open questions of a job."""
    return [
        Question(
            job=job.id,
            type=job.type,
            name=info["name"],
            value=msgspec.json.decode(info["question"]),
            schema=info.get("schema", {}),
            asked_at=step.started_at,
            until=info.get("until"),
            refused=_refusal(info),
        )
        for step, info in open_waits(job, steps)
        if "question" in info
    ]


def refusals_of(job: Job, steps: Sequence[Step]) -> list[Refusal]:
    """Return the values that a waiting job has refused: the last one for each wait."""
    found = [_refusal(info) for _, info in open_waits(job, steps)]
    return [one for one in found if one is not None]


def signal_text(name: str, value: object) -> str:
    """Encode a signal's value. Raises Invalid if the name isn't allowed or the value is too large."""
    text = canonical(value)
    if not 0 < len(name) <= SIGNAL_NAME_CHARACTERS or size_of(text) > SIGNAL_BYTES:
        raise Invalid(
            f"signal {name[:40]!r}: the name must have 1 to {SIGNAL_NAME_CHARACTERS} characters, and the value at most "
            f"{SIGNAL_BYTES >> 10} KiB; store larger values elsewhere and send a path or URL"
        )
    if name.startswith("~"):
        raise Invalid(f"signal {name[:40]!r}: names that start with ~ are reserved for Holdfast; choose another one")
    return text


def schemas_of(job: Job, steps: Sequence[Step]) -> dict[str, list[dict[str, Any]]]:
    """Return the schemas that a waiting job expects for each signal name; one schema for each wait."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _, info in open_waits(job, steps):
        found.setdefault(info["name"], []).append(info.get("schema", {}))
    return found


def check_signal(job: Job, steps: Sequence[Step], name: str, value: object, text: str) -> None:
    """Refuse a signal that doesn't match what the job waits for, as far as that is recorded. Raises BadValue."""
    trouble: BadValue | None = None
    back = msgspec.json.decode(text)
    for info in [info for _, info in open_waits(job, steps) if info["name"] == name]:
        try:
            if schema := info.get("schema"):
                check_form(back, schema, _where(name))
            elif (found := change_in(value, back)) is not None:
                advice = "give the wait as_=, or send text, numbers, lists and dicts"
                raise BadValue(line(_where(name), found.path, f"{found.words}; {advice}"))
        except BadValue as error:
            trouble = trouble or error
        else:
            return  # It fits one of the waits, and that wait will take it.
    if trouble is not None:
        raise trouble


def _where(name: str) -> str:
    return "the answer" if name.startswith(ASK) else f"signal {name}"


def _refusal(info: dict[str, Any]) -> Refusal | None:
    refused = info.get("refused")
    return Refusal(name=info["name"], by=refused["by"], why=refused["why"]) if refused else None


def waits_now(job: Job, steps: Sequence[Step]) -> tuple[Wait, ...]:
    """Return what a job waits for, whether it is suspended or waits in its slot."""
    if job.state is not State.ACTIVE:
        return job.waits
    asked = [Wait(WaitKind.SIGNAL, info["name"], info.get("until")) for _, info in open_waits(job, steps)]
    return tuple(dict.fromkeys([*job.waits, *asked]))


def open_waits(job: Job, steps: Iterable[Step]) -> list[tuple[Step, dict[str, Any]]]:
    """Return the recorded waits for signals that are still unanswered, with the content of their records.

    A pending job lists its waits itself. Any other job is asking now, or will ask again for what is recorded.
    """
    if job.state in SETTLED:
        return []
    steps = [step for step in steps if step.path.startswith(WAIT_PATH)]
    names = {wait.name for wait in job.waits if wait.kind is WaitKind.SIGNAL}
    coming = [signal.name for signal in untaken(job, steps)]
    found: list[tuple[Step, dict[str, Any]]] = []
    for step, info in _open_records(steps):
        name = info["name"]
        if WITHDRAWN in info or (job.state is State.PENDING and name not in names):
            continue
        if name in coming:  # the job takes the oldest first, one for each wait
            coming.remove(name)
        else:
            found.append((step, info))
    return found


def untaken(job: Job, steps: Iterable[Step]) -> list[Signal]:
    """Return the signals that the job has neither taken nor refused. While it runs, taken ones stay in the inbox."""
    if not job.inbox:
        return []
    steps = list(steps)
    taken = {record_content(step.result).get("signal") for step in steps if step.state is StepState.DONE}
    taken |= {version for _, info in _open_records(steps) for version in info.get("refused", {}).get("signals", ())}
    return [one for one in job.inbox if one.version not in taken]


def _open_records(steps: Iterable[Step]) -> list[tuple[Step, dict[str, Any]]]:
    begun = [(step, record_content(step.result)) for step in steps if step.state is StepState.STARTED]
    return [(step, info) for step, info in begun if "name" in info]
