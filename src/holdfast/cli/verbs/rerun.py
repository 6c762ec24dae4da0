"""`holdfast rerun`, `fork`, `compare`: run parts of a run again, and look at both. Must not decide (`jobs.reruns`)."""

import shlex

import click
from rich.text import Text

from holdfast.cli.json_options import parse_arguments
from holdfast.cli.load_app import check_step_args, load_app, signature_in
from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import app_option, job_ids, json_option, reason_option, url_option
from holdfast.cli.person import whoami
from holdfast.cli.render.screen import console, plain_table, say_json
from holdfast.core.errors import NotFound
from holdfast.core.model import Job, Step
from holdfast.core.reruns import made_by_other_code
from holdfast.jobs.ids import find_job
from holdfast.jobs.reruns import find_steps
from holdfast.jobs.reruns import fork as fork_run
from holdfast.jobs.reruns import rerun as rerun_steps
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import spent_words
from holdfast.jobs.views.comparison import Comparison, Side, StepPair, took, view_comparison
from holdfast.jobs.views.shapes import job_shape
from holdfast.jobs.views.text import one_line, short_id, span
from holdfast.safe_text import clean
from holdfast.worker.fingerprints import known_code

STEPS_SHOWN = 40
"""How many steps a comparison shows; `--json` has all of them."""

RESULT_SHOWN = 300

allow_option = click.option(
    "--allow", multiple=True, metavar="STEP", help='An effect (effect="once") that may happen again; may be repeated.'
)


