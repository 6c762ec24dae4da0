"""`holdfast review`, `replay`, `resolve`, `discard`: jobs that need a person. Must not decide (`lifecycle`)."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.errors import echo
from holdfast.cli.json_options import parse_arguments, parse_json
from holdfast.cli.load_app import check_step_result, load_app, signature_in
from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import app_option, job_ids, json_option, reason_option, url_option
from holdfast.cli.person import confirm, whoami
from holdfast.cli.render.in_doubt import doubt_lines, step_lines
from holdfast.cli.render.screen import console, say_json
from holdfast.core.codec import Signature, canonical
from holdfast.core.errors import EffectInDoubt, NotAllowed, NotFound, Refused
from holdfast.core.lifecycle import standing
from holdfast.core.model import PAGE_LIMIT, Job, State, Time
from holdfast.jobs.ids import find_ids
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import Status
from holdfast.jobs.views.in_doubt import steps_in_doubt
from holdfast.jobs.views.remarks import owner_words
from holdfast.jobs.views.review import POSSIBLE, ReviewView, view_reviews
from holdfast.jobs.views.shapes import status_shape
from holdfast.jobs.views.text import error_line, one_line, plural, short_id, span

SHOWN = 50
"""How many jobs in review are listed; `--json` has up to a page of them."""

REVIEW_IDS = job_ids(State.REVIEW)


@click.command(
    epilog="""\b
Examples:
  holdfast review
  holdfast review --json | jq -r '.jobs[].id'

\b
Then, for each job: holdfast show ID, and one of
  holdfast replay ID        run it again; recorded steps keep their results
  holdfast resolve ID       complete it with your result; with --step, decide a step in doubt
  holdfast discard ID       give it up
"""
)
@json_option
@url_option
def review(as_json: bool, url: str | None) -> None:
    """List the jobs that need a person."""

    async def work(jobs: Jobs) -> tuple[list[ReviewView], int, Time]:
        views, total = await view_reviews(jobs, PAGE_LIMIT if as_json else SHOWN)
        return views, total, await jobs.engine.now()

    views, total, now = run_in_store(url, work)
    if as_json:
        say_json({"jobs": [view.shape() for view in views], "total": total})
        return
    out = console()
    if not views:
        out.print("nothing needs a person")
        return
    out.print(f"{plural(total, 'job')} {'needs' if total == 1 else 'need'} a person\n")
    for view in views:
        _print_view(out, view, now)
    if total > len(views):
        out.print(f"\nand {total - len(views):,} more: holdfast jobs --state review", style="dim")
    out.print(f"\ninspect one with holdfast show ID, then: {', '.join(POSSIBLE)}", style="dim")


def _print_view(out: Console, view: ReviewView, now: Time) -> None:
    job = view.job
    line = Text() + Text(short_id(job.id), style="cyan") + Text(f"  {job.type}", style="bold")
    before = ", ".join(owner_words(job)) or "no failed attempt"
    out.print(line + Text(f"  for {span(max(0, now - view.since))}, {before}", style="dim"))
    if not view.in_doubt or job.error is None or job.error.type != EffectInDoubt.__name__:  # it says the same
        out.print(Padding(Text(error_line(job.error) or "no error was recorded", "red"), (0, 0, 0, 10)))
    for line in (*step_lines(view.may_not_fit), *doubt_lines(view.in_doubt)):
        out.print(Text("          ") + line, soft_wrap=True)  # a command to copy stays on one line


@click.command(
    epilog="""\b
Examples:
  holdfast replay 4f2a91bc
  holdfast replay 4f2a91bc 77ab01ce --reason "quota raised"
  holdfast replay 4f2a91bc --args '[{"title": "The Lighthouse"}]' --app video:app

\b
Recorded steps don't run again; failed ones do. The attempts start from 1 again.
--args is the whole list of arguments, as `holdfast show` prints it: in the function's order,
keyword-only ones in a last {"**": {"name": value}}. Without --app, any list is accepted, and
arguments that don't fit fail when the job runs.
--json prints the job's new status; with several ids {"jobs": [...], "refused": [...]}.
"""
)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=REVIEW_IDS)
@click.option("--args", metavar="JSON", help="New arguments, as a JSON array. For one job only.")
@app_option
@reason_option
@json_option
@url_option
def replay(
    ids: tuple[str, ...], args: str | None, target: str | None, reason: str, as_json: bool, url: str | None
) -> None:
    """Run jobs in review again. Recorded steps keep their results."""
    if args is not None:
        if len(ids) > 1:
            raise click.UsageError("--args is for one job: give one ID")
        args = parse_arguments("--args", args)
    _each(
        Call(ids, "replayed", as_json, url, target),
        lambda jobs, id: jobs.replay(id, args=args, by=whoami(), reason=reason),
        lambda job, signature: signature.decode(job.args if args is None else args),
    )


@click.command(
    epilog="""\b
Examples:
  holdfast resolve 4f2a91bc --result '{"url": "https://example.org/film.mp4"}'
  holdfast resolve 4f2a91bc --result '"a text"' --app video:app
  holdfast resolve 4f2a91bc --result null --reason "done by hand"
  holdfast resolve 4f2a91bc --step 'send#order-42' --result '"sent"'
  holdfast resolve 4f2a91bc --step 'send#order-42' --again

