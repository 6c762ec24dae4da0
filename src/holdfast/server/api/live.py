"""Handlers of streams: a view that is kept up to date, and the events of one job. Must not read what nobody watches."""

from msgspec import Struct
from starlette.responses import Response

from holdfast.core.errors import Invalid
from holdfast.core.keys import check_queue, check_type
from holdfast.core.model import State, Where
from holdfast.engines.topics import job_topic, queue_topic
from holdfast.jobs.ids import find_id
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.pages.place_pages import (
    view_limits_page,
    view_queues_page,
    view_schedules_page,
)
from holdfast.jobs.views.pages.review_page import view_review_page
from holdfast.jobs.views.pages.search import Search, view_jobs_page
from holdfast.server.api.events import Feeds, JobEvent, version_in
from holdfast.server.api.looks import id_of
from holdfast.server.api.operation import Ask, Operation
from holdfast.server.api.requests import StreamQuery
from holdfast.server.api.watch import Load, Watch
from holdfast.server.streams import EventStream

EVENTS = "text/event-stream"

STREAMED_JOBS = 40
"""How many jobs a live list shows: a screen."""


async def stream(ask: Ask) -> Response:
    """Stream one view: the whole state, whenever it has changed."""
    query: StreamQuery = ask.query
    if query.view == "job" and query.id is None:
        raise Invalid("view=job needs id; send ?view=job&id=ID")
    if query.queue is not None:
        check_queue(query.queue)
    if query.type is not None:
        check_type(query.type)
    id = "" if query.id is None else await find_id(ask.jobs, query.id)
    if id:
        await ask.jobs.get(id)
    watch = ask.call.server.part(Watch)
    watch.start(ask.jobs)
    key = (query.view, id, query.queue, query.type, query.state)
    return EventStream(ask.call, watch.follow(key, ask.jobs, _loader(watch, ask.jobs, query, id)))


def _loader(watch: Watch, jobs: Jobs, query: StreamQuery, id: str) -> Load:
    """Return what reads a view, with the topics that may change it, and whether jobs run."""

    async def load() -> tuple[Struct, list[str], bool]:
        if query.view == "job":
            page = await watch.job(jobs, id)
            return page, [job_topic(id)], page.job.state == State.ACTIVE
        if query.view == "overview":
            overview = await watch.overview(jobs)
            topics = [queue_topic(queue.name) for queue in overview.queues]
            return overview, [*topics, *(job_topic(one.id) for one in overview.running)], bool(overview.running_total)
        return await _page(watch, jobs, query), await _queue_topics(jobs), False

    return load


async def _page(watch: Watch, jobs: Jobs, query: StreamQuery) -> Struct:
    match query.view:
        case "navigation":
            return await watch.navigation(jobs)
        case "review":
            return await view_review_page(jobs)
        case "queues":
            return await view_queues_page(jobs)
        case "workers":
            return await watch.workers(jobs)
        case "schedules":
            return await view_schedules_page(jobs)
        case "limits":
            return await view_limits_page(jobs)
    where = Where(states=query.state, queue=query.queue, type=query.type, newest_first=True)
    return await view_jobs_page(jobs, Search(where=where, limit=STREAMED_JOBS))


async def _queue_topics(jobs: Jobs) -> list[str]:
    return [queue_topic(queue) for queue in sorted({queue for queue, _ in await jobs.engine.count()})]


async def job_events(ask: Ask) -> Response:
    """Stream the history of one job, entry by entry, and its progress."""
    after = version_in(ask.call.headers.get("last-event-id"))
    id = await id_of(ask)
    await ask.jobs.get(id)
    return EventStream(ask.call, ask.call.server.part(Feeds).follow(ask.jobs, id, after))


LIVE = (
    Operation("GET", "/stream", "stream_view", "Watch a view: event `view` has the whole state, whenever it changed; "
              "`trouble` says why it can't be read now, `gone` that the job is no longer stored, `beat` that nothing "
              "changed", "read", None, stream, query=StreamQuery, media=EVENTS, is_stream=True),
    Operation("GET", "/jobs/{id}/events", "stream_job", "Follow a job: event `entry` has one entry of its history, "
              "with its version as id; `progress` has its status; `end` is the last one", "read", JobEvent, job_events,
              media=EVENTS, is_stream=True, headers={"Last-Event-ID": "continue after the event with this id"}),
)  # fmt: skip
"""The calls that stream."""
