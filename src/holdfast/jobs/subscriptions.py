"""Who gets an event: the records of the subscribers that workers declare, for emitters in other programs.

Must not know functions or type hints. The record `on/EVENT/TYPE` has the call that the event completes.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.errors import BadValue
from holdfast.core.events import depth_in
from holdfast.core.model import PAGE_LIMIT, Job
from holdfast.engines.contract import Engine
from holdfast.jobs.job_calls import JobCall, call_from_json

ON = "on/"
"""The record `on/EVENT/TYPE` has the call that makes a job of this type for such an event, given its payload."""

Subscriptions = Mapping[str, Mapping[str, JobCall | None]]
"""For each event the types of the jobs that get it, each with its call. None for a job that only its own program can
submit, because its limits or its turn depend on the event's payload.
"""


async def subscribers_of(engine: Engine, event: str) -> dict[str, JobCall]:
    """Return the calls of the subscribers that workers have declared, by type. A damaged record counts as none."""
    found: dict[str, JobCall] = {}
    for record in await engine.records(f"{ON}{event}/"):
        try:
            call = call_from_json(msgspec.json.decode(record.value))
        except (BadValue, msgspec.MsgspecError):
            continue
        found[call.type] = call
    return found


async def known_events(engine: Engine) -> list[str]:
    """Return the names of all events that have a subscriber."""
    return list(dict.fromkeys(record.name.split("/")[1] for record in await engine.records(ON)))


async def declare_subscriptions(engine: Engine, types: Sequence[str], declared: Subscriptions) -> list[str]:
    """Write what this program's jobs are subscribed to, and remove what they aren't any more. Return log lines."""
    wanted = {
        f"{ON}{event}/{type}": msgspec.json.encode(call.as_json()).decode()
        for event, calls in declared.items()
        for type, call in calls.items()
        if call is not None
    }
    there = {record.name: record.value for record in await engine.records(ON)}
    for name, text in wanted.items():
        if there.get(name) != text:
            await engine.put_record(name, text)
    gone = [name for name in there.keys() - wanted.keys() if name.split("/", 2)[2] in types]
    for name in gone:
        await engine.put_record(name, None)
    return [f"job {name.split('/', 2)[2]} no longer gets event {name.split('/')[1]}" for name in sorted(gone)]


async def depth_above(engine: Engine, job: Job) -> int:
    """Return how many events led to a job: to itself, or to the job above that an event made."""
    for _ in range(PAGE_LIMIT):
        depth = depth_in(job.options.meta)
        if depth is not None:
            return depth
        (above,) = await engine.get([job.parent]) if job.parent else [None]
        if above is None:
            return 0
        job = above
    return 0
