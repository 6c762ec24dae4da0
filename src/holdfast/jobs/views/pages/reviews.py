"""What needs a person: questions with their forms, effects in doubt, failures."""

from typing import Any

from msgspec import Struct

from holdfast.jobs.views.pages.parts import Act, ErrorShown, Moment, Value


class FormField(Struct, frozen=True, kw_only=True):
    """One field of a form. Without a name, it is the whole answer."""

    name: str
    kind: str
    """"string", "boolean", "integer", "number" or "json"."""
    takes: str
    """What can be given, in words: "whole number, 1 to 5"."""
    choices: tuple[Any, ...]
    is_required: bool
    description: str
    default: Any
    schema: dict[str, Any]


class QuestionCard(Struct, frozen=True, kw_only=True):
    """A job's question, with the JSON Schema of its answer and the same as a form."""

    job: str
    short: str
    job_name: str
    type: str
    name: str
    question: Any
    sentence: str
    """"asked 3 min ago, 1 d left"."""
    fields: tuple[FormField, ...]
    schema: dict[str, Any]
    asked_at: Moment
    until: Moment | None
    refused: str
    """Why the job itself refused an earlier answer; empty if it didn't."""
    act: Act


class DoubtCard(Struct, frozen=True, kw_only=True):
    """An effect in doubt: it was started, and nobody knows whether it happened."""

    path: str
    name: str
    sentence: str
    error: str
    started_at: Moment | None
    worker: str
    key: str
    """The key that the provider got, to look there."""
    happened: Act
    again: Act


class ReviewCard(Struct, frozen=True, kw_only=True):
    """A job in review: why, what to decide, and what a replay would cost and keep."""

    job: str
    short: str
    name: str
    type: str
    queue: str
    kind: str
    """"doubt" or "failure"."""
    sentence: str
    since: Moment
    since_words: str
    before: str
    """"2 failed attempts, 1 worker lost"; empty if there were none."""
    error: ErrorShown | None
    doubts: tuple[DoubtCard, ...]
    may_not_fit: tuple[DoubtCard, ...]
    """Effects that a person has decided, with a result that may not fit: they can be decided again."""
    arguments: Value
    schema: dict[str, Any] | None
    """The JSON Schema of the job's arguments, if its app is loaded here."""
    replay_words: str
    """What a replay keeps and does again."""
    acts: tuple[Act, ...]


class ReviewLine(Struct, frozen=True, kw_only=True):
    """One line of the inbox."""

    kind: str
    """"question", "doubt" or "failure"."""
    job: str
    short: str
    name: str
    type: str
    words: str
    since: Moment
    until: Moment | None
    question: str = ""
    """The question's name, if it is one."""


class ReviewPage(Struct, frozen=True, kw_only=True):
    """The inbox: questions first, then doubts and failures, the newest first."""

    now: Moment
    sentence: str
    lines: tuple[ReviewLine, ...]
    total: int


class ReviewItem(Struct, frozen=True, kw_only=True):
    """What is open for one job: its questions, or its review."""

    now: Moment
    questions: tuple[QuestionCard, ...]
    review: ReviewCard | None


class ReviewGroupLine(Struct, frozen=True, kw_only=True):
    """Jobs of one type that were stopped by the same kind of error in the same step. `where` selects all of them."""

    type: str
    step: str
    error: str
    count: int
    first: Moment
    last: Moment
    in_doubt: int
    """How many of them have an effect in doubt."""
    message: str
    """The newest one's error."""
    examples: tuple[str, ...]
    where: dict[str, str]


class ReviewGroups(Struct, frozen=True, kw_only=True):
    """The jobs in review by what stopped them, the largest group first."""

    now: Moment
    sentence: str
    groups: tuple[ReviewGroupLine, ...]
    total: int
