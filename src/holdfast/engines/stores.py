"""Which engine a store's URL means: the only place in the library that names concrete engines.

An engine is imported when its URL is used, so that the drivers of other engines needn't be installed.
"""

from holdfast.core.errors import Invalid
from holdfast.core.suggestions import suggest
from holdfast.engines.contract import Clock, Engine, system_clock
from holdfast.engines.urls import masked

FORMS = (
    '"memory:", "file:checkpoint.json", "sqlite:///jobs.db" (relative; four slashes: absolute), '
    '"postgresql://user@host/database", "redis://host:6379/0", or a server: "http://host:8700"'
)
SCHEMES = ("memory", "file", "sqlite", "postgresql", "redis", "http")
_LATER = {"nats": "NATS"}


def engine_class(url: str) -> type[Engine]:
    """The engine class for a store's URL, or Invalid. Nothing is opened."""
    scheme = url.partition(":")[0] if ":" in url else ""
    match scheme:
        case "memory":
            from holdfast.engines.memory import MemoryEngine

            return MemoryEngine
        case "file":
            from holdfast.engines.file import FileEngine

            return FileEngine
        case "sqlite":
            from holdfast.engines.sqlite import SqliteEngine

            return SqliteEngine
        case "postgresql" | "postgres":
            try:
                from holdfast.engines.postgres import PostgresEngine
            except ModuleNotFoundError as error:
                if error.name != "asyncpg":
                    raise
                raise Invalid(
                    f"{scheme}: the driver is not installed; run pip install 'holdfast-jobs[postgres]'"
                ) from None

            return PostgresEngine
        case "redis" | "rediss" | "valkey" | "valkeys":
            try:
                from holdfast.engines.redis import RedisEngine
            except ModuleNotFoundError as error:
                if error.name not in ("redis", "hiredis"):
                    raise
                raise Invalid(
                    f"{scheme}: the driver is not installed; run pip install 'holdfast-jobs[redis]'"
                ) from None

            return RedisEngine
        case "http" | "https":
            from holdfast.engines.http import HttpEngine

            return HttpEngine
    if scheme in _LATER:
        raise Invalid(f"{scheme}: the {_LATER[scheme]} engine is not in this version; use one of {FORMS}")
    plain = scheme.partition("+")[0]
    if plain in ("postgresql", "postgres", "sqlite"):
        driver = scheme.partition("+")[2]
        raise Invalid(f"{masked(url)!r}: Holdfast uses its own driver; write {plain}://… without +{driver}")
    raise Invalid(f"{masked(url)!r} is not the URL of a store{_meant(url, scheme)}; use one of {FORMS}")


def engine_for(url: str, clock: Clock = system_clock) -> Engine:
    """The engine of a store's URL, not yet opened."""
    return engine_class(url).from_url(url, clock)


def _meant(url: str, scheme: str) -> str:
    """Return the URL that a plain path, or a mistyped scheme, was probably meant to be: "; did you mean …?"."""
    if scheme:
        return suggest(scheme, SCHEMES)
    if url.isprintable() and url.endswith(".json"):
        return f"; did you mean file:{url}?"
    if url.isprintable() and url.endswith((".db", ".sqlite", ".sqlite3")):
        return f"; did you mean sqlite:///{url}?"
    return ""
