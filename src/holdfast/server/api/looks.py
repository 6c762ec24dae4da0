"""Handlers that read pages: overview, jobs, review, queues, workers, schedules, limits. Must not change anything."""

from typing import Any

from starlette.responses import Response

import holdfast
from holdfast.core.errors import Invalid, NotFound
from holdfast.core.keys import check_id, check_queue, check_type
from holdfast.core.lifecycle import standing
from holdfast.core.model import Where
from holdfast.jobs.flows import result_text
from holdfast.jobs.ids import find_id
from holdfast.jobs.large_values import arguments_of
from holdfast.jobs.limits import get_limit
from holdfast.jobs.run_file import collect_run, dump_run
from holdfast.jobs.schedule_views import view_schedule
from holdfast.jobs.views.comparison import view_comparison
from holdfast.jobs.views.job import view_job
from holdfast.jobs.views.pages.job import JobPage, LogPage, StepPage, StepsPage, StoryPage, Timeline
from holdfast.jobs.views.pages.job_page import view_story
from holdfast.jobs.views.pages.overview import OverviewPage
from holdfast.jobs.views.pages.place_pages import (
    limit_line,
    schedule_line,
    view_budgets_page,
    view_lifecycle_page,
    view_limits_page,
    view_queues_page,
    view_schedules_page,
)
from holdfast.jobs.views.pages.places import (
    BudgetsPage,
    LifecyclePage,
    LimitLine,
    LimitsPage,
    Navigation,
    QueuesPage,
    ScheduleLine,
    SchedulesPage,
    WorkerPage,
    WorkersPage,
)
from holdfast.jobs.views.pages.review_page import view_review_groups, view_review_item, view_review_page
from holdfast.jobs.views.pages.reviews import ReviewGroups, ReviewItem, ReviewPage
from holdfast.jobs.views.pages.search import JobsPage, Search, view_jobs_page
from holdfast.jobs.views.pages.step_pages import view_log, view_step, view_steps
from holdfast.jobs.views.pages.timeline import view_timeline
from holdfast.jobs.views.shapes import parse_time
from holdfast.jobs.views.tree import tree_shape, view_tree
from holdfast.server.api.operation import Ask, Operation
from holdfast.server.api.requests import CompareQuery, SearchQuery, StepQuery, StepsQuery, StoryQuery, TimelineQuery
from holdfast.server.api.watch import Watch

READ = "read"


async def overview(ask: Ask) -> OverviewPage:
    """Read the overview."""
    return await ask.call.server.part(Watch).overview(ask.jobs)


async def navigation(ask: Ask) -> Navigation:
    """Read the frame around the pages."""
    return await ask.call.server.part(Watch).navigation(ask.jobs)


async def jobs_page(ask: Ask) -> JobsPage:
    """Search for jobs."""
    return await view_jobs_page(ask.jobs, search_of(ask.query))


def search_of(query: SearchQuery) -> Search:
    """Return what a query asks for, or raise Invalid."""
    return Search(
        where=Where(
            states=query.state,
            queue=None if query.queue is None else check_queue(query.queue),
            type=None if query.type is None else check_type(query.type),
            key=query.key,
            parent=_id_given("parent", query.parent),
            newest_first=query.order == "newest",
        ),
        id=query.id,
        at=time_given("at", query.at),
        error=query.error,
        after=_id_given("after", query.after) or "",
        limit=query.limit,
    )


def _id_given(name: str, text: str | None) -> str | None:
    try:
        return check_id(text) if text else None
    except Invalid:
        what = "the `next` of the page before" if name == "after" else "a job's whole id"
        raise Invalid(f"{name}={(text or '')[:40]!r}: give {what}") from None


def time_given(name: str, text: str | None) -> int | None:
    """Read a time, or raise Invalid that names the parameter."""
    try:
        return parse_time(text)
    except ValueError:
        raise Invalid(f"{name}={(text or '')[:40]!r}: not a time; write it like 2026-03-01T09:00:00Z") from None


async def id_of(ask: Ask) -> str:
    """Return the whole id of the job that the path names."""
    return await find_id(ask.jobs, ask.param("id"))


