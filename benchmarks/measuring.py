"""What the benchmarks share: medians and floors, ratios, peers, the resources of a process. Measures nothing itself."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PEER_SECONDS = 600.0


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each round: whatever slows a round down slows both sides."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def check_floor(what: str, seen: Sequence[float], floor: float, unit: str, *, at_most: bool = False) -> bool:
    """Print one line, with the machine's load. Return whether the median reaches the floor."""
    value = statistics.median(seen)
    fine = value <= floor if at_most else value >= floor
    bound = f"at most {floor:g}" if at_most else f"at least {floor:g}"
    verdict = "ok" if fine else "MISSED"
    load = f"load {os.getloadavg()[0]:.1f}"
    print(f"{verdict:7}{what:64}{value:10,.2f} {unit:6}{spread_of(seen):18}{bound} {unit}; {load}", flush=True)
    return fine


def print_figure(what: str, seen: Sequence[float], unit: str) -> None:
    """Print one line without a floor."""
    print(f"{'':7}{what:64}{statistics.median(seen):10,.2f} {unit:6}{spread_of(seen)}", flush=True)


def spread_of(seen: Sequence[float]) -> str:
    """Return the lowest and the highest value, if there are several."""
    return f"{min(seen):,.2f}–{max(seen):,.2f}" if len(seen) > 1 else ""


def peer(python: str, program: str, *words: str | int) -> dict[str, float]:
    """Run a peer's part in its own interpreter. If it fails, print why and return nothing."""
    command = [python, str(HERE / program), *map(str, words)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PEER_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{words[0]} took longer than {PEER_SECONDS:g} s", file=sys.stderr)
        return {}
    if done.returncode:
        print(f"{words[0]} failed: {' '.join(done.stderr.strip().splitlines()[-1:])}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int, kind: str = "VmRSS") -> float:
    """Return the resident memory of a process; with `RssAnon`, without the pages of mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(kind):
            return int(line.split()[1]) / 1024
    return 0.0
