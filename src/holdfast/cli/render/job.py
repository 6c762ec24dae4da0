"""One job for a person, readable at 80 columns: where it stands (`status`), and all that is kept of it (`show`).

Must not ask a store: it draws what `jobs.views` tells.
"""

from collections.abc import Collection, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.render.in_doubt import doubt_lines, step_lines
from holdfast.cli.render.screen import STYLES, bar, last_cell, plain_table, state_text
from holdfast.core.lifecycle import STATE_ROWS
from holdfast.core.model import Entry, Job, State, Step, StepState, Time
from holdfast.jobs.questions import ASK, Refusal
from holdfast.jobs.status import Status
from holdfast.jobs.views.job import JobView, facts_of, stages_of, step_line
from holdfast.jobs.views.sentence import (
    STANDS_STILL,
    TEXT_SHOWN,
    count_of_done,
    life_words,
    refusal_words,
    remaining_words,
    retry_line,
    stage_words,
    wait_words,
)
from holdfast.jobs.views.story import tell_entry
from holdfast.jobs.views.text import ago, error_line, one_line, plural, short_id, span
from holdfast.safe_text import clean

STEPS_SHOWN = 40
LOG_SHOWN = 40
CHILDREN_SHOWN = 20
"""How much of each a person is shown; `--json` has all of it."""

STEP_STYLES = {StepState.DONE: "green", StepState.FAILED: "red", StepState.STARTED: "yellow"}
STAGE_STYLES = {"passed": ("✓ ", "green"), "current": ("▶ ", "bold"), "ahead": ("", "dim")}


# Where it stands.


def status_lines(one: Status, history: Sequence[Entry], now: Time) -> Iterator[RenderableType]:
    """Where one job stands. Its history tells how long it took, and how many workers were lost over it."""
    yield Text() + Text(one.type, style="bold") + Text(f" {one.id}", style="cyan")
    meaning = STATE_ROWS[one.state].meaning.split(":")[0]
    yield Text("  ") + state_text(one.state) + Text(f": {meaning}", style="dim")
    if one.state is State.ACTIVE:
        yield Text(f"  {stage_words(one) or 'running'}, for {span(one.running_ms or 0)}")
    if one.stages:
        yield Text("  ") + stage_strip(one)
    progress = progress_line(one)
    if progress.plain:
        yield Text("  ") + progress
    if one.trouble:
        yield Padding(Text(f"its worker can't write: {one_line(one.trouble)}", "bold red"), (0, 0, 0, 2))
    if one.retrying is not None:
        yield Padding(Text(retry_line(one), "yellow"), (0, 0, 0, 2))
    for wait in one.waits:
        yield Text(f"  {wait_words(wait, now)}")
    if any(wait.name.startswith(ASK) for wait in one.waits):
        yield Text(f"  answer it: holdfast ask {short_id(one.id)}")
    if one.state in (State.SCHEDULED, State.RETRYABLE) and not one.waits:
        yield Text(f"  due {ago(one.run_at, now)}")
    if one.error is not None:
        yield Padding(Text(error_line(one.error), "red"), (0, 0, 0, 2))
    yield Text(f"  {life_words(one, history, now)}", style="dim")


def progress_line(one: Status) -> Text:
    """A bar, "12 of 30", what the job says, and about how long it will take."""
    line = Text()
    if one.done is not None and one.total:
        line += bar(one.done, one.total) + Text(" ")
    line += Text(count_of_done(one))
    if one.text:
        line += Text("  " if line else "") + Text(one_line(one.text, TEXT_SHOWN))
    if one.remaining_ms:
        line += Text(f"  {remaining_words(one)}", style="dim")
    if one.trouble:
        line += Text(("  " if line else "") + STANDS_STILL, style="bold red")
    return line


def stage_strip(one: Status) -> Text:
    """The job's stages in a row, the current one marked."""
    parts = []
    for stage in stages_of(one):
        mark, style = STAGE_STYLES[stage.place]
        parts.append(Text(mark + stage.name, style=style))
    return Text(" → ").join(parts)


def refusal_line(refused: Refusal) -> Text:
    """A signal or an answer that the job itself refused."""
    return Text(refusal_words(refused), "yellow")


# All that is kept of it.


