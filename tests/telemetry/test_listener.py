"""A worker's metrics over HTTP: own thread, a taken port, a store that is away, clients that misbehave."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.core.errors import StoreError
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs.service import Jobs
from holdfast.telemetry import listener as listener_module
from holdfast.telemetry.counters import Counters
from holdfast.telemetry.listener import Listener


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        found: int = one.getsockname()[1]
        return found


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def get_soon(port: int, path: str) -> tuple[int, str]:
    end = time.monotonic() + 20
    while True:
        try:
            return get(port, path)
        except (OSError, urllib.error.URLError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@contextmanager
def listening(port: int, opening: Callable | None = None) -> Iterator[list[str]]:
    engine = MemoryEngine()
    asyncio.run(engine.open())

    async def opened() -> Jobs:
        return Jobs(engine)

    said: list[str] = []
    one = Listener("127.0.0.1", port, opening or opened, Counters(), said.append)
    one.start()
    try:
        yield said
    finally:
        one.stop()
        assert not one._thread.is_alive()
        asyncio.run(engine.close())


def test_it_answers_metrics_health_ready_and_nothing_else():
    port = free_port()
    with listening(port):
        status, text = get_soon(port, "/metrics")

        assert status == 200
        assert "holdfast_store_up 1\n" in text
        assert "holdfast_claims_total 0\n" in text
        assert get(port, "/health") == (200, "ok\n")
        assert get(port, "/ready") == (200, "ready\n")
        assert get(port, "/jobs")[0] == 404


def test_a_store_that_is_away_costs_only_its_own_numbers():
    async def away() -> Jobs:
        raise StoreError("can't be reached")

    port = free_port()
    with listening(port, away):
        status, text = get_soon(port, "/metrics")

        assert status == 200
        assert "holdfast_store_up 0\n" in text
        assert "holdfast_claims_total 0\n" in text
        assert get(port, "/ready")[0] == 503
        assert get(port, "/health")[0] == 200


def test_clients_that_speak_no_http_or_say_nothing_harm_nobody():
    port = free_port()
    with listening(port):
        get_soon(port, "/health")
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as rude:
            rude.sendall(b"\x00" * 20_000 + b"\n")

            assert get(port, "/health") == (200, "ok\n")


def test_a_taken_port_is_one_line_and_is_used_once_it_is_free(monkeypatch):
    monkeypatch.setattr(listener_module, "AGAIN_SECONDS", 0.05)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with listening(port) as said:
            end = time.monotonic() + 10
            while not said and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(0.2)  # it has tried again meanwhile
            taken.close()

            assert get_soon(port, "/health") == (200, "ok\n")
    assert len(said) == 1
    assert f"no metrics: can't listen on 127.0.0.1:{port}: " in said[0]


APP = """
from holdfast import App
app = App()

@app.job
async def tell() -> str:
    return "hello"

if __name__ == "__main__":
    app.sync.submit(tell)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_each_worker_process_serves_its_metrics_and_stops_as_ever(processes: int, tmp_path: Path):
    (tmp_path / "tale.py").write_text(APP)
    subprocess.run([sys.executable, "tale.py"], cwd=tmp_path, check=True, timeout=30)
    port = free_port()
    words = ["--metrics-port", str(port), "--processes", str(processes), "--log-level", "error"]
    command = [sys.executable, "-m", "holdfast.cli", "worker", "tale.py:app", *words]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        end, started = time.monotonic() + 30, False
        while not started and time.monotonic() < end:
            texts = [get_soon(port + number, "/metrics")[1] for number in range(processes)]
            started = any('outcome="completed"} 1' in text for text in texts)
            time.sleep(0.1)
        assert started
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=30)
    assert running.returncode == 0
