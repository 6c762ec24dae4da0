"""The effects of one attempt: which are running, which may have happened without a record, and where each is recorded.

Must not run or record anything. One key is one effect in a job, whichever step calls it: all calls use the path of the
first one. The code may have changed since an effect started: its step may have lost its effect="once" or its key, or
have another name, or be gone.
"""

import concurrent.futures
from collections.abc import Iterable

from holdfast.core.keys import step_path
from holdfast.core.model import Step, StepState
from holdfast.core.outcome import FAILED_ONCE_PATH, in_doubt, is_once
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
        """Effects that an earlier lease started, that have no result, and that this attempt's code hasn't called yet:
        the step's name, by path. The store's records count, not the step's current decorator.
        """
        self.doubts: list[str] = []
        """Effects that were started and not recorded, by this attempt or an earlier one."""
        self.heard: set[str] = set()
        """Those whose own exception this attempt's code has got. The code may catch it and so decide about the effect.
        """
        self.drops: list[str] = []
        """Effects that haven't started although their intent was written, or may have been. A release or a failure
        removes the intent.
        """
        self.under_way: dict[str, concurrent.futures.Future[Step]] = {}
        """Running effects by path. Another call of the same effect waits for it."""
        self._paths: dict[str, str] = {}
        """The path of each effect that this attempt's code has called, by name and key."""
        self._earlier: dict[str, str] | None = None
        self._earlier_once: dict[str, str] | None = None

    # Where an effect is recorded.

    def locate(self, spec: StepSpec, key: str, path: str) -> str:
        """Return where the effect of this name and key is recorded: at `path`, unless another step called it first."""
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
        """Return where an earlier version of a step recorded or started this call, when the step still was an effect.
        None if no earlier lease has done so.
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

    # Effects that an earlier lease started.

    def load(self, step: Step) -> None:
        """Load a step that an earlier lease recorded. It may be an effect that was started and has no result."""
        if in_doubt([step]):
            self.unsettled[step.path] = step.name

    def stop_if_in_doubt(self) -> None:
        """Stop before any code runs if an effect is in doubt: this attempt hasn't got its failure, and no step around
        it has a record.
        """
        attempt = self._held.job.attempt
        if doubts := [path for path in self._open_paths() if self._records.failure_of(path, attempt) is None]:
            self._add_doubts(doubts)
            self._held.note_stop(DOUBTED)

    def check_unsettled(self, spec: StepSpec) -> None:
        """Stop before a step runs that may be an effect in doubt under another path: a step of the same name, or any
        step if the code no longer has one of the effect's name.
        """
        for path, name in list(self.unsettled.items()):
            if (name in spec.names or not self._is_in_code(path, name)) and not self._is_inside_asked(path):
                raise self.doubt(path)

    def _is_in_code(self, path: str, name: str) -> bool:
        """Whether the step that started an effect is still in the code: by name, and by module if recorded."""
        failed = self._records.waits.get(FAILED_ONCE_PATH + path)
        place = record_info(failed).get("place") if failed is not None else None
        return any(place in (None, module_of(spec.function)) for spec in STEPS.get(name, {}).values())

    def _is_inside_asked(self, path: str) -> bool:
        """Whether a step around it has a record, and this attempt's code has called that step."""
        outer = (self._records.steps.get(above) for above in paths_above(path))
        return any(
            step is not None and step.state is not StepState.STARTED and self._calls.is_asked(step) for step in outer
        )

    def _open_paths(self) -> list[str]:
        return [path for path in self.unsettled if not self._records.is_inside_recorded(path)]

    # Effects in doubt.

    def doubt(self, path: str) -> Stopped:
        """Stop this attempt, because an effect may have happened and a person must decide. Returns what to raise."""
        self._add_doubts([path])
        self.heard.discard(path)
        self._held.halt(DOUBTED)
        return self._held.stop_error()

    def is_in_doubt(self) -> bool:
        """Whether the handler's result leaves an effect in doubt: one that it never called, or one that was
        interrupted, so that no code got its outcome. Makes no call to the store.
        """
        if self.unsettled:
            self._add_doubts(self._open_paths())
        return self.has_unheard()

    def has_unheard(self) -> bool:
        """Whether an effect is in doubt that the code can't have decided about."""
        return bool(self.doubts) and not self.heard.issuperset(self.doubts)

    def forget_heard(self, paths: Iterable[str]) -> None:
        """Note that no code got the failures of these steps, or of the steps inside them."""
        if self.heard:
            outer = set(paths)
            self.heard = {path for path in self.heard if outer.isdisjoint((path, *paths_above(path)))}

    def note_begun(self, path: str) -> None:
        """Note that the intent of an effect is written: from now on it may happen."""
        self.drops = [dropped for dropped in self.drops if dropped != path]
        self.doubts.append(path)
        self.heard.discard(path)

    def note_not_begun(self, path: str) -> None:
        """Note that an effect hasn't started and won't, even if its intent is written: nobody needs to be asked."""
        self.clear_doubt(path)
        self.drops.append(path)

    def note_failed(self, path: str) -> None:
        """Note that the code gets the effect's own exception, so it may decide about the effect."""
        self.heard.add(path)

    def clear_doubt(self, path: str) -> None:
        """Note that this effect isn't in doubt any more."""
        if path in self.doubts:
            self.doubts.remove(path)

    def _add_doubts(self, paths: Iterable[str]) -> None:
        self.doubts += [path for path in paths if path not in self.doubts]


def _by_call(steps: Iterable[Step]) -> dict[str, str]:
    """Map the last part of each record's path, the name and key of the call without the steps around it, to the path.
    Of several, a done one counts; a failed one never does.
    """
    kept = [step for step in steps if step.state is not StepState.FAILED]
    kept.sort(key=lambda step: step.state is StepState.DONE)
    return {step.path.rpartition("/")[2]: step.path for step in kept}


def _find(places: dict[str, str], spec: StepSpec, key: str) -> str | None:
    """Return the path of a call, under any name that its step has had."""
    return next((found for name in spec.names if (found := places.get(step_path("", name, key))) is not None), None)
