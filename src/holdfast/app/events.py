"""`@app.on(…)` and `app.emit(…)`: jobs that run once for each event.

Must not know the App, only how to open its store. An event is nothing of its own: it makes a job for each subscriber,
under a key made of its name and id.
"""

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from holdfast.app.demands import demands_of
from holdfast.app.job import DecoratedJob
from holdfast.app.run import Run
from holdfast.core.codec import encode
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.events import check_event, check_event_id, event_key, event_meta
from holdfast.core.keys import derived_id
from holdfast.core.model import Time
from holdfast.core.suggestions import suggest
from holdfast.jobs.job_calls import JobCall
from holdfast.jobs.service import JobRequest, Jobs
from holdfast.jobs.subscriptions import depth_above, known_events, subscribers_of
from holdfast.safe_text import logger
from holdfast.worker.attempt import Attempt
from holdfast.worker.child_jobs import call_name
from holdfast.worker.context import Current, attempt_here, job_outside
from holdfast.worker.own_loop import await_on_loop, is_away
from holdfast.worker.registry import JobSpec, Registry

log = logger("holdfast.app")


class Events:
    """The events of an App."""

    def __init__(self, open: Callable[[], Awaitable[Jobs]], registry: Registry) -> None:
        self._open = open
        self._registry = registry
        self._outside: Current | None = None
        self._numbers: Counter[str] = Counter()

    def subscribe(self, name: str, job: DecoratedJob[..., Any]) -> None:
        """Let each event of this name submit this job, with its payload as the only argument."""
        check_event(name)
        if not self._registry.is_home_of(job.spec.function, job.type):
            raise Invalid(f"@app.on({name!r}) on {job!r}: the job belongs to another App; use that App's on()")
        try:
            call: JobCall | None = job.s().follow_up()
        except BadValue as error:
            raise Invalid(
                f"@app.on({name!r}) on {job!r}: it gets the payload as its only argument, so it must take one: {error}"
            ) from None
        except Invalid:  # what it needs depends on the payload, so only this program can submit it
            call = None
        self._registry.subscriptions.setdefault(name, {})[job.type] = call

    async def emit(self, name: str, payload: Any, id: str | None, connection: Any) -> list[Run[Any]]:
        """See App.emit."""
        attempt = attempt_here()
        if attempt is None:
            jobs, outside = await self._open(), job_outside()
            depth = await self._depth_outside(jobs, outside)
            own_id = self._new_id(outside, name, payload) if id is None else check_event_id(id)
            requests = await self._requests(jobs, name, payload, own_id, depth, await jobs.engine.now())
            return await self._submit(jobs, requests, connection)
        if connection is not None:
            raise Invalid(f"emit({name!r}): connection= works only outside jobs; inside a job, an event is recorded")
        if is_away(attempt):
            return await await_on_loop(attempt, self._emit_inside(attempt, name, payload, id))
        return await self._emit_inside(attempt, name, payload, id)

    async def _depth_outside(self, jobs: Jobs, outside: Current | None) -> int:
        """Return how many events lead to one that is emitted outside an attempt, itself included."""
        (job,) = [None] if outside is None else await jobs.engine.get([outside.job_id])
        return 1 if job is None else await depth_above(jobs.engine, job) + 1

    def _new_id(self, outside: Current | None, name: str, payload: Any) -> str:
        """Make the id of an event without one. For a job it is the same when the step that emits it runs again."""
        if outside is None:
            return secrets.token_hex(16)
        if self._outside is not outside:
            self._outside, self._numbers = outside, Counter()
        call = f"{outside.first or outside.step}/~emit:{name}\n{encode(payload, payload.__class__)}"
        self._numbers[call] += 1
        return derived_id(outside.job_id, f"{call}\n{self._numbers[call]}")

    async def _emit_inside(self, attempt: Attempt, name: str, payload: Any, id: str | None) -> list[Run[Any]]:
        """Emit an event inside a job. Without an id it gets one that is the same whenever the job runs again.

        The id is derived as a child's is. So it doesn't matter which of several calls comes first, or at all.
        """
        if id is None:
            call = call_name(attempt, f"~emit:{name}", encode(payload, payload.__class__))
            own_id = derived_id(attempt.job.id, call)
        else:
            own_id = check_event_id(id)
        jobs = Jobs(attempt.engine)
        with attempt.activity():
            await attempt.admit()
            depth = await attempt.persist(lambda: depth_above(attempt.engine, attempt.job)) + 1
            now = await attempt.persist(attempt.engine.now)
            requests = await attempt.persist(lambda: self._requests(jobs, name, payload, own_id, depth, now))
            return await attempt.persist(lambda: self._submit(jobs, requests, None))

    async def _requests(
        self, jobs: Jobs, name: str, payload: Any, id: str, depth: int, now: Time
    ) -> list[tuple[JobRequest, JobSpec | None]]:
        """Return what to submit for an event, for each subscriber, here and in other programs; or raise BadValue."""
        meta, key = event_meta(name, id, depth), event_key(name, id)
        found: list[tuple[JobRequest, JobSpec | None]] = []
        here = self._registry.subscriptions.get(name, {})
        for type in here:
            spec = self._registry.get(type)
            assert spec is not None
            plain = JobRequest(type=type, encoded=True, queue=spec.queue, options=spec.options)
            found.append((_fitted(plain, spec, name, payload), spec))
        for type, call in (await subscribers_of(jobs.engine, name)).items():
            if type not in here:
                found.append((replace(call.request(now), args=f"[{encode(payload, payload.__class__)}]"), None))
        if not found:
            known = [*self._registry.subscriptions, *await known_events(jobs.engine)]
            log.warning("event %s: no job is subscribed to it, so nothing runs%s", name, suggest(name, known))
        return [
            (replace(one, key=key, options=replace(one.options, meta={**one.options.meta, **meta})), spec)
            for one, spec in found
        ]

    async def _submit(
        self, jobs: Jobs, requests: list[tuple[JobRequest, JobSpec | None]], connection: Any
    ) -> list[Run[Any]]:
        if not requests:
            return []
        accepted = await jobs.submit([request for request, _ in requests], connection=connection)
        return [
            Run(self._open, one.id, None if spec is None else spec.signature)
            for one, (_, spec) in zip(accepted, requests, strict=True)
        ]


def _fitted(plain: JobRequest, spec: JobSpec, name: str, payload: Any) -> JobRequest:
    """Return the request for a subscriber whose code is here, with the payload checked by its type hint."""
    try:
        text = spec.signature.encode((payload,), {})
    except BadValue as error:
        raise BadValue(f"event {name} was not emitted, because its payload doesn't fit a subscriber: {error}") from None
    demands = demands_of(spec, plain, text, lambda: spec.signature.bound((payload,), {}))
    return replace(plain, args=text, options=demands.added_to(plain.options))
