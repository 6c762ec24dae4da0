"""The journal of one attempt: what earlier leases recorded, and how this attempt writes its records.

Must not run the job's code or decide what its end means. All records of a job are read once, at its claim: a recorded
step costs no call to the store, and a new one costs a single fenced write.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.codec import canonical
from holdfast.core.model import Conflict, Job, Recorded, Step, StepState
from holdfast.core.outcome import ARGS_PATH
from holdfast.core.places import PLACES_PATH, read_places, used_by
from holdfast.core.reruns import AGAIN_PATH, ASIDE_PATH, CODE_PATH, ORIGIN_PATH, SAVED_PATH, Origin
from holdfast.core.spending import SPENT_PATH, spending_in
from holdfast.core.unreadable import is_unreadable, log_lines
from holdfast.jobs.service import LOG_PATH
from holdfast.jobs.status import PROGRESS_PATH, SPENDING_PATH
from holdfast.worker.effects import Effects
from holdfast.worker.fingerprints import fingerprint
from holdfast.worker.held_job import CUT, FENCE_SECONDS, RELEASED, HeldJob
from holdfast.worker.identity import Calls
from holdfast.worker.inbox import Inbox
from holdfast.worker.progress import Progress
from holdfast.worker.record_batch import DONE_SECONDS, RecordBatcher
from holdfast.worker.records import Records, beside, record_info, unreadable_record


class Journal:
    """A job's records, old and new. Writes go through the worker's loop."""

    children: dict[str, Job] | None = None
    """The children that earlier leases submitted, once they were read, and those that were read since."""
    inherited: frozenset[str] | None = None
    """The completed children of the runs that this one was made from, once they were read."""
    write_with: Callable[[Sequence[Step]], Awaitable[Sequence[Recorded | Conflict]]] | None = None
    """How to write records, once the steps of this attempt have permits, which end with them."""

    def __init__(self, held: HeldJob, progress: Progress) -> None:
        self._held = held
        self._progress = progress
        self._batcher: RecordBatcher | None = None
        self.records = Records()
        self.child_ids: set[str] = set()
        """The children that this job has submitted, in this lease and, once they were read, in earlier ones."""
        self.calls = Calls(held.job.epoch, self.records)
        self.effects = Effects(held, self.calls, self.records)
        self.inbox = Inbox(held)
        self._code: dict[str, str] = {}
        """The fingerprints of the steps that this lease has recorded, by name."""
        self._is_code_due = False

    def load(self, steps: Iterable[Step]) -> None:
        """Load what earlier leases of this job recorded. Once, before the handler runs."""
        for step in steps:
            if step.path == LOG_PATH:
                self._progress.load_log(log_lines(step))
            elif step.path == SPENDING_PATH:
                self._progress.keep_ledger().load(spending_in(step))
            elif step.path.startswith(SPENT_PATH):
                self._progress.keep_ledger().load_step(step)
            elif step.path == PROGRESS_PATH:
                continue
            elif is_unreadable(step.error):
                raise unreadable_record(step)
            elif step.path.startswith(ARGS_PATH):
                self.records.arguments[step.path.removeprefix(ARGS_PATH)] = step.result or ""
            elif step.path.startswith(AGAIN_PATH):
                self.records.load_again(step)
            elif step.path.startswith(SAVED_PATH):
                self._progress.keep_ledger().load_saved(step)
            elif step.path == ORIGIN_PATH:
                self.records.origin = msgspec.json.decode(step.result or "{}", type=Origin)
            elif step.path == PLACES_PATH:
                self.records.places = read_places(step)
            elif step.path.startswith((ASIDE_PATH, CODE_PATH)):
                continue
            elif step.path.startswith("~"):
                self._know_wait(step)
            else:
                self.records.steps[step.path] = step
                self.calls.expect(step)
                self.effects.load(step)
        self._progress.load_steps(self.records.steps.values())

    def take_places_record(self, *, completes: bool = False) -> tuple[Step, ...]:
        """Return the record of the order of calls, if it has changed. It is written at the end of the attempt."""
        places = self.calls.places(completes=completes)
        if places == self.records.places:
            return ()
        self.records.places = places
        job = self._held.job
        record = Step(
            job=job.id,
            epoch=job.epoch,
            path=PLACES_PATH,
            name=PLACES_PATH,
            state=StepState.STARTED,
            result=canonical(places),
            started_at=self._held.now(),
        )
        return (record,)

    def count_used(self) -> tuple[int, int] | None:
        """Count the recorded steps that succeeded, and all of them, without those whose results a rerun has replaced;
        None if there are no such ones.
        """
        records = self.records
        if not records.reruns.number:
            return None
        used = [records.steps[path] for path in used_by(records.steps, records.places)]
        done = sum(step.state is StepState.DONE for step in used)
        return (done, len(used)) if len(used) < len(records.steps) else None

    # Steps.

    def find_record(self, path: str) -> Step | None:
        """Return the record of a done or failed step, if there is one. This counts as a call of the step."""
        step = self.records.steps.get(path)
        if step is not None:
            self.calls.note_asked(step)
            if step.state is not StepState.STARTED:
                if self._progress.ledger is not None:
                    self._progress.ledger.note_answered(path)
                return step
            self.effects.unsettled.pop(path, None)
        return None

    async def write_intents(self, intents: list[Step]) -> None:
        """Write what a step is about to do, before it does it."""
        self._held.check()
        await self._record(intents)
        records = self.records
        for intent in intents:
            if intent.path.startswith(ARGS_PATH):
                continue
            if not intent.path.startswith("~"):
                records.steps[intent.path] = intent
            elif (known := records.waits.get(intent.path)) is None or known.state is StepState.STARTED:
                records.waits[intent.path] = intent  # it may have been answered meanwhile

    async def record_step(self, step: Step, arguments: str | None = None) -> Step:
        """Record a step under this attempt's lease. Returns the record in the store, or stops the attempt.

        A step that finishes while the attempt is being stopped is still recorded, if the lease is ours.
        """
        self.check_recordable()
        steps = [step]
        if arguments is not None:
            steps.append(beside(step, ARGS_PATH + step.path, StepState.DONE, arguments))
        if self._progress.ledger is not None:
            steps += self._progress.ledger.records_of(step)
        steps += self.take_code_record(step)
        if self._progress.is_log_due():
            steps += self._progress.take_log_record()
        standing = await self._record(steps)
        self.note_recorded(standing)
        return standing

    def note_code(self, name: str, function: Callable[..., Any]) -> None:
        """Note which code makes the steps of this name. Their first record carries it."""
        if name not in self._code:
            self._code[name] = fingerprint(function)
            self._is_code_due = True

    def take_code_record(self, step: Step) -> list[Step]:
        """Return the record of the fingerprints, if there are new ones, to be written with this step."""
        if not self._is_code_due:
            return []
        self._is_code_due = False
        return [beside(step, f"{CODE_PATH}{step.epoch}", StepState.STARTED, canonical(dict(self._code)))]

    def check_recordable(self) -> None:
        """Raise Stopped unless a step that finishes now should still be recorded."""
        if self._held.stop not in (None, RELEASED, CUT):
            self._held.check()

    def note_recorded(self, standing: Step) -> None:
        """Note that the store has a step's record: from now on it answers calls."""
        self.records.steps[standing.path] = standing
        self.effects.clear_doubt(standing.path)
        self._progress.note_recorded(standing.name)

    # Waits.

    def wait_record(self, path: str, state: StepState, info: dict[str, Any]) -> Step:
        """Make the record of a wait: what it asks for, or its answer."""
        now, job = self._held.now(), self._held.job
        return Step(
            job=job.id,
            epoch=job.epoch,
            path=path,
            name=path.partition("/")[0],
            state=state,
            result=canonical(info),
            started_at=now,
            finished_at=now if state is StepState.DONE else None,
        )

    async def record_wait(self, path: str, info: dict[str, Any]) -> Step:
        """Record the answer to a wait. If the store already has one, that one counts."""
        standing = await self._record([self.wait_record(path, StepState.DONE, info)])
        self._know_wait(standing)
        return standing

    def _know_wait(self, record: Step) -> None:
        self.records.waits[record.path] = record
        if record.state is StepState.DONE and "signal" in (info := record_info(record)):
            self.inbox.note_answer(info)

    # Writing.

    def is_writing(self) -> bool:
        """Whether records that nobody waits for may still be under way, or the intent of an effect."""
        return self._batcher is not None or bool(self.effects.under_way)

    async def wait_until_written(self) -> None:
        """Wait for the records of finished steps that nobody waits for any more, and until effects that are being
        stopped have reported whether they had started; but not for long.
        """
        if self._batcher is not None:
            await self._batcher.wait_until_written()
        end = time.monotonic() + DONE_SECONDS
        while self.effects.under_way and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(FENCE_SECONDS / 10)

    async def _record(self, steps: list[Step]) -> Step:
        """Write records under this attempt's lease. Returns what the store has for the first of them, or stops."""
        is_alone = self._progress.steps_running() < 2
        if not is_alone or self._may_be_cut(steps[0]):
            self._batcher = self._batcher or RecordBatcher(self._write)
            answer = await self._batcher.add(steps, at_once=is_alone)
        else:  # alone: there is nothing to batch it with
            answer, *_ = await self._write(steps)
        return self._held.standing_step(answer)

    def _may_be_cut(self, step: Step) -> bool:
        """Whether the handler may return while this effect is being recorded, so the record must not be interrupted."""
        if step.state is not StepState.DONE or step.path not in self.effects.doubts:
            return False
        return self._held.spec.is_async and asyncio.current_task() is not self._held.root

    async def _write(self, steps: Sequence[Step]) -> Sequence[Recorded | Conflict]:
        write = self.write_with or self._held.engine.record
        answers = await self._held.persist(lambda: write(steps))
        if self.effects.doubts:  # the task that waits for these records may have been cancelled
            for step, answer in zip(steps, answers, strict=True):
                if step.state is StepState.DONE and isinstance(answer, Recorded):
                    self.effects.clear_doubt(step.path)
        return answers
