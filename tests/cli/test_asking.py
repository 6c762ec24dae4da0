"""What a person answers: open questions listed, shown, answered and refused; and signals that don't fit."""

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from holdfast.cli.verbs import ask as asking
from holdfast.core.model import State
from holdfast.jobs.views.form import fields_of, form_words, sample_answer
from tests.cli.conftest import Cli
from tests.cli.stores import MINUTE, suspended

FORM = {
    "$defs": {"Tone": {"enum": ["warm", "cold"], "type": "string"}},
    "properties": {
        "ok": {"type": "boolean"},
        "tone": {"$ref": "#/$defs/Tone"},
        "takes": {"anyOf": [{"type": "integer", "maximum": 5}, {"type": "null"}], "default": None},
        "note": {"type": "string", "default": "", "description": "what to change"},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
    },
    "required": ["ok", "tone"],
    "type": "object",
}
DRAFT = {"question": '{"draft":"The Lighthouse \\u001b[2J"}', "schema": FORM, "until": 90 * MINUTE}
PLAIN = {"question": '"Which one?"', "schema": {"type": "string"}}
ANSWER = '{"ok": true, "tone": "warm"}'


@pytest.fixture
def id(cli: Cli) -> str:
    """A job that asks one question."""
    return suspended(cli.path, {"ask:1a2b3c4d": DRAFT})


def signals(cli: Cli, id: str) -> list[Any]:
    return [one["value"] for one in cli.json("show", id)["job"]["signals"]]


# Looking.


def test_open_questions_are_listed_with_their_form(cli: Cli, id: str):
    shown = cli.ok("ask")

    assert "1 open question\n" in shown
    assert f"{id[-8:]}  make_video  ask:1a2b3c4d, asked now, 1 h 30 min left\n" in shown
    assert '{"draft":"The Lighthouse' in shown
    assert "\x1b" not in shown
    assert "takes ok (yes or no), tone (one of warm, cold), note (text, may be" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_json_has_the_question_its_form_and_its_times(cli: Cli, id: str):
    (one,) = cli.json("ask")["questions"]

    assert (one["job"], one["type"], one["name"]) == (id, "make_video", "ask:1a2b3c4d")
    assert one["question"] == {"draft": "The Lighthouse \x1b[2J"}
    assert one["schema"] == FORM
    assert [(field["name"], field["type"], field["required"]) for field in one["fields"]] == [
        ("ok", "boolean", True),
        ("tone", "string", True),
        ("note", "string", False),
        ("tags", "json", False),
        ("takes", "integer", False),
    ]
    assert one["fields"][1]["choices"] == ["warm", "cold"]
    assert one["asked_at"] < one["until"]
    assert cli.json("ask", id)["questions"] == [one]


def test_one_question_is_shown_in_full_with_the_command_to_copy(cli: Cli, id: str):
    shown = cli.ok("ask", id[-8:])

    assert '"draft": "The Lighthouse' in shown
    assert "  note (text, may be left out): what to change\n" in shown
    assert f"answer: holdfast ask {id[-8:]} --answer '{ANSWER}'\n" in shown


def test_a_signal_that_is_waited_for_is_no_question(cli: Cli, ids: dict[State, str]):
    assert cli.ok("ask") == "no open questions\n"
    result = cli("ask", ids[State.PENDING])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has no open question: it is pending; to list all, run holdfast ask" in result.stderr


def test_the_form_of_anything_is_told_and_has_a_sample():
    told = [
        (fields_of(schema))
        for schema in ({}, {"type": "boolean"}, {"enum": [1, 2]}, {"type": "object"}, {"$ref": "#/$defs/Gone"})
    ]

    assert [form_words(fields) for fields in told] == ["JSON", "yes or no", "one of 1, 2", "JSON", "JSON"]
    assert [sample_answer(fields) for fields in told] == ["null", "true", "1", "null", "null"]


# Answering.


