"""Submits a job for each item of a list, from code outside a job, and waits for all of them.

Must not handle calls inside a job: there the jobs are children (`worker.child_jobs`).
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.app.patience import patiently
from holdfast.blobs.here import read_value
from holdfast.core.codec import Signature
from holdfast.core.errors import KeyConflict, NotFound
from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import PAGE_LIMIT, Inserted, Job, State
from holdfast.engines.topics import job_topic
from holdfast.jobs.failures import failure_of
from holdfast.jobs.large_values import result_of
from holdfast.jobs.service import JobRequest, Jobs
from holdfast.worker.maps import BATCH_SECONDS, LOOK_FIRST, Taken, Tally, map_window

UNBOUND = 1_000
"""How many jobs of a map may be submitted and unsettled at the same time, by default."""

LOOK_SECONDS = 5.0
"""How long to wait for a wake-up before checking again."""


async def map_jobs(
    jobs: Jobs, signature: Signature, tally: Tally[Any], prepare: Callable[[Any], JobRequest], at_once: int | None
) -> list[Any]:
    """Submit a job for each item, with at most `at_once` unsettled, wait for all, and return the outcome."""
    window = _Window(jobs, signature, tally, prepare)
    refill_at = None if at_once is not None else UNBOUND // 2
    return await map_window(tally, at_once or UNBOUND, window.items, window.submit, window.settle, refill_at=refill_at)


class _Window:
    """The items whose jobs are submitted and not settled, by job id. Equal keys give equal ids."""

    def __init__(
        self, jobs: Jobs, signature: Signature, tally: Tally[Any], prepare: Callable[[Any], JobRequest]
    ) -> None:
        self._jobs = jobs
        self._signature = signature
        self._tally = tally
        self._prepare = prepare
        self._mark = 0
        self.items: dict[str, list[Taken[Any]]] = {}

    async def submit(self, items: Sequence[Taken[Any]]) -> None:
        """Submit the jobs of these items."""
        ready: list[tuple[Taken[Any], JobRequest]] = []
        for one in items:
            try:
                ready.append((one, self._prepare(one.item)))
            except Exception as error:
                self._tally.fail(one, error)
        size = self._jobs.engine.insert_at_once
        for start in range(0, len(ready), size):
            await self._submit_part(ready[start : start + size])

    async def _submit_part(self, ready: Sequence[tuple[Taken[Any], JobRequest]]) -> None:
        accepted: Sequence[Inserted | Exception]
        try:
            accepted = await self._jobs.submit([request for _, request in ready])
        except KeyConflict as error:
            if len(ready) > 1:  # nothing was inserted: retry one by one, so that only the conflicting item fails
                for alone in ready:
                    await self._submit_part([alone])
                return
            accepted = [error]
        except Exception as error:
            accepted = [error] * len(ready)
        for (one, _), answer in zip(ready, accepted, strict=True):
            if isinstance(answer, Exception):
                self._tally.fail(one, answer)
            else:
                self.items.setdefault(answer.id, []).append(one)

    async def settle(self) -> None:
        """Wait until at least one job has settled, and a moment longer to collect quick ones."""
        engine, enough = self._jobs.engine, len(self.items) // 2
        collect_until = time.monotonic() + BATCH_SECONDS
        has_settled = False
        while self.items:
            ids = list(self.items)
            try:
                first, rest = partial(self._look, ids[:LOOK_FIRST]), partial(self._look, ids[LOOK_FIRST:])
                has_settled = await patiently(first) or await patiently(rest) or has_settled
                left = collect_until - time.monotonic()
                if has_settled and (left <= 0 or len(self.items) <= enough):
                    return
                seconds = left if has_settled else LOOK_SECONDS
                topics = [job_topic(id) for id in self.items]
                self._mark = await patiently(partial(engine.wait, topics, seconds, self._mark))
            except Exception as error:
                for id in ids:
                    self._fail(id, error)

    async def _look(self, ids: Sequence[str]) -> bool:
        """Settle the items whose jobs have settled. Return whether there were any."""
        found = False
        for start in range(0, len(ids), PAGE_LIMIT):
            page = ids[start : start + PAGE_LIMIT]
            for id, job in zip(page, await self._jobs.engine.get(page), strict=True):
                if job is None:
                    self._fail(id, NotFound(f"job {id} is no longer in this store; it may have been pruned"))
                elif job.state in SETTLED:
                    await self._end(job)
                else:
                    continue
                found = True
        return found

    async def _end(self, job: Job) -> None:
        if job.state is not State.COMPLETED:
            note = (await self._jobs.history(job.id))[-1].note
            self._fail(job.id, failure_of(job, str(note.get("reason", ""))))
            return
        engine = self._jobs.engine
        for one in self.items.pop(job.id):
            try:
                text = await patiently(partial(result_of, engine, job))
                self._tally.succeed(one, await read_value(engine.blobs, text, self._signature.result.decode))
            except Exception as error:
                self._tally.fail(one, error)

    def _fail(self, id: str, error: Exception) -> None:
        for one in self.items.pop(id, ()):
            self._tally.fail(one, error)
