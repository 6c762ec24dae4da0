"""Shells complete verbs, options and job ids."""

import os
import subprocess
import sys

import pytest

from holdfast.core.model import State
from tests.cli.conftest import Cli


def offered(*words: str) -> dict[str, str]:
    """What bash's script is answered for a line, by way of the protocol of click's that zsh uses: type, word, help."""
    told = {"_HOLDFAST_COMPLETE": "zsh_complete", "COMP_WORDS": " ".join(["holdfast", *words])}
    told["COMP_CWORD"] = str(len(words))
    done = subprocess.run(
        [sys.executable, "-c", "from holdfast.cli import main; main(prog_name='holdfast')"],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    return dict(zip(lines[1::3], lines[2::3], strict=True))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_this_program(shell: str, cli: Cli):
    script = cli.ok("completion", shell)

    assert f"_HOLDFAST_COMPLETE={shell}_complete" in script
    assert "holdfast" in script


def test_bash_accepts_the_script(cli: Cli):
    done = subprocess.run(
        ["bash", "-n"], input=cli.ok("completion", "bash"), capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_verbs_are_offered_with_their_lines(cli: Cli):
    assert offered("re") == {
        "review": "List the jobs that need a person.",
        "replay": "Run jobs in review again.",
        "resolve": "Complete a job in review, or a step in doubt.",
        "rerun": "Reject the results of steps and run them again.",
    }


def test_job_ids_are_offered_from_the_store(cli: Cli, ids: dict[State, str]):
    assert set(offered("show", "")) == {id[-8:] for id in ids.values()}
    assert offered("show", ids[State.ACTIVE][-8:-3]) == {ids[State.ACTIVE][-8:]: "make_video, active"}
    assert set(offered("show", ids[State.ACTIVE][:20])) == {ids[State.ACTIVE]}


def test_only_jobs_that_fit_the_verb_are_offered(cli: Cli, ids: dict[State, str]):
    assert set(offered("replay", "")) == {ids[State.REVIEW][-8:]}
    assert ids[State.COMPLETED][-8:] not in offered("cancel", "")


def test_no_store_offers_nothing_and_says_nothing(cli: Cli):
    assert offered("show", "") == {}
    assert not cli.path.exists()
