"""The lifecycle, written down a second time, and jobs to try its events on. Must not look at the shipped table."""

from typing import Any

from holdfast.core.lifecycle import decide
from holdfast.core.model import Change, Error, Event, Job, Signal, State, Wait, WaitKind

NOW = 1_700_000_000_000
JOB_ID = "018bcfe5-6800-7000-8000-000000000001"
BROKEN = Error("ProviderDown", "429")

# state: owner, OJS name, Celery name, checkpoint name, terminal
PROMISED_STATES = {
    "scheduled": (False, "scheduled", "PENDING", "PENDING", False),
    "available": (False, "available", "PENDING", "PENDING", False),
    "pending": (False, "pending", "PENDING", "PENDING", False),
    "active": (True, "active", "STARTED", "RUNNING", False),
    "retryable": (False, "retryable", "RETRY", "PENDING", False),
    "review": (False, "discarded", "FAILURE", "NEEDS_REVIEW", False),
    "completed": (False, "completed", "SUCCESS", "DONE", True),
    "discarded": (False, "discarded", "FAILURE", "NEEDS_REVIEW", True),
    "cancelled": (False, "cancelled", "REVOKED", "NEEDS_REVIEW", True),
}
# event: from, to, lease, who
PROMISED_EVENTS = {
    "submit": ("", "available scheduled pending", "–", "caller"),
    "promote": ("scheduled retryable", "available", "–", "time"),
    "activate": ("pending", "available", "–", "caller, children, signal, time"),
    "claim": ("available", "active", "takes", "worker"),
    "complete": ("active", "completed", "needs", "owner"),
    "fail": ("active", "retryable", "needs", "owner"),
    "exhaust": ("active", "review", "needs", "owner"),
    "release": ("active", "available", "needs", "owner"),
    "suspend": ("active", "pending", "needs", "owner"),
    "rest": ("active", "scheduled", "needs", "owner"),
    "lapse": ("active", "available", "breaks", "upkeep, owner"),
    "overrun": ("active", "retryable", "breaks", "upkeep"),
    "abandon": ("active", "review", "breaks", "upkeep, owner"),
    "cancel": ("scheduled available pending active retryable review", "cancelled", "breaks", "caller"),
    "expire": ("scheduled available pending retryable", "discarded", "–", "time"),
    "replay": ("review", "available", "–", "person"),
    "resolve": ("review", "completed", "–", "person"),
    "discard": ("review", "discarded", "–", "person"),
}
EDGES = {
    (event, source): targets
    for event, (sources, targets, _, _) in PROMISED_EVENTS.items()
    for source in sources.split()
}
ENDED = {state for state, (*_, terminal) in PROMISED_STATES.items() if terminal}
PAIRS = [(event, state) for event in PROMISED_EVENTS for state in PROMISED_STATES]


def job_in(state: str, **facts) -> Job:
    """A job that has lived: two claims, one failure, one recovery, and a signal in its inbox."""
    lived: dict[str, Any] = {
        "id": JOB_ID,
        "type": "video.make",
        "created_at": NOW - 60_000,
        "state": State(state),
        "version": 7,
        "run_at": NOW - 1_000,
        "epoch": 2,
        "attempt": 2,
        "recoveries": 1,
        "inbox": (Signal(5, "approved", "true", "ada", NOW - 5_000),),
    }
    if state == "active":
        lived |= {"worker": "w-7", "claimed_at": NOW - 2_000}
    if state in ("pending", "scheduled"):
        lived |= {"waits": (Wait(WaitKind.SIGNAL, "go"),)}
    return Job(**(lived | facts))


def decided(event: str, state: str | None = None, /, job: Job | None = None, **facts) -> Change:
    """What an event makes of a job in its first source state, with the facts that it needs."""
    needed: dict[str, dict[str, Any]] = {
        "claim": {"by": "w-8"},
        "complete": {"result": "42"},
        "resolve": {"result": "42"},
        "fail": {"error": BROKEN, "run_at": NOW + 9_000},
        "overrun": {"error": BROKEN, "run_at": NOW + 9_000},
        "exhaust": {"error": BROKEN},
        "abandon": {"error": BROKEN},
        "suspend": {"waits": (Wait(WaitKind.SIGNAL, "go"),)},
        "rest": {"run_at": NOW + 9_000},
    }
    state = state or PROMISED_EVENTS[event][0].split()[0]
    return decide(job or job_in(state), Event(event), NOW, **(needed.get(event, {}) | facts))
