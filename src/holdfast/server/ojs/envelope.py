"""A job as it is submitted over the Open Job Spec, checked and turned into our job. Must not touch a store.

What has no field of its own is kept as JSON text in `Options.envelope` (`Kept`): unknown top-level fields, meta that
isn't plain text, and the options as they were given.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.canonical import canonical
from holdfast.core.errors import BadValue
from holdfast.core.keys import check_queue, check_type
from holdfast.core.limits import LABELS, META_CHARACTERS, PRIORITIES, TAG_CHARACTERS
from holdfast.core.model import UNREADABLE, Job, Options, Time, Use
from holdfast.jobs.requests import JobRequest, new_job
from holdfast.server.ojs.agents import check_agent_fields
from holdfast.server.ojs.policies import read_retry, read_unique
from holdfast.server.ojs.problems import bad, unprocessable
from holdfast.server.ojs.vocabulary import read_time, written_time

SYSTEM_FIELDS = frozenset({
    *("specversion", "state", "attempt", "max_attempts", "created_at", "enqueued_at", "started_at", "completed_at"),
    *("cancelled_at", "discarded_at", "activated_at", "error", "errors", "result", "worker_id", "retry_delay_ms"),
    *("next_attempt_at", "parent_results", "workflow_id", "checkpoint", "lease_token", "previous_state"),
})  # fmt: skip
"""What only the server writes. A client's values are ignored."""

OPTIONS = frozenset({
    *("queue", "priority", "timeout_ms", "timeout", "delay_until", "scheduled_at", "expires_at", "retry", "unique"),
    *("rate_limit", "tags", "visibility_timeout_ms", "visibility_timeout", "pending", "metadata", "result_ttl"),
})  # fmt: skip
"""The options that mean something here. Others are kept and returned."""

_FIELDS = frozenset({"type", "args", "id", "meta", "options"})
_AT_TOP = frozenset({
    *("queue", "priority", "scheduled_at", "expires_at", "tags", "timeout_ms", "retry", "unique", "rate_limit"),
})  # fmt: skip
"""Options that the envelope itself has at its top level, so that a job that was read can be submitted again."""

_OBJECTS = frozenset({"metadata", "unique", "retry", "rate_limit"})
"""Options that are JSON objects."""

_KNOWN = _FIELDS | SYSTEM_FIELDS | _AT_TOP

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_PLAIN_META = 40
"""How many entries of meta our own views show at most."""

KEEP_MS = 30 * 86_400_000
"""How long a job is kept after it ended: as long as one that Python code submits."""

LONGEST_TTL_SECONDS = 10 * 365 * 86_400

LONGEST_TIMEOUT_MS = 365 * 86_400_000


class Kept(Struct, frozen=True, omit_defaults=True):
    """What is kept of a submit besides our own fields: unknown fields, meta, options, and where it belongs."""

    fields: Mapping[str, Any] = {}
    meta: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}

    def text(self) -> str:
        """The text in `Options.envelope`."""
        return msgspec.json.encode(self).decode()


class Submit(Struct, frozen=True, kw_only=True):
    """A checked submit: the id that the client chose, the request, what is kept, and the asked rate limit."""

    id: str | None
    request: JobRequest
    rate_limit: Mapping[str, Any] | None
    keeps_schedule: bool = False

    def job(self, id: str, now: Time, limits: tuple[Use, ...] = (), *, by: str = "") -> Job:
        """Build the job, submitted by the token of this name."""
        request = self.request
        past = request.expires_at is not None and request.expires_at <= now
        job = new_job(replace(request, expires_at=None) if past else request, self.id or id, now)
        options = replace(job.options, limits=limits, submitted_by=by)
        return replace(job, options=options, expires_at=request.expires_at)


def kept_of(options: Options) -> Kept:
    """Read what was kept; nothing for a job that was not submitted here."""
    if not options.envelope:
        return Kept(meta=options.meta)
    try:
        return msgspec.json.decode(options.envelope, type=Kept)
    except msgspec.MsgspecError:
        return Kept(meta=options.meta)


def read_submit(body: Any, now: Time) -> Submit:
    """Check a submitted job."""
    if not isinstance(body, dict):
        raise bad("job", "give a JSON object with type and args")
    if "type" not in body:
        raise bad("type", "is missing; give the job's type, such as email.send")
    if "args" not in body:
        raise bad("args", "is missing; give an array, [] for none")
    if not isinstance(body["args"], list):
        raise bad("args", "give an array of arguments")
    check_agent_fields(body)
    meta = _object(body, "meta")
    if meta.get("ojs_validate") is True and not body["args"]:
        raise unprocessable(
            "args", "meta.ojs_validate asks for validation, and there is no argument", "schema_validation"
        )
    options = _options(body)
    type = _type(body["type"])
    queue, priority = _queue(options.get("queue", "default")), _priority(options.get("priority", 0))
    retry = read_retry(options.get("retry"))
    args = canonical(body["args"])
    start = read_start(options, now)
    expires_at = None if options.get("expires_at") is None else read_time("expires_at", options["expires_at"], now)
    kept = Kept(_unknown(body), meta, _resolved(options, start, expires_at))
    request = JobRequest(
        type=type,
        args=args,
        encoded=True,
        queue=queue,
        priority=priority,
        run_at=start,
        expires_at=expires_at,
        pending=_boolean(options, "pending"),
        options=Options(
            retry=retry,
            timeout_ms=_timeout(options),
            keep_ms=_keep_ms(options),
            tags=_tags(options.get("tags")),
            meta=_plain(meta),
            envelope=kept.text(),
        ),
    )
    unique = read_unique(options.get("unique"), request, meta)
    keeps_schedule = unique is not None and options["unique"].get("on_conflict") == "replace_except_schedule"
    return Submit(
        id=_id(body),
        request=request if unique is None else replace(request, options=replace(request.options, unique=unique)),
        rate_limit=_optional_object(options, "rate_limit"),
        keeps_schedule=keeps_schedule,
    )


