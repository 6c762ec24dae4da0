"""Which store a call means: `--url` before or behind the verb, and what needs the store itself instead of a server."""

import pytest

from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "{store}", "queues", "pause", "video", "--yes"),
        ("queues", "--url", "{store}", "pause", "video", "--yes"),
        ("queues", "pause", "video", "--yes", "--url", "{store}"),
        ("--url", "sqlite:///nowhere.db", "queues", "--url", "{store}", "pause", "video", "--yes"),
        ("--url", "sqlite:///nowhere.db", "queues", "pause", "video", "--yes", "--url", "{store}"),
    ],
)
def test_a_url_counts_before_and_behind_the_verb_and_the_nearest_one_wins(cli: Cli, ids, words, monkeypatch):
    store = f"sqlite:///{cli.path}"
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///nowhere.db")

    assert cli.ok(*(word.format(store=store) for word in words)).startswith("paused video")


def test_a_url_before_a_verb_that_reads_is_its_store(cli: Cli, ids, monkeypatch):
    store = f"sqlite:///{cli.path}"
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///nowhere.db")

    assert cli.ok("--url", store, "jobs", "--json") == cli.ok("jobs", "--json", "--url", store)


def test_a_url_before_a_verb_that_has_none_is_refused(cli: Cli):
    refused = cli("--url", "sqlite:///x.db", "lifecycle")

    assert refused.exit_code == 2
    assert "lifecycle takes no --url" in refused.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("token", "list", "--url", "http://127.0.0.1:9"),
        ("token", "create", "ci", "--scope", "read", "--url", "http://127.0.0.1:9"),
        ("token", "revoke", "ci", "--url", "http://127.0.0.1:9"),
        ("worker", "films:app", "--url", "http://127.0.0.1:9"),
        ("serve", "--port", "0", "--url", "http://127.0.0.1:9"),
        ("dev", "films:app", "--url", "http://127.0.0.1:9"),
        ("doctor", "--url", "http://127.0.0.1:9"),
        ("import", "run.json", "--url", "http://127.0.0.1:9"),
        ("move", "--from", "sqlite:///x.db", "--to", "http://127.0.0.1:9"),
        ("archive", "--from", "http://127.0.0.1:9", "--to", "sqlite:///x.db"),
        ("--url", "http://127.0.0.1:9", "token", "list"),
    ],
)
def test_what_needs_the_store_itself_refuses_a_server_in_one_line(cli: Cli, words):
    refused = cli(*words)

    assert refused.exit_code == 2
    assert refused.stderr.startswith("holdfast: http://127.0.0.1:9 is a server, and holdfast ")
    assert "run this where the store is, with its own URL" in refused.stderr
    assert refused.stderr.count("\n") == 1
