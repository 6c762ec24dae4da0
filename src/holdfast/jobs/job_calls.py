"""A job to be submitted later: its type, arguments and options as data, and the request it makes when its time comes.

Must not know functions or type hints: the arguments are canonical JSON text, checked by whoever made the call.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.codec import canonical, parse
from holdfast.core.errors import BadValue
from holdfast.core.model import Options, Time
from holdfast.jobs.requests import JobRequest, new_job


class JobCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a signature stores. Durations count from the moment of the submit, moments are the store's time.

    If `is_open`, the first argument is missing: `args` holds those after it.
    """

    type: str
    args: str = "[]"
    is_open: bool = False
    queue: str = "default"
    priority: int = 0
    key: str | None = None
    key_for_ms: int | None = None
    delay_ms: int | None = None
    run_at: Time | None = None
    expires_ms: int | None = None
    expires_at: Time | None = None
    options: Options = Options()

    def as_json(self) -> dict[str, Any]:
        """The call as plain JSON values, for a store. Settings that have their default are left out."""
        return {**msgspec.to_builtins(self), "args": parse(self.args)}

    def request(self, now: Time) -> JobRequest:
        """What to submit at this moment."""
        return JobRequest(
            type=self.type,
            args=self.args,
            encoded=True,
            queue=self.queue,
            priority=self.priority,
            key=self.key,
            key_until=None if self.key_for_ms is None else now + self.key_for_ms,
            run_at=self.run_at if self.delay_ms is None else now + self.delay_ms,
            expires_at=self.expires_at if self.expires_ms is None else now + self.expires_ms,
            options=self.options,
        )


def call_from_json(value: Any) -> JobCall:
    """Read what `as_json` wrote, or raise BadValue."""
    try:
        args = canonical(value["args"])
        if not isinstance(value["args"], list):
            raise BadValue(f"{args[:80]} is not a list of arguments")
        return msgspec.convert({**value, "args": args}, JobCall)
    except (TypeError, LookupError, msgspec.ValidationError, BadValue) as error:
        raise BadValue(f"a stored signature can't be read: {error}; was it edited by hand?") from error


def check_call(call: JobCall) -> JobCall:
    """Return the call, or raise Invalid if its type, queue, priority, key or labels are not valid."""
    new_job(replace(call.request(0), expires_at=None), "", 0)
    return call
