"""`holdfast review`: the jobs that need a person, in groups or one by one. Must not change anything."""

import click

from holdfast.cli.open_store import run_in_store
from holdfast.cli.options import job_ids, json_option, url_option
from holdfast.cli.render.job import print_job
from holdfast.cli.render.review import print_groups, print_review
from holdfast.cli.render.screen import console, say_json
from holdfast.core.model import PAGE_LIMIT, State, Time
from holdfast.jobs.ids import find_job
from holdfast.jobs.replay_plans import Plan, preview_replay
from holdfast.jobs.selections import Selection
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.job import JobView, view_job
from holdfast.jobs.views.plans import plan_shape
from holdfast.jobs.views.review import POSSIBLE, ReviewView, view_reviews
from holdfast.jobs.views.review_groups import ReviewGroup, view_groups
from holdfast.jobs.views.text import plural

SHOWN = 50
"""How many jobs in review are listed; `--json` has up to a page of them."""

GROUPED_FROM = 10
"""With more jobs in review, the list is of groups, unless --each is given."""


@click.command(
    epilog="""\b
Examples:
  holdfast review
  holdfast review --type make_video
  holdfast review 4f2a91bc
  holdfast review --json | jq -r '.jobs[].id'

\b
More than 10 jobs are listed in groups, by type, step and error. With ID, shows everything about
one job, and what a replay would do.

\b
Then, for each job: holdfast show ID, and one of
  holdfast replay ID        run it again; recorded steps keep their results
  holdfast resolve ID       complete it with your result; with --step, decide a step in doubt
  holdfast discard ID       give it up
For a whole group: --type, --queue, --error, --failed-in instead of ID.
"""
)
@click.argument("id", required=False, shell_complete=job_ids(State.REVIEW))
@click.option("--type", "kind", help="Only jobs of this type.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--groups", is_flag=True, help="List groups, however few jobs there are.")
@click.option("--each", is_flag=True, help="List each job, however many there are.")
@json_option
@url_option
def review(
    id: str | None, kind: str | None, queue: str | None, groups: bool, each: bool, as_json: bool, url: str | None
) -> None:
    """List the jobs that need a person."""
    if groups and each:
        raise click.UsageError("give --groups or --each, not both")
    if id is not None:
        _show_one(id, as_json, url)
        return
    chosen = Selection(type=kind, queue=queue)

    async def work(jobs: Jobs) -> tuple[list[ReviewView], int, list[ReviewGroup], Time]:
        views, total = await view_reviews(jobs, chosen, PAGE_LIMIT if as_json else SHOWN)
        is_grouped = as_json or groups or (total > GROUPED_FROM and not each)
        found = await view_groups(jobs, chosen) if is_grouped else []
        return views, total, found, await jobs.engine.now()

    views, total, found, now = run_in_store(url, work)
    if as_json:
        shapes = [group.shape() for group in found]
        say_json({"jobs": [view.shape() for view in views], "total": total, "groups": shapes})
        return
    out = console()
    if not views:
        out.print("nothing needs a person")
        return
    out.print(f"{plural(total, 'job')} {'needs' if total == 1 else 'need'} a person\n")
    if found:
        print_groups(out, found, now)
        out.print("\nlist each job: --each; act on a group: holdfast replay --type T --failed-in STEP", style="dim")
        return
    for view in views:
        print_review(out, view, now)
    if total > len(views):
        out.print(f"\nand {total - len(views):,} more: holdfast jobs --state review", style="dim")
    out.print(f"\ninspect one with holdfast show ID, then: {', '.join(POSSIBLE)}", style="dim")


def _show_one(id: str, as_json: bool, url: str | None) -> None:
    """Show everything about one job in review, and what a replay would do."""

    async def read(jobs: Jobs) -> tuple[JobView, Plan]:
        job = await find_job(jobs, id)
        plan = await preview_replay(jobs, job.id)
        return await view_job(jobs, job), plan

    view, plan = run_in_store(url, read)
    if as_json:
        say_json({**view.shape(), "replay": plan_shape(plan)})
        return
    out = console()
    print_job(out, view)
    out.print()
    out.print(str(plan), soft_wrap=True, markup=False)
