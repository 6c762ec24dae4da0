"""`holdfast review`, `replay`, `resolve`, `discard`: the jobs that need a person. Must not decide (`lifecycle`)."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import click
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.doubts import doubt_lines, doubts_of, misfit_lines, misfits_of
from holdfast.cli.errors import echo
from holdfast.cli.ids import find_ids, job_ids
from holdfast.cli.json_options import arguments_given, json_given
from holdfast.cli.load_app import app_option, check_step_result, load_app, signature_in
from holdfast.cli.open_store import confirm, in_store, json_option, reason_option, url_option, whoami
from holdfast.cli.overview import owner_words
from holdfast.cli.shapes import error_shape, moment, status_shape
from holdfast.cli.words import console, counted, error_line, one_line, say_json, short, span
from holdfast.core.codec import Signature, canonical
from holdfast.core.errors import EffectInDoubt, NotAllowed, NotFound, Refused
from holdfast.core.lifecycle import EVENTS, standing
from holdfast.core.model import Entry, Job, State, Step, Time, Where
from holdfast.jobs.service import Jobs, Status

SHOWN = 50
"""How many jobs in review are listed for a person; `--json` has up to a page of them."""

POSSIBLE = tuple(
    row.event.value for row in EVENTS if State.REVIEW in row.sources and {"caller", "person"} & set(row.who.split(", "))
)
"""What a person can do about a job in review."""

REVIEW_IDS = job_ids(State.REVIEW)


@click.command(
    epilog="""\b
Examples:
  holdfast review
  holdfast review --json | jq -r '.jobs[].id'

\b
Then, for each: holdfast show ID, and one of
  holdfast replay ID        again, from what is recorded
  holdfast resolve ID       it counts as done, with your result; --step: one step in doubt
  holdfast discard ID       given up
"""
)
@json_option
@url_option
def review(as_json: bool, url: str | None) -> None:
    """List the jobs that need a person."""

    async def work(jobs: Jobs) -> tuple[list[Row], int, Time]:
        found = await jobs.engine.find(Where(states=(State.REVIEW,), newest_first=True))
        total = sum(number for (_, state), number in (await jobs.engine.count()).items() if state is State.REVIEW)
        chosen = found if as_json else found[:SHOWN]
        return [await _row(jobs, job) for job in chosen], total, await jobs.engine.now()

    rows, total, now = in_store(url, work)
    if as_json:
        say_json({"jobs": [_shape(row) for row in rows], "total": total})
        return
    out = console()
    if not rows:
        out.print("nothing needs a person")
        return
    out.print(f"{counted(total, 'job')} {'needs' if total == 1 else 'need'} a person\n")
    for job, entry, doubts, misfits in rows:
        since = job.created_at if entry is None else entry.at
        line = Text() + Text(short(job.id), style="cyan") + Text(f"  {job.type}", style="bold")
        before = ", ".join(owner_words(job)) or "no failed attempt"
        out.print(line + Text(f"  for {span(max(0, now - since))}, {before}", style="dim"))
        if not doubts or job.error is None or job.error.type != EffectInDoubt.__name__:  # it says the same
            out.print(Padding(Text(error_line(job.error) or "no error was kept", "red"), (0, 0, 0, 10)))
        for told in (*misfit_lines(job.id, misfits), *doubt_lines(job.id, doubts)):
            out.print(Text("          ") + told, soft_wrap=True)  # a command to copy stays on one line
    if total > len(rows):
        out.print(f"\nand {total - len(rows):,} more: holdfast jobs --state review", style="dim")
    out.print(f"\nlook with holdfast show ID, then: {', '.join(POSSIBLE)}", style="dim")


class Row(NamedTuple):
    """A job in review; the entry that brought it here; what a person is asked about its steps, or may correct."""

    job: Job
    entry: Entry | None
    doubts: dict[str, str]
    misfits: list[Step]


async def _row(jobs: Jobs, job: Job) -> Row:
    steps, history = await jobs.engine.steps(job.id), await jobs.history(job.id)
    entries = [entry for entry in history if entry.before is not State.REVIEW]  # signals may have come since
    return Row(job, entries[-1] if entries else None, doubts_of(job, steps), misfits_of(job, steps, history))


def _shape(row: Row) -> dict[str, object]:
    job, entry, doubts, _ = row
    return {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "since": moment(job.created_at if entry is None else entry.at),
        "failed_attempts": job.attempt - 1,
        "recoveries": job.recoveries,
        "error": error_shape(job.error),
        "in_doubt": list(doubts),
        "possible": list(POSSIBLE),
    }


@click.command(
    epilog="""\b
