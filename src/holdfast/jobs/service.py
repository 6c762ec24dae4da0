"""What callers may ask of jobs: submit them, read them, and make the changes that need no lease.

Must not know a concrete store, and must not decide what a change is: each call reads the job, lets `lifecycle` decide,
and commits. If another caller changed the job in between, the call starts over.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from holdfast.core.changes import activate, replay, resolve
from holdfast.core.codec import canonical, parse
from holdfast.core.errors import Invalid, NotAllowed, NotFound, Outrun
from holdfast.core.keys import check_id, check_queue, digest
from holdfast.core.lifecycle import deliver
from holdfast.core.limits import REASON_CHARACTERS
from holdfast.core.model import (
    PAGE_LIMIT,
    Applied,
    Change,
    Entry,
    Event,
    Inserted,
    Job,
    Lease,
    Presence,
    State,
    Step,
    Time,
    Use,
    WaitKind,
    Where,
)
from holdfast.core.outcome import in_doubt
from holdfast.core.suggestions import suggest
from holdfast.core.unreadable import log_lines, without_unreadable
from holdfast.engines.contract import Engine
from holdfast.engines.records import PAUSE, WORKER, worker_in
from holdfast.jobs.consequences import cancel_children, end_change, notify_others, presence_of, running_of
from holdfast.jobs.limit_status import limit_waits
from holdfast.jobs.pauses import Pause, pause_text, read_pauses
from holdfast.jobs.questions import (
    ASK,
    WAIT_PATH,
    Question,
    check_signal,
    open_waits,
    questions_of,
    signal_text,
    untaken,
)
from holdfast.jobs.record_reads import by_job, pages_of, status_records
from holdfast.jobs.replays import Said, doubts_left, keep_word, recorded_failures, said_of, with_words, words_spoken
from holdfast.jobs.requests import Ids, JobRequest, new_job, random_ids
from holdfast.jobs.status import Status, status_of
from holdfast.jobs.waiters import CHANGE_TRIES

__all__ = ["LOG_PATH", "Jobs", "JobRequest", "Pause", "Status", "history_of", "new_job", "random_ids", "status_of"]

LOG_PATH = "~log"
"""The record under which a job's log lines are kept. No step's path starts with a tilde."""

_ASKING = Where(states=(State.PENDING, State.ACTIVE))


class Jobs:
    """The jobs of one store."""

    def __init__(self, engine: Engine, ids: Ids | None = None) -> None:
        self.engine = engine
        self._ids = ids or random_ids()

    # Submitting.

    async def submit(
        self,
        orders: Sequence[JobRequest],
        parent: Lease | None = None,
        *,
        ids: Sequence[str] | None = None,
        groups: Sequence[str] = (),
        now: Time | None = None,
        connection: Any = None,
    ) -> list[Inserted]:
        """Submit jobs, all or none. For a key that is already known, return the job that has it.

        `now` is the store's time, if the caller has it already. With `connection`, the jobs become part of the caller's
        open transaction.

        With `parent`, the jobs are children of the job that holds this lease, each in its group; their derived `ids`
        make it safe to submit them again. Raises KeyConflict if a key is in use with other arguments, and LeaseLost if
        the parent has lost its lease.
        """
        jobs = self.new(orders, await self.engine.now() if now is None else now, ids)
        if parent is not None:
            jobs = [replace(job, parent=parent.job, group=group) for job, group in zip(jobs, groups, strict=True)]
        if connection is not None:
            return await self.engine.insert_within(connection, jobs)
        return await self.engine.insert(jobs, parent)

    def new(self, orders: Sequence[JobRequest], now: Time, ids: Sequence[str] | None = None) -> list[Job]:
        """Build the jobs for these requests and check them. Stores nothing."""
        return [
            new_job(order, self._ids(now) if ids is None else ids[place], now) for place, order in enumerate(orders)
        ]

    def alike(self, order: JobRequest, calls: Sequence[tuple[str, tuple[Use, ...]]], now: Time) -> list[Job]:
        """Build one job of the same request for each of these calls: its encoded arguments, and its limits."""
        job = new_job(order, "", now)
        options = {uses: replace(job.options, limits=uses) for uses in {uses for _, uses in calls} if uses}
        return [
            replace(
                job,
                id=self._ids(now),
                args=text,
                digest=digest(order.type, text),
                options=options.get(uses, job.options),
            )
            for text, uses in calls
        ]

    # Reading.

    async def get(self, id: str) -> Job:
        """Return one job, or raise NotFound."""
        (job,) = await self.engine.get([_known(id)])
        if job is None:
            raise NotFound(f"there is no job {id} in this store; it may have been pruned, or it is in another store")
        return job

    async def status(self, id: str) -> Status:
        """Return the status of a job: its progress, worker, waits and trouble."""
        job = await self.get(id)
        now = await self.engine.now()
        presence = await presence_of(self.engine, job)
        trouble = "" if presence is None else presence.trouble
        (summary,) = await self.engine.summaries([id])
        records = await status_records(self.engine, [job])
        doing = running_of(presence, job)
        limited = await limit_waits(self.engine, [job], {} if doing is None else {(job.id, job.epoch): doing}, now)
        return status_of(job, summary, records[id], doing, now, trouble, limited.get(id))

    async def statuses(self, jobs: Sequence[Job]) -> list[Status]:
        """Return the status of each of these jobs, with a few reads per page. Reads no results of steps."""
        now = await self.engine.now()
        workers = await self.workers() if any(job.worker for job in jobs) else []
        running = {(one.job, one.epoch): one for presence in workers for one in presence.running}
        troubles = {presence.worker: presence.trouble for presence in workers}
        found: list[Status] = []
        for page in pages_of(jobs):
            summaries = await self.engine.summaries([job.id for job in page])
            records = await status_records(self.engine, page)
            limited = await limit_waits(self.engine, page, running, now)
            for job, summary in zip(page, summaries, strict=True):
                trouble = troubles.get(job.worker or "", "")
                doing = running.get((job.id, job.epoch))
                found.append(status_of(job, summary, records[job.id], doing, now, trouble, limited.get(job.id)))
        return found

    async def workers(self) -> list[Presence]:
        """Return all workers that have registered and not signed off, by name. Dead ones are marked as gone."""
        return [worker_in(record) for record in await self.engine.records(WORKER)]

    async def log(self, id: str) -> list[str]:
        """Return the log lines that are kept with a job, or raise NotFound."""
        for step in await self.engine.steps_under(_known(id), LOG_PATH):
            if step.path == LOG_PATH:
                return log_lines(step)
        await self.get(id)
        return []

    async def walk(self, where: Where) -> AsyncIterator[Job]:
        """Iterate over all jobs that match, page by page."""
        after = ""
        while page := await self.engine.find(where, after):
            for job in page:
                yield job
            if len(page) < PAGE_LIMIT:
                return
            after = page[-1].id

    async def history(self, id: str) -> list[Entry]:
        """Return the whole history of a job, or raise NotFound."""
        entries = await history_of(self.engine, _known(id))
        if not entries:
            await self.get(id)
        return entries

    # Changes that need no lease. `by` says who asked, `reason` why; the history keeps both.

    async def cancel(self, id: str, *, by: str = "caller", reason: str = "") -> Job:
        """Cancel a job and its children. A running job loses its lease at once. What the job made is undone."""
        job = await self._change(
            id, lambda job, now: end_change(self.engine, job, Event.CANCEL, now, by=by, note=_note(reason))
        )
        await cancel_children(self.engine, id, by=by)
        return job

    async def activate(self, id: str, *, by: str = "caller", reason: str = "") -> Job:
        """Let a pending job continue, whatever it waits for."""
        return await self._change(id, lambda job, now: activate(job, now, by=by, note=_note(reason)))

    async def signal(self, id: str, name: str, value: object = None, *, by: str = "caller") -> Job:
        """Send a job a named value. If the job waits for it, it wakes; otherwise the value stays in its inbox."""
        text = signal_text(name, value)

        async def sent(job: Job, now: Time) -> Change:
            waits = await self._waits(job)
            check_signal(job, waits, name, value, text)
            is_awaited = any(info["name"] == name for _, info in open_waits(job, waits))
            left = {one.version: one for one in untaken(job, waits)}
            change = deliver(job, name, text, now, by=by, untaken=tuple(left.values()), is_awaited=is_awaited)
            # A job that waits in its slot commits nothing, so this change also removes what the job has already taken.
            return replace(change, takes=tuple(one.version for one in job.inbox if one.version not in left))

        return await self._change(id, sent)

    async def questions(self, id: str | None = None) -> list[Question]:
        """Return the open questions of one job, or of all jobs that wait, whether they hold a slot or not."""
        found: list[Question] = []
        jobs = [await self.get(id)] if id is not None else [job async for job in self.walk(_ASKING)]
        # A suspended job lists its waits itself, so those without a question cost no read.
        asking = [one for one in jobs if one.epoch and (one.state is not State.PENDING or _asks(one))]
        for page in pages_of(asking):
            waits = by_job(page, await self.engine.steps_under_each([job.id for job in page], WAIT_PATH))
            found += [question for job in page for question in questions_of(job, waits[job.id])]
        return found

    async def _waits(self, job: Job) -> list[Step]:
        """Read the records of a job's waits. A job that never ran, or that waits for no signal, has none."""
        waits_for_none = job.state is State.PENDING and all(wait.kind is not WaitKind.SIGNAL for wait in job.waits)
        return [] if not job.epoch or waits_for_none else await self.engine.steps_under(job.id, WAIT_PATH)

    async def answer(self, id: str, value: object, *, name: str | None = None, by: str = "person") -> Job:
        """Answer a job's open question. If it has several, `name` says which."""
        asked = [question for question in await self.questions(id) if name in (None, question.name)]
        if not asked:
            which = "no open question" if name is None else f"no open question {name!r}"
            raise NotFound(f"job {id} has {which}; to list open questions, run holdfast ask")
        if len(asked) > 1:
            names = ", ".join(one.name for one in asked)
            raise Invalid(f"job {id} has {len(asked)} open questions; choose one with --name (name=): {names}")
        return await self.signal(id, asked[0].name, value, by=by)

    async def replay(self, id: str, *, args: str | None = None, by: str = "person", reason: str = "") -> Job:
        """Run a job in review again, with its own arguments or edited ones. Recorded steps keep their results.

        Everything that failed is tried again: its steps, and its children in review. A wait that timed out starts over.
        """
        text = None if args is None else canonical(parse(args))

        async def again(job: Job, now: Time) -> Change:
            edited = None if text is None else (text, digest(job.type, text))
            change = replay(job, now, by=by, args=edited, note=_note(reason))
            return without_unreadable(job, await self._replayed(change, said_of(job), reason))

        return await self._change(id, again)

    async def _replayed(self, change: Change, said: Mapping[str, Said], reason: str) -> Change:
        """Complete a replay. Replays the children first: a parent that runs before them would fail again."""
        job, steps = change.job, {step.path: step for step in await self.engine.steps(change.job.id)}
        failures = recorded_failures(steps.values())
        for start in range(0, len(failures.children), PAGE_LIMIT):
            for child in await self.engine.get(failures.children[start : start + PAGE_LIMIT]):
                if child is not None and child.parent == job.id and child.state is State.REVIEW:
                    why = f"its parent {job.id} was replayed" + (f": {reason}" if reason else "")
                    with suppress(NotAllowed):  # somebody else has already replayed or ended it
                        await self.replay(child.id, by=change.by, reason=why)
        return with_words(replace(change, drops=failures.paths), said, steps)

    async def resolve(self, id: str, result: object = None, *, by: str = "person", reason: str = "") -> Job:
        """Complete a job in review with a result that a person supplies."""
        text = canonical(result)
        return await self._change(id, lambda job, now: resolve(job, now, by=by, result=text, note=_note(reason)))

    async def resolve_step(
        self, id: str, path: str, result: object = None, *, again: bool = False, by: str = "person", reason: str = ""
    ) -> Job:
        """Settle a step in doubt: it happened, with this result, or it is to run again.

        The job must be in review, and the step started but not recorded. Once no step is in doubt, the job runs again.
        """
        said = Said(path, again, canonical(result))
        steps = {step.path: step for step in await self.engine.steps(_known(id))}
        doubts = in_doubt(steps.values())
        # An earlier decision can be corrected: its result may not have matched the step's type.
        before = words_spoken(await self.history(id))
        if path not in doubts and not (path in before and path in steps):
            known = f"; steps in doubt: {', '.join(doubts)}" if doubts else "; no step of this job is"
            raise NotFound(f"job {id}: step {path!r} is not in doubt{suggest(path, doubts) or known}")
        note = {**_note(reason), "step": path, "said": said.words}

        async def go_on(job: Job, now: Time) -> Change:
            change = replay(job, now, by=by, note=note)
            if [one for one in doubts_left(job, steps.values()) if one != path]:
                return keep_word(job, said, now, by=by, note=note)
            all_said = {**said_of(job), path: said}
            if len(all_said) > 1:
                words = {one: all_said[one].words for one in sorted(all_said)}
                change = replace(change, note={**note, "steps": words})
            return without_unreadable(job, await self._replayed(change, all_said, reason))

        return await self._change(id, go_on)

    async def discard(self, id: str, *, by: str = "person", reason: str = "") -> Job:
        """Discard a job in review. It never runs again."""
        return await self._change(
            id, lambda job, now: end_change(self.engine, job, Event.DISCARD, now, by=by, note=_note(reason))
        )

    async def _change(self, id: str, choose: Callable[[Job, Time], Change | Awaitable[Change]]) -> Job:
        """Read, decide and commit a change. Start over if somebody else changed the job in between."""
        for _ in range(CHANGE_TRIES):
            job = await self.get(id)
            chosen = choose(job, await self.engine.now())
            change = chosen if isinstance(chosen, Change) else await chosen
            (answer,) = await self.engine.commit([change])
            if isinstance(answer, Applied):
                await notify_others(self.engine, change, answer, by=change.by)
                return await self.get(id)
        raise Outrun(
            f"job {id}: other callers changed it {CHANGE_TRIES} times during this call, so nothing was done; "
            "find out what keeps changing it, then try again"
        )

    # Queues.

    async def pause(self, queue: str, *, by: str = "caller", reason: str = "") -> None:
        """Stop workers from claiming jobs of a queue until it is resumed. Running jobs continue; no state changes."""
        text = pause_text(by, _note(reason).get("reason", ""))
        await self.engine.put_record(PAUSE + check_queue(queue), text)

    async def resume(self, queue: str) -> None:
        """Let workers claim a paused queue's jobs again."""
        await self.engine.put_record(PAUSE + check_queue(queue), None)

    async def paused(self) -> list[str]:
        """Return the names of the paused queues."""
        return [record.name.removeprefix(PAUSE) for record in await self.engine.records(PAUSE)]

    async def pauses(self) -> dict[str, Pause]:
        """Return the paused queues, with who paused them, when and why."""
        return read_pauses(await self.engine.records(PAUSE))


async def history_of(engine: Engine, id: str) -> list[Entry]:
    """Read the whole history of a job; an empty list if there is no such job."""
    entries: list[Entry] = []
    while page := await engine.history(id, after=len(entries)):
        entries += page
        if len(page) < PAGE_LIMIT:
            break
    return entries


def _asks(job: Job) -> bool:
    """Whether a suspended job waits for the answer to a question."""
    return any(wait.name.startswith(ASK) for wait in job.waits)


def _known(id: str) -> str:
    """Return a valid id as it is; raise NotFound for a text that can't be a job's id."""
    try:
        return check_id(id)
    except (Invalid, TypeError) as error:
        raise NotFound(f"there is no such job: {error}") from None


def _note(reason: str) -> dict[str, str]:
    if len(reason) > REASON_CHARACTERS:
        raise Invalid(
            f"reason has {len(reason):,} characters, but the limit is {REASON_CHARACTERS:,}; shorten it, or give a link"
        )
    return {"reason": reason} if reason else {}
