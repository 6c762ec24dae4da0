"""What a worker over HTTP does with jobs: claim, finish, fail, hand back, stay alive, record steps and reports.

Must not know HTTP or the Open Job Spec, and must not judge who is lost (`upkeep`). Every write names the epoch that the
caller was given, or the current one if it gave none; the store refuses an old one.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.changes import complete, exhaust, fail, release, rest
from holdfast.core.errors import LeaseLost, NotAllowed, NotFound
from holdfast.core.keys import step_path
from holdfast.core.lifecycle import SETTLED
from holdfast.core.limits import NOTE_CHARACTERS
from holdfast.core.model import (
    PAGE_LIMIT,
    SIGNAL,
    Applied,
    Change,
    Conflict,
    Error,
    Job,
    Recorded,
    State,
    Step,
    StepState,
    Time,
    Where,
)
from holdfast.core.outcome import never_retried, retry_at
from holdfast.core.reservations import HELD_PATH, REMOTE_PATH, SEEN_PATH, Holder, holder_of, stored_name
from holdfast.jobs.consequences import notify_others
from holdfast.jobs.flows import makes_next
from holdfast.jobs.service import Jobs
from holdfast.jobs.waiters import CHANGE_TRIES

BUILT_IN = "holdfast."
"""The prefix of the job types that only our own workers can run."""

CHECKPOINT_PATH = f"{REMOTE_PATH}checkpoint"
PROGRESS_PATH = f"{REMOTE_PATH}progress"

FAILURE = "failure"
"""The key of a history note that has a failure as its worker described it."""


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt failed, as the worker says: `type` and `code` name it; `details` are the worker's own."""

    type: str
    message: str = ""
    code: str = ""
    details: Mapping[str, Any] = {}
    backtrace: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Everything that `never` of a retry policy may name."""


class Claim(Struct, frozen=True, kw_only=True):
    """Who says that it holds a job: the lease's epoch and the worker's name, as far as the caller gave them.

    `by` is who the caller is known to be: the name of its token. What a worker calls itself is only its word.
    """

    job: str
    epoch: int | None = None
    worker: str = ""
    by: str = ""


def check_holder(job: Job, claim: Claim) -> Job:
    """Return the job if the caller may write for it; raise NotAllowed or LeaseLost."""
    if job.state is not State.ACTIVE:
        state = "discarded" if job.state is State.REVIEW else job.state.value
        if claim.epoch is not None and (claim.epoch != job.epoch or job.state in SETTLED):
            raise LeaseLost(f"job {job.id}: its lease is over, because the job is {state}; stop working on it")
        raise NotAllowed(f"job {job.id} is {state}, and only an active job has a worker; fetch it first")
    if claim.epoch is not None and claim.epoch != job.epoch:
        raise LeaseLost(f"job {job.id}: another worker has taken it over; stop working on it")
    holder = holder_of(job.worker)
    if holder is None:
        raise NotAllowed(f"job {job.id} runs on worker {job.worker}, which doesn't work over HTTP")
    if claim.worker and holder.name and stored_name(claim.worker) != holder.name:
        raise LeaseLost(f"job {job.id} is held by worker {holder.name}, not by {claim.worker[:80]}")
    return job


class RemoteWorkers:
    """The jobs of one store, for workers over HTTP."""

    def __init__(self, jobs: Jobs, chance: Callable[[], float] = random.random) -> None:
        self._jobs = jobs
        self._engine = jobs.engine
        self._chance = chance

    async def claim(self, holder: Holder, queues: Sequence[str], limit: int) -> list[Job]:
        """Claim jobs for a worker, reserved for it. It never gets jobs of our own built-in types."""
        claimed = await self._engine.claim(str(holder), queues, limit)
        ours = [job for job in claimed if job.type.startswith(BUILT_IN)]
        if not ours:
            return claimed
        now = await self._engine.now()
        await self._engine.commit([release(job, now, by=str(holder)) for job in ours])
        claimed = [job for job in claimed if not job.type.startswith(BUILT_IN)]
        types = [type for queue in queues for type in await self._engine.ready_types(queue)]
        types = [type for type in dict.fromkeys(types) if not type.startswith(BUILT_IN)]
        if types and len(claimed) < limit:
            claimed += await self._engine.claim(str(holder), queues, limit - len(claimed), types)
        return claimed

    # The ends of an attempt.

    async def complete(self, claim: Claim, result: str) -> Job:
        """Complete a job with its result as text."""
        job = check_holder(await self._jobs.get(claim.job), claim)
        follows = await makes_next(self._engine, job)

        def completed(job: Job, now: Time) -> Change:
            inserts = () if follows is None else follows(now)
            return complete(job, now, by=_who(job, claim), result=result, inserts=inserts)

        return await self._end(claim, completed, job)

    async def fail(
        self,
        claim: Claim,
        failure: Failure,
        *,
        can_retry: bool = True,
        counts_losses: bool = False,
        always: bool = False,
    ) -> Job:
        """Fail an attempt: the job tries again, or goes to review. `always` retries whatever its policy says is final.

        With `counts_losses`, attempts that ended because the worker was lost count as tries.
        """

        def failed(job: Job, now: Time) -> Change:
            retry = job.options.retry
            spent = job.attempt + (job.recoveries if counts_losses else 0) > retry.retries
            final = not always and any(never_retried(retry, name) for name in failure.names)
            again = can_retry and not spent and not final and retry.strategy != "none"
            error = Error(failure.type, failure.message)
            note: dict[str, Any] = {
                "error": f"{failure.type}: {failure.message}",
                "attempt": job.attempt,
                FAILURE: _bounded(failure),
            }
            if not again:
                return exhaust(job, now, by=_who(job, claim), error=error, note=note)
            run_at = retry_at(job, now, self._chance())
            note["delay_ms"] = run_at - now
            return fail(job, now, by=_who(job, claim), error=error, run_at=run_at, note=note)

        return await self._end(claim, failed)

    async def hand_back(self, claim: Claim, *, until: Time | None = None, why: str = "") -> Job:
        """Give a job back to its queue, at once or at a later time. It costs no attempt."""

        def back(job: Job, now: Time) -> Change:
            note = {"why": why} if why else {}
            if until is None or until <= now:
                return release(job, now, by=_who(job, claim), note=note)
            return rest(job, now, by=_who(job, claim), run_at=until, note=note)

        return await self._end(claim, back)

    async def _end(self, claim: Claim, choose: Callable[[Job, Time], Change], job: Job | None = None) -> Job:
        job = job or check_holder(await self._jobs.get(claim.job), claim)
        for _ in range(CHANGE_TRIES):
            change = choose(job, await self._engine.now())
            (answer,) = await self._engine.commit([change])
            if isinstance(answer, Applied):
                await notify_others(self._engine, change, answer, by=change.by)
                return replace(change.job, version=answer.version)
            # A signal may have come in between; the lease may also be over.
            job = check_holder(await self._jobs.get(claim.job), replace(claim, epoch=job.epoch))
        raise LeaseLost(f"job {claim.job}: others kept changing it, so nothing was done; try again")

    # Signs of life, reports and steps.

    async def extend(
        self, worker: str, ids: Sequence[str], epochs: Mapping[str, int], reservation_ms: int | None = None
    ) -> list[Job]:
        """Start the reservations of these jobs anew; return the jobs that this worker still holds."""
        text = None if reservation_ms is None else str(reservation_ms)
        found = await self._engine.get(list(dict.fromkeys(ids))[:PAGE_LIMIT])
        known = [job for job in found if job is not None]
        held = [job for job in known if _is_held(job, Claim(job=job.id, epoch=epochs.get(job.id), worker=worker))]
        now = await self._engine.now()
        answers = await self._engine.record([_report(job, HELD_PATH, text, now) for job in held])
        return [job for job, answer in zip(held, answers, strict=True) if isinstance(answer, Recorded)]

    async def held_by(self, worker: str) -> list[Job]:
        """Return the jobs that a worker holds."""
        name = stored_name(worker)
        held = [job async for job in self._jobs.walk(Where(states=(State.ACTIVE,)))]
        return [job for job in held if (holder := holder_of(job.worker)) is not None and holder.name == name]

    async def reports(self, ids: Sequence[str]) -> dict[str, dict[str, Step]]:
        """Return what workers have reported about these jobs, by job and path."""
        found: dict[str, dict[str, Step]] = {id: {} for id in ids}
        for step in await self._engine.steps_under_each(list(found), REMOTE_PATH) if found else []:
            found[step.job][step.path] = step
        return found

    async def report(self, claim: Claim, path: str, value: Any, *, job: Job | None = None) -> Job:
        """Write the record of a report by the holder; it also counts as a sign of life."""
        held = check_holder(job or await self._jobs.get(claim.job), claim)
        text = msgspec.json.encode(value).decode()
        (answer,) = await self._engine.record([_report(held, path, text, await self._engine.now())])
        if isinstance(answer, Conflict):
            raise LeaseLost(f"job {held.id}: its lease is over; stop working on it")
        return held

    async def note(self, job: Job, path: str, value: Any, *, by: str, what: str) -> None:
        """Write a report about a job that nobody runs."""
        text = msgspec.json.encode(value).decode()
        now = await self._engine.now()
        change = Change(
            event=SIGNAL,
            before=job.state,
            job=job,
            at=now,
            by=by,
            version=job.version,
            note={"report": what},
            steps=(_report(job, path, text, now),),
        )
        (answer,) = await self._engine.commit([change])
        if isinstance(answer, Conflict):
            raise NotAllowed(f"job {job.id} has just changed; read it, and try again")

    async def record_step(self, claim: Claim, name: str, key: str, result: str, tries: int = 1) -> Recorded:
        """Record a step of a job as done. The first record of a step stands."""
        job = check_holder(await self._jobs.get(claim.job), claim)
        now = await self._engine.now()
        step = Step(
            job=job.id,
            epoch=job.epoch,
            path=step_path("", name, key),
            name=name,
            state=StepState.DONE,
            result=result,
            started_at=now,
            finished_at=now,
            tries=tries,
        )
        answer, _ = await self._engine.record([step, _report(job, SEEN_PATH, None, now)])
        if isinstance(answer, Conflict):
            raise LeaseLost(f"job {job.id}: its lease is over; stop working on it")
        return answer

    async def steps(self, id: str) -> list[Step]:
        """Return the recorded steps of a job, in the order in which they were recorded."""
        steps = [step for step in await self._engine.steps(id) if not step.path.startswith("~")]
        if not steps:
            await self._jobs.get(id)
        return steps


def _who(job: Job, claim: Claim) -> str:
    return claim.by or job.worker or ""


def _is_held(job: Job, claim: Claim) -> bool:
    try:
        check_holder(job, claim)
    except (NotAllowed, LeaseLost, NotFound):
        return False
    return True


def _report(job: Job, path: str, text: str | None, now: Time) -> Step:
    # Started, so that the next report replaces it.
    return Step(job=job.id, epoch=job.epoch, path=path, name=path, state=StepState.STARTED, result=text, started_at=now)


def _bounded(failure: Failure) -> dict[str, Any]:
    """What the history keeps of a failure. Large details are left out, not cut: half a value helps nobody."""
    kept: dict[str, Any] = {"type": failure.type, "message": failure.message}
    if failure.code:
        kept["code"] = failure.code
    if failure.details and len(msgspec.json.encode(failure.details)) <= NOTE_CHARACTERS:
        kept["details"] = dict(failure.details)
    if failure.backtrace:
        kept["backtrace"] = list(failure.backtrace)
    return kept
