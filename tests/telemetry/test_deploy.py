"""What `deploy/` watches is what the code writes, and what it starts is what the command line knows."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.telemetry.metrics import METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "holdfast.json"

WRITTEN = {
    name
    for metric in METRICS
    for name in (
        [f"{metric.name}_{part}" for part in ("bucket", "sum", "count")]
        if metric.kind == "histogram"
        else [metric.name]
    )
}


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_there_are_seven_alerts_and_each_says_what_to_do():
    text = RULES.read_text()

    assert text.count("- alert: ") == text.count("action: ") == text.count("summary: ") == 7


@pytest.mark.parametrize("text", [RULES.read_text(), *expressions()], ids=lambda text: text[:40])
def test_every_metric_that_is_watched_is_one_that_the_code_writes(text: str):
    named = set(re.findall(r"\bholdfast_\w+", text))

    assert named
    assert named <= WRITTEN


def test_promtool_accepts_the_rules_and_their_tests():
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            [promtool, *words], cwd=RULES.parent, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


STARTED = [
    *re.findall(r"^ExecStart=\S+/holdfast (.+)$", "".join(f.read_text() for f in DEPLOY.rglob("*.service")), re.M),
    *re.findall(r"args: \[holdfast, (.+)\]$", "".join(f.read_text() for f in DEPLOY.rglob("*.yaml")), re.M),
]


@pytest.mark.parametrize("line", STARTED)
def test_what_is_started_is_a_verb_with_options_that_it_has(line: str):
    verb, *words = re.split(r",? ", line)

    asked = [Path(sys.executable).with_name("holdfast"), verb, "--help"]
    known = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout

    assert len(STARTED) == 4
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", known))
