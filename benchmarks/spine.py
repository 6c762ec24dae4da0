"""How fast the spine is: submit, claim and complete on SQLite, as ratios to the raw store in the same run.

    python benchmarks/spine.py                 five rounds on an empty store
    python benchmarks/spine.py --million       also with 1,000,000 finished jobs in the store, and the memory of a
                                               process that submits 1,000,000 jobs

Raw means: the same rows, or exactly the statements that the engine ran, through the standard library's sqlite3 with the
same settings (WAL, synchronous=FULL) and nothing else. Rounds are interleaved, and the median of the ratios counts,
because machines are noisy. Exits with 1 if a floor is missed.
"""

import argparse
import asyncio
import gc
import os
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.codec import Signature
from holdfast.core.lifecycle import decide, entry_of, submit_entry
from holdfast.core.model import Event, Job
from holdfast.engines.sqlite import SqliteEngine, rows
from holdfast.engines.sqlite.reads import SQL
from holdfast.engines.sqlite.store import connect, prepare
from holdfast.jobs.service import JobRequest, Jobs, new_job, random_ids

BATCH = 100
CALLERS = 100
MILLION = 1_000_000


@dataclass
class Scene:
    """A typical argument: a little structure, a little text."""

    number: int
    prompt: str
    seconds: float
    tags: list[str]


def draw(scene: Scene, style: str = "ink") -> str:
    """The function whose calls are submitted."""
    return f"{scene.number}.{style}.png"


SIGNATURE = Signature(draw)


def order(n: int) -> JobRequest:
    """Make one submission with everything that belongs to it: checked values, canonical text, hash."""
    scene = Scene(n, "a lighthouse in the rain, seen from the sea", 4.5, ["night", "storm"])
    return JobRequest(type="video.draw", args=SIGNATURE.encode((scene,), {}), encoded=True)


# The raw store.


