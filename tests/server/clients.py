"""A server in this process, asked without a socket, and a real one in a process of its own."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any

import httpx

from holdfast.engines import engine_for
from holdfast.jobs.service import Jobs
from holdfast.server.app import Server
from holdfast.server.auth import Auth

BASE = "http://127.0.0.1:8700"


@contextlib.asynccontextmanager
async def a_server(url: str = "memory:", **options: Any) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """A server on a store of its own, and a client of it."""
    engine = engine_for(url)
    await engine.open()
    jobs = Jobs(engine)

    async def opening() -> Jobs:
        return jobs

    server = Server(opening, **options)
    transport = httpx.ASGITransport(app=server, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            yield server, client
    finally:
        await engine.close()


def required() -> Auth:
    return Auth(required=True)


@contextlib.contextmanager
def a_real_server(folder: Path, *arguments: str, **environment: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """`holdfast serve` on a free port, in this folder; stopped by its own pid."""
    with open(folder / "serve.log", "w") as log:
        process = _start(folder, arguments, environment, log)
    try:
        yield base_of(process, folder), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _start(folder: Path, arguments: tuple[str, ...], environment: dict[str, str], log: IO[str]) -> Any:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "serve", "--port", "0", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )


def base_of(process: Any, folder: Path) -> str:
    """The URL that a starting server prints."""
    until, seen = time.monotonic() + 60, ""
    while time.monotonic() < until:
        ready, _, _ = select.select([process.stdout], [], [], 0.2)
        line = process.stdout.readline() if ready else ""
        seen += line
        logged = (folder / "serve.log").read_text()
        if found := re.search(r"at (http://[^\s\"]+)", line or logged):
            return found[1]
        if process.poll() is not None:
            break
    raise AssertionError(f"the server didn't start: {seen} {(folder / 'serve.log').read_text()}")