def test_an_answer_lets_the_job_go_on(cli: Cli, id: str):
    assert cli.ok("ask", id, "--answer", ANSWER) == f"answered {id[-8:]}: it continues\n"

    assert cli.json("status", id)["state"] == "available"
    assert signals(cli, id) == [json.loads(ANSWER)]
    assert cli("ask", id, "--answer", ANSWER).exit_code == 1  # it is not open any more


def test_a_question_of_a_job_that_keeps_its_slot_is_listed_shown_and_answered(cli: Cli):
    id = suspended(cli.path, {"ask:1a2b3c4d": DRAFT}, keeps_slot=True)

    assert "1 open question\n" in cli.ok("ask")
    (question,) = cli.json("ask", id)["questions"]
    assert question["schema"] == FORM
    for verb in ("status", "show"):
        shown = cli.ok(verb, id)
        assert "waiting for a person's answer, 1 h 30 min left\n" in shown, verb
        assert f"answer it: holdfast ask {id[-8:]}\n" in shown, verb
    wait = {"kind": "signal", "name": "ask:1a2b3c4d", "until": question["until"]}
    assert cli.json("show", id)["job"]["waits"] == [wait]
    assert cli("ask", id, "--answer", '{"ok": true, "tone": "hot"}').exit_code == 1

    assert cli.ok("ask", id, "--answer", ANSWER) == f"answered {id[-8:]}: it continues\n"

    assert cli.json("status", id)["state"] == "active"
    assert cli.json("ask")["questions"] == []
    assert cli("ask", id, "--answer", ANSWER).exit_code == 1  # it is not open any more


def test_json_of_an_answer_is_the_jobs_new_status(cli: Cli, id: str):
    assert cli.json("ask", id, "--answer", ANSWER) == cli.json("status", id)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"tone": "warm"}', "the answer: 'ok' is missing; give it"),
        ('{"ok": "maybe", "tone": "warm"}', "the answer: ok: must be of type boolean, but is 'maybe'"),
        ('{"ok": true, "tone": "warm", "takes": 9}', "the answer: takes: must be less than or equal to 5, but is 9"),
        ('{"ok": true, "tone": "hot"}', "the answer: tone: must be one of 'warm', 'cold'"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays(answer: str, why: str, cli: Cli, id: str):
    result = cli("ask", id, "--answer", answer)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"holdfast: job {id}: {why}; nothing was sent, and the job still waits\n"
    assert len(cli.json("ask")["questions"]) == 1


def test_of_several_questions_one_is_named(cli: Cli):
    id = suspended(cli.path, {"ask:1a2b3c4d": DRAFT, "ask:9f86d081": PLAIN})

    assert "--name ask:9f86d081" in cli.ok("ask", id)
    assert "--name ask:9f86d081" in cli.ok("ask", id, "--name", "ask:9f86d081")
    unnamed = cli("ask", id, "--answer", '"the second"')
    assert (unnamed.exit_code, unnamed.stderr.count("\n")) == (2, 1)
    assert "ask:1a2b3c4d, ask:9f86d081" in unnamed.stderr
    assert cli("ask", id, "--name", "ask:none", "--answer", "1").exit_code == 1

    cli.ok("ask", id, "--answer", '"the second"', "--name", "ask:9f86d081")

    assert signals(cli, id) == ["the second"]


def test_a_form_shows_its_bounds_and_defaults():
    schema = {
        "properties": {
            "stars": {"type": "integer", "minimum": 1, "maximum": 5, "default": 3},
            "title": {"type": "string", "minLength": 1, "maxLength": 8, "pattern": "^[A-Z]"},
            "share": {"type": "number", "exclusiveMinimum": 0, "default": 0.5},
            "sure": {"type": "boolean", "default": False},
            "parts": {"type": "array", "items": {"type": "string"}, "maxItems": 2, "default": []},
        },
        "required": ["title"],
        "type": "object",
    }

    fields = fields_of(schema)

    assert [field.words() for field in fields] == [
        "title (text, 1 to 8 characters, like ^[A-Z])",
        "stars (whole number, 1 to 5, default 3)",
        "share (number, more than 0, default 0.5)",
        "sure (yes or no, default false)",
        "parts (JSON, at most 2 items, may be left out)",
    ]
    assert [(field.shape()["limits"], field.shape()["default"]) for field in fields[:2]] == [
        ("1 to 8 characters, like ^[A-Z]", None),
        ("1 to 5", 3),
    ]


def test_an_answer_that_the_job_itself_refused_is_shown_to_whoever_looks(cli: Cli):
    refused = {"by": "ada\x1b[2J", "why": "the answer: stars: too many for this book"}
    id = suspended(cli.path, {"ask:1a2b3c4d": {**DRAFT, "refused": refused}})
    line = "an earlier answer was refused, from ada\N{REPLACEMENT CHARACTER}[2J: the answer: stars: too many"

    for shown in (cli.ok("ask"), cli.ok("ask", id), cli.ok("show", id)):
        assert line in " ".join(shown.split())
    assert cli.json("ask")["questions"][0]["refused"] == {"name": "ask:1a2b3c4d", **refused}
    assert cli.json("show", id)["refused"] == [{"name": "ask:1a2b3c4d", **refused}]


# On a terminal.


def at_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch, id: str, *lines: str):
    monkeypatch.setattr(asking, "at_terminal", lambda: True)
    return cli("ask", id, input="".join(f"{line}\n" for line in lines))


