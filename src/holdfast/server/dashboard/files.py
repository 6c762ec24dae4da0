"""The dashboard's built files, as answers. Must not know what is in them; `make dashboard` writes them.

A page is the same file for every path and for everybody. It holds no data, so it needs no token.
"""

import gzip
from functools import cache
from html import escape
from pathlib import Path

from starlette.responses import Response

from holdfast.core.errors import NotFound
from holdfast.server.call import Call
from holdfast.server.pages import FILE_HEADERS, PAGE_HEADERS

STATIC = Path(__file__).parent / "static"

MEDIA = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
"""The kinds of files that are served. The page itself isn't one of them: it has its own paths."""

SMALLER = (".js", ".css", ".svg", ".txt")
"""The kinds of files that compression makes smaller."""


async def page(call: Call) -> Response:
    """Answer with the page; the browser shows what its path names."""
    text = _read("index.html").decode().replace("BASE", escape(call.root, quote=True))
    return Response(text, media_type="text/html", headers={**PAGE_HEADERS, "Cache-Control": "no-cache"})


async def static(call: Call) -> Response:
    """Answer with one built file."""
    name = call.path_params["name"]
    if name not in _names():
        raise NotFound(f"the dashboard has no file {name[:60]}; reload the page")
    suffix = Path(name).suffix
    headers = {**FILE_HEADERS, "Vary": "Accept-Encoding"}
    content = _read(name)
    if suffix in SMALLER and "gzip" in call.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = _packed(name), "gzip"
    return Response(content, headers=headers, media_type=MEDIA[suffix])


@cache
def _names() -> frozenset[str]:
    return frozenset(one.name for one in STATIC.iterdir() if one.suffix in MEDIA)


@cache
def _read(name: str) -> bytes:
    return (STATIC / name).read_bytes()


@cache
def _packed(name: str) -> bytes:
    return gzip.compress(_read(name), mtime=0)
