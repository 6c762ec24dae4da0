"""`holdfast jobs`: list jobs, page by page. Must not change anything."""

from collections.abc import Mapping

import click
from rich.console import Console
from rich.text import Text

from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import StateChoice, json_option, url_option
from holdfast.cli.render.screen import (
    LEAST_WIDTH,
    Hanging,
    console,
    last_cell,
    plain_table,
    say_json,
    state_text,
    table_width,
)
from holdfast.core.keys import check_queue, check_type
from holdfast.core.model import PAGE_LIMIT, Job, Spending, State, Time, Where
from holdfast.jobs.budgets import budgets_of
from holdfast.jobs.ids import find_id
from holdfast.jobs.limit_status import limit_waits
from holdfast.jobs.service import Jobs as Store
from holdfast.jobs.spending import spending_of, spending_shape, spending_words
from holdfast.jobs.views.names import suggest_names
from holdfast.jobs.views.remarks import remark, when_words
from holdfast.jobs.views.shapes import job_shape
from holdfast.jobs.views.text import SHORT_ID, short_id


@click.command(
    epilog="""\b
Examples:
  holdfast jobs
  holdfast jobs --state active --state retryable
  holdfast jobs --queue video --type make_video --oldest --limit 100
  holdfast jobs --json | jq -r '.jobs[].id'

\b
A full page says how to get the next one: holdfast jobs --after ID.
A short id is the end of the whole id; every verb accepts it.
"""
)
@click.option(
    "--state", "states", multiple=True, type=StateChoice(*State), help="Only jobs in this state; may be repeated."
)
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--type", "kind", help="Only jobs of this type.")
@click.option("--limit", type=click.IntRange(1, PAGE_LIMIT), default=20, show_default=True, help="How many at most.")
@click.option("--newest/--oldest", "newest", default=True, help="Newest or oldest first.  [default: newest]")
@click.option("--after", metavar="ID", help="Start after this job, for the next page.")
@json_option
@url_option
def jobs(
    states: tuple[str, ...],
    queue: str | None,
    kind: str | None,
    limit: int,
    newest: bool,
    after: str | None,
    as_json: bool,
    url: str | None,
) -> None:
    """List jobs."""
    where = Where(
        states=tuple(State(state) for state in states),
        queue=None if queue is None else check_queue(queue),
        type=None if kind is None else check_type(kind),
        newest_first=newest,
    )

    async def work(store: Store) -> tuple[list[Job], bool, Time, str, dict[str, Spending], dict[str, str]]:
        behind = "" if after is None else await find_id(store, after)
        page = await store.engine.find(where, behind, min(limit + 1, PAGE_LIMIT))
        more = len(page) > limit or (limit == PAGE_LIMIT and len(page) == limit)
        hint = "" if page else await suggest_names(store, queue, kind)
        page, now = page[:limit], await store.engine.now()
        limited = await limit_waits(store.engine, page, {}, now, await budgets_of(store.engine, page))
        words = {id: str(one) for id, one in limited.items()}
        return page, more, now, hint, await spending_of(store, page), words

    page, more, now, hint, spent, limited = run_in_store(url, work)
    if as_json:
        shapes = [{**job_shape(job), **spending_shape(spent.get(job.id, Spending()))} for job in page]
        say_json({"jobs": shapes, "next": page[-1].id if more else None})
    else:
        remarks = {job.id: remark(job, now, limited.get(job.id, "")) for job in page}
        _show(page, more, now, hint, {id: spending_words(spending) for id, spending in spent.items()}, remarks)


def _show(
    page: list[Job], more: bool, now: Time, hint: str, spent: Mapping[str, str], remarks: Mapping[str, str]
) -> None:
    out = console()
    if not page:
        out.print(f"no such jobs{hint}")
        return
    cells = [[short_id(job.id), job.type, job.queue, job.state, when_words(job, now)] for job in page]
    if spent:
        cells = [[*row, spent.get(job.id, "")] for job, row in zip(page, cells, strict=True)]
    if table_width(cells) + LEAST_WIDTH > out.width:
        _show_lines(out, page, now, spent, remarks)
    else:
        table = plain_table("id", "type", "queue", "state", "when", *(["spent"] if spent else []), "")
        for job, (id, kind, queue, _, *rest) in zip(page, cells, strict=True):
            table.add_row(id, kind, queue, state_text(job.state), *rest, last_cell(remarks[job.id]))
        out.print(table)
    if more:
        out.print(f"for more, add --after {short_id(page[-1].id)}", style="dim")


def _show_lines(out: Console, page: list[Job], now: Time, spent: Mapping[str, str], remarks: Mapping[str, str]) -> None:
    """Print each job in a few lines, where a table would cut its columns."""
    for job in page:
        words = Text(f"{job.type}  ", "bold") + state_text(job.state) + Text(f", {when_words(job, now)}")
        words += Text(f"; queue {job.queue}", "dim")
        if job.id in spent:
            words += Text(f"; spent {spent[job.id]}")
        out.print(Hanging(words, SHORT_ID + 2, Text(short_id(job.id), "cyan")))
        if said := remarks[job.id]:
            out.print(Hanging(Text(said), SHORT_ID + 2))
