"""What the engines' tests share: an event loop, and a folder with almost no room."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Run coroutines on one event loop."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of one megabyte."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = os.geteuid() == 0 and not subprocess.call(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], stderr=subprocess.DEVNULL
    )
    if not mounted:
        pytest.skip("a small file system can't be mounted here: needs root")
    try:
        yield folder
    finally:
        subprocess.check_call(["umount", "-l", folder])
