"""Planted bugs of shared limits, in the engine and in the worker."""

from typing import Any

from msgspec.structs import replace

import holdfast.worker.permits
from holdfast.core import shared_limits
from holdfast.engines import permits
from holdfast.engines.limited_rows import LimitedRows
from holdfast.engines.permits import Permits
from holdfast.engines.tables import Tables
from holdfast.worker.admissions import Admissions
from holdfast.worker.permits import StepPermits
from tests.simulation.plan import limited
from tests.simulation.planting import bug


@bug("permits are not counted", "S40", Permits, "_count", limited)
def _(count: Any) -> Any:
    return lambda self, key: 0


@bug("only the first limit counts", "S40 S42", Permits, "block", limited)
def _(block: Any) -> Any:
    return lambda self, uses, job, path="": block(self, uses[:1], job, path)


@bug("a permit outlives its lease", "S41 L1", Permits, "end", limited)
def _(end: Any) -> Any:
    return lambda self, job, path=None: None if path is None else end(self, job, path)


@bug("a permit that ends leaves no recheck", "S41 L1", LimitedRows, "recheck", limited)
def _(recheck: Any) -> Any:
    return lambda self, key, at: None


@bug("what is behind the second key is not looked at", "S41 L1", Tables, "_look_again", limited)
def _(look_again: Any) -> Any:
    def forgets(self: Any, queue: str, key: str, blocks: Any, permits: Any) -> None:
        self._set(self._rechecks[queue], key, None)

    return forgets


@bug("a bucket refills twice as fast", "S42", permits, "filled", limited)
def _(filled: Any) -> Any:
    return lambda settings, bucket, now: filled(replace(settings, refill=2 * settings.refill), bucket, now)


@bug("a bucket is refilled by a clock that was set forward", "S42", permits, "filled", limited)
def _(filled: Any) -> Any:
    def by_another_clock(settings: Any, bucket: Any, now: int) -> Any:
        found = filled(settings, bucket, now + 400)
        return replace(found, at=now)

    return by_another_clock


@bug("a closed limit stays open", "S44", permits, "start_time", limited)
def _(start_time: Any) -> Any:
    return lambda settings, bucket, held, units, now: start_time(
        settings, replace(bucket, closed_until=0), held, units, now
    )


@bug("a lowered limit is not heeded", "S40", LimitedRows, "settings", limited)
def _(settings: Any) -> Any:
    first: dict[str, Any] = {}

    def as_it_was(self: Any, limit: str) -> Any:
        found = settings(self, limit)
        return first.setdefault(limit, found) if found != shared_limits.NO_LIMIT else found

    return as_it_was


@bug("a step keeps its permit after its end", "S43", StepPermits, "_back", limited)
def _(back: Any) -> Any:
    return lambda self, path: replace(back(self, path), path=f"{path}~")


@bug("a step in line is not woken", "S41 L1", Admissions, "_wake", limited)
def _(wake: Any) -> Any:
    return lambda self, key, count=0: None


@bug("a step whose time has come asks without a pause", "storm", holdfast.worker.permits, "ANSWER_MS", limited)
def _(answer_ms: Any) -> Any:
    return 0


@bug("permits are kept for jobs that can't start", "S41 L1", Permits, "_is_full", limited)
def _(is_full: Any) -> Any:
    return lambda self, key, job: False
