"""`holdfast budget`: what jobs have spent of their budgets; add to one. Must not decide what a step may spend."""

from collections.abc import Iterator

import click
from rich.text import Text

from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import job_ids, json_option, reason_option, url_option
from holdfast.cli.person import whoami
from holdfast.cli.render.screen import console, print_lines, say_json
from holdfast.core.lifecycle import EVENT_ROWS, standing
from holdfast.core.model import Event, Job, Time
from holdfast.core.spending import in_words
from holdfast.jobs.budgets import Budget, get_budget, is_waiting, list_budgets
from holdfast.jobs.ids import find_id
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.shapes import Shape, budget_detail_shape
from holdfast.jobs.views.text import ago, one_line, short_id


@click.command(
    epilog="""\b
Examples:
  holdfast budget
  holdfast budget 4f2a91bc
  holdfast budget 4f2a91bc --add usd=5 --reason "worth it"
  holdfast budget 4f2a91bc --add usd=5 --add tokens=100000

\b
Without an id, lists the budgets of all jobs that have begun to spend and have not ended. Children
draw on the budget of their root job, so the id of a child shows the same budget.
"""
)
@click.argument("id", required=False, shell_complete=job_ids(*EVENT_ROWS[Event.CANCEL].sources))
@click.option("--add", "added", multiple=True, metavar="CURRENCY=N", help="Add so much: usd=5, tokens=100000.")
@reason_option
@json_option
@url_option
def budget(id: str | None, added: tuple[str, ...], reason: str, as_json: bool, url: str | None) -> None:
    """List the budgets of jobs, show one, or add to it."""
    if id is None and added:
        raise click.UsageError("--add needs the id of a job: holdfast budget ID --add usd=5")
    given = _amounts(added)

    async def work(jobs: Jobs) -> None:
        if id is None:
            _show_all(await list_budgets(jobs.engine), as_json)
            return
        whole = await find_id(jobs, id)
        if given:
            await jobs.add_budget(whole, given, by=whoami(), reason=reason)
        job, found = await get_budget(jobs.engine, whole)
        if as_json:
            say_json(_shape(job, found))
            return
        now, out = await jobs.engine.now(), console()
        if given:
            out.print(f"added to the budget of {short_id(job.id)}")
        print_lines(out, _lines(job, found, now))

    run_in_store(url, work, write=bool(given))


def _show_all(found: list[tuple[Job, Budget]], as_json: bool) -> None:
    if as_json:
        say_json({"budgets": [_shape(job, one) for job, one in found]})
        return
    out = console()
    if not found:
        out.print(
            "no job uses a budget: give one with @app.job(budget={'usd': 5}) or submit(…, budget=…)", markup=False
        )
    print_lines(out, (next(_lines(job, one, 0)) for job, one in found))


def _lines(job: Job, one: Budget, now: Time) -> Iterator[Text]:
    how, style = ("waits for more", "yellow") if is_waiting(job) else (standing(job.state), "dim")
    yield Text() + Text(short_id(job.id), "bold") + Text(f"  {one_line(job.type, 40)}  {one}  ") + Text(how, style)
    for note in one.notes:
        reason = f": {one_line(note.reason)}" if note.reason else ""
        yield Text(f"  {in_words(note.added)} added by {one_line(note.by)} {ago(note.at, now)}{reason}", style="dim")


def _shape(job: Job, one: Budget) -> Shape:
    return {"id": job.id, "type": job.type, "state": job.state, "waits": is_waiting(job), **budget_detail_shape(one)}


def _amounts(added: tuple[str, ...]) -> dict[str, float]:
    """Read what `--add` says; the same currency may be given twice."""
    given: dict[str, float] = {}
    for text in added:
        name, _, number = text.partition("=")
        try:
            given[name] = given.get(name, 0) + float(number)
        except ValueError:
            raise click.UsageError(f"--add {text}: write a currency and a number, such as usd=5") from None
    return given
