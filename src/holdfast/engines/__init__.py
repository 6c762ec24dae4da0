"""Where jobs are kept: one contract (`contract`), and stores as unlike as a JSON file and a database.

`engine_for(url)` is the one place in the library that names concrete engines.
"""

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from holdfast.core.errors import Invalid
from holdfast.engines.contract import Clock, Engine, system_clock

FORMS = (
    '"memory:", "file:checkpoint.json", "sqlite:///jobs.db" (relative; four slashes: absolute), '
    '"postgresql://user@host/database", "redis://host:6379/0"'
)
_LATER = {"nats": "NATS"}


def engine_class(url: str) -> type[Engine]:
    """The engine that a store's URL means, or Invalid. Nothing is opened."""
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
                raise Invalid(f"{scheme}: its driver is not installed; pip install 'holdfast[postgres]'") from None

            return PostgresEngine
        case "redis" | "rediss" | "valkey" | "valkeys":
            try:
                from holdfast.engines.redis import RedisEngine
            except ModuleNotFoundError as error:
                if error.name not in ("redis", "hiredis"):
                    raise
                raise Invalid(f"{scheme}: its driver is not installed; pip install 'holdfast[redis]'") from None

            return RedisEngine
    if scheme in _LATER:
        raise Invalid(f"{scheme}: the {_LATER[scheme]} engine is not in this version; use one of {FORMS}")
    plain = scheme.partition("+")[0]
    if plain in ("postgresql", "postgres", "sqlite"):
        raise Invalid(f"{masked(url)!r}: write {plain}://…, without +{scheme.partition('+')[2]}: the driver is ours")
    raise Invalid(f"{masked(url)!r} names no store; use one of {FORMS}")


def engine_for(url: str, clock: Clock = system_clock) -> Engine:
    """The engine of a store's URL, not yet opened."""
    return engine_class(url).from_url(url, clock)


def path_of(url: str) -> Path:
    """The file that a `file:` or `sqlite:` URL names, absolute, so that a later change of folder doesn't move it."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Invalid(f"{masked(url)!r} is not a URL: {error}") from error
    if parts.query or parts.fragment:
        raise Invalid(f"{masked(url)!r}: a store's URL takes no '?' or '#'; write them as %3F and %23")
    path = unquote(parts.path)
    if parts.scheme == "sqlite":
        if not url.startswith("sqlite:///"):
            raise Invalid(f"{masked(url)!r}: write sqlite:///jobs.db (relative) or sqlite:////data/jobs.db (absolute)")
        path = path[1:]
    elif parts.netloc:
        raise Invalid(f"{masked(url)!r}: write file:checkpoint.json or file:/data/checkpoint.json")
    if path == ":memory:":
        raise Invalid(f"{url!r}: for a store in memory write memory:")
    if not path or path.endswith("/") or "\0" in path:
        raise Invalid(f"{masked(url)!r} names no file")
    return Path(path).absolute()


def parts_of(url: str) -> tuple[SplitResult, list[tuple[str, str]]]:
    """A server's URL in its parts, and its options; or Invalid, which shows nothing that may belong to a password."""
    scheme, _, rest = url.partition(":")
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        _ = parts.port  # one that is no number is refused here
        is_one = rest.startswith("//") and parts.netloc.count("@") == url.count("@") <= 1 and url.isprintable()
    except ValueError:
        is_one = False
    if not is_one:
        raise Invalid(
            f"{scheme}:… is not a URL: write {scheme}://user:password@host:port/…, and in a password @ as %40, : as "
            "%3A, / as %2F, # as %23 and ? as %3F"
        )
    return parts, options


def masked(url: str) -> str:
    """A URL that may be shown: its password is replaced."""
    if url.partition(":")[0] in ("file", "sqlite"):
        return url
    # Up to the last @: a password may hold what belongs to another part of a URL, and a URL may be written wrongly.
    head, at, where = url.rpartition("@")
    scheme, slashes, user = head.partition("://")
    if at and not slashes:
        url = f"***@{where}"
    elif ":" in user:
        url = f"{scheme}://{user.partition(':')[0]}:***@{where}"
    return _SECRET.sub(r"\1=***", url)


def named(url: str) -> str:
    """A store's name that may be shown to anybody and kept anywhere: where it is, and neither user nor password."""
    scheme = url.partition(":")[0]
    if scheme in ("file", "sqlite"):
        return ("file:" if scheme == "file" else "sqlite:///") + str(path_of(url))
    parts, options = parts_of(url)
    host = parts.netloc.rpartition("@")[2]
    query = urlencode([(name, value) for name, value in options if name in _WHERE])
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


_SECRET = re.compile(r"\b(\w*(?:password|passwd|pwd))=[^&#]*", re.IGNORECASE)
_WHERE = frozenset({"schema", "app", "host", "port", "dbname", "database"})
