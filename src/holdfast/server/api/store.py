"""What a remote app reads of the store, act by act as the engine contract has them, and how it submits.

Must not show a token's record, and must not write a job's state: acts have calls of their own.
"""

from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from holdfast.core.codec import canonical, parse
from holdfast.core.errors import BadValue, NotAllowed, NotFound
from holdfast.core.keys import check_id
from holdfast.core.model import Inserted, Job
from holdfast.core.schedules import Definition
from holdfast.engines.store_calls import CALLS, READABLE, WAIT_SECONDS
from holdfast.jobs.flow_checks import check_given_flow, check_type
from holdfast.jobs.flows import FLOW_TYPE
from holdfast.jobs.requests import JobRequest, new_job
from holdfast.server.api.operation import Ask, Operation
from holdfast.server.auth import ANY, check_scope
from holdfast.server.bodies import json_reply
from holdfast.server.known_bounds import KnownBounds
from holdfast.server.routes import BODY_BYTES

INSERT_BYTES = 64 << 20
"""The largest body of an insert: a thousand jobs."""


async def call(ask: Ask) -> Response:
    """Answer one read of the engine contract."""
    name = ask.param("call")
    if name not in CALLS:
        raise NotFound(f"there is no read {name[:40]!r} of a store; update the app or the server")
    given = await _given(ask, CALLS[name].args)
    engine = ask.jobs.engine
    if name == "count":
        return json_reply([(queue, state, jobs) for (queue, state), jobs in (await engine.count()).items()])
    if name == "records":
        return json_reply(await engine.records(_readable(given[0])))
    if name == "wait":
        return json_reply(await engine.wait(given[0], min(given[1], WAIT_SECONDS), given[2]))
    return json_reply(await getattr(engine, name)(*given))


def _readable(prefix: str) -> str:
    if not prefix.startswith(READABLE):
        raise NotAllowed(f"records {prefix[:60]!r} can't be read through a server; connect to the store with its URL")
    return prefix


async def _given(ask: Ask, type: Any) -> Any:
    try:
        return msgspec.json.decode(await ask.call.body(), type=type)
    except msgspec.MsgspecError as error:
        raise BadValue(f"the body: {error}; update the app or the server, so that both have the same version") from None


async def now(ask: Ask) -> Response:
    """Answer the store's time. Who may only submit needs it, too: a job's times begin with it."""
    return json_reply(await ask.jobs.engine.now())


async def insert(ask: Ask) -> Response:
    """Submit new jobs, all or none. The server makes them anew: a caller chooses no state."""
    given: list[Job] = await _given(ask, list[Job])
    now = await ask.jobs.engine.now()
    jobs = await ask.call.server.part(KnownBounds).within(ask.jobs)
    answers: list[Inserted] = await jobs.insert([_remade(job, now) for job in given])
    return json_reply(answers)


def _checked(type: str, args: str) -> str:
    """Return the arguments of a job that a caller may submit, as canonical JSON."""
    check_type(type)
    text = canonical(parse(args))
    if type == FLOW_TYPE:
        check_given_flow(text)
    return text


def _remade(job: Job, now: int) -> Job:
    request = JobRequest(
        type=job.type,
        args=_checked(job.type, job.args),
        encoded=True,
        queue=job.queue,
        priority=job.priority,
        key=job.key,
        key_until=job.key_until,
        run_at=job.run_at,
        expires_at=job.expires_at,
        pending=bool(job.waits),
        options=replace(job.options, budget_root=""),
    )
    return new_job(request, check_id(job.id), now)


async def put_schedule(ask: Ask) -> Response:
    """Make or change a schedule. A token needs the scope that its job's submit needs, too."""
    check_scope(ask.call.principal, "submit")
    name, definition = await _given(ask, tuple[str, Definition])
    job = definition.job
    job = replace(job, args=_checked(job.type, job.args), options=replace(job.options, budget_root=""))
    await ask.jobs.put_schedule(name, replace(definition, job=job), by=ask.by)
    return json_reply({})


STORE = (
    Operation("POST", "/store/now", "read_time", "Read the store's time, with any valid token", ANY, int, now),
    Operation("POST", "/store/insert", "insert_jobs", "Submit jobs that a remote app has built", "submit", list, insert,
              body_bytes=INSERT_BYTES),
    Operation("POST", "/store/put_schedule", "put_schedule", "Put a schedule that a remote app has built; this needs "
              "the scope submit, too", "act", dict, put_schedule, body_bytes=BODY_BYTES),
    Operation("POST", "/store/{call}", "read_store", "Read the store as the engine contract does, for remote apps",
              "read", Any, call, is_stream=True),
)  # fmt: skip
"""The calls of remote apps."""
