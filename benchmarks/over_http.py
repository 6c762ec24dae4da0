"""Requests over HTTP to one server process on SQLite, beside a Starlette echo of the same body.

32 connections. Submits, batches of 100, fetch + ack counted in requests, and reads of one job. Each round measures the
echo anew; ratios compare parts of one round, and medians count. Exits with 1 if a floor is missed.
"""

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import httpx
from measuring import check_floor, print_figure, ratios

CONNECTIONS, SECONDS, ROUNDS = 32, 2.0, 3

SUBMIT, BATCH, WORK, GET = 0.25, 8.0, 0.20, 0.40
"""The floors: submits, fetch + ack and reads relative to the echo; jobs in batches relative to single ones."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


ECHO_PORT, OWN_PORT = free_port(), free_port()

ECHO = f"""
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def echo(request):
    return Response(await request.body(), media_type="application/json")

app = Starlette(routes=[Route("/echo", echo, methods=["POST"])])
uvicorn.run(app, port={ECHO_PORT}, http="h11", log_level="warning", access_log=False)
"""

Next = Callable[[bytes], bytes]
"""Makes the next request of a connection from the body of the last answer."""


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """Return a request as it is sent."""
    kind = "application/openjobspec+json"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def rate(port: int, following: Callable[[], Next]) -> float:
    """Return how many requests a second are answered."""
    count, stop = 0, time.monotonic() + SECONDS

    async def ask() -> None:
        nonlocal count
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        make, body = following(), b""
        while time.monotonic() < stop:
            writer.write(make(body))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 2"), head
            body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            count += 1
        writer.close()

    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
    return count / SECONDS


def always(raw: bytes) -> Callable[[], Next]:
    """Send the same request again and again."""
    return lambda: lambda body: raw


def fetch_and_ack() -> Next:
    """Fetch a job, then acknowledge it."""

    def make(body: bytes) -> bytes:
        found = json.loads(body).get("jobs") if body else None
        if found:
            return request("POST", "/ojs/v1/workers/ack", json.dumps({"job_id": found[0]["id"], "result": 1}).encode())
        return request("POST", "/ojs/v1/workers/fetch", b'{"queues": ["default"]}')

    return make


JOB = {"type": "bench.job", "args": [{"prompt": "x" * 200, "n": 1}]}


def first_job() -> tuple[str, bytes]:
    """Submit a job, and return its id and what the server shows of it."""
    own = f"http://127.0.0.1:{OWN_PORT}/ojs/v1/jobs"
    id = str(httpx.post(own, json=JOB).json()["job"]["id"])
    return id, httpx.get(f"{own}/{id}").content


async def measure(id: str, view: bytes) -> dict[str, float]:
    """Measure one round: requests a second, and jobs a second in batches."""
    body, batch = json.dumps(JOB).encode(), json.dumps({"jobs": [JOB] * 100}).encode()
    return {
        "echo": await rate(ECHO_PORT, always(request("POST", "/echo", body))),
        "submit": await rate(OWN_PORT, always(request("POST", "/ojs/v1/jobs", body))),
        "batch": 100 * await rate(OWN_PORT, always(request("POST", "/ojs/v1/jobs/batch", batch))),
        "work": await rate(OWN_PORT, fetch_and_ack),
        "echo of a job": await rate(ECHO_PORT, always(request("POST", "/echo", view))),
        "get": await rate(OWN_PORT, always(request("GET", f"/ojs/v1/jobs/{id}"))),
    }


def check(rounds: list[dict[str, float]]) -> bool:
    """Print the rates and the ratios; whether the floors hold."""
    seen = {what: [one[what] for one in rounds] for what in rounds[0]}
    for what, rates in seen.items():
        print_figure(what, rates, "/s")
    fine = check_floor("submit : echo", ratios(seen["submit"], seen["echo"]), SUBMIT, "times")
    fine &= check_floor("jobs in batches of 100 : single", ratios(seen["batch"], seen["submit"]), BATCH, "times")
    fine &= check_floor("fetch + ack : echo", ratios(seen["work"], seen["echo"]), WORK, "times")
    fine &= check_floor("get : echo of a job", ratios(seen["get"], seen["echo of a job"]), GET, "times")
    return fine


def main() -> int:
    """Start both servers, measure, and stop them."""
    with tempfile.TemporaryDirectory() as folder:
        serve = ["-m", "holdfast.cli", "serve", "--url", f"sqlite:///{folder}/jobs.db", "--port", str(OWN_PORT)]
        commands = [["-c", ECHO], [*serve, "--log-level", "warning"]]
        servers = [subprocess.Popen([sys.executable, *command], cwd=folder) for command in commands]
        try:
            for _ in range(200):
                try:
                    httpx.get(f"http://127.0.0.1:{OWN_PORT}/ready")
                    httpx.post(f"http://127.0.0.1:{ECHO_PORT}/echo")
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            job = first_job()
            return 0 if check([asyncio.run(measure(*job)) for _ in range(ROUNDS)]) else 1
        finally:
            for server in servers:
                server.terminate()
                server.wait(20)


if __name__ == "__main__":
    sys.exit(main())
