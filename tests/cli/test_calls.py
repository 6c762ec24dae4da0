"""A wrong call is one line: what is wrong, what was meant, and where to look."""

import pytest

from holdfast.cli.options import STATE_SYNONYMS
from holdfast.core.model import State
from tests.cli.conftest import Cli

LINES = {
    "stauts": "there is no verb 'stauts'; did you mean status? see holdfast --help",
    "comp": "there is no verb 'comp'; did you mean compare or completion? see holdfast --help",
    "frobnicate": "there is no verb 'frobnicate'; see holdfast --help",
    "queues stop": "there is no verb 'queues stop'; there are pause, reset, resume, set; see holdfast queues --help",
    "queues resum video": "there is no verb 'queues resum'; did you mean resume? see holdfast queues --help",
    "--versoin": "holdfast has no option --versoin; did you mean --version? see holdfast --help",
    "jobs --stat active": "jobs has no option --stat; did you mean --state? see holdfast jobs --help",
    "jobs --sate active": "jobs has no option --sate; did you mean --state? see holdfast jobs --help",
    "jbos": "there is no verb 'jbos'; did you mean jobs? see holdfast --help",
    "jobs --nonsense": "jobs has no option --nonsense; see holdfast jobs --help",
    "queues pause x --resaon y": (
        "queues pause has no option --resaon; did you mean --reason? see holdfast queues pause --help"
    ),
    "show": "show needs ID; see holdfast show --help",
    "replay": "replay: give either ids, or --type, --queue, --error or --failed-in; see holdfast replay --help",
    "worker": "worker needs MODULE:APP; see holdfast worker --help",
    "completion": "completion needs SHELL: bash, zsh or fish; see holdfast completion --help",
    "resolve 0192f3a4": "resolve needs --result JSON; see holdfast resolve --help",
    "jobs --limit": "jobs: option '--limit' requires an argument; see holdfast jobs --help",
    "queues pause x --reason": (
        "queues pause: option '--reason' requires an argument; see holdfast queues pause --help"
    ),
    "jobs --limit 0": "jobs --limit: 0 is not in the range 1<=x<=1000; see holdfast jobs --help",
    "completion tcsh": ("completion SHELL: 'tcsh' is not one of 'bash', 'zsh', 'fish'; see holdfast completion --help"),
    "workers now": "there is no verb 'workers now'; there are quiet, resume; see holdfast workers --help",
    "lifecycle now": "lifecycle: got unexpected extra argument (now); see holdfast lifecycle --help",
    "status --watch --json": (
        "status: --watch and --json can't be combined: repeat it with --json instead; see holdfast status --help"
    ),
}


@pytest.mark.parametrize("call", LINES)
def test_a_wrong_call_is_one_line_that_says_what_and_where_to_look(call: str, cli: Cli):
    result = cli(*call.split())

    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"holdfast: {LINES[call]}\n")


def test_no_verb_at_all_shows_the_help(cli: Cli):
    result = cli()

    assert result.output.startswith("Usage: holdfast ")


STATES = {
    "running": "'running' is called active here",
    "failed": "'failed' is called review or retryable here",
    "done": "'done' is called completed here",
    "success": "'success' is called completed here",
    "QUEUED": "'QUEUED' is called available here",
    "needs_review": "'needs_review' is called review here",
    "actve": "there is no state 'actve'; did you mean active?",
    "asleep!": "there is no state 'asleep!'; there are scheduled, available, pending, active, retryable, review, "
    "completed, discarded, cancelled",
}


@pytest.mark.parametrize("word", STATES)
def test_a_natural_word_for_a_state_is_answered_with_ours(word: str, cli: Cli):
    result = cli("jobs", "--state", word)

    joint = "" if STATES[word].endswith("?") else ";"
    assert result.exit_code == 2
    assert result.stderr == f"holdfast: jobs --state: {STATES[word]}{joint} see holdfast jobs --help\n"


def test_a_state_that_a_verb_does_not_take_is_not_offered_by_it(cli: Cli):
    assert cli("cancel", "--state", "done").stderr == (
        "holdfast: cancel --state: 'done' is called completed here, which is not one of scheduled, available, pending, "
        "active, retryable, review; see holdfast cancel --help\n"
    )


def test_no_state_has_a_word_that_means_another():
    assert not set(STATE_SYNONYMS) & set(State)
    assert {state for states in STATE_SYNONYMS.values() for state in states} == set(State)


def test_a_state_may_be_written_in_capitals(cli: Cli, ids: dict[State, str]):
    (job,) = cli.json("jobs", "--state", "ACTIVE")["jobs"]

    assert job["id"] == ids[State.ACTIVE]
