"""A server in this process, with a worker beside, until a signal stops both. Must not know a route or run a job.

The upkeep runs beside (`App.upkeep`): it also stands for the workers over HTTP, of whose job types no code is here.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.app.app import App
from holdfast.app.callbacks import PUBLIC_URL
from holdfast.cli.errors import OneLine
from holdfast.cli.lifeline import say, stop_signals
from holdfast.cli.worker_process import run_worker
from holdfast.core.errors import Invalid
from holdfast.engines.contract import Engine
from holdfast.jobs.tokens import list_tokens
from holdfast.mounting import make_server
from holdfast.server.auth import Auth
from holdfast.server.origins import UNIX, is_loopback
from holdfast.server.run import Uvicorn, bind, uvicorn_for

SOCKET = "HOLDFAST_SOCKET"
"""The environment variable with the listening socket that a server process inherits."""


class Serving(NamedTuple):
    """How to serve: the options of `holdfast serve`."""

    host: str
    port: int
    names: tuple[str, ...] = ()
    no_auth: bool = False
    test_hooks: bool = False
    with_worker: bool = False
    queues: list[str] | None = None
    at_once: int = 8
    has: tuple[str, ...] = ()
    requires_lease_token: bool = False


def check_serving(serving: Serving) -> None:
    """Refuse test hooks that others could reach."""
    if serving.test_hooks and not is_loopback(serving.host):
        raise Invalid(f"--test-hooks --host {serving.host}: test hooks delete jobs, so they are for loopback only")


def listen(serving: Serving) -> socket.socket:
    """Return the socket to serve: the one that this process inherits, or a new one."""
    number = os.environ.pop(SOCKET, "")
    if number.isdigit():
        os.set_inheritable(int(number), False)
        return socket.socket(fileno=int(number))
    try:
        return bind(serving.host, serving.port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        is_path = serving.host.startswith(UNIX)
        place = serving.host if is_path else f"{serving.host}:{serving.port}"
        raise OneLine(f"can't listen on {place}: {reason}; choose another --port or --host") from error


def loop_factory(serving: Serving) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the server's event loop: uvloop where it is installed. Jobs keep asyncio's own loop."""
    if serving.with_worker:
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def run_server(app: App, listener: socket.socket, serving: Serving, *, typed: bool) -> None:
    """Serve an App's store, and run its jobs or keep the store in order, until a signal stops both.

    `typed`: the App has the code of the jobs, so that what is submitted is checked by their type hints.
    """
    jobs = await app.open()
    needs_token = not is_loopback(serving.host) and not serving.no_auth
    if needs_token:
        await _check_tokens(jobs.engine, serving.host)
    server = make_server(
        app,
        typed=typed,
        host=serving.host,
        names=serving.names,
        auth=Auth(required=needs_token, off=serving.no_auth),
        test_hooks=serving.test_hooks,
        requires_lease_token=serving.requires_lease_token,
    )
    app.hooks.listen("retried", server.counters.heard_retry)
    place = place_of(listener)
    if serving.with_worker and place.startswith("http") and is_loopback(serving.host):
        # Its jobs can name it to providers on this machine.
        os.environ.setdefault(PUBLIC_URL, place)
    uvicorn = uvicorn_for(server, lambda: say(f"serving {app.place()} at {place}"))
    serving_task = asyncio.create_task(uvicorn.serve(sockets=[listener]))

    async def stop_serving() -> None:
        uvicorn.should_exit = True
        await serving_task

    try:
        if serving.with_worker:
            async with app.upkeep():
                await run_worker(app, serving.queues, serving.at_once, serving.has, beside=stop_serving)
        else:
            await _keep_in_order(app, uvicorn, serving_task)
    finally:
        await stop_serving()
        await app.close()


def place_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket, or unix:PATH."""
    if listener.family == socket.AF_UNIX:
        return f"{UNIX}{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _check_tokens(engine: Engine, host: str) -> None:
    if not await list_tokens(engine):
        raise Invalid(
            f"--host {host}: others could reach this server, and the store has no token; "
            "make one with holdfast token create NAME --scope read, or pass --no-auth"
        )


async def _keep_in_order(app: App, uvicorn: Uvicorn, serving: "asyncio.Task[None]") -> None:
    """Do the upkeep until a signal comes, the server ends, or the store is lost."""
    stopped = _stop_signal(uvicorn)
    async with app.upkeep() as worker:
        lost = asyncio.create_task(worker.until_lost())
        ends: list[asyncio.Future[Any]] = [stopped, serving, lost]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        uvicorn.should_exit = True
        await asyncio.wait([serving])
        if worker.lost is not None:
            raise worker.lost


def _stop_signal(uvicorn: Uvicorn) -> "asyncio.Future[None]":
    """Return what ends at the first signal. A second signal cuts open requests off."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if first.done():
            uvicorn.force_exit = True
        else:
            first.set_result(None)

    for one in stop_signals():
        signal.signal(one, lambda number, frame: loop.call_soon_threadsafe(stop))
    return first
