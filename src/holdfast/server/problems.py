"""Errors as answers: which status and code each of our errors has, and their shape as RFC 9457 problem details.

Must not know a route. An error that isn't ours is answered without its text, which may hold secrets; the log has it.
"""

from collections.abc import Mapping
from http import HTTPStatus
from math import ceil
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.core import errors
from holdfast.safe_text import clean

RETRY_AFTER_SECONDS = 2
"""After how many seconds a client should ask again while the store is away."""


class Problem(errors.HoldfastError):
    """An error as it is answered. `more` has further members, such as the id of an existing job."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.more = more
        self.headers = dict(headers or {})
        self.can_retry = retry_after is not None
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, ceil(retry_after)))


# By the type of the error; the nearest ancestor that is named here counts.
_ANSWERS: dict[type[Exception], tuple[int, str]] = {
    errors.Invalid: (400, "invalid"),
    errors.BadValue: (400, "bad_value"),
    errors.UnknownOption: (400, "unknown_option"),
    errors.Refused: (409, "refused"),
    errors.NotFound: (404, "not_found"),
    errors.NotAllowed: (409, "not_allowed"),
    errors.LeaseLost: (409, "lease_lost"),
    errors.Outrun: (409, "outrun"),
    errors.KeyConflict: (409, "key_conflict"),
    errors.Duplicate: (409, "duplicate"),
    errors.QueueFull: (429, "queue_full"),
    errors.Moved: (409, "moved"),
    errors.BlobGone: (404, "blob_gone"),
    errors.BlobsAway: (503, "blobs_away"),
    errors.StoreError: (503, "store_unavailable"),
    errors.StoreFull: (503, "store_full"),
    errors.StoreLost: (503, "store_lost"),
    errors.StoreDamaged: (503, "store_damaged"),
    errors.StoreForeign: (503, "store_foreign"),
}


def problem_of(error: errors.HoldfastError) -> Problem:
    """Return the answer for one of our errors."""
    if isinstance(error, Problem):
        return error
    status, code = next((_ANSWERS[kind] for kind in type(error).__mro__ if kind in _ANSWERS), (500, "internal"))
    if status == 500:
        return internal()
    more: dict[str, Any] = {}
    retry_after: float | None = RETRY_AFTER_SECONDS if status == 503 or code == "outrun" else None
    if isinstance(error, errors.Duplicate):
        more["existing_id"] = error.id
    if isinstance(error, errors.QueueFull):
        retry_after = error.retry_after
        more.update(queue=error.queue, depth=error.depth, most_waiting=error.most_waiting)
    return Problem(status, code, str(error), retry_after=retry_after, **more)


def internal() -> Problem:
    """Return the answer for an error that nobody expected."""
    return Problem(500, "internal", "the server failed to handle this request; its log has the reason, by request id")


def problem_details(problem: Problem, request_id: str) -> Response:
    """Return a problem as RFC 9457 problem details."""
    content = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "code": problem.code,
        "detail": clean(problem.detail),
        "request_id": request_id,
        **problem.more,
    }
    return Response(
        msgspec.json.encode(content), problem.status, problem.headers, media_type="application/problem+json"
    )
