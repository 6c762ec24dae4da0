"""The bodies and queries of the API's calls. Must not check what only a store or an app can know."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.core.limits import REASON_CHARACTERS
from holdfast.core.model import State

PAGE_DEFAULT = 100
PAGE_MOST = 500
"""How many jobs or steps a page has."""

STEPS_MOST = 1_000
"""How many steps one rerun may name."""

Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS, description="why; the history keeps it")]
Limit = Annotated[int, Meta(ge=1, le=PAGE_MOST, description="how many at most")]
Duration = Annotated[str, Meta(description="a duration: 90s, 10m, 2h or 7d", examples=["10m"])]
When = Annotated[
    str, Meta(extra_json_schema={"format": "date-time"}, description="a time with its zone: 2026-03-01T09:00:00Z")
]


class SearchQuery(Struct, frozen=True, kw_only=True):
    """Which jobs to find, in which order, and from where on."""

    state: Annotated[tuple[State, ...], Meta(description="only jobs in one of these states; may be repeated")] = ()
    queue: Annotated[str | None, Meta(description="only jobs of this queue")] = None
    type: Annotated[str | None, Meta(description="only jobs of this type")] = None
    key: Annotated[str | None, Meta(description="only jobs submitted with exactly this key")] = None
    id: Annotated[str | None, Meta(description="a job's id, or its first or last six or more characters")] = None
    parent: Annotated[str | None, Meta(description="only children of this job")] = None
    error: Annotated[str | None, Meta(description="text in the error; only with state=review")] = None
    order: Annotated[Literal["newest", "oldest"], Meta(description="by time of submission")] = "newest"
    at: Annotated[When | None, Meta(description="start at jobs submitted at this time")] = None
    after: Annotated[str | None, Meta(description="the `next` of the page before")] = None
    limit: Limit = PAGE_DEFAULT


class BlobQuery(Struct, frozen=True, kw_only=True):
    """How a blob is shown."""

    media: Annotated[str | None, Meta(description="its media type: a picture, sound or film is shown as one")] = None


class CompareQuery(Struct, frozen=True, kw_only=True):
    """Which other run to compare a job with, and which page of their steps."""

    other: Annotated[str, Meta(description="the other job's id")]
    after: Annotated[str, Meta(description="the `next` of the page before")] = ""
    limit: Limit = PAGE_DEFAULT


class StoryQuery(Struct, frozen=True, kw_only=True):
    """Which part of a story."""

    before: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="only older entries: the last `next`")] = None
    limit: Limit = PAGE_DEFAULT


class StepsQuery(Struct, frozen=True, kw_only=True):
    """Which page of steps."""

    after: Annotated[str, Meta(description="the `next` of the page before")] = ""
    limit: Limit = PAGE_DEFAULT


class StepQuery(Struct, frozen=True, kw_only=True):
    """Which step."""

    path: Annotated[str, Meta(description="the step's path")]


class TimelineQuery(Struct, frozen=True, kw_only=True):
    """Which attempt of a timeline."""

    epoch: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="only what ran under this lease")] = None


class StreamQuery(Struct, frozen=True, kw_only=True):
    """Which view to watch."""

    view: Annotated[
        Literal["overview", "navigation", "job", "jobs", "review", "queues", "workers", "schedules", "limits"],
        Meta(description="what to watch; job needs id"),
    ]
    id: Annotated[str | None, Meta(description="the job's id, for view=job")] = None
    queue: Annotated[str | None, Meta(description="for view=jobs: only jobs of this queue")] = None
    type: Annotated[str | None, Meta(description="for view=jobs: only jobs of this type")] = None
    state: Annotated[tuple[State, ...], Meta(description="for view=jobs: only jobs in these states")] = ()


class UniqueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What makes a job unique, as `Unique` in Python."""

    by: Annotated[tuple[str, ...], Meta(description="what has to be the same: args, queue or an argument's name")]
    within: Duration | None = None
    then: Literal["return", "refuse", "replace"] = "return"


class SubmitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to submit. The header Idempotency-Key counts as `key`."""

    type: Annotated[str, Meta(description="the job's type", examples=["video.make"])]
    args: Annotated[list[Any] | dict[str, Any], Meta(description="a list, or an object by the parameters' names")] = []
    key: Annotated[str | None, Meta(description="the same job is returned for the same key")] = None
    key_for: Annotated[Duration | None, Meta(description="how long the key is remembered")] = None
    queue: Annotated[str | None, Meta(description="the queue, instead of the job's own")] = None
    priority: Annotated[int | None, Meta(description="higher runs first")] = None
    delay: Duration | None = None
    at: When | None = None
    expires: Annotated[str | None, Meta(description="discard it unless it runs or has ended by then")] = None
    tags: tuple[str, ...] = ()
    meta: dict[str, str] = {}
    unique: UniqueRequest | None = None
    budget: Annotated[
        dict[str, float] | None,
        Meta(description="what the job and its children may spend, by currency", examples=[{"usd": 5}]),
    ] = None


class ReasonRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why something is done."""

    reason: Reason = ""


class SignalRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A named value for a job."""

    name: str
    value: Any = None


class AnswerRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a job's question; `name` says which, if there are several."""

    value: Any
    name: str | None = None


class ReplayRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run a job in review again, with its own arguments or with these."""

    args: Annotated[list[Any] | UnsetType, Meta(description="the whole list of arguments, as the job has it")] = UNSET
    reason: Reason = ""


class RerunRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which recorded steps to run again, by path or name. `args` are other arguments, for one step only."""

    steps: Annotated[tuple[str, ...], Meta(min_length=1, max_length=STEPS_MOST, examples=[["draw#3"]])]
    args: list[Any] | UnsetType = UNSET
    feedback: Annotated[str, Meta(description="what is wrong with the result; the step can read it")] = ""
    allow: Annotated[tuple[str, ...], Meta(description="effects that may happen again")] = ()
    reason: Reason = ""


class ForkRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a new run begins: before the first step `until`, or with all that is recorded."""

    until: Annotated[str | None, Meta(description="the step's name or path")] = None
    args: Annotated[list[Any] | UnsetType, Meta(description="the new run's whole list of arguments")] = UNSET
    allow: Annotated[tuple[str, ...], Meta(description="effects that may happen again")] = ()
    reason: Reason = ""


class ResolveRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Complete a job in review with this result."""

    result: Any
    reason: Reason = ""


class ResolveStepRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decide a step in doubt: it happened, with this result; or, with `again`, it must run again."""

    path: str
    result: Any = None
    again: bool = False
    reason: Reason = ""


class AddBudgetRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to add to a budget."""

    add: Annotated[dict[str, float], Meta(description="amounts by currency", examples=[{"usd": 5}])]
    reason: Reason = ""


class SetQueueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many jobs may wait in a queue."""

    most_waiting: int
    reason: Reason = ""


class SetLimitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New settings of a limit. What is left out stays as it is."""

    at_once: int | None = None
    rate: Annotated[str | None, Meta(examples=["500/m"])] = None
    burst: float | None = None
    reason: Reason = ""


class CloseLimitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Close a limit, or one of its keys, for a time."""

    duration: Duration
    key: Annotated[str | None, Meta(description="only this key: NAME/VALUE")] = None
    reason: Reason = ""


class OpenLimitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Open a closed limit, or one of its keys."""

    key: Annotated[str | None, Meta(description="only this key: NAME/VALUE")] = None
    reason: Reason = ""


class Filter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs an act concerns: those that match, or those with these ids."""

    state: tuple[State, ...] = ()
    queue: str | None = None
    type: str | None = None
    error: Annotated[str | None, Meta(description="the type of their error, with or without its module")] = None
    step: Annotated[str | None, Meta(description="the step that failed or is in doubt")] = None
    tag: str | None = None
    ids: Annotated[tuple[str, ...], Meta(description="whole ids")] = ()


class BulkRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An act on all jobs that match."""

    act: Literal["cancel", "replay", "discard", "resolve"]
    where: Filter
    result: Annotated[Any, Meta(description="for resolve: the result that each of them gets")] = None
    reason: Reason = ""