def print_job(out: Console, view: JobView) -> None:
    """Print a job with its arguments, story, steps, children, log and error, and what a person can do."""
    job, now = view.job, view.now
    for line in status_lines(view.status, view.whole_history, now):
        out.print(line)
    out.print()
    for name, text in facts_of(job, now).items():
        out.print(Text() + Text(f"  {name:10} ", style="dim") + Text(text), soft_wrap=True)
    if view.undo:
        out.print(Text(f"\n{view.undo}"), soft_wrap=True)
    for one in view.refused:
        out.print()
        out.print(refusal_line(one), soft_wrap=True)
    _print_story(out, view)
    _print_steps(out, view.steps, {one.path for one in view.in_doubt})
    _print_children(out, view.children)
    _print_log(out, view.log)
    _print_error(out, job)
    if job.state is State.REVIEW:
        _print_next(out, view)


def _print_story(out: Console, view: JobView) -> None:
    if view.before_import:
        _print_heading(out, "Before it was imported")
        for entry in view.before_import:
            out.print(_entry_line(entry, view.now))
    _print_heading(out, "What happened, in UTC")
    for entry in view.history:
        out.print(_entry_line(entry, view.now))


def _entry_line(entry: Entry, now: Time) -> Text:
    told = tell_entry(entry, now)
    line = Text() + Text(f"  {told.clock}  ", style="dim") + Text(told.words, style=STYLES[told.after])
    line += Text(told.who) + Text(f"  {told.ago}", style="dim")
    for note in told.notes:
        line += Text(f"\n            {note}", style="dim")
    return line


def _print_steps(out: Console, steps: Sequence[Step], in_doubt: Collection[str]) -> None:
    if not steps:
        return
    done = sum(step.state is StepState.DONE for step in steps)
    _print_heading(out, f"Steps: {done:,} done of {len(steps):,} recorded")
    table = plain_table("", "step", "state", "took", "result", right=["took"])
    # The last ones tell most: they are where it is, or where it went wrong.
    for step in steps[-STEPS_SHOWN:]:
        one = step_line(step, is_in_doubt=step.path in in_doubt)
        table.add_row("", one.path, Text(one.words, style=STEP_STYLES[one.state]), one.took, last_cell(one.result))
    if len(steps) > STEPS_SHOWN:
        out.print(f"  the last {STEPS_SHOWN}; all of them: --json", style="dim")
    out.print(table)


def _print_children(out: Console, children: Sequence[Job]) -> None:
    if not children:
        return
    _print_heading(out, f"Children: {len(children):,}")
    table = plain_table("", "id", "type", "state", "group")
    for child in children[:CHILDREN_SHOWN]:
        group = last_cell(one_line(child.group or "", 40))
        table.add_row("", short_id(child.id), child.type, state_text(child.state), group)
    out.print(table)
    if len(children) > CHILDREN_SHOWN:
        out.print(f"  and {len(children) - CHILDREN_SHOWN:,} more: --json", style="dim")


def _print_log(out: Console, log: Sequence[str]) -> None:
    if not log:
        return
    _print_heading(out, f"Log: {plural(len(log), 'line')}")
    if len(log) > LOG_SHOWN:
        out.print(f"  the last {LOG_SHOWN}; all of them: --json", style="dim")
    for line in log[-LOG_SHOWN:]:
        out.print(Text(f"  {clean(line)}"), soft_wrap=True)


def _print_error(out: Console, job: Job) -> None:
    if job.error is None:
        return
    _print_heading(out, "Error")
    out.print(Text(_indent(f"{job.error.type}: {job.error.message}"), style="red"), soft_wrap=True)
    if job.error.traceback:
        out.print(Text(_indent(job.error.traceback), style="dim"), soft_wrap=True)


def _print_next(out: Console, view: JobView) -> None:
    id = short_id(view.job.id)
    if view.may_not_fit:
        _print_heading(out, "Said of it: look whether that is right, or say it again")
        for line in step_lines(view.may_not_fit):
            out.print(Text("  ") + line, soft_wrap=True)
    if not view.in_doubt:
        out.print(f"\nnext: holdfast replay {id}, or resolve, or discard", style="dim")
        return
    _print_heading(out, "In doubt: look whether it happened, then")
    for line in doubt_lines(view.in_doubt):
        out.print(Text("  ") + line, soft_wrap=True)  # a command to copy stays on one line
    out.print(f"\nor, of the whole job: holdfast resolve {id} --result JSON, or discard", style="dim")


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in clean(text).splitlines())


def _print_heading(out: Console, text: str) -> None:
    out.print()
    out.print(Text(text, style="bold"))
