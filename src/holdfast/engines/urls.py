"""The URLs of stores: how they are read, and how they are shown without secrets.

Must not know any store.
"""

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from holdfast.core.errors import Invalid


def path_of(url: str) -> Path:
    """The file of a `file:` or `sqlite:` URL, as an absolute path, so that a later change of folder doesn't matter."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Invalid(f"{masked(url)!r} is not a URL: {error}") from error
    if parts.query or parts.fragment:
        raise Invalid(f"{masked(url)!r}: a store's URL can't contain '?' or '#'; write %3F and %23 instead")
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
        raise Invalid(f"{masked(url)!r} doesn't name a file; write file:checkpoint.json or sqlite:///jobs.db")
    return Path(path).absolute()


def parts_of(url: str) -> tuple[SplitResult, list[tuple[str, str]]]:
    """The parts of a server's URL, and its options; or Invalid, whose message shows no part of a password."""
    scheme, _, rest = url.partition(":")
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        _ = parts.port  # raises ValueError if it isn't a number
        is_one = rest.startswith("//") and parts.netloc.count("@") == url.count("@") <= 1 and url.isprintable()
    except ValueError:
        is_one = False
    if not is_one:
        raise Invalid(
            f"{scheme}:… is not a valid URL; write {scheme}://user:password@host:port/…, and in a password write @ as "
            "%40, : as %3A, / as %2F, # as %23 and ? as %3F"
        )
    return parts, options


def masked(url: str) -> str:
    """A URL that is safe to show: its password is replaced."""
    if url.partition(":")[0] in ("file", "sqlite"):
        return url
    # Up to the last @: a password may contain characters such as / or @, and the URL may be malformed.
    head, at, where = url.rpartition("@")
    scheme, slashes, user = head.partition("://")
    if at and not slashes:
        url = f"***@{where}"
    elif ":" in user:
        url = f"{scheme}://{user.partition(':')[0]}:***@{where}"
    return _SECRET.sub(r"\1=***", url)


def named(url: str) -> str:
    """A store's name that is safe to show and keep anywhere: its location, without user and password."""
    scheme = url.partition(":")[0]
    if scheme in ("file", "sqlite"):
        return ("file:" if scheme == "file" else "sqlite:///") + str(path_of(url))
    parts, options = parts_of(url)
    host = parts.netloc.rpartition("@")[2]
    query = urlencode([(name, value) for name, value in options if name in _WHERE])
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


_SECRET = re.compile(r"\b(\w*(?:password|passwd|pwd))=[^&#]*", re.IGNORECASE)
_WHERE = frozenset({"schema", "app", "host", "port", "dbname", "database"})
