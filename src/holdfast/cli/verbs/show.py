"""`holdfast show`: everything that is kept of one job. Must not change anything."""

from collections.abc import Collection, Mapping, Sequence

import click
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from holdfast.cli.doubts import doubt_lines, doubts_of, misfit_lines, misfits_of
from holdfast.cli.ids import find_job, job_ids
from holdfast.cli.open_store import in_store, json_option, url_option
from holdfast.cli.overview import detail, lost_workers
from holdfast.cli.runfile import BEFORE_PATH, before_of
from holdfast.cli.shapes import entry_shape, job_shape, moment, refusal_shape, step_shape
from holdfast.cli.story import entry_line
from holdfast.cli.words import (
    ago,
    console,
    counted,
    one_line,
    plain_table,
    refusal_line,
    rest,
    say_json,
    short,
    span,
    state_text,
)
from holdfast.core.model import Entry, Job, State, Step, StepState, Time, Where
from holdfast.jobs.consequences import UNDO_PATH, UNDO_TYPE
from holdfast.jobs.questions import refusals_of, waits_now
from holdfast.jobs.service import Jobs, Status
from holdfast.safe_text import clean

STEPS_SHOWN = 40
LOG_SHOWN = 40
CHILDREN_SHOWN = 20
VALUE_SHOWN = 1_000
"""How much of each a person is shown; `--json` has all of it."""

STEP_STYLES = {StepState.DONE: "green", StepState.FAILED: "red", StepState.STARTED: "yellow"}


@click.command(
    epilog="""\b
Examples:
  holdfast show 4f2a91bc
  holdfast show 4f2a91bc --json > run.json

\b
ID may be shortened to its first or last characters, six or more.
"""
)
@click.argument("id", shell_complete=job_ids())
@json_option
@url_option
def show(id: str, as_json: bool, url: str | None) -> None:
    """Show all that is kept of a job: its arguments, story, steps, log and error."""

    async def work(jobs: Jobs) -> None:
        job = await find_job(jobs, id)
        records = await jobs.engine.steps(job.id)
        steps = [step for step in records if not step.path.startswith("~")]
        doubts, intents = doubts_of(job, records), [step for step in records if step.path.startswith(UNDO_PATH)]
        history, log = await jobs.history(job.id), await jobs.log(job.id)
        before, refused = before_of(records), refusals_of(job, records)
        children = await jobs.engine.find(Where(parent=job.id))
        if as_json:
            say_json(
                {
                    "job": job_shape(replace(job, waits=waits_now(job, records))),
                    "history": [entry_shape(entry) for entry in history],
                    "before_import": [entry_shape(entry) for entry in before],
                    "steps": [step_shape(step) for step in steps],
                    "in_doubt": list(doubts),
                    "to_undo": [step.path.removeprefix(UNDO_PATH) for step in intents],
                    "refused": [refusal_shape(one) for one in refused],
                    "lost_workers": lost_workers([*before, *history]),
                    "log": log,
                    "children": [{"id": c.id, "type": c.type, "state": c.state, "group": c.group} for c in children],
                }
            )
            return
        now = await jobs.engine.now()
        out = console()
        _head(out, job, await jobs.status(job.id), [*before, *history], now)
        undoing = await _undoing(jobs, job, len(intents), children)
        if undoing:
            out.print(Text(f"\n{undoing}"), soft_wrap=True)
        for one in refused:
            out.print()
            out.print(refusal_line(one), soft_wrap=True)
        _story(out, history, before, now)
        _steps(out, steps, doubts)
        _children(out, children, now)
        _log(out, log)
        _error(out, job)
        if job.state is State.REVIEW:
            _next(out, job, doubts, misfits_of(job, steps, history))

    in_store(url, work)


assert BEFORE_PATH.startswith("~"), "no step's path may look like it"


def _head(out: Console, job: Job, status: Status, history: Sequence[Entry], now: Time) -> None:
    for line in detail(status, history, now):
        out.print(line)
    facts = {
        "submitted": f"{moment(job.created_at)}",
        "priority": str(job.priority) if job.priority else "",
        "key": clean(job.key or ""),
        "parent": job.parent or "",
        "expires": "" if job.expires_at is None else ago(job.expires_at, now),
        "tags": clean(", ".join(job.options.tags)),
        "meta": clean(", ".join(f"{name}={value}" for name, value in job.options.meta.items())),
        "signals": ", ".join(
            f"{clean(signal.name)} ({ago(signal.at, now)})" for signal in job.inbox if not signal.name.startswith("~")
        ),
        "arguments": _value(job.args),
        "result": "" if job.result is None else _value(job.result),
    }
    out.print()
    for name, text in facts.items():
        if text:
            out.print(Text() + Text(f"  {name:10} ", style="dim") + Text(text), soft_wrap=True)


