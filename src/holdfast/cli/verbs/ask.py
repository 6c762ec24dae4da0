"""`holdfast ask`: list the questions of jobs, and answer them. Must not judge an answer (`jobs`)."""

import json

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.json_options import parse_json, refuse_for_job
from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import job_ids, json_option, url_option
from holdfast.cli.person import ask_fields, at_terminal, whoami
from holdfast.cli.render.job import refusal_line
from holdfast.cli.render.screen import Hanging, console, say_json
from holdfast.core.codec import canonical
from holdfast.core.errors import NotFound
from holdfast.core.lifecycle import standing
from holdfast.core.model import State, Time
from holdfast.jobs.ids import find_id, find_job
from holdfast.jobs.questions import Question
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import Status
from holdfast.jobs.views.form import fields_of, form_words, question_shape, sample_answer
from holdfast.jobs.views.shapes import status_shape
from holdfast.jobs.views.text import SHORT_ID, ago, one_line, plural, short_id, time_left
from holdfast.safe_text import clean

SHOWN = 50
"""How many questions are listed; `--json` has all of them."""

VALUE_SHOWN = 200
"""How many characters of a question's value the list shows."""


@click.command(
    epilog="""\b
Examples:
  holdfast ask
  holdfast ask 4f2a91bc
  holdfast ask 4f2a91bc --answer '{"ok": true}'
  holdfast ask 4f2a91bc --answer '"the second"' --name ask:9f86d081
  holdfast ask --json | jq -r '.questions[].job'

\b
Without an ID, lists all open questions. With an ID, shows the question in full; on a terminal
it then asks for the answer field by field (Ctrl-C leaves the question open). An answer that
doesn't fit the form is refused, and the question stays open.
--json with --answer prints the job's new status.
"""
)
@click.argument("id", required=False, shell_complete=job_ids(State.PENDING, State.ACTIVE))
@click.option("--answer", metavar="JSON", help="The answer.")
@click.option("--name", metavar="NAME", help="Which question, if the job has asked several.")
@json_option
@url_option
def ask(id: str | None, answer: str | None, name: str | None, as_json: bool, url: str | None) -> None:
    """List the questions that jobs ask, show one, or answer it."""
    if id is None:
        if answer is not None or name is not None:
            raise click.UsageError("--answer and --name are for one job: give its ID")
        _list(as_json, url)
    elif answer is not None:
        _answer(id, parse_json("--answer", answer), name, as_json, url)
    else:
        _show(id, name, as_json, url)


# The list.


def _list(as_json: bool, url: str | None) -> None:
    async def work(jobs: Jobs) -> tuple[list[Question], Time]:
        return await jobs.questions(), await jobs.engine.now()

    questions, now = run_in_store(url, work)
    if as_json:
        say_json({"questions": [question_shape(one) for one in questions]})
        return
    out = console()
    if not questions:
        out.print("no open questions")
        return
    out.print(f"{plural(len(questions), 'open question')}\n")
    for one in questions[:SHOWN]:
        _head(out, one, now)
        out.print(Padding(Text(one_line(_text(one.value), VALUE_SHOWN)), (0, 0, 0, 10)))
        if one.refused is not None:
            out.print(Padding(refusal_line(one.refused), (0, 0, 0, 10)))
        out.print(Padding(Text(f"takes {form_words(fields_of(one.schema))}", style="dim"), (0, 0, 0, 10)))
    if len(questions) > SHOWN:
        out.print(f"\nand {len(questions) - SHOWN:,} more: --json", style="dim")
    out.print("\nshow or answer one: holdfast ask ID", style="dim")


def _head(out: Console, one: Question, now: Time) -> None:
    until = "" if one.until is None else f", {time_left(one.until, now)}"
    head = Text() + Text(one.type, style="bold")
    head += Text(f"  {clean(one.name)}, asked {ago(one.asked_at, now)}{until}", style="dim")
    out.print(Hanging(head, SHORT_ID + 2, Text(short_id(one.job), "cyan")))


def _text(value: object) -> str:
    """Return a question's value in one line: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else canonical(value)


# One question.


def _show(id: str, name: str | None, as_json: bool, url: str | None) -> None:
    async def work(jobs: Jobs) -> tuple[list[Question], Time]:
        job = await find_job(jobs, id)
        found = [one for one in await jobs.questions(job.id) if name in (None, one.name)]
        if not found:
            which = "" if name is None else f" {name!r}"
            raise NotFound(
                f"job {job.id} has no open question{which}: it is {standing(job.state)}; to list all, run holdfast ask"
            )
        return found, await jobs.engine.now()

    questions, now = run_in_store(url, work)
    if as_json:
        say_json({"questions": [question_shape(one) for one in questions]})
        return
    out = console()
    for one in questions:
        _head(out, one, now)
        shown = one.value if isinstance(one.value, str) else json.dumps(one.value, ensure_ascii=False, indent=2)
        out.print(Padding(Text(f"\n{clean(shown)}\n"), (0, 0, 0, 2)))
        if one.refused is not None:
            out.print(Padding(refusal_line(one.refused), (0, 0, 1, 2)))
        fields = fields_of(one.schema)
        if len(questions) == 1 and at_terminal():
            # Close the store while a person thinks: an open file would block its worker.
            _answer(one.job, ask_fields(fields), one.name, as_json, url)
            return
        for field in fields:
            about = f": {one_line(field.description, VALUE_SHOWN)}" if field.description else ""
            out.print(Text(f"  {field.words()}{about}"), soft_wrap=True)
        which = f" --name {one.name}" if len(questions) > 1 or name is not None else ""
        out.print(f"\nanswer: holdfast ask {short_id(one.job)} --answer {sample_answer(fields)}{which}", soft_wrap=True)


def _answer(id: str, value: object, name: str | None, as_json: bool, url: str | None) -> None:
    async def work(jobs: Jobs) -> Status:
        whole = await find_id(jobs, id)
        with refuse_for_job(whole):
            job = await jobs.answer(whole, value, name=name, by=whoami())
        (status,) = await jobs.statuses([job])
        return status

    status = run_in_store(url, work, write=True)
    if as_json:
        say_json(status_shape(status))
    else:
        continues = status.state in (State.AVAILABLE, State.ACTIVE)
        what_now = "it continues" if continues else f"it is {standing(status.state)}"
        console().print(f"answered {short_id(status.id)}: {what_now}")
