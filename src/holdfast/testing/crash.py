"""`crash_everywhere`: runs a job once for each boundary, kills its worker there, and lets another worker continue.

Must not judge a run (`verdict`), and must not touch the App's own store. Each run has its own store, in memory.
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
    """One run: where its worker was killed, and what happened then."""

    at: Boundary
    effects: int
    """How many effects happened from the submit to the end."""
    doubts: tuple[str, ...]
    """The paths of the steps with effect="once" that were in doubt."""
    recorded: int
    """How many steps were recorded when the worker was killed."""


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
    """Kill a job's worker at every boundary, let another worker continue, and assert that the outcome is the same.

    The first run has no kill and finds the boundaries: before each effect, between the effect and its record, after the
    record, at each wait, around the children and the end. Then the job runs once for each boundary, each time on a new
    store in memory: the worker is killed there without warning, the job is rescued, and another worker continues. Each
    time `crash_everywhere` asserts that

    - the job ends as in the first run, with the same result, or with the same `same(result)`;
    - its code asks for exactly the recorded steps, so that none runs again and none is forgotten;
    - there are as many effects as in the first run, and at most `repeats` more. `effects` counts them: a `Provider`, a
      list that grows, or a function. Use `repeats=1` if one step may run again; for a `map`, use the number of items
      that run at the same time.

    `args` and `kwargs` are what `job.submit` takes. `signals` answers waits by name, and questions under the name
    "ask"; a function is called with the question. Unanswered waits time out immediately, without real waiting.
    `cancel_at` cancels the job when it waits for that signal. `doubt` resolves a step with effect="once" that is in
    doubt: "truth" like a person who knows what happened, "again" by running it again, or your own function, which gets
    the step's path and returns the result or raises LookupError. `within` bounds each run.

    Blocks. In an async test: `await asyncio.to_thread(crash_everywhere, job, …)`.
    """
    app = getattr(getattr(job, "_open", None), "__self__", None)
    if not isinstance(job, AsyncJob | SyncJob) or not isinstance(app, App):
        raise Invalid(f"crash_everywhere: {job!r} is not a job; pass a function decorated with @app.job")
    if doubt not in ("truth", "again") and not callable(doubt):
        raise Invalid(f"doubt={doubt!r}: use 'truth', 'again', or a function that takes the step's path")
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
    for boundary in _most_recorded_first(boundaries):
        with Life(plan, boundary) as life:
            outcome = life.run()
        check(plan, boundary, clean, outcome, repeats=repeats, same=same)
        crashes[boundary] = _crash_at(boundary, outcome)
    return [crashes[boundary] for boundary in boundaries]


def _most_recorded_first(boundaries: list[Boundary]) -> list[Boundary]:
    """Return the last boundaries first: the more is recorded, the more a replay shows of what went wrong.

    The end itself comes last, because nothing is replayed after it.
    """
    ends = [boundary for boundary in boundaries if boundary.when == AFTER_END]
    return [boundary for boundary in reversed(boundaries) if boundary.when != AFTER_END] + ends


def _crash_at(boundary: Boundary, outcome: Outcome) -> Crash:
    return Crash(boundary, outcome.effects, tuple(outcome.doubts), outcome.recorded)


def _counter(effects: Effects | None) -> Callable[[], int]:
    if effects is None:
        return lambda: 0
    if isinstance(effects, Provider):
        return lambda: len(effects.effects)
    if isinstance(effects, Sized):
        return lambda: len(effects)
    if not callable(effects):
        raise Invalid(f"effects={effects!r}: pass a Provider, a list that grows, or a function that returns a count")
    return effects


def _apart(work: Callable[[], list[Crash]]) -> list[Crash]:
    """Run this here, or in a thread if an event loop runs here: each run has its own loops."""
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
