"""Live streams of one server process: how soon an event reaches all who follow a job, and what open overviews cost.

    python benchmarks/followers.py sqlite:///jobs.db [--followers 1000] [--overviews 20]

Followers and server share this machine, so the time also has what the followers themselves need. Exits with 1 if a
floor is missed.
"""

import argparse
import asyncio
import os
import re
import resource
import sys
import tempfile
import time
from pathlib import Path

import httpx
from measuring import check_floor, cpu_seconds

from dashboard import fill, served

REACH_MS, MEMORY_MB, IDLE_SHARE = 250.0, 200.0, 0.10
EVENTS = 15
OPENED_AT_ONCE = 100
WATCHED_SECONDS = 10.0
WAIT_SECONDS = 60.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_stream(base: str, path: str) -> Stream:
    """Open a stream, and read its head."""
    host, port = base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /api/v1{path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return reader, writer


async def until_entry(stream: Stream, version: int) -> float:
    """Read until the entry with this version is there. Returns when it was."""
    await stream[0].readuntil(f"id: {version}\n".encode())
    return time.perf_counter()


async def reaching(base: str, pid: int, number: int) -> tuple[list[float], float]:
    """Return how many milliseconds each event takes until it has reached everybody, and the server's memory in MB."""
    async with httpx.AsyncClient(base_url=f"{base}/api/v1", timeout=WAIT_SECONDS) as client:
        made = await client.post("/jobs", json={"type": "film", "args": [], "delay": "1h"})
        id = made.json()["id"]
        streams: list[Stream] = []
        while len(streams) < number:
            some = min(OPENED_AT_ONCE, number - len(streams))
            streams += await asyncio.gather(*(open_stream(base, f"/jobs/{id}/events") for _ in range(some)))
        await asyncio.gather(*(until_entry(one, 1) for one in streams))
        took = []
        for event in range(EVENTS):
            there = [asyncio.create_task(until_entry(one, event + 2)) for one in streams]
            await asyncio.sleep(0.2)
            began = time.perf_counter()
            answer = await client.post(f"/jobs/{id}/signal", json={"name": "hint", "value": event})
            assert answer.status_code == 200, answer.text
            async with asyncio.timeout(WAIT_SECONDS):
                took.append((max(await asyncio.gather(*there)) - began) * 1_000)
        memory = memory_mb(pid)
        await close(streams)
    return took, memory


async def idle_share(base: str, pid: int, number: int) -> float:
    """The share of a core that the server needs while so many overviews are watched and nothing happens."""
    streams = [await open_stream(base, "/stream?view=overview") for _ in range(number)]
    reading = [asyncio.create_task(drain(one)) for one in streams]
    await asyncio.sleep(2)
    before, began = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(WATCHED_SECONDS)
    share = (cpu_seconds(pid) - before) / (time.monotonic() - began)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    await close(streams)
    return share


async def drain(stream: Stream) -> None:
    """Read whatever comes."""
    while await stream[0].read(65_536):
        pass


async def close(streams: list[Stream]) -> None:
    """Close the streams."""
    for _, writer in streams:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in streams), return_exceptions=True)


def memory_mb(pid: int) -> float:
    """The most memory that a process has had, in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1_000


def main() -> None:
    """Measure, print the figures, and check the floors."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("url")
    given.add_argument("--jobs", type=int, default=10_000)
    given.add_argument("--followers", type=int, default=1_000)
    given.add_argument("--overviews", type=int, default=20)
    options = given.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        url = options.url.replace("sqlite:///", f"sqlite:///{folder}/")
        asyncio.run(fill(url, options.jobs))
        with served(url, Path(folder)) as (base, pid):
            idle = asyncio.run(idle_share(base, pid, options.overviews))
            took, memory = asyncio.run(reaching(base, pid, options.followers))
    print(f"{options.followers:,} followers, load {os.getloadavg()[0]:.0f}")
    fine = [
        check_floor("an event reaches everybody after", took, REACH_MS, "ms", at_most=True),
        check_floor("the server's memory", [memory], MEMORY_MB, "MB", at_most=True),
        check_floor(f"share of a core for {options.overviews} idle overviews", [idle], IDLE_SHARE, "", at_most=True),
    ]
    sys.exit(not all(fine))


if __name__ == "__main__":
    main()
