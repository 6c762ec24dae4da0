"""The tables of states and events as text, mermaid and JSON.

Must not know the meaning of a state or event: every word about them comes from `core.lifecycle`.
"""

import json
from collections.abc import Iterable
from textwrap import wrap

from holdfast.core.lifecycle import EVENTS, STATE_ROWS, STATES, TERMINAL, EventRow, LeaseRule, StateRow
from holdfast.core.model import Event, State

WIDEST = 100
NARROWEST = 80
"""The narrowest and the widest layout of the text."""

FEW_SOURCES = 2
"""An event with more sources than this gets its own line instead of edges in the small drawing."""

LEASE_WORDS: dict[LeaseRule, str] = {
    LeaseRule.NONE: "no lease is involved: no worker holds the job",
    LeaseRule.TAKES: "takes the lease: the epoch grows by one, and the job has an owner",
    LeaseRule.NEEDS: "needs the lease: only the owner can do this, with the current epoch",
    LeaseRule.BREAKS: "breaks the lease, if there is one: the store refuses the owner's later writes",
}


def as_json() -> str:
    """Return both tables as one JSON document."""
    states = [
        {
            "state": row.state,
            "meaning": row.meaning,
            "owner": row.owned,
            "terminal": row.terminal,
            "ojs": row.ojs,
            "celery": row.celery,
            "checkpoint": row.checkpoint,
        }
        for row in STATES
    ]
    events = [
        {
            "event": row.event,
            "from": list(row.sources),
            "to": list(row.targets),
            "lease": lease_name(row.lease),
            "who": row.who,
            "meaning": row.meaning,
        }
        for row in EVENTS
    ]
    return json.dumps({"states": states, "events": events}, indent=2, ensure_ascii=False) + "\n"


def as_mermaid() -> str:
    """Return a mermaid state diagram: one line for each edge of the table."""
    lines = ["stateDiagram-v2", "    direction LR"]
    for row in EVENTS:
        label = f"{row.event} (breaks lease)" if row.lease is LeaseRule.BREAKS else str(row.event)
        for source in row.sources or ("[*]",):
            lines += [f"    {source} --> {target}: {label}" for target in row.targets]
    lines += [f"    {row.state} --> [*]" for row in STATES if row.terminal]
    return "\n".join(lines) + "\n"


def as_text(width: int = WIDEST) -> str:
    """Return a small drawing, both tables and the lease rules, for a terminal."""
    width = max(NARROWEST, min(width, WIDEST))
    states = [(row.state, row.meaning, owner_of(row), row.ojs, row.celery, row.checkpoint) for row in STATES]
    events = [
        (row.event, f"{sources_in_words(row)} → {_listed(row.targets)}", row.lease, row.who, row.meaning)
        for row in EVENTS
    ]
    parts = [
        [*_drawing(), "", "  ! breaks the lease"],
        _table(("state", "meaning", "owner", "OJS", "Celery", "checkpoint"), states, width, least={1: 20}),
        _table(("event", "from → to", "lease", "who", "meaning"), events, width, least={1: 25, 3: 15, 4: 25}),
        _table(("lease", "what the event does to it"), LEASE_WORDS.items(), width, least={1: 20}),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def lease_name(rule: LeaseRule) -> str:
    """Return the rule as a word, also where the table has a dash."""
    return rule.name.lower()


def sources_in_words(row: EventRow) -> str:
    """Return the states that an event leaves. All unfinished states have one common name."""
    if not row.sources:
        return "–"
    if set(row.sources) == set(STATE_ROWS) - TERMINAL:
        return "every state that has not ended"
    return _listed(row.sources)


def owner_of(row: StateRow) -> str:
    """Return who holds a job in this state."""
    return "worker" if row.owned else "–"


def _listed(states: Iterable[State]) -> str:
    return ", ".join(states)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], width: int, least: dict[int, int]) -> list[str]:
    """Lay out rows under a head so that no line is longer than `width`.

    Only the columns in `least` wrap: first the one with most to spare above its least width.
    """
    cells = [head, *(tuple(str(cell) for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widths[max(least, key=lambda column: widths[column] / least[column])] -= 1
    lines: list[str] = []
    for row in cells:
        wrapped = [wrap(cell, widths[column]) for column, cell in enumerate(row)]
        for index in range(max(len(cell) for cell in wrapped)):
            line = [cell[index] if index < len(cell) else "" for cell in wrapped]
            lines.append("  ".join(text.ljust(size) for text, size in zip(line, widths, strict=True)).rstrip())
        if row is head:
            lines.append("  ".join("─" * size for size in widths))
    return lines


# The small drawing: the main path, then a tree of what can follow the state that has an owner.


def _drawing() -> list[str]:
    main = [Event.SUBMIT, Event.CLAIM, Event.COMPLETE]
    rows = {row.event: row for row in EVENTS}
    path = "●" + "".join(f" ── {event} ─▶ {rows[event].targets[0]}" for event in main)
    owned = next(row.state for row in STATES if row.owned)
    lines = [f"  {path}", ""]
    lines += [f"  {line}" for line in _tree(owned, skip=set(main), depth=2)]
    lines.append("")
    for row in EVENTS:
        if len(row.sources) > FEW_SOURCES:
            lines.append(f"  {sources_in_words(row)} ── {_marked(row)} ─▶ {_listed(row.targets)}")
    return lines


def _tree(state: State, skip: set[Event], depth: int) -> list[str]:
    """Return the ways out of a state, one line for each target, each followed by the ways out of that target."""
    ways: dict[State, list[str]] = {}
    for row in EVENTS:
        if state in row.sources and len(row.sources) <= FEW_SOURCES and row.event not in skip:
            ways.setdefault(row.targets[0], []).append(_marked(row))
    if not ways or depth == 0:
        return [str(state)]
    lines: list[str] = []
    longest = max(len(", ".join(events)) for events in ways.values())
    name = str(state)
    for index, (target, events) in enumerate(ways.items()):
        label = ", ".join(events) + " "
        first, last = index == 0, index == len(ways) - 1
        fork = "──" if first and last else "─┬─" if first else "└─" if last else "├─"
        stem = f"{name} {fork}" if first else " " * (len(name) + 2) + fork
        branch = f"{stem} {label.ljust(longest + 1, '─')}─▶ "
        onward = _tree(target, skip, depth - 1)
        lines.append(branch + onward[0])
        rail = " " * (len(name) + 2) + (" " if last else "│")
        lines += [rail.ljust(len(branch)) + line for line in onward[1:]]
    return lines


def _marked(row: EventRow) -> str:
    return f"{row.event}!" if row.lease is LeaseRule.BREAKS else str(row.event)
