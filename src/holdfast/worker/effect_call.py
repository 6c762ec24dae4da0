"""A call of a step with `effect="once"`: its intent is written first, and it is never retried automatically.

Must not know how the step's function runs. Until its record is written, an effect that has started is in doubt.
"""

import concurrent.futures
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import EffectInDoubt
from holdfast.core.model import Step, StepState, Time
from holdfast.core.outcome import ARGS_PATH, ONCE
from holdfast.worker.call import Call
from holdfast.worker.drift import tags_text
from holdfast.worker.records import beside


class EffectCall(Call):
    """One call of an effect. One key is one effect: even if called twice, it runs once."""

    is_counted = False

    def join(self) -> tuple["concurrent.futures.Future[Step]", bool]:
        """Return the running effect of this name and key, and whether this call has to run it."""
        effects = self.journal.effects
        self.move(effects.locate(self.spec, self.key, self.path))
        self.choose_variant()
        self.journal.calls.note_place(self.path)
        fresh: concurrent.futures.Future[Step] = concurrent.futures.Future()
        under_way = effects.under_way.setdefault(self.path, fresh)
        return under_way, under_way is fresh

    @contextmanager
    def lead(self, under_way: "concurrent.futures.Future[Step]") -> Iterator[None]:
        """Run the effect, and pass its outcome on to other calls of the same effect."""
        try:
            yield
            under_way.set_result(self.journal.records.steps[self.path])
        except Exception as error:
            under_way.set_exception(error)
            raise
        except BaseException:
            under_way.set_exception(EffectInDoubt(f"step {self.path} was interrupted; its effect may have happened"))
            raise
        finally:
            self.journal.effects.under_way.pop(self.path, None)

    def has_intents(self) -> bool:
        """See Call.has_intents."""
        return True

    def make_intents(self, started_at: Time) -> list[Step]:
        """See Call.make_intents. Adds the intent of the effect itself, which comes first."""
        begun = replace(self.make_record(StepState.STARTED, started_at, result=ONCE), finished_at=None)
        # The record says that this is an effect: the step may no longer be one when it is settled.
        arguments = beside(begun, ARGS_PATH + self.path, StepState.DONE, tags_text(self.text, once=True))
        return [begun, *super().make_intents(started_at), arguments]

    async def write_intents(self, started_at: Time) -> None:
        """See Call.write_intents. From then on the effect is in doubt until it is recorded."""
        try:
            await super().write_intents(started_at)
        except BaseException:
            self.journal.effects.note_not_begun(self.path)  # whether written or not, it hasn't started
            raise
        self.journal.effects.note_begun(self.path)

    def take_back(self) -> None:
        """See Call.take_back. There is nothing to ask a person about."""
        self.journal.effects.note_not_begun(self.path)

    def write_record(self, step: Step) -> Coroutine[Any, Any, Step]:
        """See Call.write_record. The hashes of its arguments were written with the intent."""
        return self.journal.record_step(step)

    async def record_failure(self, error: BaseException, started_at: Time) -> None:
        """See Call.record_failure. The effect may have happened anyway."""
        await self.record_beside(error, started_at)