@click.command(
    epilog="""\b
Examples:
  holdfast rerun 4f2a91bc 'draw#3' --feedback "the hand has six fingers"
  holdfast rerun 4f2a91bc 'draw#3' --args '["a calm sea"]' --app video:app

\b
Rejects the results of recorded steps and runs them again. STEP is a path as holdfast show --json
prints it, a name as holdfast show prints it, or draw#3 for the third draw that the code
calls. Steps that receive a changed value run again, too; everything else is kept.
A job in review is replayed. A job that has ended stays as it is, and the steps run in a new run.
In the step, current().feedback has the feedback, and current().rejected the rejected result.
--args replaces the step's own arguments. --older-code selects the steps whose
function has changed since they ran. Holdfast compares fingerprints of the source; holdfast show
--json has the fingerprint of each step.
"""
)
@click.argument("id", shell_complete=job_ids())
@click.argument("steps", nargs=-1, metavar="[STEP]...")
@click.option("--older-code", is_flag=True, help="Rerun each step whose code in --app has changed.")
@click.option("--feedback", default="", metavar="TEXT", help="What is wrong with the result; the step can read it.")
@click.option("--args", metavar="JSON", help="Other arguments for the step, as a JSON array. For one step only.")
@allow_option
@app_option
@reason_option
@json_option
@url_option
def rerun(
    id: str,
    steps: tuple[str, ...],
    older_code: bool,
    feedback: str,
    args: str | None,
    allow: tuple[str, ...],
    target: str | None,
    reason: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Reject the results of steps and run them again."""
    if bool(steps) == older_code or (older_code and target is None):
        raise click.UsageError("name the steps, or give --older-code with --app")
    app = None if target is None else load_app(target)
    text = None if args is None else parse_arguments("--args", args)

    async def work(jobs: Jobs) -> tuple[Job, Job]:
        nonlocal steps
        job = await find_job(jobs, id)
        if older_code:
            steps = tuple(made_by_other_code(await jobs.engine.steps(job.id), known_code()))
            if not steps:
                raise NotFound(f"job {job.id}: this code made every step that is recorded")
        if target is not None and text is not None:
            records = {record.path: record for record in await jobs.engine.steps(job.id)}
            (path,) = find_steps(job, list(records.values()), steps[:1])
            check_step_args(target, records[path].name, text)
        return job, await rerun_steps(
            jobs, job.id, steps, args=text, feedback=feedback, allow=allow, by=whoami(), reason=reason
        )

    _say(*run_in_store(url or (None if app is None else app.url), work, write=True), as_json)


@click.command(
    epilog="""\b
Examples:
  holdfast fork 4f2a91bc --until draw
  holdfast fork 4f2a91bc --until draw --args '[{"title": "The Pier"}]' --app video:app

\b
Makes a new run that keeps the steps that this run recorded before the first step named STEP. You
can try new code or prompts without paying for those steps again. Without --until, the new run
keeps every recorded step. It never undoes what this run made.
"""
)
@click.argument("id", shell_complete=job_ids())
@click.option("--until", metavar="STEP", help="Keep what was recorded before this step, by name or path.")
@click.option("--args", metavar="JSON", help="Other arguments for the job, as a JSON array.")
@allow_option
@app_option
@reason_option
@json_option
@url_option
def fork(
    id: str,
    until: str | None,
    args: str | None,
    allow: tuple[str, ...],
    target: str | None,
    reason: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Make a new run from the first steps of another one."""
    app = None if target is None else load_app(target)
    text = None if args is None else parse_arguments("--args", args)

    async def work(jobs: Jobs) -> tuple[Job, Job]:
        job = await find_job(jobs, id)
        if app is not None and target is not None:
            signature_in(app, target, job).decode(job.args if text is None else text)
        return job, await fork_run(jobs, job.id, until, args=text, allow=allow, by=whoami(), reason=reason)

    _say(*run_in_store(url or (None if app is None else app.url), work, write=True), as_json)


def _say(before: Job, after: Job, as_json: bool) -> None:
    if as_json:
        say_json({"job": job_shape(after), "from": before.id})
        return
    if before.id == after.id:
        console().print(f"replayed {short_id(after.id)}; it waits for a worker", soft_wrap=True)
        return
    console().print(f"made {after.id} from {short_id(before.id)}; it waits for a worker", soft_wrap=True)
    console().print(
        f"to compare them: holdfast compare {shlex.join([short_id(before.id), short_id(after.id)])}",
        style="dim",
        soft_wrap=True,
    )


@click.command(
    epilog="""\b
Examples:
  holdfast compare 4f2a91bc 77ab01ce
  holdfast compare 4f2a91bc 77ab01ce --json
"""
)
@click.argument("one", shell_complete=job_ids())
@click.argument("other", shell_complete=job_ids())
@json_option
@url_option
def compare(one: str, other: str, as_json: bool, url: str | None) -> None:
    """Show two runs side by side: results, steps, time and money."""

    async def read(jobs: Jobs) -> Comparison:
        return await view_comparison(jobs, await find_job(jobs, one), await find_job(jobs, other))

    found = run_in_store(url, read)
    if as_json:
        say_json(found.shape())
        return
    out = console()
    for side in (found.one, found.other):
        out.print(_side_line(side))
        out.print(Text(f"    {one_line(side.job.result or 'no result', RESULT_SHOWN)}", "dim"), soft_wrap=True)
    same = sum(pair.relation == "same" for pair in found.steps)
    changed = [pair for pair in found.steps if pair.relation != "same"]
    out.print(f"\n{same:,} of {len(found.steps):,} steps are the same", style="bold")
    if not changed:
        return
    table = plain_table("", "step", "", "first", "second", "took", right=["took"])
    for pair in changed[:STEPS_SHOWN]:
        table.add_row("", *_cells(pair))
    out.print(table)
    if len(changed) > STEPS_SHOWN:
        out.print(f"  and {len(changed) - STEPS_SHOWN:,} more: --json", style="dim")


def _side_line(side: Side) -> Text:
    job, origin = side.job, side.origin
    made = f", a {origin.how} of {short_id(origin.jobs[0])}" if origin is not None else ""
    took_words = f", took {span(side.ms)}" if side.ms is not None else ""
    money = f", {words}" if (words := spent_words(side.status)) else ""
    return (
        Text()
        + Text(job.type, "bold")
        + Text(f" {short_id(job.id)}", "cyan")
        + Text(f"  {job.state}{took_words}{money}{made}")
    )


def _shown(step: Step | None) -> str:
    if step is None:
        return "–"
    return one_line(step.result or ("" if step.error is None else step.error.message), 24)


def _cells(pair: StepPair) -> tuple[str, ...]:
    results = [_shown(one) for one in (pair.one, pair.other)]
    times = [span(ms) if (ms := took(one)) is not None else "–" for one in (pair.one, pair.other)]
    return clean(one_line(pair.name, 28)), pair.relation, *results, " / ".join(times)