def raw_rows(count: int) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return the rows of `count` jobs in batches, exactly as the engine writes them: (job and body, entry)."""
    now, ids = time.time_ns() // 1_000_000, random_ids()
    jobs = [new_job(order(n), ids(now), now) for n in range(count)]
    batches = []
    for start in range(0, count, BATCH):
        part = [(place, job) for place, job in enumerate(jobs[start : start + BATCH], start + 1)]
        batches.append(
            ([rows.job_params(job, n) for n, job in part], [rows.entry_params(submit_entry(job), n) for n, job in part])
        )
    return batches


def raw_inserts(path: Path, batches: Sequence[tuple[list[dict[str, Any]], list[dict[str, Any]]]]) -> float:
    """Insert the same rows with executemany, a hundred jobs per transaction; return jobs per second."""
    db = prepare(path)
    (first,) = db.execute(SQL.next_job).fetchone()
    for jobs, entries in batches:
        for row in (*jobs, *entries):
            row["n"] += first - 1
    started = time.perf_counter()
    for jobs, entries in batches:
        db.execute("begin immediate")
        db.executemany(SQL.add_job, jobs)
        db.executemany(SQL.add_body, jobs)
        db.executemany(SQL.add_entry, entries)
        db.execute("commit")
    taken = time.perf_counter() - started
    db.close()
    for jobs, entries in batches:
        for row in (*jobs, *entries):
            row["n"] -= first - 1
    return sum(len(jobs) for jobs, _ in batches) / taken


class Recorder(sqlite3.Connection):
    """A connection that records every statement it runs, so that they can be run again with nothing around them."""

    tape: list[tuple[bool, str, Any]]

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """Record it, and run it."""
        self.tape.append((False, sql, parameters))
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        """Record it, and run it."""
        parameters = list(parameters)
        self.tape.append((True, sql, parameters))
        return super().executemany(sql, parameters)


def replay(path: Path, tape: Sequence[tuple[bool, str, Any]], jobs: int) -> float:
    """Run recorded statements again on a store in the same initial state; return jobs per second."""
    db = connect(path)
    started = time.perf_counter()
    for many, sql, parameters in tape:
        if many:
            db.executemany(sql, parameters)
        else:
            db.execute(sql, parameters).fetchall()
    taken = time.perf_counter() - started
    db.close()
    return jobs / taken


# Holdfast.


async def submits(path: Path, count: int) -> float:
    """Submit one by one from a hundred concurrent callers; return jobs per second."""
    engine = SqliteEngine(path)
    await engine.open()
    jobs = Jobs(engine)

    async def caller(first: int) -> None:
        for n in range(first, count, CALLERS):
            await jobs.submit([order(n)])

    started = time.perf_counter()
    await asyncio.gather(*(caller(first) for first in range(CALLERS)))
    taken = time.perf_counter() - started
    await engine.close()
    return count / taken


async def bulk_submits(path: Path, count: int) -> float:
    """Submit a hundred per call; return jobs per second."""
    engine = SqliteEngine(path)
    await engine.open()
    jobs = Jobs(engine)
    started = time.perf_counter()
    for first in range(0, count, BATCH):
        await jobs.submit([order(n) for n in range(first, first + BATCH)])
    taken = time.perf_counter() - started
    await engine.close()
    return count / taken


async def drain(path: Path, count: int, tape: list[tuple[bool, str, Any]] | None = None) -> float:
    """Claim and complete in batches of a hundred; return jobs per second."""
    engine = SqliteEngine(path)
    await engine.open()
    if tape is not None:
        recorder = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Recorder)
        recorder.tape = []
        for pragma in ("synchronous = full", "cache_size = -65536", "mmap_size = 268435456"):
            recorder.execute(f"pragma {pragma}")
        recorder.tape = tape
        # Closing the last connection would remove the log, which the engine would notice, so the new one is already
        # open.
        assert engine._writer.connection is not None
        engine._writer.connection.close()
        engine._writer.connection = recorder
    done = 0
    started = time.perf_counter()
    while done < count:
        claimed = await engine.claim("bench", ["default"], BATCH)
        now = await engine.now()
        await engine.commit([decide(job, Event.COMPLETE, now, by="bench", result='"7.ink.png"') for job in claimed])
        done += len(claimed)
    taken = time.perf_counter() - started
    await engine.close()
    return count / taken


# Rounds.


def drain_ratio(folder: Path, count: int) -> tuple[float, float]:
    """Drain one store with the engine and, from the same initial state, with its own statements raw."""
    path, copy, again = folder / "drain.db", folder / "copy.db", folder / "again.db"
    asyncio.run(bulk_submits(path, count))
    shutil.copy(path, copy)
    shutil.copy(path, again)
    tape: list[tuple[bool, str, Any]] = []
    asyncio.run(drain(copy, count, tape))
    raw = replay(again, tape, count)
    ours = asyncio.run(drain(path, count))
    for file in folder.glob("*"):
        file.unlink() if file.is_file() else shutil.rmtree(file)
    return ours, raw


def spine_round(folder: Path, count: int) -> dict[str, tuple[float, float]]:
    """One round of each measure: (ours, raw)."""
    batches = raw_rows(count)
    raw = raw_inserts(folder / "raw.db", batches)
    single = asyncio.run(submits(folder / "single.db", count))
    bulk = asyncio.run(bulk_submits(folder / "bulk.db", count))
    for file in folder.glob("*"):
        file.unlink() if file.is_file() else shutil.rmtree(file)
    del batches
    gc.collect()
    return {
        f"submit, {CALLERS} callers": (single, raw),
        f"submit, {BATCH} a call": (bulk, raw),
        f"claim + complete, {BATCH} a batch": drain_ratio(folder, count),
    }


FLOORS = {
    f"submit, {CALLERS} callers": 0.20,
    f"submit, {BATCH} a call": 0.25,
    f"claim + complete, {BATCH} a batch": 0.40,
}


def spine(rounds: int, count: int) -> bool:
    """Measure on empty stores; return whether every floor is reached."""
    print(f"SQLite {sqlite3.sqlite_version}, synchronous=FULL, {count:,} jobs a round, median of {rounds}\n")
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in FLOORS}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        for _ in range(rounds):
            for name, pair in spine_round(Path(folder), count).items():
                seen[name].append(pair)
    print(f"{'':34}{'jobs/s':>10}{'raw/s':>10}{'ratio':>8}{'floor':>8}   range")
    fine = True
    for name, pairs in seen.items():
        ratios = sorted(ours / raw for ours, raw in pairs)
        middle = statistics.median(ratios)
        ours, raw = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        fine &= middle >= FLOORS[name]
        print(f"{name:34}{ours:10,.0f}{raw:10,.0f}{middle:8.0%}{FLOORS[name]:8.0%}   {ratios[0]:.0%}..{ratios[-1]:.0%}")
    return fine


# A million finished jobs.


def fill(path: Path, count: int) -> None:
    """Write `count` completed jobs into a store, as the engine would have left them, with plain SQL."""
    db = prepare(path)
    db.execute("pragma synchronous = off")
    now, ids = time.time_ns() // 1_000_000 - 86_400_000, random_ids()
    for first in range(0, count, 10_000):
        db.execute("begin immediate")
        jobs: list[dict[str, Any]] = []
        entries: list[dict[str, Any]] = []
        for n in range(first + 1, first + 10_001):
            at = now + n // 100
            job: Job = new_job(order(n), ids(at), at)
            claim = decide(job, Event.CLAIM, at, by="bench")
            complete = decide(claim.job, Event.COMPLETE, at, by="bench", result='"7.ink.png"')
            row = rows.job_params(complete.job, n)
            row["version"] = 3
            jobs.append(row)
            entries.append(rows.entry_params(submit_entry(job), n))
            for version, change in ((2, claim), (3, complete)):
                entries.append(rows.entry_params(entry_of(change, version), n))
        db.executemany(SQL.add_job, jobs)
        db.executemany(SQL.add_body, jobs)
        db.executemany(SQL.add_entry, entries)
        db.execute(SQL.add_tally, {"queue": "default", "state": "completed", "more": 10_000})
        db.execute("commit")
    db.execute("pragma wal_checkpoint(truncate)")
    db.close()


def million(rounds: int, count: int) -> bool:
    """Do the same work next to a million finished jobs, and on an empty store; measure opening and counting there."""
    print(f"\nwith {MILLION:,} finished jobs in the store, against an empty one\n")
    rates: dict[str, list[float]] = {"submit, 100 callers": [], "submit, 100 a call": [], "claim + complete": []}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=os.environ.get("BENCH_DIR")) as name:
        full, empty = Path(name) / "full.db", Path(name) / "empty.db"
        fill(full, MILLION)
        print(f"store of {full.stat().st_size / 1e6:,.0f} MB, {full.stat().st_size / MILLION:,.0f} bytes a job")
        opening, counting = looks(full)
        for _ in range(rounds):
            for measure, work in (
                ("submit, 100 callers", submits),
                ("submit, 100 a call", bulk_submits),
                ("claim + complete", lambda path, count: drain(path, 2 * count)),
            ):
                small = asyncio.run(work(empty, count))
                large = asyncio.run(work(full, count))
                rates[measure].append(large / small)
            for file in (empty, *Path(name).glob("empty.db-*")):
                file.unlink() if file.is_file() else shutil.rmtree(file)
    fine = opening <= 0.050 and counting <= 0.005
    print(f"{'':34}{'ratio':>8}{'floor':>8}   range")
    for measure, ratios in rates.items():
        middle = statistics.median(ratios)
        fine &= middle >= 0.90
        print(f"{measure:34}{middle:8.0%}{0.9:8.0%}   {min(ratios):.0%}..{max(ratios):.0%}")
    print(f"{'opening':34}{opening * 1000:5.1f} ms   50 ms at most")
    print(f"{'counts by state':34}{counting * 1000:5.1f} ms    5 ms at most")
    return fine


def looks(path: Path) -> tuple[float, float]:
    """Return the seconds to open a store and to count its jobs by state: the median of five, each in a new engine."""

    async def look() -> tuple[float, float]:
        engine = SqliteEngine(path)
        started = time.perf_counter()
        await engine.open()
        opened = time.perf_counter()
        await engine.count()
        counted = time.perf_counter()
        await engine.close()
        return opened - started, counted - opened

    seen = [asyncio.run(look()) for _ in range(5)]
    return statistics.median(o for o, _ in seen), statistics.median(c for _, c in seen)


def memory(count: int) -> bool:
    """Return whether a process that only submits stays the same size; measured in its own process."""
    command = [sys.executable, __file__, "--submit-only", str(count)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    early, late = (int(line) / 1024 for line in lines)
    print(f"\nmemory of a process that submits {count:,} jobs: {early:.0f} MB after a tenth, {late:.0f} MB at the end")
    return late <= early * 1.1


async def submit_only(count: int) -> None:
    """Submit `count` jobs, a hundred per call; print the resident size after a tenth, and at the end."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        engine = SqliteEngine(Path(folder) / "jobs.db")
        await engine.open()
        jobs = Jobs(engine)
        for first in range(0, count, BATCH):
            await jobs.submit([order(n) for n in range(first, first + BATCH)])
            if first == count // 10:
                print(_resident())
        print(_resident())
        await engine.close()


def _resident() -> int:
    """Return this process's own memory in KiB, without the mapped pages of the database."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> int:
    """Run what was asked for; return 1 if a floor was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--submit-only", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.submit_only:
        asyncio.run(submit_only(options.submit_only))
        return 0
    checks: list[Callable[[], bool]] = [lambda: spine(options.rounds, options.jobs)]
    if options.million:
        checks += [lambda: million(options.rounds, options.jobs), lambda: memory(MILLION)]
    fine = True
    for check in checks:
        fine = check() and fine
    print("\nall floors reached" if fine else "\na floor was missed")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