def _value(text: str) -> str:
    rest = len(text) - VALUE_SHOWN
    return clean(text) if rest <= 0 else f"{clean(text[:VALUE_SHOWN])}… and {counted(rest, 'character')} more"


def _story(out: Console, history: Sequence[Entry], before: Sequence[Entry], now: Time) -> None:
    if before:
        _heading(out, "Before it was imported")
        for entry in before:
            out.print(entry_line(entry, now))
    _heading(out, "What happened, in UTC")
    for entry in history:
        out.print(entry_line(entry, now))


async def _undoing(jobs: Jobs, job: Job, made: int, children: Sequence[Job]) -> str:
    """What an undo job undoes; or what there is to undo of a job, and who does it."""
    if job.type == UNDO_TYPE:
        (undone,) = [None] if job.parent is None else await jobs.engine.get([job.parent])
        told = "which is not kept any more" if undone is None else f"{undone.type}, which is {undone.state}"
        return f"undoes what job {short(job.parent or '')} made: {told}"
    if not made or job.state is State.COMPLETED:
        return ""
    things = counted(made, "thing")
    undo = next((child for child in children if child.type == UNDO_TYPE), None)
    if undo is None:
        return f"{things} to undo, should it be cancelled or discarded"
    if undo.state is State.COMPLETED:
        return f"{things} undone by job {short(undo.id)}"
    return f"{things} to undo: job {short(undo.id)}, which is {undo.state}"


def _next(out: Console, job: Job, doubts: Mapping[str, str], misfits: Sequence[Step]) -> None:
    if misfits:
        _heading(out, "Said of it: look whether that is right, or say it again")
        for line in misfit_lines(job.id, misfits):
            out.print(Text("  ") + line, soft_wrap=True)
    if not doubts:
        out.print(f"\nnext: holdfast replay {short(job.id)}, or resolve, or discard", style="dim")
        return
    _heading(out, "In doubt: look whether it happened, then")
    for line in doubt_lines(job.id, doubts):
        out.print(Text("  ") + line, soft_wrap=True)  # a command to copy stays on one line
    out.print(f"\nor, of the whole job: holdfast resolve {short(job.id)} --result JSON, or discard", style="dim")


def _steps(out: Console, steps: Sequence[Step], doubts: Collection[str]) -> None:
    if not steps:
        return
    done = sum(step.state is StepState.DONE for step in steps)
    _heading(out, f"Steps: {done:,} done of {len(steps):,} recorded")
    table = plain_table("", "step", "state", "took", "result", right=["took"])
    # The last ones tell most: they are where it is, or where it went wrong.
    for step in steps[-STEPS_SHOWN:]:
        took = "" if step.finished_at is None else span_of(step.finished_at - step.started_at)
        # What a step writes when it begins is no result.
        result = "" if step.state is StepState.STARTED else one_line(step.result or "", 40)
        told = one_line(f"{step.error.type}: {step.error.message}", 60) if step.error else result
        tries = f", {step.tries} tries" if step.tries > 1 else ""
        state = Text("in doubt" if step.path in doubts else f"{step.state}{tries}", style=STEP_STYLES[step.state])
        table.add_row("", one_line(step.path, 60), state, took, rest(told))
    if len(steps) > STEPS_SHOWN:
        out.print(f"  the last {STEPS_SHOWN}; all of them: --json", style="dim")
    out.print(table)


def span_of(milliseconds: int) -> str:
    """How long a step took; short ones in milliseconds."""
    return f"{milliseconds} ms" if milliseconds < 1_000 else span(milliseconds)


def _children(out: Console, children: Sequence[Job], now: Time) -> None:
    if not children:
        return
    _heading(out, f"Children: {len(children):,}")
    table = plain_table("", "id", "type", "state", "group")
    for child in children[:CHILDREN_SHOWN]:
        table.add_row("", short(child.id), child.type, state_text(child.state), rest(one_line(child.group or "", 40)))
    out.print(table)
    if len(children) > CHILDREN_SHOWN:
        out.print(f"  and {len(children) - CHILDREN_SHOWN:,} more: --json", style="dim")


def _log(out: Console, log: Sequence[str]) -> None:
    if not log:
        return
    _heading(out, f"Log: {counted(len(log), 'line')}")
    if len(log) > LOG_SHOWN:
        out.print(f"  the last {LOG_SHOWN}; all of them: --json", style="dim")
    for line in log[-LOG_SHOWN:]:
        out.print(Text(f"  {clean(line)}"), soft_wrap=True)


def _error(out: Console, job: Job) -> None:
    if job.error is None:
        return
    _heading(out, "Error")
    out.print(Text(_indented(f"{job.error.type}: {job.error.message}"), style="red"), soft_wrap=True)
    if job.error.traceback:
        out.print(Text(_indented(job.error.traceback), style="dim"), soft_wrap=True)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in clean(text).splitlines())


def _heading(out: Console, text: str) -> None:
    out.print()
    out.print(Text(text, style="bold"))
