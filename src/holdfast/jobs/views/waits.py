"""What a job waits for, in words. Must not read a store or know a status: a status uses these words."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args
from urllib.parse import unquote

from holdfast.core.budgets import is_budget, wait_name
from holdfast.core.model import Time, Wait, WaitKind
from holdfast.jobs.questions import is_question
from holdfast.jobs.views.text import one_line, short_id, time_left, utc_clock
from holdfast.jobs.waiters import awaited_job

WaitedFor = Literal["time", "signal", "person", "job", "activation", "limit", "budget", "other"]
"""What jobs wait for, for numbers."""

WAITED_FOR: tuple[WaitedFor, ...] = get_args(WaitedFor)

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAP = re.compile(r"~map:([^#]+)#(\d+)")


def wait_words(wait: Wait, now: Time) -> str:
    """Return what a job waits for: "waiting for signal approved, 1 d left", "sleeping until 2026-03-01 …, 2 h left"."""
    words = {
        WaitKind.TIME: "sleeping" if wait.until is None else f"sleeping until {utc_clock(wait.until)}",
        WaitKind.SIGNAL: f"waiting for signal {one_line(wait.name, 60)}",
        WaitKind.CHILDREN: "waiting for children",
        WaitKind.ACTIVATION: "waiting for somebody to activate it",
        WaitKind.LIMIT: f"waiting for {one_line(wait_name(wait.name), 70)}",
        WaitKind.STOPPED: f"waiting for the owner of job {short_id(wait.name)} to stop",
    }[wait.kind]
    if wait.is_unreadable:
        words = "waiting for something that can't be read"
    elif wait.is_for_copy:
        words = "waiting for its records, which are copied from another run"
    elif is_question(wait):
        words = "waiting for a person's answer"
    elif (other := awaited_job(wait)) is not None:
        words = f"waiting for job {short_id(other)}"
    return words if wait.until is None else f"{words}, {time_left(wait.until, now)}"


def list_waits(waits: Sequence[Wait], limited: str, now: Time) -> list[str]:
    """Return what a job waits for. `limited` says how full the limit or budget is that it waits for, if any."""
    shown = [wait for wait in waits if not limited or wait.kind is not WaitKind.LIMIT]
    return [*([limited] if limited else []), *(wait_words(wait, now) for wait in shown)]


def waited_for(waits: Iterable[Wait]) -> set[WaitedFor]:
    """Return what a pending job waits for. It may be several things, any of which wakes it."""
    return {_waited_for(wait) for wait in waits} or {"other"}


def _waited_for(wait: Wait) -> WaitedFor:
    if wait.is_unreadable or wait.is_for_copy:
        return "other"
    match wait.kind:
        case WaitKind.TIME:
            return "time"
        case WaitKind.SIGNAL if is_question(wait):
            return "person"
        case WaitKind.SIGNAL if awaited_job(wait) is None:
            return "signal"
        case WaitKind.ACTIVATION:
            return "activation"
        case WaitKind.LIMIT:
            return "budget" if is_budget(wait.name) else "limit"
        case _:
            return "job"


def group_words(group: str) -> str:
    """Return what made a group of children: "draw.map()", "draw.map(), call 2". Empty for a child that is alone."""
    if (found := _MAP.search(group)) is None:
        return "" if group.startswith("~") or _ID.fullmatch(group) else one_line(group, 40)
    again = f", call {found[2]}" if found[2] != "1" else ""
    return f"{one_line(unquote(found[1]), 60)}.map(){again}"


def noted_wait_words(text: str) -> str:
    """Return a wait as the history notes it, without names that only Holdfast uses, and with short ids."""
    kind, _, name = text.partition(" ")
    if kind == "time," and name.startswith("for "):
        return name.removeprefix("for ").removesuffix(" at most")
    if kind == "children":
        if made_by := group_words(name):
            return f"children of {made_by}"
        if name.startswith("~"):
            return "the jobs of the flow"
    return _ID.sub(
        lambda found: short_id(found[0]), text.replace("children", "child", 1) if kind == "children" else text
    )
