"""All settings in one frozen value, read at the edge. Must not be read by anybody but app and cli."""

import os
from collections.abc import Mapping

from msgspec import Struct

from holdfast.core.errors import Invalid

DEFAULT_URL = "sqlite:///holdfast.db"


class Settings(Struct, frozen=True, kw_only=True):
    """How a worker and its upkeep behave. The defaults suit jobs of seconds to hours on one machine."""

    beat_seconds: float = 2.0
    """How often a worker shows that it lives."""
    lease_seconds: float = 15.0
    """A worker that has not been heard of for so long is taken for dead, even if nobody saw it die."""
    look_seconds: float = 0.4
    """How often a worker looks whether another one died."""
    poll_seconds: float = 15.0
    """How long an idle worker waits for news before it looks by itself."""
    grace_seconds: float = 10.0
    """How long running work may take to finish when the worker is told to stop; the rest is handed over."""
    upkeep_seconds: float = 5.0
    """How often the leader tidies up: expires, overruns, prunes."""
    limit_seconds: float = 2.0
    """How long a step that waits for a shared limit keeps its job's slot."""
    keep_days: float = 30.0
    """How long ended jobs are kept when they don't say otherwise."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise Invalid(f"setting {name}={getattr(self, name)}: must be above 0")
        if self.lease_seconds < 3 * self.beat_seconds:
            raise Invalid(
                f"lease_seconds={self.lease_seconds} with beat_seconds={self.beat_seconds}: "
                "a lease must outlast three beats, so that two may be lost"
            )


def store_url(url: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The store to use: the one given, else $HOLDFAST_URL, else a SQLite file in the working directory."""
    return url or environment.get("HOLDFAST_URL") or DEFAULT_URL
