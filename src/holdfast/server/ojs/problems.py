"""Errors as the Open Job Spec shows them: an object with a code, and their codes. Must not know a route."""

from typing import Any

from msgspec import json
from starlette.responses import Response

from holdfast.safe_text import clean
from holdfast.server.call import Call
from holdfast.server.ojs.vocabulary import MEDIA_TYPE, VERSION
from holdfast.server.problems import Problem

DOCS_URL = "https://openjobspec.org/spec/errors"

# Our codes (`server.problems`) and theirs. What the specification has no word for takes its prefix for own codes.
_CODES = {
    "invalid": "invalid_request",
    "bad_value": "invalid_request",
    "unknown_option": "invalid_request",
    "unsupported_media_type": "invalid_request",
    "unsupported_encoding": "invalid_request",
    "too_large": "x_too_large",
    "too_slow": "x_too_slow",
    "refused": "conflict",
    "not_allowed": "conflict",
    "outrun": "conflict",
    "key_conflict": "duplicate",
    "lease_lost": "x_lease_lost",
    "queue_full": "QUEUE_FULL",
    "moved": "x_moved",
    "internal": "backend_error",
    "method_not_allowed": "x_method_not_allowed",
    "too_many_requests": "rate_limited",
}
_SAME = {
    *("invalid_payload", "invalid_request", "schema_validation", "not_found", "duplicate", "conflict", "queue_paused"),
    *("rate_limited", "unsupported", "backend_error", "RESULT_TOO_LARGE"),
    *("AGENT_INVALID_PARAMETER", "AGENT_MAX_DELEGATION_DEPTH"),
}
_HINTS = {
    400: "correct the request; the message names the field",
    401: "send a token: Authorization: Bearer …",
    403: "use a token with the scope that this route needs",
    404: "check the id; the job may have been pruned, or it is in another store",
    409: "read the job again: its state doesn't allow this",
    422: "correct the value that the message names",
    429: "wait as long as Retry-After says, then try again",
    503: "the store is away; try again after Retry-After",
}


def code_of(problem: Problem) -> str:
    """Their code for a problem."""
    if problem.code in _SAME or problem.code.startswith("x_"):
        return problem.code
    if problem.status >= 500:
        return "backend_error"
    return _CODES.get(problem.code, f"x_{problem.code}")


def show_problem(problem: Problem, call: Call) -> Response:
    """Render a problem as the specification's error object."""
    status, more = problem.status, dict(problem.more)
    if status == 415:
        status = 400
    headers = {**problem.headers, "OJS-Version": VERSION}
    if "existing_id" in more:
        more["existing_job_id"] = more["existing_id"]
    if problem.code == "queue_full":
        headers["X-OJS-Queue-Depth"] = str(more.get("depth", ""))
        headers["X-OJS-Queue-Bound"] = str(more.get("most_waiting", ""))
    error: dict[str, Any] = {
        "code": code_of(problem),
        "message": clean(problem.detail),
        "retryable": problem.can_retry or status in (429, 503),
        "details": more,
        "request_id": call.request_id,
        "hint": _HINTS.get(status, "see the message"),
        "docs_url": f"{DOCS_URL}#{code_of(problem)}",
    }
    if status in (400, 422):
        error["type"] = "validation_error"
    if problem.code == "queue_full":
        error |= {"queue": more.get("queue"), "depth": more.get("depth"), "bound": more.get("most_waiting")}
    return Response(json.encode({"error": error}), status, headers, media_type=MEDIA_TYPE)


def unprocessable(field: str, detail: str, code: str = "invalid_request") -> Problem:
    """A well-formed request whose meaning is wrong."""
    return Problem(422, code, f"{field}: {detail}", field=field)


def bad(field: str, detail: str) -> Problem:
    """A field that is missing, or has the wrong type or format."""
    return Problem(400, "invalid_request", f"{field}: {detail}", field=field)
