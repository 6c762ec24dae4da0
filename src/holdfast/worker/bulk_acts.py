"""Running an act on many jobs: page by page, each page chosen and acted on in a recorded step.

Must not decide what a verb does to one job (`jobs.service`). After a crash the next worker continues with the page that
was under way. The history of each job names the act, so no job is acted on twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.core.codec import Signature, parse
from holdfast.core.errors import Refused
from holdfast.core.model import Job, Options, Retry
from holdfast.engines.contract import Engine
from holdfast.jobs.bulk_acts import ACT_STEP, BULK_TYPE, Act, Outcome
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.selections import read_page
from holdfast.jobs.service import Jobs
from holdfast.worker.attempt import Attempt
from holdfast.worker.call import Call
from holdfast.worker.context import attempt_here
from holdfast.worker.registry import JobSpec, StepSpec
from holdfast.worker.steps import make_call, run_async

PAGE = 200
"""How many jobs one recorded step acts on."""

AT_ONCE = 50
"""How many of them at the same time. They share the store's commits."""


def bulk_spec(job: Job, engine: Engine) -> JobSpec | None:
    """Return what to run for an act on many jobs; None for any other type."""
    if job.type != BULK_TYPE:
        return None

    async def bulk(act: dict[str, Any]) -> dict[str, Any]:
        asked = msgspec.convert(act, Act)
        return _plain(await _Bulk(engine, job.id, asked).run())

    signature = Signature(bulk)
    return JobSpec(
        type=BULK_TYPE, function=bulk, signature=signature, is_async=True, queue=job.queue, options=Options()
    )


class _Bulk:
    """One pass over the jobs that an act concerns."""

    def __init__(self, engine: Engine, id: str, act: Act) -> None:
        attempt = attempt_here()
        assert attempt is not None
        self._attempt: Attempt = attempt
        self._engine = engine
        self._jobs = Jobs(engine)
        self._id = id
        self._act = act
        self._is_first_try = True

    async def run(self) -> Outcome:
        """Act on all of them."""
        after: str | None = ""
        total = Outcome()
        while after is not None:
            chosen = await self._step(_CHOOSE, after, partial(self._choose, after))
            if chosen["ids"]:
                outcome = await self._step(_ACT, after, partial(self._act_on, chosen["ids"]))
                total += msgspec.convert(outcome, Outcome)
            after = chosen["after"]
            seen = total.done + total.refused
            self._attempt.progress.report(seen, max(seen, self._act.total), total.words(self._act.verb))
        return total

    async def _step(self, spec: StepSpec, after: str, work: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Do this in a recorded step."""
        call = make_call(self._attempt, spec, (after,), {}, after or "first")

        async def body(call: Call) -> dict[str, Any]:
            self._is_first_try = self._attempt.job.epoch == 1 and call.tries == 1
            return await work()

        found: dict[str, Any] = await run_async(call, body)
        return found

    async def _choose(self, after: str) -> dict[str, Any]:
        """Choose the jobs of the next page. A job that was submitted after the act isn't part of it."""
        page = await self._attempt.persist(lambda: read_page(self._engine, self._act.chosen, after, PAGE))
        if self._act.chosen.ids:
            return {"ids": [job.id for job in page.jobs], "after": page.after}
        ids = [job.id for job in page.jobs if job.id < self._id and self._concerns(job)]
        return {"ids": ids, "after": page.after if page.after is not None and page.after < self._id else None}

    def _concerns(self, job: Job) -> bool:
        """Whether the act concerns a job: Holdfast's own only if it names them. Without undo jobs, what others made
        would stay.
        """
        return job.type not in (UNDO_TYPE, BULK_TYPE) or job.type == self._act.chosen.type

    async def _act_on(self, ids: list[str]) -> dict[str, Any]:
        outcome = Outcome()
        for start in range(0, len(ids), AT_ONCE):
            for one in await asyncio.gather(*map(self._act_on_one, ids[start : start + AT_ONCE])):
                outcome += one
        return _plain(outcome)

    async def _act_on_one(self, id: str) -> Outcome:
        try:
            if self._is_first_try or not await self._attempt.persist(lambda: self._is_done(id)):
                await self._attempt.persist(lambda: self._call(id))
        except Refused as error:
            return Outcome(refused=1, examples=((id, str(error)),))
        return Outcome(done=1)

    async def _is_done(self, id: str) -> bool:
        """Whether an earlier try of this page has already acted on a job."""
        return any(entry.note.get("act") == self._id for entry in await self._jobs.history(id))

    async def _call(self, id: str) -> None:
        act, jobs = self._act, self._jobs
        match act.verb:
            case "replay":
                await jobs.replay(id, by=act.by, reason=act.reason, act=self._id)
            case "resolve":
                await jobs.resolve(id, parse(act.result), by=act.by, reason=act.reason, act=self._id)
            case "discard":
                await jobs.discard(id, by=act.by, reason=act.reason, act=self._id)
            case "cancel":
                await jobs.cancel(id, by=act.by, reason=act.reason, act=self._id)


def _plain(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as a step records it."""
    return msgspec.json.decode(msgspec.json.encode(outcome), type=dict[str, Any])


def _page_of(after: str) -> dict[str, Any]:
    raise NotImplementedError


def _spec(name: str) -> StepSpec:
    return StepSpec(
        name=name,
        function=_page_of,
        signature=Signature(_page_of),
        is_async=True,
        retry=Retry(retries=2, initial_ms=500),
        timeout_ms=None,
        stale_after_ms=None,
        key=None,
    )


_CHOOSE, _ACT = _spec("choose"), _spec(ACT_STEP)
