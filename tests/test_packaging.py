"""The distribution is `holdfast-jobs`; what it installs is imported and called as `holdfast`."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TEXTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("src/**/*.py"),
    *ROOT.glob("examples/*.py"),
    *ROOT.glob("examples/*.md"),
]

WITHOUT_DRIVER = """
import sys
from holdfast.engines.stores import engine_for

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Missing())
engine_for(sys.argv[2])
"""


def test_the_distribution_has_its_own_name_and_the_command_keeps_its_name():
    assert PROJECT["name"] == "holdfast-jobs"
    assert list(PROJECT["scripts"]) == ["holdfast"]


def test_extras_that_bring_other_extras_name_the_distribution():
    needed = [need for extra in PROJECT["optional-dependencies"].values() for need in extra]

    own = [need for need in needed if need.startswith("holdfast")]

    assert own
    assert all(need.startswith("holdfast-jobs[") for need in own)


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_pip_install_names_the_distribution(text: Path):
    assert not re.findall(r"pip install ['\"]?holdfast(?!-jobs)\b", text.read_text())


@pytest.mark.parametrize(("url", "driver"), [("postgresql://host/db", "asyncpg"), ("redis://host:6379/0", "redis")])
def test_a_missing_driver_is_named_with_the_command_that_installs_it(url: str, driver: str):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DRIVER, driver, url], capture_output=True, text=True, check=False, timeout=60
    )

    extra = url.partition(":")[0].removesuffix("ql")
    assert done.stderr.splitlines()[-1].endswith(
        f"the driver is not installed; run pip install 'holdfast-jobs[{extra}]'"
    )


@pytest.mark.parametrize("target", ["test", "lint", "docs", "bench", "soak", "conformance"])
def test_a_target_of_development_installs_its_tools(target: str):
    assert re.search(rf"^{target}: \$\(VENV\)/\.dev ", MAKEFILE, re.MULTILINE)


def test_the_demo_installs_the_package_alone():
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout

    assert planned.count("-m pip install") == 1
    assert "-e ." in planned
    assert "[dev]" not in planned
