"""What waiting jobs ask for: the records of their waits, and the questions that a person answers.

Must not change a job. A wait is recorded when the job suspends over it, with the schema of what it takes.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.errors import BadValue
from holdfast.core.forms import check_form
from holdfast.core.model import Job, State, Step, StepState, Time, WaitKind
from holdfast.core.unreadable import told

WAIT_PATH = "~wait/"
"""Where waits are recorded, beside the job's own steps."""

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
    """The open questions of a waiting job."""
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
        for step, info in _open_waits(job, steps)
        if "question" in info
    ]


def refusals_of(job: Job, steps: Sequence[Step]) -> list[Refusal]:
    """What a waiting job refused of what it was sent, for each wait the last."""
    found = [_refusal(info) for _, info in _open_waits(job, steps)]
    return [one for one in found if one is not None]


def check_signal(job: Job, steps: Sequence[Step], name: str, value: object) -> None:
    """Refuse a signal that isn't what the waiting job asked for; BadValue says why."""
    where = "the answer" if name.startswith(ASK) else f"signal {name}"
    trouble: BadValue | None = None
    for info in [info for _, info in _open_waits(job, steps) if info.get("name") == name]:
        try:
            check_form(value, info.get("schema", {}), where)
        except BadValue as error:
            trouble = trouble or error
        else:
            return  # It fits one of the waits for it, and that one will take it.
    if trouble is not None:
        raise trouble


def _refusal(info: dict[str, Any]) -> Refusal | None:
    told = info.get("refused")
    return Refusal(name=info["name"], by=told["by"], why=told["why"]) if told else None


def _open_waits(job: Job, steps: Sequence[Step]) -> list[tuple[Step, dict[str, Any]]]:
    names = {wait.name for wait in job.waits if wait.kind is WaitKind.SIGNAL} if job.state is State.PENDING else set()
    begun = [step for step in steps if step.path.startswith(WAIT_PATH) and step.state is StepState.STARTED]
    infos = [(step, told(step.result)) for step in begun]
    return [(step, info) for step, info in infos if info.get("name") in names]