Examples:
  holdfast replay 4f2a91bc
  holdfast replay 4f2a91bc 77ab01ce --reason "quota raised"
  holdfast replay 4f2a91bc --args '[{"title": "The Lighthouse"}]' --app video:app

\b
Recorded steps are not run again; failed ones are. Attempts start anew.
--args is the whole list of arguments, as `holdfast show` prints it: in the function's order,
keyword-only ones in a last {"**": {"name": value}}. Without --app their type hints are not
known here: any list is taken, and what doesn't fit fails when the job runs.
--json is the job's new status; with several ids {"jobs": [...], "refused": [...]}.
"""
)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=REVIEW_IDS)
@click.option("--args", metavar="JSON", help="Other arguments than before, as a JSON array. For one job.")
@app_option
@reason_option
@json_option
@url_option
def replay(
    ids: tuple[str, ...], args: str | None, target: str | None, reason: str, as_json: bool, url: str | None
) -> None:
    """Run jobs in review again, from what they have recorded."""
    if args is not None:
        if len(ids) > 1:
            raise click.UsageError("--args is for one job: give one ID")
        args = arguments_given("--args", args)
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
The job completes with this result, as if it had returned it. Without --app type hints are
not known here: any JSON is taken, and what doesn't fit fails where the result is read.
With --step it is about a step in doubt, by the path that `holdfast show` prints: an effect that
was begun and not recorded. With --result it happened, and this came of it; with --again it did
not. After the last of its steps in doubt the job goes on.
--json is the job's new status.
"""
)
@click.argument("id", shell_complete=REVIEW_IDS)
@click.option("--result", metavar="JSON", help="The result that the job, or the step, completes with.")
@click.option("--step", "path", metavar="STEP", help="A step in doubt, instead of the whole job.")
@click.option("--again", is_flag=True, help="The step did not happen: do it again.")
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
    """Complete a job in review with a result of your own, or say of a step in doubt whether it happened."""
    if again and path is None:
        raise click.UsageError("--again is for a step in doubt: name it with --step")
    if again and result is not None:
        raise click.UsageError("--again says that it did not happen and --result that it did: give one of them")
    if path is not None and not again and result is None:
        raise click.UsageError("say of the step --result JSON if it happened, or --again if it did not")
    if path is None and result is None:
        raise _missing("result")
    value = None if result is None else json_given("--result", result)
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
    """An option is missing that is only needed without certain others."""
    ctx = click.get_current_context()
    return click.MissingParameter(ctx=ctx, param=next(param for param in ctx.command.params if param.name == name))


def _resolve_step(call: "Call", path: str, result: object, again: bool, reason: str) -> None:
    """Say of a step in doubt whether it happened."""

    async def act(jobs: Jobs, id: str) -> Job:
        await jobs.get(id)  # a job that isn't there is told as such
        if call.target is not None and not again:
            names = [step.name for step in await jobs.engine.steps(id) if step.path == path]
            check_step_result(call.target, names[0] if names else path, result)
        return await jobs.resolve_step(id, path, result, again=again, by=whoami(), reason=reason)

    _each(call, act)


@click.command(
    epilog="""\b
Examples:
  holdfast discard 4f2a91bc --reason "the customer left"
  holdfast discard 4f2a91bc 77ab01ce --yes

\b
For good: nothing leads out of there, and what the job made is undone. Several ids need a yes.
--json is the job's new status; with several ids {"jobs": [...], "refused": [...]}.
"""
)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=REVIEW_IDS)
@click.option("--yes", is_flag=True, help="Don't ask.")
@reason_option
@json_option
@url_option
def discard(ids: tuple[str, ...], yes: bool, reason: str, as_json: bool, url: str | None) -> None:
    """Give up jobs in review for good."""
    if len(ids) > 1 and not yes:
        confirm(f"discard {counted(len(ids), 'job')} for good?")
    _each(
        Call(ids, "discarded", as_json, url),
        lambda jobs, id: jobs.discard(id, by=whoami(), reason=reason),
    )


class Call(NamedTuple):
    """What the three have in common: which jobs, how it is told, in which store, and by which App it is checked."""

    ids: tuple[str, ...]
    done: str
    as_json: bool
    url: str | None
    target: str | None = None


def _each(
    call: Call, act: Callable[[Jobs, str], Awaitable[Job]], check: Callable[[Job, Signature], object] | None = None
) -> None:
    """Do the same to each job. All are looked up and checked before the first is changed.

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
                left = len(doubts_of(job, await jobs.engine.steps(id)))
                more = f", {counted(left, 'step')} still in doubt" if left else ""
                console().print(f"{call.done} {short(id)}: it is {standing(job.state)}{more}")
        return done, refused

    _tell(call, *in_store(call.url or (None if app is None else app.url), work, write=True))


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
