"""`holdfast review`, `replay`, `resolve`, `discard`: the jobs that need a person. Must not decide (`lifecycle`)."""

from collections.abc import Awaitable, Callable

import click
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.ids import find_id, find_ids, job_ids
from holdfast.cli.shapes import error_shape, moment
from holdfast.cli.store import confirm, in_store, json_option, reason_option, url_option, whoami
from holdfast.cli.words import ago, console, counted, error_line, say_json, short
from holdfast.core.codec import parse
from holdfast.core.errors import Invalid, NotAllowed, NotFound, Refused
from holdfast.core.lifecycle import EVENTS
from holdfast.core.model import Entry, Job, State, Time, Where
from holdfast.jobs import Jobs

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
  holdfast resolve ID       it counts as done, with your result
  holdfast discard ID       given up
"""
)
@json_option
@url_option
def review(as_json: bool, url: str | None) -> None:
    """List the jobs that need a person."""

    async def work(jobs: Jobs) -> tuple[list[tuple[Job, Entry | None]], int, Time]:
        found = await jobs.engine.find(Where(states=(State.REVIEW,), newest_first=True))
        total = sum(number for (_, state), number in (await jobs.engine.count()).items() if state is State.REVIEW)
        chosen = found if as_json else found[:SHOWN]
        return [(job, await _last(jobs, job)) for job in chosen], total, await jobs.engine.now()

    rows, total, now = in_store(url, work)
    if as_json:
        say_json({"jobs": [_shape(job, entry) for job, entry in rows], "total": total})
        return
    out = console()
    if not rows:
        out.print("nothing needs a person")
        return
    out.print(f"{counted(total, 'job')} {'needs' if total == 1 else 'need'} a person\n")
    for job, entry in rows:
        since = job.created_at if entry is None else entry.at
        line = Text() + Text(short(job.id), style="cyan") + Text(f"  {job.type}", style="bold")
        out.print(line + Text(f"  since {ago(since, now)}, {_tries(job)}", style="dim"))
        out.print(Padding(Text(error_line(job.error) or "no error was kept", "red"), (0, 0, 0, 10)))
    if total > len(rows):
        out.print(f"\nand {total - len(rows):,} more: holdfast jobs --state review", style="dim")
    out.print(f"\nlook with holdfast show ID, then: {', '.join(POSSIBLE)}", style="dim")


async def _last(jobs: Jobs, job: Job) -> Entry | None:
    """The entry that brought it here: signals may have come since."""
    entries = [entry for entry in await jobs.history(job.id) if entry.before is not State.REVIEW]
    return entries[-1] if entries else None


def _tries(job: Job) -> str:
    failures = job.attempt - 1
    words = [counted(failures, "failed attempt")] if failures else []
    if job.recoveries:
        words.append(f"{counted(job.recoveries, 'worker')} lost")
    return ", ".join(words) or "no failed attempt"


def _shape(job: Job, entry: Entry | None) -> dict[str, object]:
    return {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "since": moment(job.created_at if entry is None else entry.at),
        "failed_attempts": job.attempt - 1,
        "recoveries": job.recoveries,
        "error": error_shape(job.error),
        "possible": list(POSSIBLE),
    }


@click.command(
    epilog="""\b
Examples:
  holdfast replay 4f2a91bc
  holdfast replay 4f2a91bc 77ab01ce --reason "quota raised"
  holdfast replay 4f2a91bc --args '[{"title": "The Lighthouse"}]'

\b
Recorded steps are not run again; failed ones are. Attempts start anew.
--args is the whole list of arguments, as `holdfast show` prints it.
"""
)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=REVIEW_IDS)
@click.option("--args", metavar="JSON", help="Other arguments than before. For one job.")
@reason_option
@url_option
def replay(ids: tuple[str, ...], args: str | None, reason: str, url: str | None) -> None:
    """Run jobs in review again, from what they have recorded."""
    if args is not None:
        if len(ids) > 1:
            raise click.UsageError("--args is for one job: give one ID")
        _check_args(args)
    _each(url, ids, "replayed", lambda jobs, id: jobs.replay(id, args=args, by=whoami(), reason=reason))


@click.command(
    epilog="""\b
Examples:
  holdfast resolve 4f2a91bc --result '{"url": "https://example.org/film.mp4"}'
  holdfast resolve 4f2a91bc --result null --reason "done by hand"

\b
The job completes with this result, as if it had returned it.
"""
)
@click.argument("id", shell_complete=REVIEW_IDS)
@click.option("--result", metavar="JSON", required=True, help="The result that it completes with.")
@reason_option
@url_option
def resolve(id: str, result: str, reason: str, url: str | None) -> None:
    """Complete a job in review with a result of your own."""
    value = parse(result)
    _each(url, [id], "resolved", lambda jobs, whole: jobs.resolve(whole, value, by=whoami(), reason=reason))


@click.command(
    epilog="""\b
Examples:
  holdfast discard 4f2a91bc --reason "the customer left"
  holdfast discard 4f2a91bc 77ab01ce --yes

\b
For good: nothing leads out of there. Several ids need a yes.
"""
)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=REVIEW_IDS)
@click.option("--yes", is_flag=True, help="Don't ask.")
@reason_option
@url_option
def discard(ids: tuple[str, ...], yes: bool, reason: str, url: str | None) -> None:
    """Give up jobs in review for good."""
    if len(ids) > 1 and not yes:
        confirm(f"discard {counted(len(ids), 'job')} for good?")
    _each(url, ids, "discarded", lambda jobs, id: jobs.discard(id, by=whoami(), reason=reason))


def _check_args(text: str) -> None:
    """Arguments are kept as a list; anything else no job could read."""
    if not isinstance(parse(text), list):
        raise Invalid(f"--args {text}: give the whole list of arguments as JSON, for example '[\"a lighthouse\"]'")


def _each(
    url: str | None, ids: tuple[str, ...] | list[str], done: str, act: Callable[[Jobs, str], Awaitable[Job]]
) -> None:
    """Do the same to each job. All are looked up before the first is changed; a refusal doesn't stop the others."""

    async def work(jobs: Jobs) -> list[Refused]:
        refused: list[Refused] = []
        whole = await find_ids(jobs, ids) if len(ids) > 1 else [await find_id(jobs, ids[0])]
        for id in whole:
            try:
                job = await act(jobs, id)
            except (NotAllowed, NotFound) as error:
                refused.append(error)
                continue
            console().print(f"{done} {short(id)}: it is {job.state}")
        return refused

    refused = in_store(url, work)
    for error in refused:
        click.echo(f"holdfast: {error}", err=True)
    if refused:
        raise SystemExit(1)
