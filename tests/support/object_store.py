"""An S3 server of the tests' own: moto on loopback, in its own process, stopped by its pid. It can be told to fail."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

BUCKET = "films"
START_SECONDS = 60.0


@contextmanager
def s3_server() -> Iterator[str]:
    """Start it with an empty bucket, point the environment at it, and yield the URL of the bucket."""
    pytest.importorskip("obstore", reason="obstore is not installed, so S3 is not tested")
    pytest.importorskip("moto", reason="moto is not installed, so S3 is not tested")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from moto.server import main; import sys; main(sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait_for(port)
            request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
            urllib.request.urlopen(request, timeout=10).close()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def environment(endpoint: str) -> dict[str, str]:
    """What a program needs to reach the server as S3."""
    return {
        "AWS_ENDPOINT": endpoint,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "NO_PROXY": "127.0.0.1," + os.environ.get("NO_PROXY", ""),
    }


def _wait_for(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    pytest.fail("the S3 server did not start")
