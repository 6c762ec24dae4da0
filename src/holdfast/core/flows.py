"""Flows as data: steps that start when the steps before them have ended. The rules are pure; must not know a store.

A flow is stored as JSON, as the last argument of a job of the type `holdfast.flow`:

    {"kind": "chord",
     "calls": [{"type": "draw"}, {"type": "join", "is_open": true}],
     "steps": [{"args": ["sea"]}, {"args": ["sky"]}, {"after": [[0, 2]], "call": 1, "takes": "results"}],
     "result": [[2, 3]]}

`calls` are the different jobs to submit, as `jobs.job_calls.JobCall` writes them, without their arguments. A step is
known by its place in `steps`. It names its call (0 by default) and has arguments of its own, so 10,000 equal steps stay
small. `after` lists ranges of earlier places: the step starts when all of those have ended. As a step can only name
earlier ones, no flow has a loop.

A step starts if at least `need` of those before it succeeded (by default all), or, with `on_failure`, if at least one
failed. Otherwise it is skipped, which counts as a failure for those after it. `takes` is what its first argument is:
"result" of the one step before it, "results" of all of them as a list, or "input", which is what this flow was given
as a member of another flow. `name` is a step's own name, if it has one.

`result` are the places whose results are the flow's: a list, or with `single` the one result. A flow fails if a failed
step is not handled. It is handled if a step after it has started nevertheless, or if it is one of `result` and at least
`need` of those succeeded. The `kind` ("chain", "group", "chord", "batch" or "graph") only tells people what was meant.
"""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from typing import Any, Literal

from msgspec import Raw, Struct

from holdfast.core.errors import Invalid

Kind = Literal["chain", "group", "chord", "batch", "graph"]
Takes = Literal["", "result", "results", "input"]
Places = tuple[tuple[int, int], ...]
"""Ranges of places: the first one, and the one after the last."""


class FlowStep(Struct, frozen=True, omit_defaults=True, gc=False):
    """One step of a flow. The fields stand in the order of their names, so that its text is canonical."""

    after: Places = ()
    args: Raw = Raw(b"[]")
    call: int = 0
    name: str = ""
    need: int | None = None
    on_failure: bool = False
    takes: Takes = ""


class Flow(Struct, frozen=True, omit_defaults=True):
    """A flow as data. The module's docstring says what the fields mean."""

    calls: tuple[Mapping[str, Any], ...]
    kind: Kind
    name: str = ""
    need: int | None = None
    result: Places = ()
    single: bool = False
    steps: tuple[FlowStep, ...] = ()


class Advance(Struct, frozen=True):
    """What follows from the steps that have ended: those that have started or may start now, and those that never will.

    If nothing more may start, `unhandled` are the failed steps because of which the flow fails.
    """

    started: tuple[int, ...]
    skipped: tuple[int, ...]
    unhandled: tuple[int, ...] = ()


def places(ranges: Places) -> list[int]:
    """Return all places in these ranges."""
    return [place for first, end in ranges for place in range(first, end)]


def check_flow(flow: Flow) -> Flow:
    """Return the flow, or raise Invalid if it doesn't hold together."""
    for place, step in enumerate(flow.steps):
        if not 0 <= step.call < len(flow.calls):
            raise Invalid(f"step {place} of a {flow.kind} names call {step.call}, but the flow has {len(flow.calls)}")
        if any(not 0 <= first < end <= place for first, end in step.after):
            raise Invalid(f"step {place} of a {flow.kind} must come after earlier steps only, not after {step.after}")
        if step.takes == "result" and len(places(step.after)) != 1:
            raise Invalid(f"step {place} of a {flow.kind} takes one result, so it must come after exactly one step")
        _check_need(f"step {place} of a {flow.kind}", step.need, step.after)
    if any(not 0 <= first < end <= len(flow.steps) for first, end in flow.result):
        raise Invalid(f"the result of a {flow.kind} names steps that it doesn't have: {flow.result}")
    if flow.single and len(places(flow.result)) != 1:
        raise Invalid(f"a {flow.kind} with a single result must name exactly one step")
    _check_need(f"a {flow.kind}", flow.need, flow.result)
    return flow


def _check_need(what: str, need: int | None, of: Places) -> None:
    if need is not None and not 0 <= need <= len(places(of)):
        raise Invalid(f"{what}: need={need}, but there are only {len(places(of))} of which that many could succeed")


def layers_of(flow: Flow) -> list[range] | None:
    """Return the layers of a flow: runs of steps that each come after all steps of the layer before. None if it has
    others.

    A flow of layers waits for one thing at a time, so it can wait for a whole layer at once.
    """
    found: list[range] = []
    first = 0
    for place, step in enumerate(flow.steps):
        if place and any(end > first for _, end in step.after):
            found.append(range(first, place))
            first = place
        before = found[-1] if found else range(0)
        if before and not any(one <= before.start and before.stop <= end for one, end in step.after):
            return None
        if not before and step.after:
            return None
    return [*found, range(first, len(flow.steps))] if flow.steps else []


def advance(flow: Flow, ended: Mapping[int, bool]) -> Advance:
    """Decide what follows from the steps that have ended: whether each succeeded, by its place."""
    over, won = [0], [0]  # how many before each place are over, and have succeeded
    started: list[int] = []
    skipped: list[int] = []
    is_busy = False
    for place, step in enumerate(flow.steps):
        has_won = ended.get(place)
        is_over = has_won is not None
        if is_over:
            started.append(place)
        elif _sum(over, step.after) == (before := _size(step.after)):
            if _may_start(step, before, _sum(won, step.after)):
                started.append(place)
                is_busy = True
            else:
                skipped.append(place)
                is_over = True
        else:
            is_busy = True
        over.append(over[-1] + is_over)
        won.append(won[-1] + bool(has_won))
    unhandled = () if is_busy else _unhandled(flow, ended, won)
    return Advance(tuple(started), tuple(skipped), unhandled)


def _may_start(step: FlowStep, before: int, won: int) -> bool:
    if step.on_failure:
        return won < before
    return won >= (before if step.need is None else step.need)


def _unhandled(flow: Flow, ended: Mapping[int, bool], won: Sequence[int]) -> tuple[int, ...]:
    """Return the failed steps that neither a step after them nor the flow's result tolerates."""
    handled = [flow.steps[place].after for place in ended]
    if _sum(won, flow.result) >= (_size(flow.result) if flow.need is None else flow.need):
        handled.append(flow.result)
    marks = [0] * (len(flow.steps) + 1)
    for ranges in handled:
        for first, end in ranges:
            marks[first] += 1
            marks[end] -= 1
    depth = list(accumulate(marks))
    return tuple(sorted(place for place, has_won in ended.items() if not has_won and not depth[place]))


def _size(ranges: Places) -> int:
    return sum(end - first for first, end in ranges)


def _sum(counts: Sequence[int], ranges: Places) -> int:
    return sum(counts[end] - counts[first] for first, end in ranges)


def ranges_of(found: Iterable[int]) -> Places:
    """Return places as ranges, in their order."""
    ranges: list[tuple[int, int]] = []
    for place in sorted(set(found)):
        if ranges and ranges[-1][1] == place:
            ranges[-1] = (ranges[-1][0], place + 1)
        else:
            ranges.append((place, place + 1))
    return tuple(ranges)


def in_order(before: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of a graph's steps so that each comes after those it depends on, or raise Invalid."""
    unknown = {name for names in before.values() for name in names} - before.keys()
    if unknown:
        raise Invalid(f"a step depends on {min(unknown)!r}, but the flow has no step with this name")
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise Invalid(f"these steps wait for each other, so none could start: {circle}") from None
