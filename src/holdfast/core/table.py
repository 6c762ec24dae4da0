"""The row types of the lifecycle's two tables, and a check that the tables are consistent. Must not hold a row."""

from enum import StrEnum

from msgspec import Struct

from holdfast.core.model import Event, State


class LeaseRule(StrEnum):
    """What an event does to the lease, and so who may cause it."""

    NONE = "–"
    TAKES = "takes"
    NEEDS = "needs"
    BREAKS = "breaks"


class StateRow(Struct, frozen=True):
    """One state, its meaning, and its names in other systems."""

    state: State
    meaning: str
    ojs: str
    celery: str
    checkpoint: str
    owned: bool = False
    terminal: bool = False


class EventRow(Struct, frozen=True):
    """One event: the states it leads from and to, its lease rule, and who causes it."""

    event: Event
    sources: tuple[State, ...]
    targets: tuple[State, ...]
    lease: LeaseRule
    who: str
    meaning: str


def check_table(states: tuple[StateRow, ...], events: tuple[EventRow, ...]) -> None:
    """Refuse tables that are inconsistent. Runs when `lifecycle` is imported."""
    if {row.state for row in states} != set(State) or len(states) != len(State):
        raise AssertionError("the table of states must have one row for each state")
    if {row.event for row in events} != set(Event) or len(events) != len(Event):
        raise AssertionError("the table of events must have one row for each event")
    row_of = {row.state: row for row in states}
    reached = {target for row in events if not row.sources for target in row.targets}
    for _ in states:
        reached |= {t for row in events for t in row.targets if reached & set(row.sources)}
    if reached != set(row_of):
        raise AssertionError(f"no event leads to {sorted(set(row_of) - reached)}")
    left = {source for row in events for source in row.sources}
    if stuck := [row.state for row in states if not row.terminal and row.state not in left]:
        raise AssertionError(f"nothing leads out of {stuck[0]}, which is not terminal")
    for row in events:
        if not row.sources and row.event is not Event.SUBMIT:
            raise AssertionError(f"{row.event} begins a job; only submit may")
        if ended := [state for state in row.sources if row_of[state].terminal]:
            raise AssertionError(f"{row.event} leads out of the terminal state {ended[0]}")
        if len(row.targets) != 1 and row.event is not Event.SUBMIT:
            raise AssertionError(f"{row.event} must lead to exactly one state")
        owned_source = any(row_of[state].owned for state in row.sources)
        owned_target = any(row_of[state].owned for state in row.targets)
        if owned_source and row.lease not in (LeaseRule.NEEDS, LeaseRule.BREAKS):
            raise AssertionError(f"{row.event} changes an owned job, so it must need or break the lease")
        if row.lease is LeaseRule.NEEDS and not all(row_of[state].owned for state in row.sources):
            raise AssertionError(f"{row.event} needs a lease that a source state doesn't have")
        if owned_target != (row.lease is LeaseRule.TAKES):
            raise AssertionError(f"{row.event} must take the lease exactly when it leads to an owned state")
