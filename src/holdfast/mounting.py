"""`server_for`: an App's HTTP API and dashboard as an ASGI application, to mount in your own web application.

Must not know a framework, a route or a socket. It needs the extra `server`. `holdfast serve` makes its server here.
"""

from collections.abc import Collection
from typing import Any

from holdfast.app.app import App
from holdfast.app.typed import AppJobs
from holdfast.server.app import Server
from holdfast.server.auth import Auth


def server_for(app: App, *, needs_token: bool = True, names: Collection[str] = ()) -> Server:
    """Return the HTTP API and the dashboard of this App, as an ASGI application to mount under any path.

    It opens the App's store at the first request, and runs no jobs. Every request needs a token of
    `holdfast token create`. Pass `needs_token=False` only if your own application decides who gets here; then `names`
    lists the names under which browsers reach it, besides localhost.
    """
    auth = Auth(required=needs_token, off=not needs_token)
    return make_server(app, closing=app.close, names=names, auth=auth)


def make_server(app: App, *, typed: bool = True, **options: Any) -> Server:
    """Return the server of an App, with these options of `Server`.

    `typed`: the App has the code of the jobs, so that what is submitted is checked by their type hints.
    """
    return Server(
        app.open,
        typed=AppJobs(app) if typed else None,
        signatures=lambda type: None if (spec := app.registry.get(type)) is None else spec.signature,
        **options,
    )