async def job(ask: Ask) -> JobPage:
    """Read one job as a page."""
    return await ask.call.server.part(Watch).job(ask.jobs, await id_of(ask))


async def record(ask: Ask) -> dict[str, Any]:
    """Read everything that is stored about a job."""
    return (await view_job(ask.jobs, await ask.jobs.get(await id_of(ask)))).shape()


async def arguments(ask: Ask) -> Response:
    """Read a job's whole arguments."""
    found = await ask.jobs.get(await id_of(ask))
    return Response(await arguments_of(ask.jobs.engine, found), media_type="application/json")


async def result(ask: Ask) -> Response:
    """Read a job's whole result."""
    found = await ask.jobs.get(await id_of(ask))
    if found.result is None:
        raise NotFound(f"job {found.id} has no result: it is {standing(found.state)}")
    return Response(await result_text(ask.jobs.engine, found), media_type="application/json")


async def story(ask: Ask) -> StoryPage:
    """Read a part of a job's story."""
    return await view_story(ask.jobs, await id_of(ask), ask.query.before, ask.query.limit)


async def steps(ask: Ask) -> StepsPage:
    """Read a page of a job's steps."""
    return await view_steps(ask.jobs, await id_of(ask), ask.query.after, ask.query.limit)


async def step(ask: Ask) -> StepPage:
    """Read one step."""
    return await view_step(ask.jobs, await id_of(ask), ask.query.path)


async def log(ask: Ask) -> LogPage:
    """Read a job's log."""
    return await view_log(ask.jobs, await id_of(ask))


async def timeline(ask: Ask) -> Timeline:
    """Read when everything of a job ran."""
    return await view_timeline(ask.jobs, await id_of(ask), ask.query.epoch)


async def export(ask: Ask) -> Response:
    """Read a job as a run file."""
    run = await collect_run(ask.jobs, await id_of(ask))
    text = dump_run(run, await ask.jobs.engine.now(), holdfast.__version__)
    name = f'attachment; filename="run-{run.job.id}.json"'
    return Response(text, media_type="application/json", headers={"Content-Disposition": name})


async def tree(ask: Ask) -> dict[str, Any]:
    """Read a job and all jobs below it: of a flow also the steps that haven't started."""
    return tree_shape(await view_tree(ask.jobs, await ask.jobs.get(await id_of(ask))))


async def compare(ask: Ask) -> dict[str, Any]:
    """Compare two runs: results, steps, time and money."""
    one, other = await id_of(ask), await find_id(ask.jobs, ask.query.other)
    found = await view_comparison(ask.jobs, await ask.jobs.get(one), await ask.jobs.get(other))
    return found.page(ask.query.after, ask.query.limit)


async def review(ask: Ask) -> ReviewPage:
    """Read the inbox."""
    return await view_review_page(ask.jobs)


async def review_groups(ask: Ask) -> ReviewGroups:
    """Read the jobs in review in groups."""
    return await view_review_groups(ask.jobs)


async def review_item(ask: Ask) -> ReviewItem:
    """Read what is open for one job."""
    id = await id_of(ask)
    found = await ask.jobs.get(id)
    typed = ask.call.server.typed
    schemas = {} if typed is None else {one.type: one.arguments for one in typed.types()}
    return await view_review_item(ask.jobs, id, schemas.get(found.type))


async def queues(ask: Ask) -> QueuesPage:
    """Read all queues."""
    return await view_queues_page(ask.jobs)


async def workers(ask: Ask) -> WorkersPage:
    """Read all workers."""
    return await ask.call.server.part(Watch).workers(ask.jobs)


async def worker(ask: Ask) -> WorkerPage:
    """Read one worker."""
    return await ask.call.server.part(Watch).worker(ask.jobs, ask.param("name"))


async def schedules(ask: Ask) -> SchedulesPage:
    """Read all schedules."""
    return await view_schedules_page(ask.jobs)


async def limits(ask: Ask) -> LimitsPage:
    """Read all limits."""
    return await view_limits_page(ask.jobs)


