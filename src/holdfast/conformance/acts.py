"""Random acts as values: small numbers that `twins` turns into calls, so that they shrink well and are easy to read.

Must not know a store. The pools are small on purpose: six jobs, three queues, two workers and a few keys collide all
the time; a thousand would not.
"""

from itertools import permutations

from hypothesis import strategies as st
from msgspec import Struct

from holdfast.conformance.given import HOUR, MINUTE
from holdfast.core.model import State, StepState

SLOTS, QUEUES, TYPES, WORKERS, KEYS, PATHS, GROUPS, NAMES, LIMITS = 6, 3, 2, 2, 2, 4, 2, 4, 3
COUNTED = 3
"""How many choices of states there are in which a job with the same unique name counts."""

FAIR_KEYS = 3
EVENTS = 12
"""Enough numbers for all events that one state allows."""

MOMENTS = (0, -1, 1, -MINUTE, MINUTE, HOUR)
"""How far a time is from now: exactly now, and on both sides of it."""


class Plan(Struct, frozen=True):
    """A new job: which of the six it is, and its fields. Times are distances from now."""

    slot: int
    queue: int = 0
    priority: int = 0
    state: State = State.AVAILABLE
    run: int = 0
    expires: int | None = None
    key: int | None = None
    window: int | None = None
    args: int = 0
    group: int | None = None
    keep: int | None = 0
    anew: bool = False
    """Whether to create a new job if the one in this slot has ended."""
    limits: tuple[int, ...] = ()
    unique: int | None = None
    """The nth unique name, instead of a key. `window` is its window, and `counted` says which states count."""
    counted: int = 0
    refuses: bool = False
    fair: int | None = None


class Mark(Struct, frozen=True):
    """A step record, under the lease of an older or the newest copy of a job. `held` counts only active jobs."""

    slot: int
    held: bool
    path: int
    state: StepState
    value: int = 0
    age: int = 0


class Move(Struct, frozen=True):
    """A change: the nth event that the copy's state allows; beyond the last one, a signal.

    `held` counts only jobs that are active or in review, because most things happen to those.
    """

    slot: int
    held: bool
    nth: int
    age: int = 0
    run: int = 0
    wait: int = 0
    takes: int = 0
    marks: tuple[Mark, ...] = ()
    drop: int | None = None
    plans: tuple[Plan, ...] = ()
    edit: int | None = None


class Insert(Struct, frozen=True, tag=True):
    """Insert new jobs, perhaps as children of a job under one of its leases."""

    plans: tuple[Plan, ...]
    parent: int | None = None
    age: int = 0
    seat: int = 0


class Claim(Struct, frozen=True, tag=True):
    """Claim jobs for a worker, of some types or of any."""

    worker: int
    queues: tuple[int, ...]
    limit: int
    types: tuple[int, ...] | None = None
    seat: int = 0


class Commit(Struct, frozen=True, tag=True):
    """Commit a batch of changes."""

    moves: tuple[Move, ...]
    seat: int = 0


class RecordSteps(Struct, frozen=True, tag=True):
    """Record a batch of steps."""

    marks: tuple[Mark, ...]
    seat: int = 0


class Request(Struct, frozen=True):
    """A step asks for permits, or gives them back if it names none."""

    slot: int
    held: bool
    path: int
    limits: tuple[int, ...] = ()
    try_number: int = 1
    age: int = 0


class Admit(Struct, frozen=True, tag=True):
    """Some records, and then what some steps ask for."""

    requests: tuple[Request, ...]
    marks: tuple[Mark, ...] = ()
    seat: int = 0


class Put(Struct, frozen=True, tag=True):
    """Write or remove a small record, expecting anything, the stored version, none, or another version.

    Jobs go with it.
    """

    name: int
    value: int | None
    expects: str
    plans: tuple[Plan, ...] = ()
    seat: int = 0


class BeatOf(Struct, frozen=True, tag=True):
    """Send a worker's heartbeat that names some jobs, by older or newest copies."""

    worker: int
    named: tuple[tuple[int, int], ...]
    queues: tuple[int, ...]
    leaving: bool = False


class Prune(Struct, frozen=True, tag=True):
    """Prune old jobs."""

    limit: int
    seat: int = 0


class Look(Struct, frozen=True, tag=True):
    """Read all jobs of some kind, page by page."""

    state: State | None
    queue: int | None
    parent: int | None
    expires: int | None
    newest_first: bool
    page: int
    seat: int = 0


class Advance(Struct, frozen=True, tag=True):
    """Move the clock forward or back."""

    by: int


class Reopen(Struct, frozen=True, tag=True):
    """Close an engine, and open the store again."""

    seat: int = 0


class Compare(Struct, frozen=True, tag=True):
    """Compare everything that the stores hold. An act like the others, so that hypothesis can drop those around it."""


Act = Insert | Claim | Commit | RecordSteps | Admit | Put | BeatOf | Prune | Look | Advance | Reopen | Compare


def _below(number: int) -> st.SearchStrategy[int]:
    return st.integers(0, number - 1)


