"""`holdfast cancel`: cancel one job, several, or all that match. Must not decide what a cancel does (`lifecycle`)."""

import click

from holdfast.cli.errors import echo
from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import StateChoice, job_ids, json_option, reason_option, url_option
from holdfast.cli.person import confirm, whoami
from holdfast.cli.render.screen import console, say_json
from holdfast.core.keys import check_queue, check_type
from holdfast.core.model import State, Where
from holdfast.jobs.cancel_many import CANCELLABLE, CancelAnswer, cancel_many
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.ids import find_ids
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.names import suggest_names
from holdfast.jobs.views.text import plural, short_id

REFUSALS_SHOWN = 10
"""How many refusals are listed one by one."""


@click.command(
    epilog="""\b
Examples:
  holdfast cancel 4f2a91bc --reason "wrong brief"
  holdfast cancel 4f2a91bc 77ab01ce 9c1d22aa
  holdfast cancel --queue video --state available
  holdfast cancel --type make_video --yes --reason "provider is down"

\b
Without ids, cancels all unfinished jobs that match the options, after asking (--yes skips the
question; without a terminal it is required). Jobs in review are included only with --state
review. A running job loses its lease at once. Child jobs are cancelled, too. What the jobs made
is undone by jobs of type holdfast.undo, where the code says how (undo=, cleanup=). A running
job always gets one, because it may be making something at this moment. To cancel an undo job,
give its id or --type holdfast.undo.
"""
)
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=job_ids(*CANCELLABLE))
@click.option("--queue", help="All jobs of this queue.")
@click.option("--type", "kind", help="All jobs of this type.")
@click.option("--state", "states", multiple=True, type=StateChoice(*CANCELLABLE), help="All jobs in this state.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@reason_option
@json_option
@url_option
def cancel(
    ids: tuple[str, ...],
    queue: str | None,
    kind: str | None,
    states: tuple[str, ...],
    yes: bool,
    reason: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Cancel jobs by id, or all that match."""
    picked = bool(queue or kind or states)
    if bool(ids) == picked:
        raise click.UsageError("give either ids, or --queue, --type or --state")
    where = Where(
        states=tuple(State(state) for state in states)
        or tuple(state for state in CANCELLABLE if state is not State.REVIEW),
        queue=None if queue is None else check_queue(queue),
        type=None if kind is None else check_type(kind),
    )

    async def choose(jobs: Jobs) -> list[str]:
        if ids:
            return await find_ids(jobs, ids)
        # Leave the undo jobs alone: without them, what the other jobs made would stay.
        return [job.id async for job in jobs.walk(where) if job.type != UNDO_TYPE or kind == UNDO_TYPE]

    async def work(jobs: Jobs) -> list[CancelAnswer]:
        found = await choose(jobs) if chosen is None else chosen
        if not found and (hint := await suggest_names(jobs, queue, kind)):
            echo(f"note: no such jobs{hint}", err=True)
        return await cancel_many(jobs, found, by=whoami(), reason=reason)

    chosen: list[str] | None = None
    if picked and not yes:
        # Close the store while a person thinks. No event loop runs either: it would swallow Ctrl-C.
        chosen = run_in_store(url, choose, write=True)
        if chosen:
            confirm(_question(len(chosen)))
    _print_answers(run_in_store(url, work, write=True), as_json, by_id=bool(ids))


def _question(number: int) -> str:
    its, it = ("its", "it") if number == 1 else ("their", "they")
    return f"cancel {plural(number, 'job')}, with {its} children, and undo what {it} made, where the code says how?"


def _print_answers(answers: list[CancelAnswer], as_json: bool, *, by_id: bool) -> None:
    done = [answer for answer in answers if answer.refused is None]
    refused = [(answer.id, answer.refused) for answer in answers if answer.refused is not None]
    undone = [answer.undo for answer in done if answer.undo is not None]
    if as_json:
        whys = [{"id": id, "why": str(error)} for id, error in refused]
        say_json({"cancelled": [answer.id for answer in done], "refused": whys, "undo": undone})
    elif by_id:
        for answer in done:
            undo = (
                "" if answer.undo is None else f"; {short_id(answer.undo)} undoes what it made, where the code says how"
            )
            console().print(f"cancelled {short_id(answer.id)}{undo}", soft_wrap=True)
    else:
        undoers = plural(len(undone), f"job of type {UNDO_TYPE} undoes", f"jobs of type {UNDO_TYPE} undo")
        undo = f"; {undoers} what they made, where the code says how" if undone else ""
        console().print(f"cancelled {plural(len(done), 'job')}{undo}", soft_wrap=True)
    for _, error in refused[: REFUSALS_SHOWN if not as_json else 0]:
        echo(f"holdfast: {error}", err=True)
    if len(refused) > REFUSALS_SHOWN and not as_json:
        echo(f"holdfast: and {len(refused) - REFUSALS_SHOWN:,} more were refused", err=True)
    # A job picked by an option that ended in the meantime is not a failure: it isn't running any more.
    if refused and by_id:
        raise SystemExit(1)
