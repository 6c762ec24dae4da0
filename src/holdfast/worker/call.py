"""One call of a step: its identity, its recorded answer, its retries, and its records.

Must not run the step's function (`bodies`, `steps`).
"""

import asyncio
import contextvars
import copy
import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from holdfast.core.codec import Changed, canonical
from holdfast.core.durations import in_words
from holdfast.core.errors import AlreadyHappened, BadValue, BlobGone, Invalid
from holdfast.core.keys import step_path
from holdfast.core.model import Step, StepState, Time, Use
from holdfast.core.outcome import FAILED_ONCE_PATH, already_happened_text, is_once, never_retried, next_delay
from holdfast.core.references import is_kept_outside, may_need_blobs
from holdfast.core.spending import Amounts
from holdfast.engines.observers import StepOutcome
from holdfast.jobs.consequences import UNDO_PATH
from holdfast.worker.attempt import Attempt
from holdfast.worker.cancellation import Watch
from holdfast.worker.context import PATH, check_no_tx, loop_here
from holdfast.worker.drift import arguments_key, name_differing, read_tags, tags, tags_text
from holdfast.worker.held_job import FENCE_SECONDS
from holdfast.worker.large_results import keep_step_result
from holdfast.worker.recorded_errors import error_of, is_final, module_of, rebuild_error, type_name
from holdfast.worker.records import record_info
from holdfast.worker.registry import StepSpec
from holdfast.worker.tries import TRY, Try

LIMIT_PATH = "~limit/"
"""The path prefix for what is kept of a step between two tries, while its job waits for a limit."""


OUTSIDE = object()
"""Stands for a recorded value that has to be fetched first."""


