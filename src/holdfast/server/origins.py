"""Where a request may come from: the Host it names and the page that sent it. Must not know tokens or routes.

A page on the internet can make a browser send requests to this machine. The Host check stops pages whose name was
pointed at this machine (DNS rebinding), the Origin check stops the others. Both apply to programs too, which send no
Origin.
"""

import ipaddress
import socket
from collections.abc import Collection, Mapping

from holdfast.server.problems import Problem

UNIX = "unix:"
"""What the host begins with if a server listens on a Unix socket: unix:/run/holdfast.sock."""

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

_SAFE_METHODS = ("GET", "HEAD")


def is_loopback(host: str) -> bool:
    """Return whether a server bound to this host can be reached from this machine only."""
    if host == "localhost" or host.startswith(UNIX):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Origins:
    """Checks Host and Origin. `names`: further names of this server, such as that of its proxy."""

    def __init__(self, host: str, names: Collection[str] = (), *, any_host: bool = False) -> None:
        own = {*LOOPBACK_NAMES, host.lower()}
        if not is_loopback(host):
            own.add(socket.gethostname().lower())
        self._names = frozenset(own | {name.lower() for name in names})
        self._is_wide, self._any_host = not is_loopback(host), any_host
        self._known: set[str] = set()

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """Raise Problem for a request under a foreign name (421), or by a page of another site (403)."""
        host = headers.get("host", "")
        if host not in self._known:
            self._check_host(host)
            if len(self._known) < 100:
                self._known.add(host)
        origin = headers.get("origin")
        if origin is not None and method not in _SAFE_METHODS and origin.partition("://")[2].lower() != host.lower():
            raise Problem(403, "foreign_origin", f"a page of {origin[:100]} may not change anything here")
        site = headers.get("sec-fetch-site", "none")
        if site in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
            raise Problem(403, "foreign_origin", "a page of another site may not send requests to this server")
        if site == "cross-site" and method not in _SAFE_METHODS:
            raise Problem(403, "foreign_origin", "a page of another site may not change anything here")

    def _check_host(self, host: str) -> None:
        name = _name_of(host)
        if name is None:
            raise Problem(400, "bad_host", "the request has no valid Host header")
        if self._any_host or name in self._names or (self._is_wide and _is_address(name)):
            return
        raise Problem(
            421,
            "foreign_host",
            f"this server doesn't answer as {name[:100]!r}; name it with --allow-host, or names= where it is mounted",
        )


def _name_of(host: str) -> str | None:
    """Return the name in a Host header without its port, in lower case; None if it isn't one."""
    name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
    if port and not port.isdigit():
        return None
    if name.startswith("["):
        return name[1:-1] if name.endswith("]") and _is_address(name[1:-1]) else None
    name = name.lower().rstrip(".")
    return name if name and all(one.isalnum() or one in "-._" for one in name) else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