async def schedule(ask: Ask) -> ScheduleLine:
    """Read one schedule."""
    engine = ask.jobs.engine
    return schedule_line(await view_schedule(engine, ask.param("name")), await engine.now())


async def limit(ask: Ask) -> LimitLine:
    """Read one limit."""
    engine = ask.jobs.engine
    return limit_line(await get_limit(engine, ask.param("name")), await engine.now())


async def budgets(ask: Ask) -> BudgetsPage:
    """Read the budgets in use."""
    return await view_budgets_page(ask.jobs)


async def lifecycle(ask: Ask) -> LifecyclePage:
    """Read the lifecycle."""
    return await view_lifecycle_page(ask.jobs)


LOOKS = (
    Operation("GET", "/overview", "get_overview", "Read the overview of the store", READ, OverviewPage, overview),
    Operation("GET", "/navigation", "get_navigation", "Read what surrounds every page", READ, Navigation, navigation),
    Operation("GET", "/jobs", "find_jobs", "Search for jobs", READ, JobsPage, jobs_page, query=SearchQuery),
    Operation("GET", "/jobs/{id}", "get_job", "Read one job as a page", READ, JobPage, job),
    Operation("GET", "/jobs/{id}/record", "get_record", "Read everything stored about a job", READ, dict, record),
    Operation("GET", "/jobs/{id}/arguments", "get_arguments", "Read a job's whole arguments", READ, Any, arguments),
    Operation("GET", "/jobs/{id}/result", "get_result", "Read a job's whole result", READ, Any, result),
    Operation("GET", "/jobs/{id}/story", "get_story", "Read a part of a job's story", READ, StoryPage, story,
              query=StoryQuery),
    Operation("GET", "/jobs/{id}/steps", "get_steps", "Read a page of a job's steps", READ, StepsPage, steps,
              query=StepsQuery),
    Operation("GET", "/jobs/{id}/step", "get_step", "Read one step with its result", READ, StepPage, step,
              query=StepQuery),
    Operation("GET", "/jobs/{id}/log", "get_log", "Read the log lines kept with a job", READ, LogPage, log),
    Operation("GET", "/jobs/{id}/timeline", "get_timeline", "Read when everything of a job ran", READ, Timeline,
              timeline, query=TimelineQuery),
    Operation("GET", "/jobs/{id}/tree", "get_tree", "Read a job and all jobs below it, with a flow's steps to come",
              READ, dict, tree),
    Operation("GET", "/jobs/{id}/compare", "compare_jobs", "Compare two runs: a page of their steps, those that "
              "differ first", READ, dict, compare, query=CompareQuery),
    Operation("GET", "/jobs/{id}/export", "export_job", "Read a job as a run file", READ, Any, export),
    Operation("GET", "/review", "get_review", "Read what needs a person", READ, ReviewPage, review),
    Operation("GET", "/review/groups", "get_review_groups", "Read the jobs in review by what stopped them", READ,
              ReviewGroups, review_groups),
    Operation("GET", "/review/{id}", "get_review_item", "Read what is open for one job", READ, ReviewItem,
              review_item),
    Operation("GET", "/queues", "get_queues", "Read all queues", READ, QueuesPage, queues),
    Operation("GET", "/workers", "get_workers", "Read all workers", READ, WorkersPage, workers),
    Operation("GET", "/workers/{name}", "get_worker", "Read one worker", READ, WorkerPage, worker),
    Operation("GET", "/schedules", "get_schedules", "Read all schedules", READ, SchedulesPage, schedules),
    Operation("GET", "/schedules/{name}", "get_schedule", "Read one schedule", READ, ScheduleLine, schedule),
    Operation("GET", "/limits", "get_limits", "Read all shared limits", READ, LimitsPage, limits),
    Operation("GET", "/limits/{name}", "get_limit", "Read one shared limit", READ, LimitLine, limit),
    Operation("GET", "/budgets", "get_budgets", "Read the budgets in use", READ, BudgetsPage, budgets),
    Operation("GET", "/lifecycle", "get_lifecycle", "Read the lifecycle", READ, LifecyclePage, lifecycle),
)  # fmt: skip
"""The calls that read."""
