"""Handlers that change queues, workers, schedules and limits. Must not decide what a change is: `jobs` does."""

from typing import Any

from holdfast.core.durations import milliseconds
from holdfast.core.errors import Invalid, NotFound
from holdfast.core.keys import check_queue
from holdfast.core.suggestions import suggest
from holdfast.jobs.limits import get_limit
from holdfast.jobs.views.overview import view_queues
from holdfast.jobs.views.pages.place_pages import limit_line
from holdfast.jobs.views.pages.places import LimitLine
from holdfast.jobs.views.text import one_line, short_id
from holdfast.server.api.answers import Done
from holdfast.server.api.operation import Ask, Operation
from holdfast.server.api.requests import (
    CloseLimitRequest,
    OpenLimitRequest,
    ReasonRequest,
    SetLimitRequest,
    SetQueueRequest,
)


async def pause_queue(ask: Ask) -> Done:
    """Pause a queue."""
    name = check_queue(ask.param("name"))
    known = {queue.name for queue in await view_queues(ask.jobs)}
    if name not in known:
        raise NotFound(f"there is no queue {name}{suggest(name, sorted(known)) or ': it has no jobs and no worker'}")
    await ask.jobs.pause(name, by=ask.by, reason=ask.body.reason)
    return Done(words=f"Paused {name}: running jobs continue, and no other job of it starts.")


async def resume_queue(ask: Ask) -> Done:
    """Resume a queue."""
    name = check_queue(ask.param("name"))
    if name not in await ask.jobs.paused():
        raise NotFound(f"queue {name} is not paused")
    await ask.jobs.resume(name)
    return Done(words=f"Resumed {name}.")


async def set_queue(ask: Ask) -> Done:
    """Set how many jobs may wait in a queue."""
    body: SetQueueRequest = ask.body
    name = ask.param("name")
    await ask.jobs.set_bound(name, body.most_waiting, by=ask.by, reason=body.reason)
    return Done(words=f"{one_line(name, 60)}: at most {body.most_waiting:,} may wait.")


async def reset_queue(ask: Ask) -> Done:
    """Let the code's bound of a queue count again."""
    name = ask.param("name")
    bound = (await ask.jobs.reset_bound(name)).now(name)
    return Done(words=f"{one_line(name, 60)}: {'no bound' if bound is None else bound.words() + ', as code declares'}.")


async def quiet(ask: Ask) -> Done:
    """Tell a worker to claim nothing more."""
    await ask.jobs.quiet_worker(ask.param("name"), by=ask.by, reason=ask.body.reason)
    return Done(words=f"{one_line(ask.param('name'), 60)} claims nothing more; it finishes what it runs.")


async def resume_worker(ask: Ask) -> Done:
    """Let a quiet worker claim again."""
    await ask.jobs.let_claim(ask.param("name"))
    return Done(words=f"{one_line(ask.param('name'), 60)} claims jobs again.")


async def pause_one(ask: Ask) -> Done:
    """Pause a schedule."""
    await ask.jobs.pause_schedule(ask.param("name"), by=ask.by, reason=ask.body.reason)
    return Done(words=f"Paused {one_line(ask.param('name'), 60)}.")


async def resume_one(ask: Ask) -> Done:
    """Resume a schedule."""
    await ask.jobs.resume_schedule(ask.param("name"), by=ask.by, reason=ask.body.reason)
    return Done(words=f"Resumed {one_line(ask.param('name'), 60)}.")


async def run_one(ask: Ask) -> Done:
    """Submit a schedule's job now."""
    id = await ask.jobs.run_schedule(ask.param("name"), by=ask.by, reason=ask.body.reason)
    return Done(words=f"Submitted {short_id(id)}.", job=id)


async def remove_one(ask: Ask) -> Done:
    """Remove a schedule."""
    is_code = await ask.jobs.remove_schedule(ask.param("name"))
    more = "; code declares it, so the next worker that starts makes it again" if is_code else ""
    return Done(words=f"Removed {one_line(ask.param('name'), 60)}{more}.")


async def _limit(ask: Ask) -> LimitLine:
    return limit_line(await get_limit(ask.jobs.engine, ask.param("name")), await ask.jobs.engine.now())


async def set_one(ask: Ask) -> LimitLine:
    """Set a limit."""
    body: SetLimitRequest = ask.body
    await ask.jobs.set_limit(
        ask.param("name"),
        at_once=body.at_once,
        rate=body.rate,
        burst=body.burst,
        by=ask.by,
        reason=body.reason,
    )
    return await _limit(ask)


async def reset_one(ask: Ask) -> LimitLine:
    """Let the code's settings of a limit count again."""
    await ask.jobs.reset_limit(ask.param("name"), by=ask.by, reason=ask.body.reason)
    return await _limit(ask)


async def close_one(ask: Ask) -> LimitLine:
    """Close a limit for a time."""
    body: CloseLimitRequest = ask.body
    await ask.jobs.close_limit(_limit_key(ask), milliseconds(body.duration), by=ask.by, reason=body.reason)
    return await _limit(ask)


async def open_one(ask: Ask) -> LimitLine:
    """Open a closed limit."""
    await ask.jobs.open_limit(_limit_key(ask), by=ask.by, reason=ask.body.reason)
    return await _limit(ask)


def _limit_key(ask: Ask) -> str:
    name, key = ask.param("name"), ask.body.key
    if key is not None and key.partition("/")[0] != name:
        raise Invalid(f"key {key[:60]!r} isn't one of limit {name}; write {name}/VALUE")
    return key or name


def _place_act(path: str, name: str, summary: str, handle: Any, body: Any = ReasonRequest, to: Any = Done) -> Operation:
    return Operation("POST", path, name, summary, "act", to, handle, body=body)


PLACE_ACTS = (
    _place_act("/queues/{name}/pause", "pause_queue", "Pause a queue", pause_queue),
    _place_act("/queues/{name}/resume", "resume_queue", "Resume a queue", resume_queue),
    _place_act("/queues/{name}/set", "set_queue", "Set how many jobs may wait in a queue", set_queue, SetQueueRequest),
    _place_act("/queues/{name}/reset", "reset_queue", "Let the code's bound of a queue count", reset_queue),
    _place_act("/workers/{name}/quiet", "quiet_worker", "Tell a worker to claim nothing more", quiet),
    _place_act("/workers/{name}/resume", "resume_worker", "Let a quiet worker claim again", resume_worker),
    _place_act("/schedules/{name}/pause", "pause_schedule", "Pause a schedule", pause_one),
    _place_act("/schedules/{name}/resume", "resume_schedule", "Resume a schedule", resume_one),
    _place_act("/schedules/{name}/run", "run_schedule", "Submit a schedule's job now", run_one),
    _place_act("/schedules/{name}/remove", "remove_schedule", "Remove a schedule", remove_one),
    _place_act("/limits/{name}/set", "set_limit", "Set a limit", set_one, SetLimitRequest, LimitLine),
    _place_act("/limits/{name}/reset", "reset_limit", "Let the code's settings count", reset_one, to=LimitLine),
    _place_act("/limits/{name}/close", "close_limit", "Close a limit for a time", close_one, CloseLimitRequest,
               LimitLine),
    _place_act("/limits/{name}/open", "open_limit", "Open a closed limit", open_one, OpenLimitRequest, LimitLine),
)  # fmt: skip
"""The calls that change where jobs wait and run."""