def test_a_terminal_is_asked_field_by_field(cli: Cli, id: str, monkeypatch):
    result = at_terminal(cli, monkeypatch, id, "maybe", "y", "hot", "cold", "shorter", "a", '["a"]', "few", "")

    assert result.exit_code == 0, result.output
    assert "type yes or no" in result.stderr
    assert "type one of warm, cold" in result.stderr
    assert "type JSON; put a text in quotes" in result.stderr
    assert "takes (whole number, at most 5, or nothing): few\n  type a whole number\n" in result.stderr
    assert signals(cli, id) == [{"ok": True, "tone": "cold", "note": "shorter", "tags": ["a"]}]


def test_a_bound_is_checked_field_by_field(cli: Cli, monkeypatch):
    schema = {"properties": {"stars": {"type": "integer", "minimum": 1, "maximum": 5, "default": 3}}, "type": "object"}
    id = suspended(cli.path, {"ask:9f86d081": {"question": "1", "schema": schema}})

    result = at_terminal(cli, monkeypatch, id, "9", "5")

    assert (
        "stars (whole number, 1 to 5, default 3): 9\n  it: must be less than or equal to 5, but is 9\n" in result.stderr
    )
    assert signals(cli, id) == [{"stars": 5}]


def test_a_plain_answer_is_one_field(cli: Cli, monkeypatch):
    id = suspended(cli.path, {"ask:9f86d081": PLAIN})

    assert at_terminal(cli, monkeypatch, id, "", "the second").exit_code == 0
    assert signals(cli, id) == ["the second"]


def test_of_several_questions_none_is_asked_before_it_is_named(cli: Cli, monkeypatch):
    id = suspended(cli.path, {"ask:1a2b3c4d": DRAFT, "ask:9f86d081": PLAIN})

    result = at_terminal(cli, monkeypatch, id, "y")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("answer: holdfast ask") == 2


def test_who_leaves_or_types_nonsense_leaves_the_question_open(cli: Cli, id: str, monkeypatch):
    assert at_terminal(cli, monkeypatch, id, "y").exit_code == 1  # the input ended
    nonsense = at_terminal(cli, monkeypatch, id, *["what?"] * 9)
    assert nonsense.exit_code == 2
    assert "no valid input after 5 tries; pass the whole answer as JSON with --answer" in nonsense.stderr
    assert len(cli.json("ask")["questions"]) == 1