def result_ttl_ms(options: Mapping[str, Any]) -> int | None:
    """For how long a result can be read after the end of its job; None for as long as the job is kept."""
    seconds = options.get("result_ttl")
    if seconds is None or seconds == -1:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 <= seconds <= LONGEST_TTL_SECONDS:
        raise bad("result_ttl", "give a whole number of seconds, 0 to store no result, -1 to keep it forever")
    return seconds * 1_000


def _keep_ms(options: Mapping[str, Any]) -> int | None:
    """For how long a job is kept: at least as long as its result."""
    ttl = result_ttl_ms(options)
    return None if ttl is None and options.get("result_ttl") is not None else max(KEEP_MS, ttl or 0)


def read_start(options: Mapping[str, Any], now: Time) -> Time | None:
    """When the job may start; None for at once."""
    for field in ("scheduled_at", "delay_until"):
        if options.get(field) is not None:
            return read_time(field, options[field], now)
    return None


def reservation_asked(options: Mapping[str, Any]) -> int | None:
    """For how long a worker may hold a job without a sign of life, in milliseconds; None if nothing is said."""
    value = options.get("visibility_timeout_ms")
    if value is None and options.get("visibility_timeout") is not None:
        seconds = options["visibility_timeout"]
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise bad("visibility_timeout", "give a number of seconds")
        value = round(min(seconds, 1e9) * 1_000)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise bad("visibility_timeout_ms", "give a whole number of milliseconds above 0")
    return value


def _type(value: Any) -> str:
    if not isinstance(value, str):
        raise bad("type", "give text, such as email.send")
    if value.startswith("holdfast."):
        raise bad("type", f"{value[:80]}: types that begin with holdfast. are reserved")
    return check_type(value)


def _queue(value: Any) -> str:
    if not isinstance(value, str):
        raise bad("queue", "give a queue's name as text")
    return check_queue(value)


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -PRIORITIES <= value <= PRIORITIES:
        raise bad("priority", f"give a whole number from {-PRIORITIES} to {PRIORITIES}")
    return value


def _id(body: Mapping[str, Any]) -> str | None:
    value = body.get("id")
    if value is None and "id" not in body:
        return None
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise bad("id", "give a UUIDv7 in lower case, or leave it out")
    return value


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(_object(body, "options"))
    for name in [name for name in body if name in _AT_TOP]:
        if body[name] is not None and options.get(name) is None:
            options[name] = body[name]
    for name in [name for name in options if name in _OBJECTS]:
        _optional_object(options, name)
    reservation_asked(options)
    return options


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _optional_object(body, name) or {}


def _optional_object(body: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise bad(name, "give a JSON object")
    return value


def _boolean(options: Mapping[str, Any], name: str) -> bool:
    value = options.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad(name, "give true or false")
    return bool(value)


def _timeout(options: Mapping[str, Any]) -> int | None:
    value = options.get("timeout_ms")
    if value is None and (seconds := options.get("timeout")) is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 1e9:
            raise bad("timeout", "give a number of seconds above 0")
        value = max(1, round(seconds * 1_000))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LONGEST_TIMEOUT_MS:
        raise bad("timeout_ms", "give a whole number of milliseconds above 0, up to a year")
    return value


def _tags(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tag, str) and tag for tag in value):
        raise bad("tags", "give an array of texts")
    if len(value) > LABELS or any(len(tag) > TAG_CHARACTERS for tag in value):
        raise BadValue(f"tags: give at most {LABELS} of {TAG_CHARACTERS} characters each")
    return tuple(value)


def _plain(meta: Mapping[str, Any]) -> dict[str, str]:
    """The entries of meta that our own views can show: short texts."""
    fit = {
        name: value
        for name, value in meta.items()
        if isinstance(value, str) and len(name) + len(value) <= META_CHARACTERS and name != UNREADABLE
    }
    return dict(list(fit.items())[:_PLAIN_META])


def _unknown(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _KNOWN}


def _resolved(options: Mapping[str, Any], start: Time | None, expires_at: Time | None) -> dict[str, Any]:
    """The options to keep, with relative times as moments."""
    kept = {name: value for name, value in options.items() if name not in ("queue", "priority", "tags")}
    if (reservation := reservation_asked(options)) is not None:
        kept["visibility_timeout_ms"] = reservation
    for name in ("scheduled_at", "delay_until"):
        if str(kept.get(name, "")).startswith("+"):
            kept[name] = written_time(start)
    if str(kept.get("expires_at", "")).startswith("+"):
        kept["expires_at"] = written_time(expires_at)
    return kept
