"""A store's URL, read: which database, which schema, and how to connect. Must not connect.

`postgresql://user:password@host:port/database`, and after a `?`, joined by `&`:
`schema=` (default "holdfast"), `pooler=transaction` (PgBouncer in transaction mode: no statement cache, no wake-ups, no
locks that last), `connections=` (how many at most, besides the one that beats and listens), and what the driver knows
of TLS and addresses: `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `host`, `port`, `user`, `passfile`, …
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
    """What a store's URL says, or Invalid."""
    parts, given = parts_of(url)
    options = dict(given)
    unknown = sorted(set(options) - _OURS - _DRIVERS)
    if unknown:
        raise Invalid(
            f"{shown(url)}: there is no option {unknown[0]!r}; there are {', '.join(sorted(_OURS))}, sslmode …"
        )
    if parts.fragment:
        raise Invalid(f"{shown(url)}: a store's URL takes no '#'; write it as %23")
    schema = options.get("schema", SCHEMA)
    if not _SCHEMA_NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise Invalid(f"schema={schema!r}: up to 31 of a-z, 0-9 and _, not beginning with a digit or pg_")
    pooler = options.get("pooler", "none")
    if pooler not in ("none", "transaction"):
        raise Invalid(f"pooler={pooler!r}: it is none or transaction")
    connections = options.get("connections", str(CONNECTIONS))
    if not connections.isdecimal() or not 1 <= int(connections) <= CONNECTIONS_LIMIT:
        raise Invalid(f"connections={connections!r}: give a number from 1 to {CONNECTIONS_LIMIT}")
    drivers = urlencode([(name, value) for name, value in given if name in _DRIVERS])
    return StoreUrl(
        dsn=urlunsplit(("postgresql", parts.netloc, parts.path, drivers, "")),
        schema=schema,
        shown=shown(url),
        pooled=pooler == "transaction",
        connections=int(connections),
    )


def with_schema(url: str, schema: str) -> str:
    """The same database, another schema."""
    parts = urlsplit(url)
    options = [(name, value) for name, value in parse_qsl(parts.query) if name != "schema"]
    return urlunsplit(parts._replace(query=urlencode([*options, ("schema", schema)])))


def shown(url: str) -> str:
    """A URL for messages: the database and the schema, without user, password and options."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    schema = dict(parse_qsl(parts.query)).get("schema", SCHEMA)
    return f"postgresql://{host}{parts.path} (schema {schema})"
