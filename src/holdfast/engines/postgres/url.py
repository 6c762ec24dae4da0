"""Parses a store's URL: which database, which schema, and how to connect. Must not connect.

`postgresql://user:password@host:port/database`, and after a `?`, joined by `&`:
`schema=` (default "holdfast"), `pooler=transaction` (PgBouncer in transaction mode: no statement cache, no
notifications, no session locks), `connections=` (the maximum, besides the one for heartbeats and notifications), and
the driver's options for TLS and addresses: `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `host`, `port`, `user`, …
"""

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from holdfast.core.errors import Invalid
from holdfast.engines.urls import parts_of

SCHEMA = "holdfast"
CONNECTIONS = 6
CONNECTIONS_LIMIT = 64

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_OURS = frozenset({"schema", "pooler", "connections"})
_DRIVERS = frozenset(
    {"sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "ssl_min_protocol_version"}
    | {"ssl_max_protocol_version", "sslnegotiation", "host", "port", "user", "password", "passfile", "dbname"}
    | {"database", "target_session_attrs", "service", "servicefile", "gsslib", "krbsrvname"}
)


class StoreUrl(Struct, frozen=True):
    """Where a store is. `dsn` is for the driver and may hold a password: it is never shown."""

    dsn: str
    schema: str
    shown: str
    pooled: bool = False
    connections: int = CONNECTIONS


def parse_url(url: str) -> StoreUrl:
    """Parse a store's URL. Raises Invalid."""
    parts, given = parts_of(url)
    options = dict(given)
    unknown = sorted(set(options) - _OURS - _DRIVERS)
    if unknown:
        raise Invalid(
            f"{shown(url)}: unknown option {unknown[0]!r}; the options are {', '.join(sorted(_OURS))}, sslmode …"
        )
    if parts.fragment:
        raise Invalid(f"{shown(url)}: a store's URL can't contain '#'; write %23 instead")
    schema = options.get("schema", SCHEMA)
    if not _SCHEMA_NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise Invalid(
            f"schema={schema!r}: use at most 31 characters from a-z, 0-9 and _; it can't start with a digit or pg_"
        )
    pooler = options.get("pooler", "none")
    if pooler not in ("none", "transaction"):
        raise Invalid(f"pooler={pooler!r}: use pooler=none or pooler=transaction")
    connections = options.get("connections", str(CONNECTIONS))
    if not connections.isdecimal() or not 1 <= int(connections) <= CONNECTIONS_LIMIT:
        raise Invalid(f"connections={connections!r}: use a number from 1 to {CONNECTIONS_LIMIT}")
    drivers = urlencode([(name, value) for name, value in given if name in _DRIVERS])
    return StoreUrl(
        dsn=urlunsplit(("postgresql", parts.netloc, parts.path, drivers, "")),
        schema=schema,
        shown=shown(url),
        pooled=pooler == "transaction",
        connections=int(connections),
    )


def with_schema(url: str, schema: str) -> str:
    """The same database with another schema."""
    parts = urlsplit(url)
    options = [(name, value) for name, value in parse_qsl(parts.query) if name != "schema"]
    return urlunsplit(parts._replace(query=urlencode([*options, ("schema", schema)])))


def shown(url: str) -> str:
    """A URL to show in messages: the database and the schema, without user, password and options."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    schema = dict(parse_qsl(parts.query)).get("schema", SCHEMA)
    return f"postgresql://{host}{parts.path} (schema {schema})"
