"""`holdfast cancel`: stop one job, some, or all of a kind. Must not decide what a cancel does (`lifecycle`)."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import click

from holdfast.cli.errors import echo
from holdfast.cli.ids import find_ids, job_ids
from holdfast.cli.open_store import confirm, in_store, json_option, reason_option, url_option, whoami
from holdfast.cli.states import StateChoice
from holdfast.cli.words import console, counted, say_json, short
from holdfast.core.errors import NotAllowed, NotFound, Refused
from holdfast.core.keys import check_queue, check_type, derived_id
from holdfast.core.lifecycle import EVENT_ROWS
from holdfast.core.model import Event, State, Where
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.service import Jobs

LIVE = EVENT_ROWS[Event.CANCEL].sources
"""The states that a cancel leads out of."""

AT_ONCE = 200
"""How many cancels are under way together: they share the store's commits."""

UNDO = "undo"
"""From this and a job's id comes the id of the job that undoes what it made (`lifecycle.undo_job`)."""

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
--state review. A running job loses its lease at once. Children are cancelled, too. What was made
is undone, where the code says how (undo=, cleanup=), by jobs of type holdfast.undo. A job that
runs always gets one: it may just be making something. By id or --type they are cancelled, too.
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

    async def choose(jobs: Jobs) -> list[str]:
        if ids:
            return await find_ids(jobs, ids)
        # The jobs that undo are left alone: without them, what the others made would stay.
        return [job.id async for job in jobs.walk(where) if job.type != UNDO_TYPE or kind == UNDO_TYPE]

    async def work(jobs: Jobs) -> list[Answer]:
        return await cancel_all(jobs, await choose(jobs) if chosen is None else chosen, reason)

    chosen: list[str] | None = None
    if picked and not yes:
        # The store is closed while a person thinks, and no event loop runs: it would swallow a Ctrl-C.
        chosen = in_store(url, choose, write=True)
        if chosen:
            confirm(_question(len(chosen)))
    _tell(in_store(url, work, write=True), as_json, told_singly=bool(ids))


def _question(number: int) -> str:
    its, it = ("its", "it") if number == 1 else ("their", "they")
    return f"cancel {counted(number, 'job')}, with {its} children, and undo what {it} made, where the code says how?"


class Answer(NamedTuple):
    """What became of one cancel: why it was refused, or the job that undoes what was made, if one is needed."""

    id: str
    refused: Refused | None = None
    undo: str | None = None


async def cancel_all(jobs: Jobs, ids: Sequence[str], reason: str) -> list[Answer]:
    """Cancel each of these, and answer with why not where it was refused."""

    async def one(id: str) -> Answer:
        try:
            await jobs.cancel(id, by=whoami(), reason=reason)
        except NotAllowed as error:
            # A child may have been cancelled with its parent, which is among these.
            (now,) = await jobs.engine.get([id])
            if id not in live or now is None or now.state is not State.CANCELLED:
                return Answer(id, error)
        except NotFound as error:
            return Answer(id, error)
        (undo,) = await jobs.engine.get([derived_id(id, UNDO)])
        return Answer(id, undo=None if undo is None else undo.id)

    answers: list[Answer] = []
    pages = [ids[place : place + AT_ONCE] for place in range(0, len(ids), AT_ONCE)]
    live = {job.id for page in pages for job in await jobs.engine.get(page) if job is not None and job.state in LIVE}
    for page in pages:
        answers += await asyncio.gather(*(one(id) for id in page))
    return answers


def _tell(answers: list[Answer], as_json: bool, *, told_singly: bool) -> None:
    done = [answer for answer in answers if answer.refused is None]
    refused = [(answer.id, answer.refused) for answer in answers if answer.refused is not None]
    undone = [answer.undo for answer in done if answer.undo is not None]
    if as_json:
        whys = [{"id": id, "why": str(error)} for id, error in refused]
        say_json({"cancelled": [answer.id for answer in done], "refused": whys, "undo": undone})
    elif told_singly:
        for answer in done:
            undo = "" if answer.undo is None else f"; {short(answer.undo)} undoes what it made, where the code says how"
            console().print(f"cancelled {short(answer.id)}{undo}", soft_wrap=True)
    else:
        undoers = counted(len(undone), f"job of type {UNDO_TYPE} undoes", f"jobs of type {UNDO_TYPE} undo")
        undo = f"; {undoers} what they made, where the code says how" if undone else ""
        console().print(f"cancelled {counted(len(done), 'job')}{undo}", soft_wrap=True)
    for _, error in refused[: TOLD if not as_json else 0]:
        echo(f"holdfast: {error}", err=True)
    if len(refused) > TOLD and not as_json:
        echo(f"holdfast: and {len(refused) - TOLD:,} more were refused", err=True)
    # Of those picked by kind, one that ended by itself meanwhile is no failure: it is not running any more.
    if refused and told_singly:
        raise SystemExit(1)