\b
The job completes with this result, as if it had returned it. Without --app, any JSON is
accepted, and a result that doesn't fit fails where it is read.
--step decides a step in doubt: its effect was started but not recorded. Name the step by the
path that `holdfast show` prints. Pass --result if it happened, with what it returned, or --again
if it didn't. When the last step in doubt is resolved, the job continues.
--json prints the job's new status.
"""
)
@click.argument("id", shell_complete=REVIEW_IDS)
@click.option("--result", metavar="JSON", help="The result of the job or the step.")
@click.option("--step", "path", metavar="STEP", help="A step in doubt, instead of the whole job.")
@click.option("--again", is_flag=True, help="The step didn't happen: run it again.")
@app_option
@reason_option
@json_option
@url_option
def resolve(
    id: str,
    result: str | None,
    path: str | None,
    again: bool,
    target: str | None,
    reason: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Complete a job in review with your own result, or decide whether a step in doubt happened."""
    if again and path is None:
        raise click.UsageError("--again is for a step in doubt: name it with --step")
    if again and result is not None:
        raise click.UsageError("--again means that the step didn't happen, --result that it did; give one of them")
    if path is not None and not again and result is None:
        raise click.UsageError("add --result JSON if the step happened, or --again if it didn't")
    if path is None and result is None:
        raise _missing("result")
    value = None if result is None else parse_json("--result", result)
    if path is not None:
        call = Call((id,), f"resolved {one_line(path, 60)} of", as_json, url, target)
        _resolve_step(call, path, value, again, reason)
        return
    _each(
        Call((id,), "resolved", as_json, url, target),
        lambda jobs, whole: jobs.resolve(whole, value, by=whoami(), reason=reason),
        lambda job, signature: signature.result.decode(canonical(value)),
    )


def _missing(name: str) -> click.MissingParameter:
    """Return the error for an option that is required only without certain other options."""
    ctx = click.get_current_context()
    return click.MissingParameter(ctx=ctx, param=next(param for param in ctx.command.params if param.name == name))


def _resolve_step(call: "Call", path: str, result: object, again: bool, reason: str) -> None:
    """Decide whether a step in doubt happened."""

    async def act(jobs: Jobs, id: str) -> Job:
        await jobs.get(id)  # so that a missing job gets its own error
        if call.target is not None and not again:
            for step in await jobs.engine.steps(id):
                if step.path == path:  # an unknown path is refused below
                    check_step_result(call.target, step.name, result)
        return await jobs.resolve_step(id, path, result, again=again, by=whoami(), reason=reason)

    _each(call, act)


@click.command(
    epilog="""\b
Examples:
  holdfast discard 4f2a91bc --reason "the customer left"
  holdfast discard 4f2a91bc 77ab01ce --yes

\b
This can't be reverted, and what the job made is undone. With several ids, --yes or an answer is
required.
--json prints the job's new status; with several ids {"jobs": [...], "refused": [...]}.
"""
)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=REVIEW_IDS)
@click.option("--yes", is_flag=True, help="Don't ask.")
@reason_option
@json_option
@url_option
def discard(ids: tuple[str, ...], yes: bool, reason: str, as_json: bool, url: str | None) -> None:
    """Give up jobs in review permanently."""
    if len(ids) > 1 and not yes:
        confirm(f"discard {plural(len(ids), 'job')} permanently?")
    _each(
        Call(ids, "discarded", as_json, url),
        lambda jobs, id: jobs.discard(id, by=whoami(), reason=reason),
    )


class Call(NamedTuple):
    """What these verbs share: the jobs, the output, the store, and the App that checks values."""

    ids: tuple[str, ...]
    done: str
    as_json: bool
    url: str | None
    target: str | None = None


def _each(
    call: Call, act: Callable[[Jobs, str], Awaitable[Job]], check: Callable[[Job, Signature], object] | None = None
) -> None:
    """Do the same to each job. All jobs are looked up and checked before the first one is changed.

    A refusal doesn't stop the others.
    """
    target = call.target
    app = None if target is None else load_app(target)

    async def work(jobs: Jobs) -> tuple[list[Status], list[tuple[str, Refused]]]:
        done: list[Status] = []
        refused: list[tuple[str, Refused]] = []
        whole = await find_ids(jobs, call.ids)
        if app is not None and target is not None and check is not None:
            for id in whole:
                job = await jobs.get(id)
                check(job, signature_in(app, target, job))
        for id in whole:
            try:
                job = await act(jobs, id)
            except (NotAllowed, NotFound) as error:
                refused.append((id, error))
                continue
            done += await jobs.statuses([job])
            if not call.as_json:
                left = len(steps_in_doubt(job, await jobs.engine.steps(id)))
                more = f", {plural(left, 'step')} still in doubt" if left else ""
                console().print(f"{call.done} {short_id(id)}: it is {standing(job.state)}{more}")
        return done, refused

    _tell(call, *run_in_store(call.url or (None if app is None else app.url), work, write=True))


def _tell(call: Call, done: list[Status], refused: list[tuple[str, Refused]]) -> None:
    several = len(call.ids) > 1
    if call.as_json and several:
        whys = [{"id": id, "why": str(error)} for id, error in refused]
        say_json({"jobs": [status_shape(status) for status in done], "refused": whys})
    else:
        for status in done if call.as_json else ():
            say_json(status_shape(status))
        for _, error in refused:
            echo(f"holdfast: {error}", err=True)
    if refused:
        raise SystemExit(1)
