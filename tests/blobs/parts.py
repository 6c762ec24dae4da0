"""What several tests of blobs need, in a module that an isolated step can import."""

import tempfile
from pathlib import Path

from holdfast import Blob, step

LARGE = 100_000
"""More characters than a record holds by itself."""


def write_film(path: Path, times: int = 1) -> bytes:
    """Write a file of two megabytes, or several times as many; return its content."""
    content = bytes(range(250)) * 8_000 * times
    path.write_bytes(content)
    return content


def blob_in(folder: Path) -> Path:
    """The only blob in a folder."""
    (path,) = [one for one in folder.rglob("*") if one.is_file() and "." not in one.name]
    return path


@step(isolate="process")
def cut(film: Blob, title: str) -> Blob:
    """Keep the first kilobyte of a film."""
    with film.open() as file:
        start = file.read(1_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cut.mp4"
        path.write_bytes(start)
        return Blob.from_path.sync(path)


@step
async def repeated(word: str, times: int) -> str:
    """Make a large text."""
    return word * times


@step(isolate="process")
def repeated_aside(word: str, times: int) -> str:
    """Make a large text in another process."""
    return word * times


async def measure(text: str) -> int:
    """A job that tests declare, also as an isolated one."""
    return len(text)
