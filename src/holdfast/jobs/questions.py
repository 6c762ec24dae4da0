"""What waiting jobs ask for: the records of their waits, and the questions that a person answers.

Must not change a job. A wait is recorded when the job suspends over it, or keeps its slot for a while, with the schema
of what it takes. The record stays open until the wait is answered or the job gives it up.
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
from holdfast.core.unreadable import told

WAIT_PATH = "~wait/"
"""Where waits are recorded, beside the job's own steps."""

WITHDRAWN = "withdrawn"
"""What the record of a wait says that the job gave up while it kept its slot. Its code may ask again, from the top."""

ASK = "ask:"
"""Signals of this name answer a question that a job asked."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the job itself refused after it was sent: under which name, from whom, and why."""

    name: str
    by: str
    why: str


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks a person. `name` tells it from the job's other questions."""

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
    """The open questions of a job."""
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
    """What a waiting job refused of what it was sent, for each wait the last."""
    found = [_refusal(info) for _, info in open_waits(job, steps)]
    return [one for one in found if one is not None]


def signal_text(name: str, value: object) -> str:
    """A signal's value as text. Refuses a name that no signal may have."""
    text = canonical(value)
    if not 0 < len(name) <= SIGNAL_NAME_CHARACTERS or size_of(text) > SIGNAL_BYTES:
        raise Invalid(
            f"signal {name[:40]!r}: a name has 1 to {SIGNAL_NAME_CHARACTERS} characters, a value at most "
            f"{SIGNAL_BYTES >> 10} KiB; keep what is larger elsewhere and send a path or URL"
        )
    if name.startswith("~"):
        raise Invalid(f"signal {name[:40]!r}: names that begin with ~ are Holdfast's own; choose another one")
    return text


def schemas_of(job: Job, steps: Sequence[Step]) -> dict[str, list[dict[str, Any]]]:
    """What a waiting job takes under the name of each signal that it waits for; one schema for each wait."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _, info in open_waits(job, steps):
        found.setdefault(info["name"], []).append(info.get("schema", {}))
    return found


def check_signal(job: Job, steps: Sequence[Step], name: str, value: object, text: str) -> None:
    """Refuse a signal that isn't what the job asks for, as far as that is recorded; BadValue says why."""
    trouble: BadValue | None = None
    back = msgspec.json.decode(text)
    for info in [info for _, info in open_waits(job, steps) if info["name"] == name]:
        try:
            if schema := info.get("schema"):
                check_form(back, schema, _where(name))
            elif (found := change_in(value, back)) is not None:
                advice = "wait for it with as_=, or send text, numbers, lists and dicts"
                raise BadValue(line(_where(name), found.path, f"{found.words}; {advice}"))
        except BadValue as error:
            trouble = trouble or error
        else:
            return  # It fits one of the waits for it, and that one will take it.
    if trouble is not None:
        raise trouble


def _where(name: str) -> str:
    return "the answer" if name.startswith(ASK) else f"signal {name}"


def _refusal(info: dict[str, Any]) -> Refusal | None:
    told = info.get("refused")
    return Refusal(name=info["name"], by=told["by"], why=told["why"]) if told else None


def waits_now(job: Job, steps: Sequence[Step]) -> tuple[Wait, ...]:
    """What a job waits for, also while it keeps its slot."""
    if job.state is not State.ACTIVE:
        return job.waits
    asked = [Wait(WaitKind.SIGNAL, info["name"], info.get("until")) for _, info in open_waits(job, steps)]
    return tuple(dict.fromkeys([*job.waits, *asked]))


def open_waits(job: Job, steps: Iterable[Step]) -> list[tuple[Step, dict[str, Any]]]:
    """The recorded waits for signals that nothing has come for yet, with what their records say.

    A pending job says itself what it waits for. Any other asks again for what is recorded, or is asking right now.
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
        if name in coming:  # the job takes the oldest first, each for one wait
            coming.remove(name)
        else:
            found.append((step, info))
    return found


def untaken(job: Job, steps: Iterable[Step]) -> list[Signal]:
    """The signals in the inbox that the job has neither taken nor refused: while it runs, those stay for a while."""
    if not job.inbox:
        return []
    steps = list(steps)
    taken = {told(step.result).get("signal") for step in steps if step.state is StepState.DONE}
    taken |= {version for _, info in _open_records(steps) for version in info.get("refused", {}).get("signals", ())}
    return [one for one in job.inbox if one.version not in taken]


def _open_records(steps: Iterable[Step]) -> list[tuple[Step, dict[str, Any]]]:
    begun = [(step, told(step.result)) for step in steps if step.state is StepState.STARTED]
    return [(step, info) for step, info in begun if "name" in info]