def test_a_real_terminal_is_asked(cli: Cli):
    id = suspended(cli.path, {"ask:9f86d081": {"question": "1", "schema": {"type": "boolean"}}})
    master, slave = pty.openpty()
    os.write(master, b"yes\n")

    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "ask", id], stdin=slave, capture_output=True, text=True, timeout=60
    )

    os.close(master)
    os.close(slave)
    assert (done.returncode, signals(cli, id)) == (0, [True])
    assert "answer (yes or no)" in done.stderr


# Signals.


def test_a_signal_that_does_not_fit_is_refused_with_the_reason(cli: Cli):
    fields = {"ok": {"type": "boolean"}, "note": {"type": "string", "default": ""}}
    schema = {"type": "object", "properties": fields, "required": ["ok"]}
    id = suspended(cli.path, {"approved": {"schema": schema, "until": None}})

    result = cli("signal", id, "approved", "--json", '{"ok": "maybe"}')

    assert (result.exit_code, result.stdout) == (1, "")
    why = (
        "signal approved: ok: must be of type boolean, but is 'maybe'; "
        "it takes ok (yes or no), note (text, may be left out)"
    )
    assert result.stderr == f"holdfast: job {id}: {why}; nothing was sent, and the job still waits\n"
    assert cli.json("status", id)["state"] == "pending"
    assert signals(cli, id) == []
    assert "it continues" in cli.ok("signal", id, "approved", "--json", '{"ok": true}')


def test_a_signal_that_a_job_does_not_wait_for_is_kept_and_told_with_what_it_waits_for(cli: Cli):
    id = suspended(cli.path, {"approved": {"until": None}, "priced": {"until": None}})

    told = cli.ok("signal", id, "aproved")

    assert told == (
        f"sent aproved to {id[-8:]}; it stays in the inbox, because the job waits for approved, priced; did you mean "
        "approved?\n"
    )
    assert "it continues" in cli.ok("signal", id, "approved")


def test_an_answer_to_one_of_two_questions_needs_its_name(cli: Cli):
    id = suspended(cli.path, {"ask:1a2b3c4d": DRAFT, "ask:9f86d081": PLAIN})

    result = cli("ask", id, "--answer", "5")

    assert (result.exit_code, "choose one with --name (name=): ask:1a2b3c4d, ask:9f86d081" in result.stderr) == (
        2,
        True,
    )


def test_a_job_in_review_is_told_to_be_in_review(cli: Cli, ids: dict[State, str]):
    assert "it is in review" in cli("ask", ids[State.REVIEW]).stderr


def test_what_a_real_job_asks_is_answered(cli: Cli, tmp_path):
    """Not only what these tests write into a store: what a worker writes there."""
    (tmp_path / "asking_app.py").write_text(ASKING)
    once = [sys.executable, "asking_app.py"]
    subprocess.run([*once, "submit"], cwd=tmp_path, check=True, timeout=60)

    (one,) = cli.json("ask")["questions"]
    assert one["question"] == {"title": "The Pier"}
    assert form_words(fields_of(one["schema"])) == "ok (yes or no), why (text, may be left out)"
    cli.ok("ask", one["job"], "--answer", '{"ok": true}')
    subprocess.run([*once, "finish"], cwd=tmp_path, check=True, timeout=60)

    assert cli.json("show", one["job"])["job"]["result"] is True


ASKING = """
import asyncio, sys
from dataclasses import dataclass
from holdfast import App, ask
from holdfast.core.model import Where
app = App("sqlite:///jobs.db")

@dataclass
class Verdict:
    ok: bool
    why: str = ""

@app.job
async def film() -> bool:
    return (await ask({"title": "The Pier"}, form=Verdict, within="2d")).ok

async def main():
    wanted = "pending" if sys.argv[1] == "submit" else "completed"
    if wanted == "pending":
        await film.submit()
    async with app.worker():
        for _ in range(2000):
            (job,) = await app.engine.find(Where())
            if job.state == wanted:
                return
            await asyncio.sleep(0.01)
    raise SystemExit("it never was " + wanted)

asyncio.run(main())
"""
