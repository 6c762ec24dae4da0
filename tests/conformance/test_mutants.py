"""The suite on trial: it passes a sound engine, from any folder, and catches every planted bug.

Each trial is a run of its own in another process, as a stranger would start it, and ends at the first failure. A bug
must be caught by the law that it breaks: only that file is run, which shows more than any failure would, and sooner.
All mutants that break one law share a run, in which each goes to its own first failure.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.conformance.first_failure import CAUGHT, SPOILT
from tests.conformance.mutants import MUTANTS
from tests.conformance.server_mutants import MUTANTS as SERVER_MUTANTS

ROOT = Path(__file__).parents[2]
HERE, THERE = "tests.conformance.mutants", "tests.conformance.server_mutants"
EXAMPLES = "30"
RUN_SECONDS = 600.0
TESTS_FAILED, WRONG_CALL = 1, 4
"""pytest's exit codes."""


def run(folder: Path, *args: str, code: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder without an ini file, with nothing from this run but the interpreter."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args],
        cwd=folder,
        env=env | {"PYTHONPATH": os.pathsep.join((str(code), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def run_suite(folder: Path, *args: str, law: str = "", code: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the conformance suite, or one law of it, to its first failure."""
    what = f"holdfast.conformance.test_{law}" if law else "holdfast.conformance"
    return run(folder, "--pyargs", what, "-x", "-q", "--examples", EXAMPLES, *args, code=code)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The library without the repository around it: no ini file above, as in site-packages."""
    shutil.copytree(Path(holdfast.__file__).parent, tmp_path / "site" / "holdfast")
    return tmp_path / "site"


@pytest.mark.parametrize("law", sorted(set(MUTANTS.values())))
def test_every_planted_bug_is_caught_by_the_law_it_breaks(law: str, tmp_path: Path) -> None:
    all_are_caught(tmp_path, law, {name: f"{HERE}:{name}" for name, broken in MUTANTS.items() if broken == law})


@pytest.mark.parametrize(("engine", "law"), sorted({broken[:2] for broken in SERVER_MUTANTS.values()}))
def test_every_bug_planted_in_a_server_is_caught(engine: str, law: str, tmp_path: Path, request: Any) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    mutants = {name: broken[2] for name, broken in SERVER_MUTANTS.items() if broken[:2] == (engine, law)}
    tests = " or ".join(f"test_{test}" for test in mutants.values())

    all_are_caught(tmp_path, law, {name: f"{THERE}:{name}={url}" for name in mutants}, "-k", tests)


def all_are_caught(folder: Path, law: str, mutants: dict[str, str], *only: str) -> None:
    """Each of these mutants, named by its engine, must fail a test of this law."""
    engines = [part for engine in mutants.values() for part in ("--engine", engine)]
    each = ("-p", "tests.conformance.first_failure", "--maxfail", "0", "--tb=line")
    trial = run_suite(folder, *engines, *each, *only, law=law)

    told = [line for line in trial.stdout.splitlines() if line.startswith((CAUGHT, SPOILT))]
    caught = [f"{CAUGHT}{engine.partition('=')[0]}" for engine in mutants.values()]
    assert sorted(told) == sorted(caught), trial.stdout + trial.stderr
    assert trial.returncode == TESTS_FAILED
    assert f"{len(mutants)} failed" in trial.stdout.splitlines()[-1], trial.stdout


def test_a_sound_engine_passes_from_any_folder(installed: Path, tmp_path: Path) -> None:
    trial = run_suite(tmp_path, "--engine", "memory:", "-W", "error", code=installed)

    assert trial.returncode == 0, trial.stdout + trial.stderr


@pytest.mark.parametrize("name", ["Sound", "ServerClock"])
def test_a_sound_engine_of_somebody_else_passes(name: str, tmp_path: Path) -> None:
    trial = run_suite(tmp_path, "--engine", f"{HERE}:{name}=memory:")

    assert trial.returncode == 0, trial.stdout + trial.stderr


def test_without_an_engine_all_is_skipped_and_told(tmp_path: Path) -> None:
    trial = run_suite(tmp_path)

    assert trial.returncode == 0, trial.stdout + trial.stderr
    assert "--engine URL" in trial.stdout
    assert "passed" not in trial.stdout


@pytest.mark.parametrize("text", ["nonsense", "sqlite:", "nats://here", "no.such.module:Engine", f"{HERE}:MUTANTS"])
def test_an_engine_that_does_not_exist_is_one_clear_line(text: str, tmp_path: Path) -> None:
    trial = run_suite(tmp_path, "--engine", text)

    assert trial.returncode == WRONG_CALL
    assert "Traceback" not in trial.stderr
    assert text.partition(":")[0] in trial.stderr


def test_several_engines_run_side_by_side(tmp_path: Path) -> None:
    trial = run_suite(
        tmp_path, "--engine", "memory:", "--engine", "sqlite:///x.db", "--engine", "memory:", "--collect-only",
        "-k", "test_an_id_is_inserted_once",
    )  # fmt: skip

    assert trial.returncode == 0, trial.stdout + trial.stderr
    assert "[sqlite]" in trial.stdout
    assert "[memory0]" in trial.stdout
    assert "[memory1]" in trial.stdout


# What the plugin does to everybody else's tests: nothing.

STRANGER = """
import asyncio
import sys

import pytest

def test_the_plugin_loads_nothing():
    assert [name for name in ("hypothesis", "pydantic", "holdfast.engines") if name in sys.modules] == []

@pytest.mark.parametrize("name", ["kind", "url", "engine", "clock", "runner", "another", "examples", "text"])
def test_the_plugin_brings_no_fixtures(name, request):
    with pytest.raises(pytest.FixtureLookupError):
        request.getfixturevalue(name)
"""


def test_a_strangers_tests_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "test_stranger.py").write_text(STRANGER)

    # Without hypothesis's own plugin, which would load it.
    trial = run(tmp_path, "-q", "-p", "no:hypothesispytest", "-p", "no:_hypothesis_pytestplugin")

    assert trial.returncode == 0, trial.stdout + trial.stderr
    assert "holdfast" not in trial.stdout
