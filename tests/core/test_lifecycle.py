"""The lifecycle against a second copy of its table: every edge, every refusal, who must still be right, and purity."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.errors import NotAllowed
from holdfast.core.lifecycle import (
    EVENT_ROWS,
    EVENTS,
    SETTLED,
    STATE_ROWS,
    STATES,
    TERMINAL,
    EventRow,
    LeaseRule,
    StateRow,
    allowed,
    check_table,
    refusal,
)
from holdfast.core.model import Event, State
from tests.core.second_copy import (
    EDGES,
    ENDED,
    JOB_ID,
    NOW,
    PAIRS,
    PROMISED_EVENTS,
    PROMISED_STATES,
    decided,
    job_in,
)

# The table.


def test_the_table_has_the_states_and_events_of_the_design():
    assert [row.state for row in STATES] == list(PROMISED_STATES)
    assert [row.event for row in EVENTS] == list(PROMISED_EVENTS)


@pytest.mark.parametrize("state", PROMISED_STATES)
def test_a_state_is_owned_named_and_terminal_as_the_design_says(state):
    row = STATE_ROWS[State(state)]

    assert (row.owned, row.ojs, row.celery, row.checkpoint, row.terminal) == PROMISED_STATES[state]
    assert row.meaning


@pytest.mark.parametrize("event", PROMISED_EVENTS)
def test_an_event_has_the_edges_lease_rule_and_author_of_the_design(event):
    row = EVENT_ROWS[Event(event)]
    sources, targets, lease, who = PROMISED_EVENTS[event]

    assert set(row.sources) == set(sources.split())
    assert set(row.targets) == set(targets.split())
    assert (row.lease, row.who) == (lease, who)
    assert row.meaning


def test_settled_is_terminal_or_in_review():
    assert {"completed", "discarded", "cancelled"} == TERMINAL
    assert TERMINAL | {"review"} == SETTLED


# Every pair of event and state.


@pytest.mark.parametrize(("event", "state"), [pair for pair in PAIRS if pair in EDGES])
def test_an_allowed_event_leads_to_its_one_state(event, state):
    change = decided(event, state)

    assert allowed(Event(event), State(state))
    assert (change.event, change.before, change.job.state) == (event, state, EDGES[event, state])
    assert change.at == NOW
    assert change.job.id == JOB_ID


@pytest.mark.parametrize(("event", "state"), [pair for pair in PAIRS if pair not in EDGES])
def test_any_other_event_is_refused_in_words(event, state):
    assert not allowed(Event(event), State(state))

    with pytest.raises(NotAllowed) as refused:
        decided(event, state)

    what, _, what_now = str(refused.value).partition("; ")
    asked = {"cancel": "cancelled", "replay": "replayed", "resolve": "resolved", "discard": "discarded"}
    refused_words = f"it can't be {asked[event]}" if event in asked else f"{event} isn't possible"
    ended = "has already completed" if state == State.COMPLETED else f"was already {state}"
    standing = "in review" if state == State.REVIEW else state
    assert what == f"job {JOB_ID} {ended if state in ENDED else f'is {standing}'}, so {refused_words}"
    if state in ENDED:
        assert what_now == ("to run it again, submit a new job" if event == Event.REPLAY else "")
    else:
        assert what_now.startswith("possible now: ")
        assert {(way, state) for way in what_now.removeprefix("possible now: ").split(", ")} <= set(EDGES)


@pytest.mark.parametrize(
    "state",
    [state for state in PROMISED_STATES if state not in ENDED],
)
def test_a_refusal_names_every_event_that_a_person_could_use(state):
    usable = {
        event
        for event, (sources, _, _, who) in PROMISED_EVENTS.items()
        if state in sources.split() and {"caller", "person"} & set(who.split(", "))
    }

    with pytest.raises(NotAllowed) as refused:
        decided("submit", state)

    assert set(str(refused.value).rpartition(": ")[2].split(", ")) == usable


def test_the_pairs_are_all_there():
    assert len(PAIRS) == 162
    assert len(EDGES) == 26


# Who must still be right in the store.


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_an_owner_expects_its_epoch_and_others_the_version(event, state):
    change = decided(event, state)

    match event:
        case "complete" | "fail" | "exhaust" | "release":
            assert (change.epoch, change.version) == (2, None)
        case "suspend" | "rest":
            assert (change.epoch, change.version) == (2, 7)
        case _:
            assert (change.epoch, change.version) == (None, 7)


@pytest.mark.parametrize("event", ["complete", "fail", "exhaust", "release"])
def test_an_owner_goes_on_when_only_a_signal_came_in_between(event):
    head = job_in("active", version=8)

    assert refusal(head, decided(event)) is None


@pytest.mark.parametrize("event", ["suspend", "rest"])
def test_nobody_falls_asleep_over_a_signal_that_came_in_between(event):
    head = job_in("active", version=8)

    conflict = refusal(head, decided(event))

    assert conflict is not None
    assert (conflict.job, conflict.state, conflict.version, conflict.epoch) == (JOB_ID, "active", 8, 2)


@pytest.mark.parametrize("event", ["complete", "fail", "exhaust", "release", "suspend", "rest"])
@pytest.mark.parametrize(
    "head",
    [
        job_in("active", epoch=3),
        job_in("available"),
        job_in("cancelled"),
        job_in("completed"),
        job_in("active", epoch=3, version=9),
    ],
    ids=lambda head: f"{head.state} at epoch {head.epoch}",
)
def test_an_owner_without_its_lease_is_refused(event, head):
    assert refusal(head, decided(event)) is not None


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_a_change_of_a_job_that_is_gone_is_refused(event, state):
    conflict = refusal(None, decided(event, state))

    assert conflict is not None
    assert (conflict.job, conflict.state) == (JOB_ID, None)


@pytest.mark.parametrize(("event", "state"), EDGES)
def test_a_change_goes_through_while_nothing_has_happened(event, state):
    assert refusal(job_in(state), decided(event, state)) is None


# The table checks itself.


def with_event(event: str, **wrong) -> tuple[EventRow, ...]:
    return tuple(replace(row, **wrong) if row.event == event else row for row in EVENTS)


def with_state(state: str, **wrong) -> tuple[StateRow, ...]:
    return tuple(replace(row, **wrong) if row.state == state else row for row in STATES)


def test_the_shipped_table_is_sound():
    check_table(STATES, EVENTS)


@pytest.mark.parametrize(
    ("states", "events", "message"),
    [
        pytest.param(STATES[1:], EVENTS, "one row for each state", id="a state is missing"),
        pytest.param((*STATES, STATES[0]), EVENTS, "one row for each state", id="a state is there twice"),
        pytest.param(STATES, EVENTS[1:], "one row for each event", id="an event is missing"),
        pytest.param(STATES, (*EVENTS, EVENTS[0]), "one row for each event", id="an event is there twice"),
        pytest.param(
            STATES,
            with_event("replay", sources=(State.REVIEW, State.DISCARDED)),
            "replay leads out of the terminal state discarded",
            id="a terminal state is left",
        ),
        pytest.param(
            with_state("review", terminal=True),
            EVENTS,
            "leads out of the terminal state review",
            id="a state that is left is called terminal",
        ),
        pytest.param(
            STATES,
            with_event("cancel", targets=(State.DISCARDED,)),
            "no event leads to .*cancelled",
            id="a state can't be reached",
        ),
        pytest.param(
            STATES,
            with_event("fail", targets=(State.RETRYABLE, State.AVAILABLE)),
            "fail must lead to exactly one state",
            id="an event has two targets",
        ),
        pytest.param(
            STATES,
            with_event("promote", targets=()),
            "promote must lead to exactly one state",
            id="an event has no target",
        ),
        pytest.param(
            STATES,
            with_event("cancel", lease=LeaseRule.NONE),
            "cancel changes an owned job",
            id="an owned job is touched without a lease rule",
        ),
        pytest.param(
            STATES,
            with_event("release", lease=LeaseRule.TAKES),
            "release changes an owned job",
            id="an owned job is taken from its owner",
        ),
        pytest.param(
            STATES,
            with_event("complete", sources=(State.ACTIVE, State.AVAILABLE)),
            "complete needs a lease",
            id="a lease is needed where there is none",
        ),
        pytest.param(
            STATES,
            with_event("claim", lease=LeaseRule.NONE),
            "claim must take the lease",
            id="a job becomes owned without a lease",
        ),
        pytest.param(
            STATES,
            with_event("promote", lease=LeaseRule.TAKES),
            "promote must take the lease",
            id="a lease is taken for a job that nobody runs",
        ),
        pytest.param(STATES, with_event("submit", sources=(State.REVIEW,)), "no event leads to", id="nothing begins"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(states, events, message):
    with pytest.raises(AssertionError, match=message):
        check_table(states, events)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(with_event("promote", sources=()), id="an event other than submit has no source"),
        pytest.param(
            tuple(replace(row, sources=tuple(s for s in row.sources if s != State.RETRYABLE)) for row in EVENTS),
            id="a state that isn't terminal has no way out",
        ),
    ],
)
def test_a_table_with_a_dead_end_is_refused(events):
    with pytest.raises(AssertionError):
        check_table(STATES, events)


# Purity.

CORE = Path(lifecycle.__file__).parent
IMPURE = """
_thread aiofiles anyio asyncio concurrent contextvars ctypes http importlib logging marshal mmap multiprocessing os
pickle platform queue random sched secrets select selectors shelve shutil signal socket sqlite3 ssl subprocess sys
tempfile threading time trio warnings weakref
"""
TYPES_ONLY = {
    "uuid": {"UUID"},
    "datetime": {"UTC", "date", "datetime", "time", "timedelta", "timezone", "tzinfo"},
    "urllib": {"quote", "unquote"},
}
READS_THE_WORLD = {"now", "utcnow", "today", "fromtimestamp", "getenv", "uuid1", "uuid4", "urandom", "monotonic"}
BUILT_IN = {"open", "print", "input", "eval", "exec", "__import__", "breakpoint", "id"}


def imports(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Every import, local ones too: the module, and the names taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, set()) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", {name.name for name in node.names}


def impurities(source: str) -> list[str]:
    tree = ast.parse(source)
    found = []
    for module, names in imports(tree):
        root = module.partition(".")[0]
        if root == "holdfast" and not module.startswith("holdfast.core"):
            found.append(f"imports {module}")
        if root in IMPURE.split() or (root in TYPES_ONLY and not (names and names <= TYPES_ONLY[root])):
            found.append(f"imports {module}: {', '.join(sorted(names))}")
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith() | ast.Global():
                found.append(f"line {node.lineno}: {type(node).__name__}")
            case ast.Call(func=ast.Attribute(attr=name)) if name in READS_THE_WORLD:
                found.append(f"line {node.lineno}: calls .{name}()")
            case ast.Call(func=ast.Name(id=name)) if name in BUILT_IN:
                found.append(f"line {node.lineno}: calls {name}()")
    return found


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: path.stem)
def test_core_is_pure(path):
    assert impurities(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from time import monotonic",
        "def f():\n    import random",
        "def f():\n    from asyncio import sleep",
        "import uuid",
        "from uuid import uuid4",
        "import datetime",
        "from urllib.request import urlopen",
        "from holdfast.engines import contract",
        "import holdfast.worker",
        "from datetime import datetime\ndatetime.now()",
        "from datetime import datetime, UTC\ndatetime.now(UTC)",
        "from datetime import date\ndate.today()",
        "open('x')",
        "async def f(): ...",
        "def f():\n    global x",
    ],
)
def test_the_search_for_impurity_finds_it(source):
    assert impurities(source)
