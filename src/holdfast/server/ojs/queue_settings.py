"""What an administrator sets for a queue over HTTP, beside its bound. Must not enforce it (`jobs.room`)."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.core.queue_bounds import REFUSE, SHED_OLDEST
from holdfast.engines.contract import Engine
from holdfast.server.ojs.problems import bad, unprocessable

SETTINGS = "ojs/queue/"
"""A record `ojs/queue/NAME` holds the settings of a queue."""

BLOCK = "block"
"""The strategy of a queue that refuses, but lets a submit that says so wait for room."""

STRATEGIES = {"reject": REFUSE, BLOCK: REFUSE, "drop_oldest": SHED_OLDEST}

DEEPEST = 1_000_000_000


class QueueSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a queue. Without `max_depth` it has no bound of theirs."""

    max_depth: int | None = None
    strategy: str = "reject"
    warning_threshold: float = 0.8

    @property
    def when_full(self) -> str:
        """Our word for the strategy."""
        return STRATEGIES[self.strategy]

    def shown(self) -> dict[str, Any]:
        """The settings as they are answered."""
        return {"backpressure": {name: getattr(self, name) for name in self.__struct_fields__}}


async def queue_settings(engine: Engine) -> Mapping[str, QueueSettings]:
    """Return the settings of all queues that have some."""
    found: dict[str, QueueSettings] = {}
    for record in await engine.records(SETTINGS):
        try:
            found[record.name.removeprefix(SETTINGS)] = msgspec.json.decode(record.value, type=QueueSettings)
        except msgspec.MsgspecError:
            continue
    return found


def read_settings(body: Mapping[str, Any]) -> QueueSettings:
    """Read the settings of a queue from a request."""
    unknown = [name for name in body if name not in ("backpressure", "rate_limit", "concurrency", "retention")]
    if unknown:
        raise bad(unknown[0][:80], "is no setting of a queue; there is backpressure")
    for name in ("rate_limit", "concurrency", "retention"):
        if body.get(name) is not None:
            raise unprocessable(name, "isn't a setting of a queue here; give backpressure", "unsupported")
    given = body.get("backpressure")
    if not isinstance(given, dict):
        raise bad("backpressure", 'give a JSON object, such as {"max_depth": 10000}')
    depth = given.get("max_depth")
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= DEEPEST):
        raise bad("backpressure.max_depth", "give a whole number from 1, or 0 for no bound")
    for name in given:
        if name in ("max_size_bytes", "block_timeout", "block_timeout_ms"):
            instead = "give max_depth" if name == "max_size_bytes" else "a submit says it with OJS-Block-Timeout"
            raise unprocessable(f"backpressure.{name}", f"isn't supported; {instead}", "unsupported")
        if name not in QueueSettings.__struct_fields__:
            raise bad(f"backpressure.{name[:80]}", f"give {', '.join(QueueSettings.__struct_fields__)}")
    strategy = given.get("strategy", "reject")
    if strategy not in STRATEGIES:
        raise bad("backpressure.strategy", f"give one of {', '.join(STRATEGIES)}")
    share = given.get("warning_threshold", 0.8)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise bad("backpressure.warning_threshold", "give a number above 0, up to 1")
    return QueueSettings(max_depth=depth or None, strategy=strategy, warning_threshold=float(share))
