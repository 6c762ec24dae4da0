"""`crash_everywhere`: runs a job once for each boundary, kills its worker there, and lets another go on.

Must not judge a life (`verdict`), and must not touch the App's own store. Each life has a store of its own, in memory.
"""

import threading
from collections.abc import Callable, Mapping, Sized
from typing import Any, Literal

from msgspec import Struct

from holdfast.app.app import App
from holdfast.app.job import AsyncJob, SyncJob
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import Invalid
from holdfast.testing.life import Life, Plan
from holdfast.testing.moments import AFTER_END, Boundary
from holdfast.testing.provider import Provider
from holdfast.testing.verdict import Outcome, check, check_first
from holdfast.worker.context import loop_here

Doubt = Literal["truth", "again"] | Callable[[str], Any]
Effects = Provider | Sized | Callable[[], int]


class Crash(Struct, frozen=True):
    """One life: where its worker was killed, and what came of it."""

    at: Boundary
    effects: int
    """How many effects there were from the submit to the end."""
    doubts: tuple[str, ...]
    """The steps with effect="once" that were in doubt, by their paths."""
    recorded: int
    """How many steps had been recorded when the worker was killed."""


def crash_everywhere(
    job: AsyncJob[..., Any] | SyncJob[..., Any],
    /,
    *args: Any,
    effects: Effects | None = None,
    repeats: int = 0,
    signals: Mapping[str, Any] | None = None,
    cancel_at: str | None = None,
    doubt: Doubt = "truth",
    same: Callable[[Any], Any] | None = None,
    within: Duration = "60s",
    **kwargs: Any,
) -> list[Crash]:
    """Kill a job's worker at every boundary, let another go on, and assert that nobody could tell from what came of it.

    The job runs once without a kill, which finds the boundaries: before each effect, after it and before its record,
    after the record, at each wait, around its children and its end. Then it runs once for each, on a store of its own
    in memory: the worker is killed there without a word, the job is rescued, and another worker goes on. Each time:

    - the job ends as it did at first, with the same result, or with the same `same(result)`;
    - it asks for exactly the steps that are recorded, so that none runs again and none is forgotten;
    - there are as many effects as at first, and at most `repeats` more. `effects` counts them: a `Provider`, a list
      that grows, or a function. Give `repeats=1` where one step may run again, as many as run at once for a `map`.

    `args` and `kwargs` are what `job.submit` takes. `signals` answers waits by their names, and "ask" the questions; a
    function is called with the question. A wait that nobody answers is over when its `within` is, and no time is spent
    on that. `cancel_at` cancels the job when it waits for that signal. A step with effect="once" that is in doubt is
    resolved as by a person who knows what happened ("truth"), or has it done again ("again"), or looks: a function of
    the step's path, which returns the result or raises LookupError. `within` bounds each life.

    Blocks. In an async test: `await asyncio.to_thread(crash_everywhere, job, …)`.
    """
    app = getattr(getattr(job, "_open", None), "__self__", None)
    if not isinstance(job, AsyncJob | SyncJob) or not isinstance(app, App):
        raise Invalid(f"crash_everywhere: {job!r} is no job; give a function that @app.job decorates")
    if doubt not in ("truth", "again") and not callable(doubt):
        raise Invalid(f"doubt={doubt!r}: give 'truth', 'again', or a function of the step's path")
    plan = Plan(
        app=app,
        job=job,
        args=args,
        kwargs=kwargs,
        signals=dict(signals or {}),
        cancel_at=cancel_at,
        doubt=doubt,
        within=milliseconds(within) / 1_000,
        effects=_counter(effects),
    )
    return _apart(lambda: _crash(plan, repeats, same or (lambda value: value)))


def _crash(plan: Plan, repeats: int, same: Callable[[Any], Any]) -> list[Crash]:
    with Life(plan, None) as first:
        clean = first.run()
    check_first(plan, clean)
    boundaries = clean.boundaries
    crashes: dict[Boundary, Crash] = {}
    for boundary in _telling_first(boundaries):
        with Life(plan, boundary) as life:
            outcome = life.run()
        check(plan, boundary, clean, outcome, repeats=repeats, same=same)
        crashes[boundary] = _told(boundary, outcome)
    return [crashes[boundary] for boundary in boundaries]


def _telling_first(boundaries: list[Boundary]) -> list[Boundary]:
    """The last ones first: the more is recorded, the more a replay can tell of what went wrong. After the end there is
    no replay.
    """
    ends = [boundary for boundary in boundaries if boundary.when == AFTER_END]
    return [boundary for boundary in reversed(boundaries) if boundary.when != AFTER_END] + ends


def _told(boundary: Boundary, outcome: Outcome) -> Crash:
    return Crash(boundary, outcome.effects, tuple(outcome.doubts), outcome.recorded)


def _counter(effects: Effects | None) -> Callable[[], int]:
    if effects is None:
        return lambda: 0
    if isinstance(effects, Provider):
        return lambda: len(effects.effects)
    if isinstance(effects, Sized):
        return lambda: len(effects)
    if not callable(effects):
        raise Invalid(f"effects={effects!r}: give a Provider, a list that grows, or a function that counts")
    return effects


def _apart(work: Callable[[], list[Crash]]) -> list[Crash]:
    """Do it here, or in a thread if an event loop runs here: each life has loops of its own."""
    if not loop_here():
        return work()
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append(work())
        except BaseException as error:
            answer.append(error)

    thread = threading.Thread(target=run, name="holdfast-testing", daemon=True)
    thread.start()
    thread.join()
    if isinstance(answer[0], BaseException):
        raise answer[0]
    found: list[Crash] = answer[0]
    return found
