"""One job for a person, readable at 80 columns: its status (`status`), and everything stored about it (`show`).

Must not read a store: it draws what `jobs.views` returns.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.render.in_doubt import doubt_lines, step_lines
from holdfast.cli.render.screen import STYLES, Hanging, bar, last_cell, plain_table, state_text
from holdfast.core.model import Entry, Job, State, StepState, Time
from holdfast.jobs.questions import Refusal, is_question
from holdfast.jobs.status import TEXT_SHOWN, Status, count_of_done, remaining_words
from holdfast.jobs.views.attempts import attempts_of
from holdfast.jobs.views.job import JobView, facts_of, stages_of, step_line
from holdfast.jobs.views.pages.log import log_lines_shown
from holdfast.jobs.views.remarks import life_words, refusal_words
from holdfast.jobs.views.step_names import name_steps
from holdfast.jobs.views.story import describe_entry
from holdfast.jobs.views.text import error_text, name_some, one_line, plural, short_id
from holdfast.jobs.views.tree import lines
from holdfast.jobs.views.waits import group_words
from holdfast.safe_text import clean

STEPS_SHOWN = 40
LOG_SHOWN = 40
CHILDREN_SHOWN = 20
ATTEMPTS_SHOWN = 10
"""How much of each is shown; `--json` has everything."""

TABLE_WIDTH = 60
"""On a narrower screen, steps are lines instead of a table."""

STEP_STYLES = {StepState.DONE: "green", StepState.FAILED: "red", StepState.STARTED: "yellow"}
STAGE_STYLES = {"passed": ("✓ ", "green"), "current": ("▶ ", "bold"), "ahead": ("", "dim")}


# The status of a job.


def status_lines(one: Status, history: Sequence[Entry], now: Time) -> Iterator[RenderableType]:
    """Yield a job's status. Its history says how long the job took and how many workers were lost."""
    yield Text() + Text(one.type, style="bold") + Text(f" {one.id}", style="cyan")
    yield Padding(_sentence(one), (0, 0, 0, 2))
    if one.stages:
        yield Padding(stage_strip(one), (0, 0, 0, 2))
    if one.done is not None and one.total and one.state is not State.COMPLETED:
        of_stage = f"{clean(one.stage)}: " if one.stage else ""
        lead = Text("  ") + bar(one.done, one.total) + Text(" ")
        yield Hanging(Text(f"{of_stage}{count_of_done(one)}"), lead.cell_len, lead)
    if any(map(is_question, one.waits)):
        yield Text(f"  answer it: holdfast ask {short_id(one.id)}")
    yield Padding(Text(life_words(one, history, now), "dim"), (0, 0, 0, 2))


def _sentence(one: Status) -> Text:
    """Return the state and the sentence of a job, without repeating the state."""
    words = str(one)
    if one.state is not State.ACTIVE and words.startswith(one.state):  # an active job may be in a stage "active"
        return state_text(one.state) + Text(words.removeprefix(one.state))
    return state_text(one.state) + Text(f": {words}", "bold red" if one.trouble else "")


def progress_line(one: Status) -> Text:
    """Return a bar, "12 of 30", the job's own text, and the estimated time left."""
    line = Text()
    if one.done is not None and one.total:
        line += bar(one.done, one.total) + Text(" ")
    line += Text(count_of_done(one))
    if one.text:
        line += Text("  " if line else "") + Text(one_line(one.text, TEXT_SHOWN))
    if one.remaining_ms:
        line += Text(f"  {remaining_words(one)}", style="dim")
    if one.trouble:
        line += Text(("  " if line else "") + "stalled: nothing can be written", style="bold red")
    return line


def stage_strip(one: Status) -> Text:
    """Return the job's stages in a row, the current one marked."""
    parts = []
    for stage in stages_of(one):
        mark, style = STAGE_STYLES[stage.place]
        parts.append(Text(mark + stage.name, style=style))
    return Text(" → ").join(parts)


def refusal_line(refused: Refusal) -> Text:
    """Return a line about a signal or an answer that the job itself refused."""
    return Text(refusal_words(refused), "yellow")


# Everything stored about a job.


def print_job(out: Console, view: JobView) -> None:
    """Print a job with its arguments, history, steps, children, log and error, and what a person can do."""
    job, now = view.job, view.now
    for line in status_lines(view.status, view.whole_history, now):
        out.print(line)
    out.print()
    for name, text in facts_of(job, now).items():
        out.print(Hanging(Text(text), 13, Text(f"  {name}", "dim")))
    if view.undo:
        out.print()
        out.print(Hanging(Text(view.undo), 0, hang=2))
    for one in view.refused:
        out.print()
        out.print(Hanging(refusal_line(one), 0, hang=2))
    _print_story(out, view)
    _print_attempts(out, view)
    _print_steps(out, view)
    if view.tree is not None:
        _print_heading(out, "The flow")
        for text in lines(view.tree):
            out.print(Text(f"  {text}"))
    else:
        _print_children(out, view.children)
    _print_log(out, view)
    _print_error(out, job)
    if job.state is State.REVIEW:
        _print_next(out, view)


def _print_story(out: Console, view: JobView) -> None:
    if view.before_import:
        _print_heading(out, "Before it was imported")
        for entry in view.before_import:
            _print_entry(out, entry, view.now)
    _print_heading(out, "What happened, in UTC")
    for entry in view.history:
        _print_entry(out, entry, view.now)


