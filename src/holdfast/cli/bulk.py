"""What the verbs for many jobs share: the options that select jobs, and asking before a durable act on all of them.

Must not decide what an act does (`jobs.bulk_acts`).
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from holdfast.cli.errors import echo
from holdfast.cli.open_store import run_in_store
from holdfast.cli.person import confirm
from holdfast.cli.render.screen import console, say_json
from holdfast.core.model import Job
from holdfast.jobs.bulk_acts import NO_WORKER, Act, check_act, count_concerned, served_queues, submit_act
from holdfast.jobs.replay_plans import preview_replays
from holdfast.jobs.selections import Selection
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.text import name_some, plural, short_id

F = TypeVar("F", bound=Callable[..., Any])


def selection_options(command: F) -> F:
    """Add the options that select jobs by what they have in common. See `selection_of`."""
    for option in (
        click.option("--failed-in", metavar="STEP", help="Jobs that this step stopped, as `holdfast review` names it."),
        click.option("--error", metavar="TYPE", help="Jobs with an error of this type."),
        click.option("--queue", help="Jobs of this queue."),
        click.option("--type", "kind", help="Jobs of this type."),
    ):
        command = option(command)
    return command


def selection_of(ids: tuple[str, ...], given: dict[str, Any]) -> Selection | None:
    """Return the selection that the options make, or None if the call names ids instead."""
    chosen = Selection(type=given["kind"], queue=given["queue"], error=given["error"], step=given["failed_in"])
    if bool(ids) == (chosen != Selection()):
        raise click.UsageError("give either ids, or --type, --queue, --error or --failed-in")
    return None if ids else chosen


def run_act(act: Act, *, yes: bool, as_json: bool, url: str | None) -> None:
    """Show what an act would do, ask, and submit it. With `yes`, don't ask."""
    act = check_act(act)
    if not yes:
        total, words = run_in_store(url, lambda jobs: _preview(jobs, act))
        if total and not as_json:
            console().print(words, soft_wrap=True, markup=False)
        if total:
            confirm(f"{act.verb} {plural(total, 'job')}?")
    submitted, is_served = run_in_store(url, _submit(act), write=True)
    if as_json:
        say_json({"act": submitted.id, "verb": act.verb, "selection": act.chosen.words()})
        return
    id = short_id(submitted.id)
    console().print(
        f"submitted {id}: a worker of queue {submitted.queue} does it; holdfast status {id} --watch", soft_wrap=True
    )
    if not is_served:
        echo(f"note: {NO_WORKER}", err=True)
    console().print(f"to stop it: holdfast cancel {id}", style="dim", soft_wrap=True)


def _submit(act: Act) -> Callable[[Jobs], Awaitable[tuple[Job, bool]]]:
    async def submit(jobs: Jobs) -> tuple[Job, bool]:
        job = await submit_act(jobs, act)
        return job, job.queue in await served_queues(jobs)

    return submit


async def _preview(jobs: Jobs, act: Act) -> tuple[int, str]:
    if act.verb == "replay":
        plan = await preview_replays(jobs, act.chosen)
        return plan.total, str(plan)
    types = await count_concerned(jobs, act)
    named = name_some([f"{number:,} {type}" for type, number in types.most_common()])
    return types.total(), f"{act.verb}: {plural(types.total(), 'job')}{f' ({named})' if named else ''}"
