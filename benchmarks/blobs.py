"""How fast large values are, how much memory a file needs, and what small values pay for them.

    python benchmarks/blobs.py

Each round stores values of 1 MiB as steps do, in the folder store, and copies files of the same size with fsync of the
file and its folder, in turns. Then a child process makes a Blob of 1 GiB and saves it; what counts is how much its
memory grows. Exits with 1 if a floor is missed.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from measuring import print_figure

from holdfast.blobs.blobs import Blobs
from holdfast.blobs.folder import FolderBlobs

SHARE = 0.40
"""How fast values of 1 MiB must be, as a share of raw copies."""

GROWTH_MB = 50
"""By how much the memory of a process may grow that makes and saves a Blob."""

VALUES = 40
CHILD = """
import asyncio, resource, sys
from holdfast import App, Blob, step
app = App(f"sqlite:///{sys.argv[1]}/jobs.db")
@step
async def pass_on(film: Blob) -> Blob:
    return await Blob.from_path(sys.argv[1] + "/film")
@app.job
async def film(source: Blob) -> Blob:
    return await pass_on(source)
def used():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
async def main():
    async with app.worker():
        before = used()
        run = await film.submit(await Blob.from_path(sys.argv[1] + "/film"))
        await (await run.result(timeout=600)).save_to(sys.argv[1] + "/copy")
        print(before, used())
asyncio.run(main())
"""


def copy_raw(source: Path, folder: Path, count: int) -> float:
    """Copy a file again and again, durably; return the seconds."""
    folder.mkdir()
    began = time.perf_counter()
    for number in range(count):
        target = folder / str(number)
        with source.open("rb") as read, target.open("wb") as write:
            shutil.copyfileobj(read, write, 1 << 20)
            write.flush()
            os.fsync(write.fileno())
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.perf_counter() - began


async def keep_values(folder: Path, texts: list[str]) -> float:
    """Store these values for a job, one after the other; return the seconds."""

    async def find(create: bool) -> tuple[FolderBlobs, str]:
        return FolderBlobs(folder), ""

    blobs = Blobs(find)
    began = time.perf_counter()
    for text in texts:
        await blobs.keep(text, "00000000-0000-7000-8000-000000000000")
    return time.perf_counter() - began


def measure_values(folder: Path, rounds: int) -> bool:
    """Measure all rounds; return whether the floor holds."""
    shares, raws, ours = [], [], []
    source = folder / "source"
    source.write_bytes(os.urandom(1 << 20))
    for number in range(rounds):
        texts = [f'"{os.urandom(1 << 19).hex()}"' for _ in range(VALUES)]
        raw = copy_raw(source, folder / f"raw-{number}", VALUES)
        mine = asyncio.run(keep_values(folder / f"blobs-{number}", texts))
        raws.append(VALUES / raw)
        ours.append(VALUES / mine)
        shares.append(raw / mine)
    print_figure("raw copies of 1 MiB", raws, "/s")
    print_figure("values of 1 MiB", ours, "/s")
    print(f"share of raw copies: {median(shares):.0%} (floor {SHARE:.0%})")
    return median(shares) >= SHARE


def measure_memory(folder: Path, megabytes: int) -> bool:
    """Let a child process pass a large file through a job; return whether its memory stays small."""
    with (folder / "film").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1 << 20))
    told = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, check=True, timeout=900
    )
    before, after = map(float, told.stdout.split())
    print(f"memory of a process with a Blob of {megabytes} MiB: {before:.0f} MB before, {after:.0f} MB at most")
    print(f"growth: {after - before:.0f} MB (at most {GROWTH_MB})")
    return after - before <= GROWTH_MB


def main() -> None:
    """Measure, print, and check the floors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1_024)
    parser.add_argument("--folder", type=Path, help="where to write; by default the temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        fits = measure_values(Path(name), given.rounds)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        fits &= measure_memory(Path(name), given.megabytes)
    sys.exit(0 if fits else 1)


if __name__ == "__main__":
    main()
