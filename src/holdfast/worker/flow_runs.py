"""Flows: the job that submits the steps of a flow as its children, waits for them, and ends with their results.

Must not decide which steps start (`core.flows`) or make their jobs (`jobs.flows`). The end of a step may already have
submitted the next ones; ids are derived, so each is submitted once.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.core.codec import Signature, parse
from holdfast.core.errors import JobFailed
from holdfast.core.flows import Advance, advance
from holdfast.core.model import PAGE_LIMIT, Job, Options
from holdfast.jobs.failures import failure_of
from holdfast.jobs.flows import ALONE, FLOW_TYPE, FlowRun, load_flow, own_result, request_of
from holdfast.worker.attempt import Attempt
from holdfast.worker.child_jobs import insert_children, store_time
from holdfast.worker.children import Outcome, group_wait, window_wait
from holdfast.worker.context import attempt_here
from holdfast.worker.registry import JobSpec
from holdfast.worker.suspension import Suspension

MOST_STEPS = 1_000_000
"""How many steps a flow may have. The size of its arguments ends sooner."""


def flow_spec(job: Job) -> JobSpec | None:
    """Return what to run for a flow; None for any other type."""
    if job.type != FLOW_TYPE:
        return None
    return JobSpec(
        type=FLOW_TYPE,
        function=_run,
        signature=_SIGNATURE,
        is_async=True,
        queue=job.queue,
        options=Options(),
        most_children=MOST_STEPS,
    )


async def _run(*_: Any) -> Any:
    """Run the flow of this job to its end and return its result."""
    attempt = attempt_here()
    assert attempt is not None
    with attempt.activity():
        run = await attempt.persist(lambda: load_flow(attempt.engine, attempt.job))
    return await _Runner(attempt, run).run()


_SIGNATURE = Signature(_run)


class _Runner:
    """One flow, in one attempt."""

    def __init__(self, attempt: Attempt, run: FlowRun) -> None:
        self._attempt = attempt
        self._run = run
        self._submitted: set[int] = set()
        self._outcomes: dict[int, Outcome] = {}

    async def run(self) -> Any:
        run = self._run
        if self._attempt.job.epoch > 1 and run.layers is not None and len(run.layers) > 1:
            await self._skip_layers(run.layers)
        while True:
            now = advance(run.flow, {place: one.job is None for place, one in self._outcomes.items()})
            waiting = [place for place in now.started if place not in self._outcomes]
            if not waiting:
                break
            await self._submit([place for place in waiting if place not in self._submitted])
            await (self._wait_for_any(waiting) if run.layers is None else self._wait_for_all(waiting))
        if now.unhandled:
            raise JobFailed(self._failure(now))
        with self._attempt.activity():
            return parse(await self._attempt.persist(lambda: own_result(self._attempt.engine, run)))

    async def _skip_layers(self, layers: Sequence[range]) -> None:
        """Leave out the layers before the last one that has begun, so that their jobs needn't be read again.

        If all steps of a layer were submitted, the failures before it were no reason to stop. A step that starts
        because of failures needs to know them.
        """
        attempt, run = self._attempt, self._run
        with attempt.activity():
            first = [run.id_of(layer[0]) for layer in layers[-PAGE_LIMIT:]]
            begun = await attempt.persist(lambda: attempt.engine.get(first))
            last = max((place for place, job in enumerate(begun) if job is not None), default=0)
            layer = layers[-PAGE_LIMIT:][last]
            if layer[0] == 0 or len(layer) > PAGE_LIMIT or any(run.flow.steps[place].on_failure for place in layer):
                return
            ids = [run.id_of(place) for place in layer]
            jobs = await attempt.persist(lambda: attempt.engine.get(ids))
        known = {job.id: job for job in (*begun, *jobs) if job is not None}
        if all(id in known for id in ids):
            attempt.journal.children = known
            self._outcomes = {place: Outcome(result="null") for place in range(layer[0])}

    async def _submit(self, starts: Sequence[int]) -> None:
        """Submit these steps, unless they are submitted already."""
        attempt, run = self._attempt, self._run
        size = attempt.engine.insert_at_once
        for first in range(0, len(starts), size):
            part = starts[first : first + size]
            now = await store_time(attempt)
            ids, groups = [run.id_of(place) for place in part], [run.group_of(place) for place in part]
            await insert_children(attempt, [request_of(run, place, now) for place in part], ids, groups, now)
        self._submitted.update(starts)

    async def _wait_for_all(self, waiting: Sequence[int]) -> None:
        """Wait until a whole layer has ended."""
        run = self._run
        ids = [run.id_of(place) for place in waiting]
        wait = group_wait(self._attempt, ids, run.group, part=f"/{waiting[0]}")
        outcomes = await Suspension.of(self._attempt).wait(wait)
        self._outcomes.update(zip(waiting, outcomes, strict=True))

    async def _wait_for_any(self, waiting: Sequence[int]) -> None:
        """Wait until at least one of these steps has ended."""
        places = {self._run.id_of(place): place for place in waiting}
        ended = await Suspension.of(self._attempt).wait(window_wait(self._attempt, list(places), ALONE))
        self._outcomes.update({places[id]: outcome for id, outcome in ended.items()})

    def _failure(self, end: Advance) -> str:
        """Say which steps failed, and why the first one did."""
        first = end.unhandled[0]
        job = self._outcomes[first].job
        assert job is not None
        text = f"step {first + 1} of {len(self._run.flow.steps)} failed: {failure_of(job, is_inside=True)}"
        if len(end.unhandled) > 1:
            text = f"{len(end.unhandled)} steps failed; first, {text}"
        return text
