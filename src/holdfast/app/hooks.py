"""The hooks of an App: functions that Holdfast calls when something happens to its jobs, beside the work.

Must not let a job wait or fail because of a hook. What happens comes from the engine, which announces every change that
this process stores, and from the worker (`worker.hook_reports`).
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast import forking
from holdfast.app.lanes import Beside, Lane, make_lane
from holdfast.core.alerts import AlertEvent
from holdfast.core.errors import Invalid
from holdfast.core.model import Change, Job
from holdfast.core.spending import Amounts, SpendKind
from holdfast.core.suggestions import suggest
from holdfast.engines.observers import Act, StepOutcome
from holdfast.jobs.job_events import (
    ALERT_HOOK,
    HOOK_NAMES,
    HookName,
    JobEvent,
    event_of_change,
    event_of_submit,
    names_of,
)
from holdfast.worker.registry import is_generator, place_of

Find = Callable[[], Awaitable[JobEvent | None]]


class AppHooks:
    """The hooks of one App. See `jobs.job_events.Hooks` and `engines.observers.Observer`."""

    def __init__(self) -> None:
        self._beside = Beside()
        self._lanes: dict[str, tuple[Lane[Any], ...]] = {}
        self._listeners: dict[str, tuple[Callable[[Any], None], ...]] = {}
        self._finding: Lane[Find] = make_lane("reading a job's history for hooks", self._find, self._beside)
        self._in_child = forking.InChild(self._forked)

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, names: Sequence[Any], function: Callable[[Any], Any]) -> None:
        """Register a hook for these events."""
        lane = make_lane(f"hook {function.__module__}.{function.__qualname__}", function, self._beside)
        for name in dict.fromkeys(names):
            self._lanes[name] = (*self._lanes.get(name, ()), lane)

    def listen(self, name: HookName, listener: Callable[[Any], None]) -> None:
        """Call this within the work, before the hooks: for Holdfast's own counters, which are quick and never raise."""
        self._listeners[name] = (*self._listeners.get(name, ()), listener)

    # What happens.

    def hears(self, what: HookName) -> bool:
        """See Hooks."""
        return what in self._lanes or what in self._listeners

    def tell(self, event: JobEvent | AlertEvent) -> None:
        """See Hooks."""
        for listener in self._listeners.get(event.what, ()):
            listener(event)
        for lane in self._lanes.get(event.what, ()):
            lane.put(event)

    def tell_found(self, find: Find) -> None:
        """See Hooks."""
        self._finding.put(find)

    async def _find(self, find: Find) -> None:
        if (event := await find()) is not None:
            self.tell(event)

    def heard_inserts(self, jobs: Sequence[Job]) -> None:
        """See Observer."""
        if self.hears("submitted"):
            for job in jobs:
                self.tell(event_of_submit(job))

    def heard_claims(self, jobs: Sequence[Job]) -> None:
        """See Observer. A job starts a little later (`worker.hook_reports`)."""

    def heard_fenced(self, number: int) -> None:
        """See Observer. There is no hook for it."""

    def heard_step(self, job: Job, step: str, outcome: StepOutcome) -> None:
        """See Observer. There is no hook for steps."""

    def heard_spending(self, job: Job, kind: SpendKind, amounts: Amounts) -> None:
        """See Observer. There is no hook for it."""

    def heard_act(self, act: Act, seconds: float) -> None:
        """See Observer. There is no hook for it."""

    def heard_changes(self, changes: Sequence[Change]) -> None:
        """See Observer."""
        for change in changes:
            for what in names_of(change):
                if self.hears(what):
                    self.tell(event_of_change(what, change))

    # Ending.

    async def drain(self) -> None:
        """Wait briefly until the hooks have handled all queued events."""
        await self._beside.drain()

    def _forked(self) -> None:
        self._beside.forget()
        self._finding.forget()
        for lanes in self._lanes.values():
            for lane in lanes:
                lane.forget()


def check_hook_names(names: Sequence[Any]) -> None:
    """Refuse a hook for no event, or for one that doesn't exist."""
    every = (*HOOK_NAMES, ALERT_HOOK)
    known = ", ".join(every)
    if not names or callable(names[0]):
        raise Invalid(f'@app.hook needs the names of events: @app.hook("failed"); there are {known}')
    for name in names:
        if name not in every:
            hint = suggest(name, every) if isinstance(name, str) else ""
            raise Invalid(f"@app.hook({name!r}): there is no such event{hint or f'; there are {known}'}")
    if ALERT_HOOK in names and len(set(names)) > 1:
        raise Invalid('@app.hook("alert", …): a hook for alerts gets an AlertEvent; give it a function of its own')


def check_hook(function: Any) -> None:
    """Refuse what can't be called with one event."""
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise Invalid(f"@app.hook on {function!r}: decorate a plain function (def or async def)")
    if is_generator(function):
        raise Invalid(f"@app.hook on {place_of(function)}: its body would never run; leave out yield")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        text = "it must take one argument, the event: def report(event: JobEvent)"
        raise Invalid(f"@app.hook on {place_of(function)}: {text}") from None