def _print_entry(out: Console, entry: Entry, now: Time) -> None:
    shown = describe_entry(entry, now)
    line = Text() + Text(shown.words, style=STYLES[shown.after]) + Text(shown.who) + Text(f"  {shown.ago}", style="dim")
    lead = Text(f"  {shown.clock}  ", "dim")
    out.print(Hanging(line, lead.cell_len, lead))
    for note in shown.notes:
        out.print(Hanging(Text(note, "dim"), lead.cell_len, hang=2))


def _print_attempts(out: Console, view: JobView) -> None:
    """Print who ran the job, if several workers did or one failed, with the errors of earlier attempts."""
    attempts = attempts_of(view.history)
    if len(attempts) < 2:
        return
    _print_heading(out, f"Attempts: {len(attempts):,}")
    if len(attempts) > ATTEMPTS_SHOWN:
        out.print(f"  the last {ATTEMPTS_SHOWN}; all of them: --json", style="dim")
    for one in attempts[-ATTEMPTS_SHOWN:]:
        out.print(Hanging(Text(one.words()), 2, hang=2))


def _print_steps(out: Console, view: JobView) -> None:
    steps, in_doubt = view.steps, {one.path for one in view.in_doubt}
    if not steps:
        return
    done = sum(step.state is StepState.DONE for step in steps)
    _print_heading(out, f"Steps: {done:,} of {len(steps):,} done")
    if len(steps) > STEPS_SHOWN:
        out.print(f"  the last {STEPS_SHOWN}; all of them: --json", style="dim")
    if view.code:
        made = Counter((step.name, code) for step in steps if (code := view.code.get(step.path)))
        shown = [f"{clean(name)} {code} ({number:,})" for (name, code), number in made.items()]
        out.print(Hanging(Text(f"code: {name_some(shown)}", "dim"), 2, hang=2))
    names = name_steps(view.job, steps, view.places)
    # The last steps matter most: the job is there, or failed there.
    lines = [step_line(step, names[step.path], is_in_doubt=step.path in in_doubt) for step in steps[-STEPS_SHOWN:]]
    if out.width < TABLE_WIDTH:
        for one in lines:
            words = Text() + Text(one.words, STEP_STYLES[one.state]) + Text(f" {one.took}  {one.result}".rstrip())
            out.print(Hanging(Text(f"{one.name}  ") + words, 2, hang=2))
        return
    table = plain_table("", "step", "state", "took", "result", right=["took"])
    for one in lines:
        state = Text(one.words, style=STEP_STYLES[one.state])
        table.add_row("", one_line(one.name, out.width // 3), state, one.took, last_cell(one.result))
    out.print(table)


def _print_children(out: Console, children: Sequence[Job]) -> None:
    if not children:
        return
    _print_heading(out, f"Children: {len(children):,}")
    made_by = {child.id: group_words(child.group or "") for child in children[:CHILDREN_SHOWN]}
    headings = ["group"] if any(made_by.values()) else []
    table = plain_table("", "id", "type", "state", *headings)
    for child in children[:CHILDREN_SHOWN]:
        last = [last_cell(made_by[child.id])] if headings else []
        table.add_row("", short_id(child.id), child.type, state_text(child.state), *last)
    out.print(table)
    if len(children) > CHILDREN_SHOWN:
        out.print(f"  and {len(children) - CHILDREN_SHOWN:,} more: --json", style="dim")


def _print_log(out: Console, view: JobView) -> None:
    log = view.log
    if not log:
        return
    _print_heading(out, f"Log: {plural(len(log), 'line')}")
    if len(log) > LOG_SHOWN:
        out.print(f"  the last {LOG_SHOWN}; all of them: --json", style="dim")
    for one in log_lines_shown(log[-LOG_SHOWN:], name_steps(view.job, view.steps, view.places)):
        parts = (one.at, f"[{one.name}]" if one.name else "", one.level.upper(), one.text)
        out.print(Hanging(Text(" ".join(filter(None, parts))), 2, hang=2))


def _print_error(out: Console, job: Job) -> None:
    if job.error is None:
        return
    _print_heading(out, "Error")
    summary = f"{job.error.type}: {job.error.message}"
    out.print(Hanging(Text(clean(error_text(job.error)), "red"), 2, hang=2))
    trace = job.error.traceback.rstrip().removesuffix(summary).rstrip()  # it ends with the line above
    for line in clean(trace).splitlines():
        depth = 2 + len(line) - len(line.lstrip())
        out.print(Hanging(Text(line.lstrip(), "dim"), depth, hang=2))


def _print_next(out: Console, view: JobView) -> None:
    id = short_id(view.job.id)
    if view.may_not_fit:
        _print_heading(out, "Resolved by a person: check whether that is right, or resolve it again")
        for line in step_lines(view.may_not_fit):
            out.print(Text("  ") + line, soft_wrap=True)
    if not view.in_doubt:
        out.print("\nnext:", style="dim")
        for command in (f"replay {id}", f"resolve {id} --result JSON", f"discard {id}"):
            out.print(f"  holdfast {command}", style="dim", soft_wrap=True)
        return
    _print_heading(out, "In doubt: check whether it happened, then run")
    for line in doubt_lines(view.in_doubt):
        out.print(Text("  ") + line, soft_wrap=True)  # a command to copy stays on one line
    out.print(f"\nor, for the whole job: holdfast resolve {id} --result JSON, or discard", style="dim")


def _print_heading(out: Console, text: str) -> None:
    out.print()
    out.print(Text(text, style="bold"))
