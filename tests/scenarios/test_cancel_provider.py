"""A cancel stops the spending: it is heard within a moment, and no call to a provider begins once the worker knows.

The provider is a real one over HTTP, and counts for itself. A call that was sent before the worker knew may reach it
after that, so each call carries a number that the caller writes down before it is sent.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast import App, Settings, step
from holdfast.core.errors import JobCancelled
from holdfast.testing import Provider
from tests.support.given import at_pace, wait_until
from tests.support.worker_processes import Stage

ROUNDS, MOST_ROUNDS = 5, 15
AT_ONCE = 8
CALLS = 400
HEARD_SECONDS = 0.1
"""Within which a cancel is heard on one machine. The best of the rounds counts: the machine may be busy with others."""
BEAT_SECONDS = Settings().beat_seconds

BEGUN: list[tuple[int, float]] = []
HEARD: list[float] = []


async def post(url: str, number: int) -> str:
    """One call, as an HTTP library makes it."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        body = json.dumps({"number": number}).encode()
        head = (
            f"POST /images HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        return (await reader.read()).partition(b"\r\n\r\n")[2].decode()
    finally:
        writer.close()


async def all_of_them(
    draw: Callable[[int], Awaitable[Any]], calls: int, at_once: int, heard: Callable[[], None]
) -> None:
    """Many calls, some at once. A cancel reaches one in the middle of its work, or when its record is refused."""
    room = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with room:
            try:
                await draw(number)
            except BaseException:
                heard()
                raise

    async with asyncio.TaskGroup() as group:
        for number in range(calls):
            group.create_task(one(number))


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(seconds=0.05) as one:
        yield one


def check(provider: Provider, begun: list[tuple[int, float]], heard_at: float, first: int) -> None:
    """No call of this round began after the worker knew, neither as its caller saw it nor as the provider did."""
    wait_until(lambda: provider.finished == provider.begun)
    asked_for = {number for number, at in begun if at <= heard_at}
    late = [number for number, at in begun if at > heard_at]
    by_provider = [call.body["number"] for call in provider.calls[first:] if call.body["number"] not in asked_for]
    assert (len(late), len(by_provider)) == (0, 0)
    assert AT_ONCE <= provider.begun - first < CALLS, "the cancel came in the middle of the calls"


def is_unsure(delays: list[float]) -> bool:
    """Whether one more round is worth it: on a busy machine, none of the first may have been prompt."""
    return len(delays) < ROUNDS or (min(delays) > at_pace(HEARD_SECONDS) and len(delays) < MOST_ROUNDS)


def check_delays(where: str, delays: list[float]) -> None:
    print(f"cancel heard, {where}: median {median(delays) * 1e3:.0f} ms, all {[round(one * 1e3) for one in delays]}")
    assert min(delays) <= at_pace(HEARD_SECONDS), delays
    assert max(delays) < BEAT_SECONDS / 2, "by a wake-up, and not by the next beat"


# In one process, in memory.

app = App("memory:")


@step(name="draw_in_memory")
async def draw(url: str, number: int) -> str:
    BEGUN.append((number, time.time()))
    return await post(url, number)


@app.job(name="album_in_memory")
async def album(url: str) -> None:
    await all_of_them(lambda number: draw(url, number), CALLS, AT_ONCE, lambda: HEARD.append(time.time()))


def test_in_memory_no_call_begins_after_the_cancel_is_known(provider: Provider):
    delays: list[float] = []

    async def one_round() -> None:
        first = provider.begun
        run = await album.submit(provider.url)
        async with asyncio.timeout(20):
            while provider.begun < first + 2 * AT_ONCE:  # noqa: ASYNC110 (it is in another thread)
                await asyncio.sleep(0.01)
        at = time.time()
        await run.cancel()
        with pytest.raises(JobCancelled):
            await run.result(timeout=5)
        async with asyncio.timeout(20):
            while not HEARD:  # noqa: ASYNC110 (a moment's wait)
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(check, provider, BEGUN, min(HEARD), first)
        delays.append(min(HEARD) - at)

    async def main() -> None:
        async with app.worker():
            while is_unsure(delays):
                BEGUN.clear()
                HEARD.clear()
                await one_round()

    asyncio.run(main())
    check_delays("in one process", delays)


# Across processes.

PROGRAM = """
import asyncio, os, sys, time
from holdfast import App, step
from tests.scenarios.test_cancel_provider import all_of_them, post

app = App(os.environ["TEST_URL"])
marks = open("marks", "a", buffering=1)

@step
async def draw(url: str, number: int) -> str:
    marks.write(f"begin:{number} 0 {time.time()}\\n")
    return await post(url, number)

@app.job
async def album(url: str, calls: int, at_once: int) -> None:
    await all_of_them(lambda number: draw(url, number), calls, at_once, heard)

def heard() -> None:
    marks.write(f"heard 0 {time.time()}\\n")

if __name__ == "__main__":
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 8))
"""


def test_across_processes_no_call_begins_after_the_cancel_is_known(
    tmp_path: Path, provider: Provider, monkeypatch, store_url: str
):
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root / 'src'}:{root}")
    stage = Stage(tmp_path, PROGRAM, store_url)
    delays: list[float] = []
    try:
        stage.worker()
        while is_unsure(delays):
            first = provider.begun
            marks = tmp_path / "marks"
            marks.write_text("")
            run = stage.submit("album", provider.url, CALLS, AT_ONCE)
            wait_until(lambda first=first: provider.begun >= first + 2 * AT_ONCE)  # type: ignore[misc]
            at = time.time()
            stage.do(run.cancel())
            wait_until(lambda: stage.marks("heard"))
            time.sleep(0.3)
            heard_at = min(when for _, _, when in stage.marks("heard"))
            begun = [(int(number), when) for number, _, when in stage.marks("begin")]
            check(provider, begun, heard_at, first)
            delays.append(heard_at - at)
    finally:
        stage.close()
    check_delays("across processes", delays)
