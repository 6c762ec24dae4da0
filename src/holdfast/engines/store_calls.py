"""What a remote app may read of a store through a server: each call with the types of its arguments and its answer.

The server answers these calls from its own engine, and `engines/http` makes them. Must not know HTTP.
"""

from typing import Any, NamedTuple

from holdfast.core.alerts import ALERT
from holdfast.core.model import Entry, Job, Record, State, Step, StepState, Usage, Where
from holdfast.core.schedules import SCHEDULE
from holdfast.core.searches import Page
from holdfast.core.shared_limits import BUCKET, LIMIT
from holdfast.core.summaries import StepHead, StepSummary
from holdfast.engines.records import PAUSE, QUIET, WORKER


class StoreCall(NamedTuple):
    """One call: the types of its arguments and of its answer."""

    args: Any
    answer: Any


CALLS: dict[str, StoreCall] = {
    "now": StoreCall(tuple[()], int),
    "get": StoreCall(tuple[list[str]], list[Job | None]),
    "find": StoreCall(tuple[Where, str, int], list[Job]),
    "search": StoreCall(tuple[Where, str, int], Page),
    "count": StoreCall(tuple[()], list[tuple[str, State, int]]),
    "ready_types": StoreCall(tuple[str], list[str]),
    "steps": StoreCall(tuple[str], list[Step]),
    "steps_under_each": StoreCall(tuple[list[str], str, StepState | None], list[Step]),
    "steps_page": StoreCall(tuple[str, str, int], list[StepHead]),
    "summaries": StoreCall(tuple[list[str]], list[StepSummary]),
    "history": StoreCall(tuple[str, int, int], list[Entry]),
    "missing": StoreCall(tuple[str, str], int),
    "usage": StoreCall(tuple[str], list[Usage]),
    "records": StoreCall(tuple[str], list[Record]),
    "wait": StoreCall(tuple[list[str], float, int], int),
}

WAIT_SECONDS = 2.0
"""How long one call waits for a wake-up at most; a longer wait is several calls."""

READABLE = (WORKER, PAUSE, QUIET, LIMIT, BUCKET, SCHEDULE, ALERT, "queue/", "budget/", "count/", "on/", "moved")
"""The records that a remote app may read begin with one of these. Tokens are not among them. It writes none:
limits, schedules, queues and workers are changed by acts, each with its scope.
"""