class Call:
    """One call of a step inside an attempt: where it is recorded, and its arguments in recorded form."""

    is_counted = True
    """Whether equal calls are distinguished by their numbers."""
    is_timed_here = True
    """Whether the step's timeout starts when its body is called. For an isolated step, it starts in its process."""

    def __init__(
        self,
        attempt: Attempt,
        spec: StepSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: Any,
        *,
        item: Watch | None = None,
    ) -> None:
        check_no_tx("another step")
        self.within = TRY.get()
        """The try of a step around it, if one of those may be retried."""
        if self.within is not None:
            self.within.check()
        self.attempt = attempt
        self.journal = journal = attempt.journal
        journal.calls.check_name(spec)
        self.spec = spec
        self.item = item
        changes: list[Changed] = []
        self.text, *copies = spec.signature.copied(args, kwargs, changes)
        self._copies: Any = copies
        self._has_tuples = bool(changes)
        self._refusal: BadValue | None = None
        """Why the body can't take these arguments. A record still answers the call."""
        for changed in changes:
            if self._refusal is None and (spec.isolated or not changed.only_tuples):
                self._refusal = changed.refusal
        self._done: Step | None = None
        self._outside: Step | None = None
        self._value: Any = None
        self.keyed = key is not None
        self.threads = 0
        self.has_begun = False
        """Whether its body has ever started, in a thread."""
        self.tries = 1
        """The number of this try."""
        self.asks = 0
        """How often it has asked for permits."""
        self.uses: tuple[Use, ...] | None = None
        """What it needs of its limits, once that is known."""
        self._given = (args, kwargs) if spec.limits or spec.cost else ((), {})
        self.needs_permits = bool(spec.limits or attempt.job.options.budget)
        """Whether each try asks for permits: of shared limits, or of its job's budget."""
        self._cost: Amounts | None = None
        self.throttles = 0
        """How often in a row its provider asked to slow down."""
        self.throttled_since: Time = 0
        self.not_before: Time | None = None
        """Until when its provider wants to be left alone, if it waits for that by itself."""
        self.is_retried = spec.retry.retries > 0 or self.needs_permits
        self.now: Try | None = None
        given = key(*args, **kwargs) if callable(key) else key
        self.parent = PATH.get()
        self.is_elsewhere = False
        """Whether another step called this effect first, so that its record has that step's path."""
        self.key = _key_text(given) if self.keyed else arguments_key(self.text)
        self.name, self.path = journal.calls.locate(spec, self.parent, self.key)
        if self.is_counted:
            if attempt.job.epoch == 1 or not self._was_effect():
                self._number()
            self.choose_variant()
            journal.calls.note_place(self.path)
        again = journal.records.again.get(self.path) if journal.records.again else None
        self._other_args = None if again is None else again.args
        """The arguments that a person gave the step instead of those of this call."""

    # Its identity.

    def _number(self) -> None:
        """Distinguish it from equal calls before it."""
        calls, spec = self.journal.calls, self.spec
        call = self.path if self.name == spec.name else step_path(self.parent, spec.name, self.key)
        nth = calls.number(call)
        if self.item is None and loop_here():
            calls.note_caller(call, nth, self.attempt.root)
        if nth > 1:
            self.name, self.path = calls.locate(spec, self.parent, self.key, nth)

    def choose_variant(self) -> None:
        """After a rerun, a call whose arguments changed runs again, although it has a key and a record. An effect does
        so only if a person has allowed it.
        """
        records = self.journal.records
        if not self.keyed or not records.reruns.number:
            return
        path = records.choose_variant(self.path, tags(self.text))
        if path != self.path and path not in records.steps:
            is_effect = is_once(records.arguments.get(records.newest_variant(self.path)))
            if is_effect and self.path not in records.reruns.allow:
                raise AlreadyHappened(already_happened_text(self.attempt.job.id, self.path))
            self.journal.calls.note_drift(f"{self.path} ran again, because its arguments changed after a rerun")
        self.path = path

    def _was_effect(self) -> bool:
        """Whether an earlier version of this step recorded or started this call as an effect, here or in another step.
        If so, a second call doesn't run it again.
        """
        if self.journal.records.is_begun(self.path):
            return True
        earlier = self.journal.effects.locate_earlier
        if self.keyed and (path := earlier(self.spec, self.key, self.path)) is not None:
            self.move(path)
            return True
        return False

    def move(self, path: str) -> None:
        """Use the path of the step that called this effect first."""
        if path == self.path:
            return
        if f"{self.parent}/".startswith(f"{path}/"):
            raise Invalid(
                f"step {path} calls itself with the same key; inside an effect, call another step or use another key"
            )
        there = self.journal.records.steps.get(path)
        self.name, self.path, self.is_elsewhere = there.name if there else self.name, path, True

    # Its recorded answer.

    def answer(self) -> tuple[bool, Any]:
        """Return whether the record answers this call, and its value. A failed record raises its error again."""
        journal = self.journal
        step = journal.find_record(self.path)
        if step is None:
            is_begun = journal.records.is_begun(self.path)
            if (is_begun or self.attempt.job.epoch > 1) and not self.is_elsewhere:
                self._raise_again(is_begun)
            if is_begun:
                raise journal.effects.doubt(self.path)
            if journal.effects.unsettled:
                journal.effects.check_unsettled(self.spec)
            if self._refusal is not None:
                raise self._refusal
            return False, None
        if self.keyed:
            self._compare_arguments()
        if self.attempt.engine.observers:
            self._announce("replayed")
        return True, self.read_result(step)

    def _raise_again(self, is_begun: bool) -> None:
        """Raise the error that this attempt has already seen for this call, if there is one."""
        failed = self.journal.records.failure_of(self.path, self.attempt.job.attempt)
        if failed is not None:
            effects = self.journal.effects
            if is_begun and self.path not in effects.doubts:
                effects.doubts.append(self.path)
            effects.note_failed(self.path)
            raise rebuild_error(failed)

    def read_result(self, step: Step) -> Any:
        """Return a record's value in the function's declared type, or raise its error. OUTSIDE if it is a blob."""
        if step.state is StepState.FAILED:
            raise rebuild_error(step)
        if step is self._done or step == self._done:
            return self._value
        if step.result is not None and is_kept_outside(step.result):
            self._outside = step
            return OUTSIDE
        return self._decode(step, step.result or "null")

    async def read_outside(self) -> Any:
        """Return the value of the record for which `read_result` has returned OUTSIDE."""
        step = self._outside
        assert step is not None
        return self._decode(step, await self.attempt.engine.blobs.fetch(step.result or "null"))

    async def read_rejected(self) -> None:
        """Fetch the results that a person rejected, so that `current().rejected` has them. One that is gone is None."""
        records = self.journal.records
        for path, again in records.rejected_outside(self.path):
            text = "null"
            with suppress(BlobGone):
                text = await self.attempt.engine.blobs.fetch(again.rejected)
            records.again[path] = replace(again, rejected=text)

    def _decode(self, step: Step, text: str) -> Any:
        try:
            return self.spec.signature.result.decode(text)
        except BadValue as error:
            raise BadValue(f"the recorded result of step {step.path} can't be used: {error}") from error

    def _compare_arguments(self) -> None:
        """Note in the history if the arguments differ from the recorded ones. With a key, the record answers anyway."""
        stored, mine = self.journal.records.arguments.get(self.path), tags(self.text)
        if stored is None or (there := read_tags(stored)) == mine:
            return
        names = list(inspect.signature(self.spec.function).parameters)
        which = name_differing(names, there, mine)
        self.journal.calls.note_drift(
            f"{self.path} returned its recorded result, although that was recorded with a different {which}"
        )

    # Running it.

    def make_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the body's own copy of the arguments, decoded from the recorded form: a new one for each try."""
        if self._other_args is not None:
            return self.spec.signature.decode(self._other_args)
        if self._has_tuples:  # the recorded form has no tuples
            return copy.deepcopy(self._copies)  # type: ignore[no-any-return]
        copies, self._copies = self._copies, None
        return copies or self.spec.signature.decode(self.text)

    @property
    def is_rejected(self) -> bool:
        """Whether a person has rejected its result, or that of a step around it, in a form that has to be fetched."""
        records = self.journal.records
        return bool(records.again) and bool(records.rejected_outside(self.path))

    @property
    def arguments_text(self) -> str:
        """The arguments of the body as text."""
        return self.text if self._other_args is None else self._other_args

    def bound_arguments(self) -> dict[str, Any]:
        """Return the arguments by name, for its limits and its cost."""
        return self.spec.signature.bound(*self._given)

    def cost(self) -> Amounts:
        """Return what a try of it costs, as it declares."""
        spec = self.spec
        if spec.cost is None:
            return {}
        if self._cost is None:
            self._cost = spec.cost.of(f"step {spec.name}", self.bound_arguments())
        return self._cost

    def declare_cost(self) -> None:
        """Note what the try that starts now costs."""
        if self.spec.cost is not None:
            self.attempt.progress.keep_ledger().declare(self.path, self.cost())

    def waiting_record(self) -> tuple[str, dict[str, Any]]:
        """Return where its wait for a limit is recorded, and what; nothing before its first try."""
        if self.tries == 1 and not self.throttles:
            return "", {}
        info: dict[str, Any] = {"attempt": self.attempt.job.attempt, "tries": self.tries}
        if self.throttles:
            info |= {"throttles": self.throttles, "since": self.throttled_since}
        return LIMIT_PATH + self.path, info

    def go_on(self) -> None:
        """Continue with the try at which its job gave up its slot, if it did in this attempt."""
        known = self.journal.records.waits.get(LIMIT_PATH + self.path)
        info = {} if known is None else record_info(known)
        if info.get("attempt") == self.attempt.job.attempt:
            self.tries, self.throttles = info["tries"], info.get("throttles", 0)
            self.throttled_since, self.not_before = info.get("since", 0), info.get("until")

    def make_context(self) -> contextvars.Context:
        """Return the context in which the body runs: inside this step and this try."""
        context = contextvars.copy_context()
        context.run(PATH.set, self.path)
        if self.now is not None:
            context.run(TRY.set, self.now)
        return context

    def enter(self, started_at: Time, task: "asyncio.Task[Any] | None" = None) -> None:
        """Note that its first try is about to start."""
        if self.within is not None:
            self.within.enter(task)
        self.attempt.progress.begin_step(self.path, self.spec, started_at)

    def leave(self, task: "asyncio.Task[Any] | None" = None) -> None:
        """Note that it has ended, successfully or not."""
        if self.within is not None:
            self.within.leave(task)
        self.attempt.progress.end_step(self.path)

    def check(self) -> None:
        """Raise unless this call may continue: a failure after we stopped it isn't the call's own failure."""
        self.attempt.check()
        if self.within is not None:
            self.within.check()

    def note_run(self) -> None:
        """Note that its body is about to run. It may differ from what earlier leases recorded."""
        self.journal.calls.note_run(self.path, self.spec, keyed=self.keyed)

    async def wait_for_threads(self) -> None:
        """Wait until the thread of an earlier try has ended: two at the same time would pay twice."""
        while self.threads:  # noqa: ASYNC110 (threads can't be interrupted)
            await asyncio.sleep(FENCE_SECONDS)

    def timeout_error(self) -> TimeoutError:
        """Return the error for a step that exceeded its timeout."""
        assert self.spec.timeout_ms is not None
        return TimeoutError(f"step {self.spec.name} took longer than its timeout of {in_words(self.spec.timeout_ms)}")

    # Its retries.

    def begin_try(self) -> None:
        """Start a try. The calls inside it are counted from one, so that their records answer them."""
        if self.is_retried:
            self.now = Try(self.path, self.within)

    def plan_retry(self, error: BaseException) -> float | None:
        """Return the seconds until the next try, which the heartbeat shows; None if this failure is final."""
        retry = self.spec.retry
        if is_final(error) or self.tries > retry.retries:
            return None
        if retry.strategy == "none" or never_retried(retry, type_name(error)):
            return None
        delay = next_delay(retry, self.tries, self.attempt.chance()) / 1_000
        self.attempt.progress.note_retry(self.path, self.tries, retry.retries + 1, error, delay)
        return delay

    async def end_try(self, *, is_refused: bool = False) -> None:
        """End a failed try before the next one. Everything that it left running is cancelled and awaited, because two
        tries at the same time would pay twice. Failed steps inside it may run again. `is_refused` if its provider asked
        to slow down: then the try has cost nothing.
        """
        self._waste(is_refused=is_refused)
        if self.now is None:  # it is never retried, but its provider asked to slow down
            return
        self.now.end()
        self.now.cancel()
        while self.now.is_busy():
            self.attempt.check()
            await asyncio.sleep(FENCE_SECONDS)
        self.journal.records.forget_failures(self.path)

    def _waste(self, *, is_refused: bool = False) -> None:
        """Note that what this try has spent is not kept."""
        if self.attempt.progress.ledger is not None:
            self.attempt.progress.ledger.waste(self.path, is_refused=is_refused)

    def shield_record(self, task: "asyncio.Task[Any] | None") -> None:
        """Let the try around it wait for its record: it has succeeded and only needs to be recorded."""
        assert self.within is not None
        self.within.hold(None)
        self.within.leave(task)

    # Its records.

    def has_intents(self) -> bool:
        """Whether something is written before its body runs."""
        return self.spec.undo is not None

    def make_intents(self, started_at: Time) -> list[Step]:
        """Return what is written before the body runs: the intent that lets an undo find it."""
        path = UNDO_PATH + self.path
        if self.spec.undo is None or path in self.journal.records.waits:
            return []
        info = {"step": self.spec.name, "place": module_of(self.spec.function)}
        if (first := self.journal.calls.first_path(self.path)) != self.path:
            info["first"] = first
        if self.spec.undo_name:
            info["undo"] = self.spec.undo_name
        if generation := self.journal.records.generation(self.path):
            info["generation"] = generation
        begun = self.make_record(StepState.STARTED, started_at, result=canonical(self.undo_info(info)))
        return [replace(begun, path=path, name=UNDO_PATH[:-1], finished_at=None)]

    def undo_info(self, info: dict[str, str]) -> dict[str, str]:
        """Return the content of its undo intent, given what every step's intent contains."""
        return info

    async def write_intents(self, started_at: Time) -> None:
        """Write the intents, if there are any."""
        if intents := self.make_intents(started_at):
            await self.journal.write_intents(intents)

    def take_back(self) -> None:
        """Take the intent back, because the body hasn't started and won't."""

    def make_done(self, value: Any, started_at: Time) -> Step:
        """Return the record of a step that succeeded."""
        text, self._value = self.spec.signature.result.part(value)  # whoever keeps it says whether it is too large
        self.journal.note_code(self.name, self.spec.function)
        self._done = self.make_record(StepState.DONE, started_at, result=text)
        if self.attempt.engine.observers:
            self._announce("ran")
        return self._done

    def record(self, step: Step) -> Coroutine[Any, Any, Step]:
        """Record it, once its result is stored if that is large or names files."""
        if step.result is not None and may_need_blobs(step.result):
            return self._record_large(step)
        return self.write_record(step)

    def write_record(self, step: Step) -> Coroutine[Any, Any, Step]:
        """Write its record; with a key, together with hashes of its arguments."""
        return self.journal.record_step(step, tags_text(self.text) if self.keyed else None)

    async def _record_large(self, step: Step) -> Step:
        self._done = kept = await keep_step_result(self.attempt, step)
        return await self.write_record(kept)

    async def record_failure(self, error: BaseException, started_at: Time) -> None:
        """Record its final failure."""
        self._announce("failed")
        if self.within is None:
            await self.record(self.make_record(StepState.FAILED, started_at, error=error_of(error)))
        else:
            await self.record_beside(error, started_at)

    async def record_beside(self, error: BaseException, started_at: Time) -> None:
        """Record the error of an effect that stays in doubt, or of a step that runs again when a step around it is
        retried. Until then, this attempt's code gets this error.
        """
        self._waste()
        info = canonical({"attempt": self.attempt.job.attempt, "place": module_of(self.spec.function)})
        failed = self.make_record(StepState.STARTED, started_at, result=info, error=error_of(error))
        failed = replace(failed, path=FAILED_ONCE_PATH + self.path, name=FAILED_ONCE_PATH[:-1])
        await self.journal.write_intents([failed])
        self.journal.effects.note_failed(self.path)

    def _announce(self, outcome: StepOutcome) -> None:
        self.attempt.engine.announce_step(self.attempt.job, self.spec.name, outcome)

    def make_record(self, state: StepState, started_at: Time, **more: Any) -> Step:
        """Return a record of this call."""
        job = self.attempt.job
        return Step(
            job=job.id,
            epoch=job.epoch,
            path=self.path,
            name=self.name,
            state=state,
            started_at=started_at,
            finished_at=self.attempt.now(),
            tries=self.tries,
            **more,
        )


Body = Callable[[Call], Coroutine[Any, Any, Any]]
"""One try of a call: the function with its own copy of the arguments."""


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else canonical(key)
