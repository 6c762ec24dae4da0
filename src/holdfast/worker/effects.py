"""The effects of one attempt: which are under way, which may have happened and are not recorded, and where each is.

Must not run or record anything. One key is one effect in a job, whichever step asks for it: the first call's path is
that of all others. The code may have changed since an effect was begun: the step may have lost its effect="once" or its
key, or have another name, or be gone.
"""

import concurrent.futures
from collections.abc import Iterable

from holdfast.core.keys import step_path
from holdfast.core.model import Step, StepState
from holdfast.core.outcome import FAILED_ONCE_PATH, in_doubt
from holdfast.worker.drift import is_once
from holdfast.worker.held_job import DOUBTED, HeldJob
from holdfast.worker.identity import Calls
from holdfast.worker.recorded_errors import module_of
from holdfast.worker.records import Records, paths_above, record_info
from holdfast.worker.registry import STEPS, StepSpec
from holdfast.worker.tries import Stopped


class Effects:
    """The effects of one attempt. Safe from any thread of the job."""

    def __init__(self, held: HeldJob, calls: Calls, records: Records) -> None:
        self._held = held
        self._calls = calls
        self._records = records
        self.unsettled: dict[str, str] = {}
        """Effects that an earlier lease began and that have no result, by path, with the step's name: those that this
        attempt's code has not asked for yet. What the store says counts, not what the step's decorator says today.
        """
        self.doubts: list[str] = []
        """Effects that were begun and not recorded, by this attempt or an earlier one."""
        self.heard: set[str] = set()
        """Those whose own exception this attempt's code has heard: it may catch it, and answer for the effect."""
        self.drops: list[str] = []
        """Effects whose intent was written, or may have been, and which were not begun: a release or a failure takes it
        back.
        """
        self.under_way: dict[str, concurrent.futures.Future[Step]] = {}
        """Effects that are under way, by their paths: who asks for one again waits for it."""
        self._paths: dict[str, str] = {}
        """The path of each effect that this attempt's code has asked for, by its name and key."""
        self._earlier: dict[str, str] | None = None
        self._earlier_once: dict[str, str] | None = None

    # Where an effect is recorded.

    def locate(self, spec: StepSpec, key: str, path: str) -> str:
        """Where the effect of this name and key is recorded, or will be: at `path`, unless another step asked first."""
        records = self._records.steps
        if path in records:
            return path
        if self._held.job.epoch > 1:
            if self._earlier is None:
                self._earlier = _by_call(list(records.values()))
            if (found := _find(self._earlier, spec, key)) is not None:
                return found
        call = step_path("", spec.name, key) if spec.was else path.rpartition("/")[2]
        return self._paths.setdefault(call, path)

    def locate_earlier(self, spec: StepSpec, key: str, path: str) -> str | None:
        """Where an earlier version of a step, which was an effect then, recorded this call or began it. None if no
        earlier lease has done so.
        """
        records = self._records.steps
        if self._earlier_once is None:
            self._earlier_once = _by_call([step for step in list(records.values()) if self._was_once(step)])
        if not self._earlier_once:
            return None
        here = records.get(path)
        return path if here is not None and self._was_once(here) else _find(self._earlier_once, spec, key)

    def _was_once(self, step: Step) -> bool:
        return step.state is StepState.STARTED or is_once(self._records.arguments.get(step.path))

    # Effects that an earlier lease began.

    def load(self, step: Step) -> None:
        """An earlier lease recorded this step: it may be an effect that was begun and has no result."""
        if in_doubt([step]):
            self.unsettled[step.path] = step.name

    def stop_if_in_doubt(self) -> None:
        """Stop before any code runs if an effect is in doubt: neither has this attempt heard of its failure, nor has a
        step around it a record.
        """
        attempt = self._held.job.attempt
        if doubts := [path for path in self._open_paths() if self._records.failure_of(path, attempt) is None]:
            self._add_doubts(doubts)
            self._held.note_stop(DOUBTED)

    def check_unsettled(self, spec: StepSpec) -> None:
        """Stop before a step runs that may be an effect in doubt under another path: one of the same name, or any step
        when none of the effect's name is left in the code.
        """
        for path, name in list(self.unsettled.items()):
            if (name in spec.names or not self._is_in_code(path, name)) and not self._is_inside_asked(path):
                raise self.doubt(path)

    def _is_in_code(self, path: str, name: str) -> bool:
        """Whether the step that began an effect is still there: its name, in its module if that was written down."""
        failed = self._records.waits.get(FAILED_ONCE_PATH + path)
        place = record_info(failed).get("place") if failed is not None else None
        return any(place in (None, module_of(spec.function)) for spec in STEPS.get(name, {}).values())

    def _is_inside_asked(self, path: str) -> bool:
        """Whether a step around it has a record, and this attempt's code has asked for that one."""
        outer = (self._records.steps.get(above) for above in paths_above(path))
        return any(
            step is not None and step.state is not StepState.STARTED and self._calls.is_asked(step) for step in outer
        )

    def _open_paths(self) -> list[str]:
        return [path for path in self.unsettled if not self._records.is_inside_recorded(path)]

    # Effects in doubt.

    def doubt(self, path: str) -> Stopped:
        """An effect may have happened: this attempt does nothing more, and a person is asked. Returns what to raise."""
        self._add_doubts([path])
        self.heard.discard(path)
        self._held.halt(DOUBTED)
        return self._held.stop_error()

    def is_in_doubt(self) -> bool:
        """Whether the handler's result leaves an effect in doubt: one that it never asked for, or one that was cut off,
        so that no code has heard what came of it. Costs no call to the store.
        """
        if self.unsettled:
            self._add_doubts(self._open_paths())
        return self.has_unheard()

    def has_unheard(self) -> bool:
        """Whether an effect is in doubt for which the code can't have answered."""
        return bool(self.doubts) and not self.heard.issuperset(self.doubts)

    def forget_heard(self, paths: Iterable[str]) -> None:
        """The failures of these steps reached no code, nor did those of the steps inside them."""
        if self.heard:
            outer = set(paths)
            self.heard = {path for path in self.heard if outer.isdisjoint((path, *paths_above(path)))}

    def note_begun(self, path: str) -> None:
        """The intent of an effect is written: from here on it may happen."""
        self.drops = [dropped for dropped in self.drops if dropped != path]
        self.doubts.append(path)
        self.heard.discard(path)

    def note_not_begun(self, path: str) -> None:
        """An effect whose intent is written, or may be, has not begun and won't: there is nothing to ask about."""
        self.clear_doubt(path)
        self.drops.append(path)

    def note_failed(self, path: str) -> None:
        """The code hears the effect's own exception: it may answer for it."""
        self.heard.add(path)

    def clear_doubt(self, path: str) -> None:
        """There is no doubt about this effect any more, if there was one."""
        if path in self.doubts:
            self.doubts.remove(path)

    def _add_doubts(self, paths: Iterable[str]) -> None:
        self.doubts += [path for path in paths if path not in self.doubts]


def _by_call(steps: Iterable[Step]) -> dict[str, str]:
    """The paths of records by the last part of each: the name and key of the call, without the steps around it. Of
    several, one that is done counts; one that failed never does.
    """
    kept = [step for step in steps if step.state is not StepState.FAILED]
    kept.sort(key=lambda step: step.state is StepState.DONE)
    return {step.path.rpartition("/")[2]: step.path for step in kept}


def _find(places: dict[str, str], spec: StepSpec, key: str) -> str | None:
    """The path of a call, under whichever name its step has had."""
    return next((found for name in spec.names if (found := places.get(step_path("", name, key))) is not None), None)
