"""What callers may ask of jobs: submit them, read them, and make the changes that need no lease.

Must not know a concrete store, and must not decide what a change is: each call reads the job, lets `lifecycle` decide,
and commits. If another caller changed the job in between, the call starts over.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from holdfast.core.changes import activate, replay, resolve
from holdfast.core.codec import canonical
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
    WaitKind,
    Where,
)
from holdfast.core.outcome import in_doubt
from holdfast.core.queue_bounds import QueueBound
from holdfast.core.references import references_in
from holdfast.core.suggestions import suggest
from holdfast.core.unreadable import log_lines, without_unreadable
from holdfast.engines.contract import Engine
from holdfast.engines.records import PAUSE, WORKER, worker_in
from holdfast.jobs.budgets import Budget, add_budget, budgets_of
from holdfast.jobs.consequences import cancel_children, end_change, notify_others, presence_of, running_of
from holdfast.jobs.flows import FLOW_TYPE, count_done
from holdfast.jobs.large_values import check_arguments_within, keep_arguments
from holdfast.jobs.limit_status import limit_waits
from holdfast.jobs.pauses import Pause, pause_text, read_pauses
from holdfast.jobs.places import Places
from holdfast.jobs.questions import (
    WAIT_PATH,
    Question,
    asks,
    check_signal,
    open_waits,
    questions_of,
    signal_text,
    untaken,
)
from holdfast.jobs.record_reads import by_job, pages_of, status_records
from holdfast.jobs.replays import Said, doubts_left, keep_word, recorded_failures, said_of, with_words, words_spoken
from holdfast.jobs.requests import NO_DEMANDS, Demands, Ids, JobRequest, edited_args, new_job, random_ids
from holdfast.jobs.room import find_room, shed, shed_overflow
from holdfast.jobs.status import Status, status_of
from holdfast.jobs.unique import check_within, replace_existing, replaces
from holdfast.jobs.waiters import CHANGE_TRIES

__all__ = ["LOG_PATH", "Jobs", "JobRequest", "Pause", "Status", "history_of", "new_job", "random_ids", "status_of"]

LOG_PATH = "~log"
"""The record under which a job's log lines are kept. No step's path starts with a tilde."""

CheckWaits = Callable[[Job, Sequence[Step], Time], None]
"""Refuses a signal, given its job, the records of the job's waits, and the store's time."""

_ASKING = Where(states=(State.PENDING, State.ACTIVE))


class Jobs(Places):
    """The jobs of one store."""

    def __init__(
        self, engine: Engine, ids: Ids | None = None, bounds: Mapping[str, QueueBound] = MappingProxyType({})
    ) -> None:
        self.engine = engine
        self.bounds = bounds
        """How many jobs may wait in which queues, for what is submitted here outside jobs."""
        self._ids = ids or random_ids()

    def within(self, bounds: Mapping[str, QueueBound]) -> "Jobs":
        """Return the jobs of the same store, for submits that respect these bounds of queues."""
        return Jobs(self.engine, self._ids, bounds) if bounds else self

    # Submitting.

    async def submit(
        self,
        requests: Sequence[JobRequest],
        parent: Lease | None = None,
        *,
        ids: Sequence[str] | None = None,
        groups: Sequence[str] = (),
        now: Time | None = None,
        connection: Any = None,
    ) -> list[Inserted]:
        """Submit jobs, all or none. For a key that is already known, return the job that has it.

        `now` is the store's time, if the caller has it already. With `connection`, the jobs become part of the caller's
        open transaction. Other jobs aren't part of it, so a full queue then sheds none of them: it refuses.

        With `parent`, the jobs are children of the job that holds this lease, each in its group; their derived `ids`
        make it safe to submit them again. Raises KeyConflict if a key is in use with other arguments, and LeaseLost if
        the parent has lost its lease.
        """
        jobs = self.new(requests, await self.engine.now() if now is None else now, ids)
        if parent is not None:
            jobs = [replace(job, parent=parent.job, group=group) for job, group in zip(jobs, groups, strict=True)]
        if connection is not None:
            check_within(jobs)
            check_arguments_within(jobs)
            if self.bounds:
                await find_room(self.engine, self.bounds, jobs, may_shed=False)
            return await self.engine.insert_within(connection, jobs)
        return await self.insert(jobs, parent)

    async def insert(self, jobs: Sequence[Job], parent: Lease | None = None) -> list[Inserted]:
        """Insert jobs that `new` or `alike` built. A unique job with then="replace" replaces the one like it."""
        sheds = await find_room(self.engine, self.bounds, jobs) if self.bounds and parent is None else ()
        await shed_overflow(self.engine, sheds)
        jobs = await keep_arguments(self.engine, jobs)
        answers = await self.engine.insert(jobs, parent)
        for place, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
            if not answer.new and replaces(job, answer.id):
                answers[place] = await replace_existing(self.engine, job, answer.id, parent)
        if sheds:
            await shed(self.engine, sheds, answers)
        return answers

    def new(self, requests: Sequence[JobRequest], now: Time, ids: Sequence[str] | None = None) -> list[Job]:
        """Build the jobs for these requests and check them. Stores nothing."""
        return [new_job(one, self._ids(now) if ids is None else ids[place], now) for place, one in enumerate(requests)]

    def new_id(self, now: Time) -> str:
        """Return a new id that sorts after the earlier ones."""
        return self._ids(now)

    def alike(self, order: JobRequest, calls: Sequence[tuple[str, Demands]], now: Time) -> list[Job]:
        """Build one job of the same request for each of these calls: its encoded arguments, and its demands."""
        job = new_job(order, "", now)
        options = {one: one.added_to(job.options) for one in {one for _, one in calls} if one != NO_DEMANDS}
        return [
            replace(
                job,
                id=self._ids(now),
                args=text,
                digest=digest(order.type, text),
                options=options.get(demands, job.options),
            )
            for text, demands in calls
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
        budgets = await budgets_of(self.engine, [job])
        running = {} if doing is None else {(job.id, job.epoch): doing}
        limited = await limit_waits(self.engine, [job], running, now, budgets)
        status = status_of(job, summary, records[id], doing, now, trouble, limited.get(id), budgets.get(id))
        if job.type == FLOW_TYPE and job.state is State.PENDING:
            done, total = await count_done(self.engine, job)
            return replace(status, done=done, total=total)
        return status

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
            budgets = await budgets_of(self.engine, page)
            limited = await limit_waits(self.engine, page, running, now, budgets)
            for job, summary in zip(page, summaries, strict=True):
                trouble = troubles.get(job.worker or "", "")
                doing = running.get((job.id, job.epoch))
                waits, budget = limited.get(job.id), budgets.get(job.id)
                found.append(status_of(job, summary, records[job.id], doing, now, trouble, waits, budget))
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
        elif not entries[0].by and (job := (await self.engine.get([id]))[0]) is not None:
            entries[0] = replace(entries[0], by=job.options.submitted_by)
        return entries

    # Changes that need no lease. `by` says who asked, `reason` why; the history keeps both.

    async def cancel(self, id: str, *, by: str = "caller", reason: str = "", act: str = "") -> Job:
        """Cancel a job and its children. A running job loses its lease at once. What the job made is undone."""
        job = await self.change(
            id, lambda job, now: end_change(self.engine, job, Event.CANCEL, now, by=by, note=_note(reason, act))
        )
        await cancel_children(self.engine, id, by=by)
        return job

    async def activate(self, id: str, *, by: str = "caller", reason: str = "") -> Job:
        """Let a pending job continue, whatever it waits for; except for records that were never copied."""

        def go_on(job: Job, now: Time) -> Change:
            if any(wait.is_for_copy for wait in job.waits):
                raise NotAllowed(
                    f"job {id} has no records yet: it is a copy of another run, and was cut off while it was made; if "
                    "it stays like this, cancel it, and rerun or fork that run again"
                )
            return activate(job, now, by=by, note=_note(reason))

        return await self.change(id, go_on)

    async def signal(
        self, id: str, name: str, value: object = None, *, by: str = "caller", check: CheckWaits | None = None
    ) -> Job:
        """Send a job a named value. If the job waits for it, it wakes; otherwise the value stays in its inbox.

        `check` may refuse it, given the job and the records of its waits.
        """
        text = signal_text(name, value)
        if files := references_in(text):
            await self.engine.blobs.refer(files, _known(id))

        async def sent(job: Job, now: Time) -> Change:
            if check is not None:
                check(job, await self.engine.steps_under(job.id, WAIT_PATH), now)
            waits = await self._waits(job)
            check_signal(job, waits, name, value, text)
            is_awaited = any(info["name"] == name for _, info in open_waits(job, waits))
            left = {one.version: one for one in untaken(job, waits)}
            change = deliver(job, name, text, now, by=by, untaken=tuple(left.values()), is_awaited=is_awaited)
            # A job that waits in its slot commits nothing, so this change also removes what the job has already taken.
            return replace(change, takes=tuple(one.version for one in job.inbox if one.version not in left))

        return await self.change(id, sent)

    async def questions(self, id: str | None = None) -> list[Question]:
        """Return the open questions of one job, or of all jobs that wait, whether they hold a slot or not."""
        jobs = [await self.get(id)] if id is not None else [job async for job in self.walk(_ASKING)]
        return await self.questions_among(jobs)

    async def questions_among(self, jobs: Sequence[Job]) -> list[Question]:
        """Return the open questions of these jobs."""
        found: list[Question] = []
        # A suspended job lists its waits itself, so those without a question cost no read.
        asking = [one for one in jobs if one.epoch and (one.state is not State.PENDING or asks(one))]
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

    async def replay(
        self, id: str, *, args: str | None = None, by: str = "person", reason: str = "", act: str = ""
    ) -> Job:
        """Run a job in review again, with its own arguments or edited ones. Recorded steps keep their results.

        Everything that failed is tried again: its steps, and its children in review. A wait that timed out starts over.
        """
        text = None if args is None else edited_args(args)
        kept = None if text is None else await self.engine.blobs.keep(text, _known(id), "the arguments")

        async def again(job: Job, now: Time) -> Change:
            edited = None if text is None or kept is None else (kept, digest(job.type, text))
            change = replay(job, now, by=by, args=edited, note=_note(reason, act))
            return without_unreadable(job, await self.complete_replay(change, said_of(job), reason))

        return await self.change(id, again)

    async def complete_replay(self, change: Change, said: Mapping[str, Said], reason: str) -> Change:
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

    async def resolve(
        self, id: str, result: object = None, *, by: str = "person", reason: str = "", act: str = ""
    ) -> Job:
        """Complete a job in review with a result that a person supplies."""
        keeps = (await self.get(id)).options.keep_result_ms is not None
        text = await self.engine.blobs.keep(canonical(result), id, "the result", always=keeps)
        note = _note(reason, act)
        return await self.change(id, lambda job, now: resolve(job, now, by=by, result=text, note=note))

    async def resolve_step(
        self, id: str, path: str, result: object = None, *, again: bool = False, by: str = "person", reason: str = ""
    ) -> Job:
        """Settle a step in doubt: it happened, with this result, or it is to run again.

        The job must be in review, and the step started but not recorded. Once no step is in doubt, the job runs again.
        """
        text = await self.engine.blobs.keep(canonical(result), _known(id), "the result")
        said = Said(path, again, text)
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
            return without_unreadable(job, await self.complete_replay(change, all_said, reason))

        return await self.change(id, go_on)

    async def discard(self, id: str, *, by: str = "person", reason: str = "", act: str = "") -> Job:
        """Discard a job in review. It never runs again."""
        note = _note(reason, act)
        return await self.change(
            id, lambda job, now: end_change(self.engine, job, Event.DISCARD, now, by=by, note=note)
        )

    async def change(self, id: str, choose: Callable[[Job, Time], Change | Awaitable[Change]]) -> Job:
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

    async def add_budget(self, id: str, given: Mapping[str, Any], *, by: str = "person", reason: str = "") -> Budget:
        """Add to the budget of a job, `{"usd": 5}`, or of the job that it draws on. Jobs that wait for it continue."""
        return await add_budget(self.engine, _known(id), given, by=by, reason=reason)

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


def _known(id: str) -> str:
    """Return a valid id as it is; raise NotFound for a text that can't be a job's id."""
    try:
        return check_id(id)
    except (Invalid, TypeError) as error:
        raise NotFound(f"there is no such job: {error}") from None


def _note(reason: str, act: str = "") -> dict[str, str]:
    """Return the note about a change that somebody asked for, perhaps as part of an act on many jobs."""
    if len(reason) > REASON_CHARACTERS:
        raise Invalid(
            f"reason has {len(reason):,} characters, but the limit is {REASON_CHARACTERS:,}; shorten it, or give a link"
        )
    return {name: text for name, text in (("reason", reason), ("act", act)) if text}
