"""Cron jobs: our schedules, as the Open Job Spec writes them. Must not decide when they fire (`upkeep.scheduling`)."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from holdfast.core.durations import milliseconds
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.model import Time
from holdfast.core.schedules import SCHEDULE, Definition, Schedule, Template, schedule_in
from holdfast.engines.contract import Engine
from holdfast.jobs.schedule_views import next_ticks
from holdfast.jobs.schedules import (
    find_schedule,
    pause_schedule,
    put_schedule,
    remove_schedule,
    resume_schedule,
    run_schedule,
)
from holdfast.redaction import redact
from holdfast.server.auth import check_scope
from holdfast.server.call import Call
from holdfast.server.ojs.envelope import kept_of, read_submit
from holdfast.server.ojs.jobs import limit_uses
from holdfast.server.ojs.problems import bad, unprocessable
from holdfast.server.ojs.service import (
    MOST_IN_PAGE,
    PAGE,
    Ojs,
    offset_of,
    ojs_of,
    page_of,
    read_object,
    reply,
    text_of,
)
from holdfast.server.ojs.shapes import shown_args
from holdfast.server.ojs.vocabulary import written_time

DESCRIPTIONS = "ojs/cron/"
"""A record `ojs/cron/NAME` has what is said about a schedule and means nothing to it."""

OVERLAPS = {"skip": "skip", "allow": "allow", "cancel_previous": "cancel_previous", "enqueue": "wait"}
_OVERLAP_NAMES = {ours: theirs for theirs, ours in OVERLAPS.items()}
_EVERY = re.compile(r"@every +(\S.*)")
_WORDS = re.compile(r"[^/\x00-\x1f\x7f]{1,100}")


async def put_cron(call: Call) -> Response:
    """Make a cron job, or change the one of this name. It submits jobs, so a token needs that scope, too."""
    check_scope(call.principal, "submit")
    ojs, body = ojs_of(call), await read_object(call)
    name = text_of(body, "name")
    if not _WORDS.fullmatch(name):
        raise bad("name", "give 1 to 100 characters without '/'")
    definition = await _definition(ojs, body, await ojs.engine.now())
    enabled = body.get("enabled", True)
    if not isinstance(enabled, bool):
        raise bad("enabled", "give true or false")
    description = redact(text_of(body, "description", ""))[:2_000]
    await put_schedule(ojs.engine, name, definition, by=call.by)
    await ojs.engine.put_record(DESCRIPTIONS + name, _told(body, description))
    await _enable(ojs.engine, name, enabled, call.by)
    shown = await _shown(ojs, name)
    return reply(
        {"cron": shown, "cron_job": shown},
        201,
        {"Location": f"{call.root}/ojs/v1/cron" + (f"/{name}" if name.isascii() else "")},
    )


async def _enable(engine: Engine, name: str, enabled: bool, by: str) -> None:
    _, one = await find_schedule(engine, name)
    if enabled and one.paused is not None:
        await resume_schedule(engine, name, by=by)
    elif not enabled and one.paused is None:
        await pause_schedule(engine, name, by=by)


async def _definition(ojs: Ojs, body: Mapping[str, Any], now: Time) -> Definition:
    expression = body.get("expression", body.get("cron"))
    if not isinstance(expression, str) or not expression.strip():
        raise bad("expression", "is missing; give a cron expression, such as '0 9 * * MON-FRI'")
    policy = body.get("overlap_policy", "skip")
    if policy not in OVERLAPS:
        raise bad("overlap_policy", f"give one of {', '.join(OVERLAPS)}")
    job = body.get("job_template")
    if job is None:
        job = {name: body[name] for name in ("type", "args", "options", "meta") if name in body}
        job.setdefault("args", [])
    order = read_submit(job, now)
    request = order.request
    if request.options.unique is not None:
        raise unprocessable("job_template.options.unique", "isn't supported for cron jobs", "unsupported")
    if order.id is not None or request.run_at is not None or request.pending:
        raise bad("job_template", "leave out id, scheduled_at and pending: each run has its own")
    template = Template(
        type=request.type,
        args=request.args,
        queue=request.queue,
        priority=request.priority,
        expires_ms=None if request.expires_at is None else max(1, request.expires_at - now),
        options=replace(request.options, limits=await limit_uses(ojs, order)),
    )
    every = _EVERY.fullmatch(expression.strip())
    if every is not None:
        return Definition(job=template, every_ms=_every(every[1]), missed="once", overlap=OVERLAPS[policy])
    zone = text_of(body, "timezone", "UTC") or "UTC"
    return Definition(job=template, cron=expression.strip(), tz=zone, missed="once", overlap=OVERLAPS[policy])


def _every(text: str) -> int:
    try:
        return milliseconds(text)
    except Invalid as error:
        raise BadValue(f"expression: @every {text[:40]}: {error}") from None


async def _shown(ojs: Ojs, name: str) -> dict[str, Any]:
    _, one = await find_schedule(ojs.engine, name)
    described = await ojs.engine.records(DESCRIPTIONS + name)
    texts = {record.name.removeprefix(DESCRIPTIONS): record.value for record in described}
    return shown_schedule(name, one, texts.get(name), await ojs.engine.now())


def shown_schedule(name: str, one: Schedule, described: str | None, now: Time) -> dict[str, Any]:
    """Return a schedule as the specification shows a cron job."""
    definition = one.definition
    upcoming, _ = next_ticks(one, now, 1)
    expression = definition.cron or _written_every(definition.every_ms, _say(described).get("every", ""))
    shown = {
        "name": name,
        "expression": expression,
        "cron": expression,
        "timezone": definition.tz,
        "overlap_policy": _OVERLAP_NAMES[definition.overlap],
        "enabled": one.paused is None,
        "next_run_at": written_time(upcoming[0]) if upcoming else None,
        "last_run_at": written_time(one.tick),
        "created_at": written_time(one.changes[0].at if one.changes else one.start),
        "run_count": one.runs,
        "skipped_count": one.skipped,
        "last_job_id": one.job or None,
        "last_error": one.error or None,
        "description": _say(described).get("description") or None,
        "job_template": _shown_template(definition.job),
        "type": definition.job.type,
        "args": shown_args(definition.job.args),
    }
    return {field: value for field, value in shown.items() if value is not None}


def _told(body: Mapping[str, Any], description: str) -> str:
    """What a request says about a schedule that means nothing to it."""
    every = str(body.get("expression", body.get("cron"))).strip()
    told = {"description": description, **({"every": every} if _EVERY.fullmatch(every) else {})}
    return msgspec.json.encode(told).decode()


def _say(text: str | None) -> dict[str, str]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _written_every(every_ms: int, told: str) -> str:
    """The expression of a schedule that fires again and again: as it was written, if it still means that."""
    found = _EVERY.fullmatch(told)
    if found is not None and milliseconds(found[1]) == every_ms:
        return told
    return f"@every {every_ms / 1_000:g}s" if every_ms else ""


def _shown_template(template: Template) -> dict[str, Any]:
    kept = kept_of(template.options)
    options = {**kept.options, "queue": template.queue, "priority": template.priority}
    if template.options.tags:
        options["tags"] = list(template.options.tags)
    return {
        **kept.fields,
        "type": template.type,
        "args": shown_args(template.args),
        "meta": dict(kept.meta),
        "options": options,
    }


async def list_cron(call: Call) -> Response:
    """List the cron jobs."""
    ojs = ojs_of(call)
    limit, offset = call.number("limit", PAGE, most=MOST_IN_PAGE), offset_of(call)
    records = [
        (record.name.removeprefix(SCHEDULE), schedule_in(record)) for record in await ojs.engine.records(SCHEDULE)
    ]
    found = [(name, one) for name, one in records if one is not None]
    described = await ojs.engine.records(DESCRIPTIONS)
    texts = {record.name.removeprefix(DESCRIPTIONS): record.value for record in described}
    now = await ojs.engine.now()
    shown = [shown_schedule(name, one, texts.get(name), now) for name, one in found[offset : offset + limit]]
    return reply({"crons": shown, "cron_jobs": shown, "pagination": page_of(shown, limit, offset, len(found))})


async def get_cron(call: Call) -> Response:
    """Return a cron job."""
    shown = await _shown(ojs_of(call), call.path_params["name"])
    return reply({"cron": shown, "cron_job": shown})


async def delete_cron(call: Call) -> Response:
    """Remove a cron job. Its jobs stay."""
    ojs, name = ojs_of(call), call.path_params["name"]
    shown = await _shown(ojs, name)
    await remove_schedule(ojs.engine, name)
    if any(record.name == DESCRIPTIONS + name for record in await ojs.engine.records(DESCRIPTIONS + name)):
        await ojs.engine.put_record(DESCRIPTIONS + name, None)
    return reply({"cron": shown, "cron_job": shown, "deleted": True, "name": name})


async def trigger_cron(call: Call) -> Response:
    """Submit the job of a cron job now."""
    ojs, name = ojs_of(call), call.path_params["name"]
    id = await run_schedule(ojs.engine, name, by=call.by)
    job, now = await ojs.job(id)
    return reply({"job": await ojs.shown(job, now), "id": id}, 201, {"Location": f"{call.root}/ojs/v1/jobs/{id}"})
