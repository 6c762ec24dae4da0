"""All settings in one frozen value. Must be read only by app and cli, which pass them on."""

import os
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, StructMeta

from holdfast.core.errors import Invalid
from holdfast.core.suggestions import suggest

DEFAULT_URL = "sqlite:///holdfast.db"


class _KnownNames(StructMeta):
    """Refuses unknown settings, and suggests the name that was probably meant."""

    def __call__(cls, *args: Any, **given: Any) -> Any:
        for name in given:
            if name not in cls.__struct_fields__:
                hint = suggest(name, cls.__struct_fields__) or f"; the settings are {', '.join(cls.__struct_fields__)}"
                raise Invalid(f"there is no setting {name}{hint}")
        return super().__call__(*args, **given)


class Settings(Struct, frozen=True, kw_only=True, metaclass=_KnownNames):
    """How a worker and its upkeep behave. The defaults suit jobs of seconds to hours."""

    beat_seconds: float = 2.0
    """Seconds between a worker's heartbeats."""
    lease_seconds: float = 15.0
    """A worker whose heartbeats stop for this long counts as dead, even if nobody saw it die."""
    look_seconds: float = 0.4
    """Seconds between a worker's checks for dead workers."""
    poll_seconds: float = 15.0
    """How long an idle worker waits for a wake-up before it polls."""
    grace_seconds: float = 10.0
    """How long running jobs may take to finish when a worker stops; the rest are handed over to other workers."""
    upkeep_seconds: float = 5.0
    """Seconds between rounds of upkeep by the leader: it discards expired jobs, stops overdue ones, prunes old ones."""
    limit_seconds: float = 2.0
    """How long a step that waits for a shared limit keeps its job's slot."""
    keep_days: float = 30.0
    """How many days a job is kept after it ends, unless it sets `keep`."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0:
                raise Invalid(f"setting {name}={value!r}: give a number above 0")
        if self.lease_seconds < 3 * self.beat_seconds:
            raise Invalid(
                f"lease_seconds={self.lease_seconds} with beat_seconds={self.beat_seconds}: "
                "a lease must last at least three heartbeats, so that two may be lost"
            )


def blobs_url(url: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL of the blob store: the one given, else $HOLDFAST_BLOBS, else None for the store's own."""
    return url or environment.get("HOLDFAST_BLOBS") or None


def store_url(url: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the store's URL: the one given, else $HOLDFAST_URL, else a SQLite file in the working directory."""
    return url or environment.get("HOLDFAST_URL") or DEFAULT_URL