slots, ages, seats = _below(SLOTS), st.sampled_from((0, 0, 0, 0, 1, 2)), _below(2)
mostly = st.sampled_from((True, True, True, True, False))
orders = tuple(permutations(range(QUEUES)))
some_queues = st.sampled_from((*orders, *orders, *(order[:1] for order in orders), *(order[:2] for order in orders)))
moments = st.sampled_from(MOMENTS)
states = st.sampled_from((*[State.AVAILABLE] * 7, State.SCHEDULED, State.SCHEDULED, State.PENDING))

limits = st.sampled_from((*[()] * 4, *((n,) for n in range(LIMITS)), (0, 1), (2, 0)))

plans = st.builds(
    Plan,
    slot=slots,
    queue=_below(QUEUES),
    priority=st.sampled_from((0, 0, 1, -1)),
    state=states,
    run=st.sampled_from((*[0] * 12, *MOMENTS)),
    expires=st.sampled_from((*[None] * 24, *MOMENTS)),
    key=st.sampled_from((None, None, *range(KEYS))),
    window=st.sampled_from((None, None, *MOMENTS)),
    args=_below(2),
    group=st.sampled_from((None, *range(GROUPS))),
    keep=st.sampled_from((0, None, MINUTE)),
    anew=mostly,
    limits=limits,
    unique=st.sampled_from((None, None, *range(KEYS))),
    counted=_below(COUNTED),
    refuses=st.sampled_from((False, False, False, True)),
    fair=st.sampled_from((None, None, *range(FAIR_KEYS))),
)
marks = st.builds(
    Mark, slot=slots, held=mostly, path=_below(PATHS), state=st.sampled_from(StepState), value=_below(2), age=ages
)
moves = st.builds(
    Move,
    slot=slots,
    held=mostly,
    nth=_below(EVENTS + 4),
    age=ages,
    run=moments,
    wait=_below(6),
    takes=_below(4),
    marks=st.sampled_from((0, 0, 1, 2)).flatmap(lambda number: st.tuples(*[marks] * number)),
    drop=st.sampled_from((None, None, *range(PATHS))),
    plans=st.sampled_from((0, 0, 1, 2)).flatmap(lambda number: st.tuples(*[plans] * number)),
    edit=st.none() | _below(2),
)

inserts = st.builds(
    Insert,
    plans=st.lists(plans, min_size=1, max_size=3).map(tuple),
    parent=st.none() | slots,
    age=ages,
    seat=seats,
)
claims = st.builds(
    Claim,
    worker=_below(WORKERS),
    queues=some_queues,
    limit=st.sampled_from((1, 2, 3, 3)),
    types=st.sampled_from((None, None, (0,), (1,), (0, 1), (1, 0))),
    seat=seats,
)
commits = st.builds(Commit, moves=st.lists(moves, min_size=1, max_size=3).map(tuple), seat=seats)
records = st.builds(RecordSteps, marks=st.lists(marks, min_size=1, max_size=3).map(tuple), seat=seats)
requests = st.builds(
    Request, slot=slots, held=mostly, path=_below(PATHS), limits=limits, try_number=st.sampled_from((1, 1, 2)), age=ages
)
admits = st.builds(
    Admit,
    requests=st.lists(requests, min_size=1, max_size=4).map(tuple),
    marks=st.lists(marks, max_size=2).map(tuple),
    seat=seats,
)
puts = st.builds(
    Put,
    name=_below(NAMES),
    value=st.sampled_from((None, None, 0, 1)),
    expects=st.sampled_from(("any", "held", "none", "other")),
    plans=st.sampled_from((0, 0, 1, 2)).flatmap(lambda number: st.tuples(*[plans] * number)),
    seat=seats,
)
beats = st.builds(
    BeatOf,
    worker=_below(WORKERS),
    named=st.lists(st.tuples(slots, ages), max_size=4, unique_by=lambda pair: pair[0]).map(tuple),
    queues=some_queues,
    leaving=mostly.map(lambda stays: not stays),
)
prunes = st.builds(Prune, limit=st.integers(1, 3), seat=seats)
looks = st.builds(
    Look,
    state=st.none() | st.sampled_from(State),
    queue=st.none() | _below(QUEUES),
    parent=st.none() | slots,
    expires=st.none() | moments,
    newest_first=st.booleans(),
    page=st.integers(1, 4),
    seat=seats,
)
advances = st.builds(Advance, by=st.sampled_from((1, MINUTE, HOUR, -MINUTE)))
reopens = st.builds(Reopen, seat=seats)
compares = st.builds(Compare)

# Most acts must insert, claim or change jobs; otherwise nothing happens to any of them.
_often: list[st.SearchStrategy[Act]] = [inserts, claims, commits, commits]
_seldom: list[st.SearchStrategy[Act]] = [
    compares,
    records,
    admits,
    admits,
    puts,
    beats,
    prunes,
    looks,
    advances,
    reopens,
]
acts: st.SearchStrategy[Act] = st.sampled_from([*_often, *_often, *_often, *_seldom]).flatmap(lambda kind: kind)
