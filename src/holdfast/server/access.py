"""The access log: one line per request, with fields for `--log-format json`.

Must not log a query, a header, a body or a token.
"""

import logging

from holdfast.safe_text import logger
from holdfast.server.call import Call

log = logger("holdfast.access")


def log_access(call: Call, status: int, seconds: float) -> None:
    """Log one request: method, route, status, time, who asked. The path has ids but no values."""
    if not log.isEnabledFor(logging.INFO):
        return
    client = call.client.host if call.client else ""
    # The path of a callback has its token, which must not get into a log.
    path = call.route if call.route.startswith("/callback/") else call.scope["path"][:500]
    log.info(
        "%s %s %d %.1f ms by %s from %s", call.method, path, status, seconds * 1_000, call.principal.name, client,
        extra={
            "method": call.method,
            "path": path,
            "route": call.route,
            "status": status,
            "ms": round(seconds * 1_000, 2),
            "by": call.principal.name,
            "token": call.principal.token,
            "client": client,
            "request_id": call.request_id,
        },
    )  # fmt: skip
