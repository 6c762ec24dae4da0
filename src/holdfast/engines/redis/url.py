"""Parses a store's URL: which server, which app, and how to connect. Must not connect.

`redis://user:password@host:port/0`, `rediss://` with TLS; `valkey://` and `valkeys://` mean the same. Options follow a
`?`, joined by `&`: `app=` (default "holdfast"; the prefix of all keys, so that several apps can share a server), and
the driver's TLS options: `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`, `ssl_cert_reqs`, `ssl_check_hostname`.
"""

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from holdfast.core.errors import Invalid
from holdfast.engines.urls import parts_of

APP = "holdfast"
PORT = 6379

_APP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")
_SCHEMES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
_OURS = frozenset({"app"})
_DRIVERS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"})


class StoreUrl(Struct, frozen=True):
    """Where a store is. `password` is never shown."""

    host: str
    port: int
    db: int
    app: str
    shown: str
    tls: bool = False
    user: str | None = None
    password: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def tag(self) -> str:
        """The prefix of all keys: one hash tag, so that a cluster keeps them on one node."""
        return "{" + self.app + "}"


def parse_url(url: str) -> StoreUrl:
    """Parse a store's URL. Raises Invalid."""
    parts, options = parts_of(url)
    given, port = dict(options), parts.port or PORT
    unknown = sorted(set(given) - _OURS - _DRIVERS)
    if unknown:
        raise Invalid(
            f"{shown(url)}: unknown option {unknown[0]!r}; the options are app, {', '.join(sorted(_DRIVERS))}"
        )
    if parts.fragment:
        raise Invalid(f"{shown(url)}: a store's URL can't contain '#'; write %23 instead")
    app = given.get("app", APP)
    if not _APP_NAME.fullmatch(app):
        raise Invalid(f"app={app!r}: use only letters, digits, '-', '_' and '.', at most 50 characters")
    db = parts.path.strip("/") or "0"
    if not db.isdecimal() or len(db) > 5:
        raise Invalid(f"{shown(url)}: {db!r} isn't a database number; write for example redis://host:6379/0")
    return StoreUrl(
        host=parts.hostname or "localhost",
        port=port,
        db=int(db),
        app=app,
        shown=shown(url),
        tls=_SCHEMES[parts.scheme],
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        options=tuple((name, _value(name, value)) for name, value in given.items() if name in _DRIVERS),
    )


def _value(name: str, value: str) -> Any:
    return value.lower() not in ("0", "false", "no") if name == "ssl_check_hostname" else value


def with_app(url: str, app: str) -> str:
    """The same server with another app."""
    parts = urlsplit(url)
    options = [(name, value) for name, value in parse_qsl(parts.query) if name != "app"]
    return urlunsplit(parts._replace(query=urlencode([*options, ("app", app)])))


def shown(url: str) -> str:
    """A URL to show in messages: the server and the app, without user, password and options."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    app = dict(parse_qsl(parts.query)).get("app", APP)
    return f"{parts.scheme}://{host}{parts.path} (app {app})"
