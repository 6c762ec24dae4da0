"""Runs pytest, and what failed once more, alone: `python -m tools.run_tests PYTEST-ARGUMENTS`.

The tests start thousands of processes and servers on whatever machine there is. A test that fails beside others and
passes alone is flaky: it is named at the end, and the run passes. A test that fails twice fails the run. So does
everything else that goes wrong, and so do many failures, which are no accident. Must not know what is tested.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

FAILED = 1
"""The exit code of pytest if tests failed; any other means that the run itself went wrong."""

MOST_AGAIN = 12
"""If more tests failed than this, none is run again."""


def main(arguments: Sequence[str]) -> int:
    """Run the tests, and those that failed once more. Return the exit code."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", *arguments, "-o", f"cache_dir={cache}"]
        code = subprocess.call(command)
        failed = _last_failed(Path(cache)) if code == FAILED else []
        if not 0 < len(failed) <= MOST_AGAIN:
            return code
        click.echo(f"\n{len(failed)} failed beside other tests and are run once more, alone:")
        alone = ("-n", "0", "--dist", "no", "--last-failed", "--last-failed-no-failures", "none")
        again = subprocess.call([*command, *alone])
        if again == 0:
            click.echo("\n  ".join(["flaky, each failed once and passed alone:", *failed]))
        return again


def _last_failed(cache: Path) -> list[str]:
    try:
        return sorted(json.loads((cache / "v" / "cache" / "lastfailed").read_text()))
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
