"""`holdfast cancel`: stop one job, some, or all of a kind. Must not decide what a cancel does (`lifecycle`)."""

import asyncio
from collections.abc import Sequence

import click

from holdfast.cli.ids import find_ids, job_ids
from holdfast.cli.states import StateChoice
from holdfast.cli.store import confirm, in_store, json_option, reason_option, url_option, whoami
from holdfast.cli.words import console, counted, say_json, short
from holdfast.core.errors import NotAllowed, NotFound, Refused
from holdfast.core.keys import check_queue, check_type
from holdfast.core.lifecycle import EVENT_ROWS
from holdfast.core.model import Event, State, Where
from holdfast.jobs import Jobs

LIVE = EVENT_ROWS[Event.CANCEL].sources
"""The states that a cancel leads out of."""

AT_ONCE = 200
"""How many cancels are under way together: they share the store's commits."""

TOLD = 10
"""How many refusals are told one by one."""


@click.command(
    epilog="""\b
Examples:
  holdfast cancel 4f2a91bc --reason "wrong brief"
  holdfast cancel 4f2a91bc 77ab01ce 9c1d22aa
  holdfast cancel --queue video --state available
  holdfast cancel --type make_video --yes --reason "provider is down"

\b
Without ids all jobs that fit the options and have not ended are cancelled, after a question
(--yes answers it; without a terminal it is needed). Jobs in review are only among them with
--state review. A running job loses its lease at once.
"""
)
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=job_ids(*LIVE))
@click.option("--queue", help="All jobs of this queue.")
@click.option("--type", "kind", help="All jobs of this type.")
@click.option("--state", "states", multiple=True, type=StateChoice(*LIVE), help="All jobs in this state.")
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
    """Stop jobs for good: by id, or all that fit."""
    picked = bool(queue or kind or states)
    if bool(ids) == picked:
        raise click.UsageError("give ids, or --queue, --type or --state, and not both")
    where = Where(
        states=tuple(State(state) for state in states) or tuple(state for state in LIVE if state is not State.REVIEW),
        queue=None if queue is None else check_queue(queue),
        type=None if kind is None else check_type(kind),
    )

    async def work(jobs: Jobs) -> list[tuple[str, Refused | None]]:
        chosen = await find_ids(jobs, ids) if ids else [job.id async for job in jobs.walk(where)]
        if picked and chosen and not yes:
            confirm(f"cancel {counted(len(chosen), 'job')}?")
        return await cancel_all(jobs, chosen, reason)

    _tell(in_store(url, work, write=True), as_json, told_singly=bool(ids))


async def cancel_all(jobs: Jobs, ids: Sequence[str], reason: str) -> list[tuple[str, Refused | None]]:
    """Cancel each of these, and answer with why not where it was refused."""

    async def one(id: str) -> tuple[str, Refused | None]:
        try:
            await jobs.cancel(id, by=whoami(), reason=reason)
        except (NotAllowed, NotFound) as error:
            return id, error
        return id, None

    answers: list[tuple[str, Refused | None]] = []
    for place in range(0, len(ids), AT_ONCE):
        answers += await asyncio.gather(*(one(id) for id in ids[place : place + AT_ONCE]))
    return answers


def _tell(answers: list[tuple[str, Refused | None]], as_json: bool, *, told_singly: bool) -> None:
    done = [id for id, error in answers if error is None]
    refused = [(id, error) for id, error in answers if error is not None]
    if as_json:
        say_json({"cancelled": done, "refused": [{"id": id, "why": str(error)} for id, error in refused]})
    elif told_singly:
        for id in done:
            console().print(f"cancelled {short(id)}")
    else:
        console().print(f"cancelled {counted(len(done), 'job')}")
    for _, error in refused[: TOLD if not as_json else 0]:
        click.echo(f"holdfast: {error}", err=True)
    if len(refused) > TOLD and not as_json:
        click.echo(f"holdfast: and {len(refused) - TOLD:,} more were refused", err=True)
    # Of those picked by kind, one that ended by itself meanwhile is no failure: it is not running any more.
    if refused and told_singly:
        raise SystemExit(1)
