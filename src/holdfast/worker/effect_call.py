"""A call of a step with `effect="once"`: its intent is written first, and it never runs again by itself.

Must not know how the step's function is run. Until its record is written, an effect that has begun is in doubt.
"""

import concurrent.futures
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from holdfast.core.errors import EffectInDoubt
from holdfast.core.model import Step, StepState, Time
from holdfast.core.outcome import ONCE
from holdfast.worker.call import Call
from holdfast.worker.drift import tags_text
from holdfast.worker.records import ARGS_PATH, beside


class EffectCall(Call):
    """One call of an effect. One key is one effect: asked for twice, it is still done once."""

    is_counted = False

    def join(self) -> tuple["concurrent.futures.Future[Step]", bool]:
        """The effect of this name and key that is under way, and whether it is ours to bring about."""
        effects = self.journal.effects
        self.move(effects.locate(self.spec, self.key, self.path))
        fresh: concurrent.futures.Future[Step] = concurrent.futures.Future()
        under_way = effects.under_way.setdefault(self.path, fresh)
        return under_way, under_way is fresh

    @contextmanager
    def lead(self, under_way: "concurrent.futures.Future[Step]") -> Iterator[None]:
        """Bring the effect about, and pass what came of it on to those who ask for the same effect meanwhile."""
        try:
            yield
            under_way.set_result(self.journal.records.steps[self.path])
        except Exception as error:
            under_way.set_exception(error)
            raise
        except BaseException:
            under_way.set_exception(EffectInDoubt(f"step {self.path} was cut off: it may have happened"))
            raise
        finally:
            self.journal.effects.under_way.pop(self.path, None)

    def has_intents(self) -> bool:
        """See Call.has_intents."""
        return True

    def make_intents(self, started_at: Time) -> list[Step]:
        """See Call.make_intents: first of all, that it may happen."""
        begun = replace(self.make_record(StepState.STARTED, started_at, result=ONCE), finished_at=None)
        # That it is an effect is written down: the step may be none by the time that it is settled.
        arguments = beside(begun, ARGS_PATH + self.path, StepState.DONE, tags_text(self.text, once=True))
        return [begun, *super().make_intents(started_at), arguments]

    async def write_intents(self, started_at: Time) -> None:
        """See Call.write_intents; after that, the effect is in doubt until it is recorded."""
        try:
            await super().write_intents(started_at)
        except BaseException:
            self.journal.effects.note_not_begun(self.path)  # written or not, it has not begun
            raise
        self.journal.effects.note_begun(self.path)

    def take_back(self) -> None:
        """See Call.take_back: there is nothing to ask a person about."""
        self.journal.effects.note_not_begun(self.path)

    def record(self, step: Step) -> Coroutine[Any, Any, Step]:
        """See Call.record: what its arguments were went with the intent."""
        return self.journal.record_step(step)

    async def record_failure(self, error: BaseException, started_at: Time) -> None:
        """See Call.record_failure: it may have happened all the same."""
        await self.record_beside(error, started_at)
