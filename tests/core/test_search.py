"""Every interleaving of a small scope, searched breadth first over the shipped `decide`, `refusal` and `applied`.

The store here is tiny and pure and has no rule of its own but three of the contract: a step is fenced by (epoch,
active) and its first write wins, jobs are inserted once per id, and nobody suspends on a group that has arrived.
Jobs are kept once each and known by number, so that a world is a small tuple and every decision is made once.

A pause needs no state of its own: it is an interleaving in which a worker doesn't move while others do. A kill
forgets the worker's copy. A lost reply leaves a copy behind that is no longer true. Time is relative, so now is
always 0: a run_at above 0 is still to come, and when time passes everything is due.
"""

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace as but
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.errors import NotAllowed
from holdfast.core.keys import derived_id
from holdfast.core.model import (
    Change,
    Error,
    Event,
    Job,
    Options,
    Retry,
    State,
    Step,
    StepState,
    Wait,
    WaitKind,
)
from holdfast.core.outcome import failure_event

JOB_ID = "0192f3a4-5b6c-7d8e-9f01-23456789abcd"
LATER = 1
STATES_LIMIT = 2_000_000
ENDED = frozenset({State.COMPLETED, State.DISCARDED, State.CANCELLED})
SETTLED = ENDED | {State.REVIEW}
OWNER_EVENTS = frozenset("complete fail exhaust release suspend rest".split())
GIVING_UP = ("cancel", "expire")
EDGES = {
    ("scheduled", "promote", "available"),
    ("retryable", "promote", "available"),
    ("pending", "activate", "available"),
    ("available", "claim", "active"),
    ("active", "complete", "completed"),
    ("active", "fail", "retryable"),
    ("active", "exhaust", "review"),
    ("active", "release", "available"),
    ("active", "suspend", "pending"),
    ("active", "rest", "scheduled"),
    ("active", "lapse", "available"),
    ("active", "overrun", "retryable"),
    ("active", "abandon", "review"),
    ("scheduled", "cancel", "cancelled"),
    ("available", "cancel", "cancelled"),
    ("pending", "cancel", "cancelled"),
    ("active", "cancel", "cancelled"),
    ("retryable", "cancel", "cancelled"),
    ("review", "cancel", "cancelled"),
    ("scheduled", "expire", "discarded"),
    ("available", "expire", "discarded"),
    ("pending", "expire", "discarded"),
    ("retryable", "expire", "discarded"),
    ("review", "replay", "available"),
    ("review", "resolve", "completed"),
    ("review", "discard", "discarded"),
}
"""The edges of design §3, written down a second time."""


class Broken(AssertionError):
    """A law was broken; the message has the shortest way to it."""


def law(holds: bool, text: str) -> None:
    if not holds:
        raise Broken(text)


# The search itself.

Moves = Iterator[tuple[str, Any]]


class Found(NamedTuple):
    """What a search has seen."""

    states: int
    moves: int
    dead_ends: list[str]


def explore(starts: list[Any], moves: Callable[[Any], Moves], check: Callable[[Any], None], goal: Callable[[Any], bool]) -> Found:
    """Visit every world that can be reached, check each, and tell from which no goal can be reached any more."""
    worlds = list(starts)
    number = {world: n for n, world in enumerate(worlds)}
    came = [(-1, "start")] * len(worlds)
    ways, ends, goals = array("L"), array("L"), bytearray()
    at = 0
    while at < len(worlds):
        world = worlds[at]
        try:
            check(world)
            for label, after in moves(world):
                n = number.get(after)
                if n is None:
                    n = number[after] = len(worlds)
                    worlds.append(after)
                    came.append((at, label))
                if not label.endswith(GIVING_UP):
                    ways.append(n)
        except Broken as broken:
            raise Broken(f"{broken}; after: {way_to(came, at)}") from None
        ends.append(len(ways))
        goals.append(goal(world))
        at += 1
        assert at < STATES_LIMIT, "the scope is too wide"
    stuck = [n for n, fine in enumerate(reaching(goals, ways, ends)) if not fine]
    return Found(len(worlds), len(ways), [way_to(came, n) for n in stuck[:3]])


def way_to(came: list[tuple[int, str]], at: int) -> str:
    labels = []
    while at >= 0:
        at, label = came[at]
        labels.append(label)
    return ", ".join(reversed(labels))


def reaching(goals: bytearray, ways: "array[int]", ends: "array[int]") -> bytearray:
    """Which worlds have a way to a goal. Most ways lead to higher numbers, so a few passes from the back do."""
    good, changed = bytearray(goals), True
    while changed:
        changed = False
        for n in range(len(good) - 1, -1, -1):
            if not good[n] and any(good[m] for m in ways[ends[n - 1] if n else 0 : ends[n]]):
                good[n] = changed = True
    return good


# The tiny store: jobs by number, and one act, `commit`, made of `refusal` and `applied`.


@dataclass(frozen=True)
class Rules:
    """What the search runs on. A mutant replaces one of these."""

    decide: Callable[..., Change] = lifecycle.decide
    deliver: Callable[..., Change] = lifecycle.deliver
    refusal: Callable[..., Any] = lifecycle.refusal
    applied: Callable[..., Job] = lifecycle.applied
    undo_job: Callable[..., Job] = lifecycle.undo_job
    steps_are_fenced: bool = True
    first_write_wins: bool = True
    awaited_groups_are_checked: bool = True
    arrivals_count_once: bool = True


class Act(NamedTuple):
    """A change that somebody wants, and the epoch of the copy it was made from when an owner wants it."""

    name: str
    change: Change
    owner_epoch: int | None = None


class Done(NamedTuple):
    """The job's number after an accepted act, and what went with it."""

    job: int
    before: State
    inserts: tuple[int, ...]
    steps: tuple[tuple[str, int, str], ...]


@dataclass
class Store:
    rules: Rules
    jobs: list[Job | None] = field(default_factory=lambda: [None])
    numbers: dict[bytes, int] = field(default_factory=dict)
    verdicts: dict[tuple[int, int], Done | str] = field(default_factory=dict)
    kept: dict[Any, Any] = field(default_factory=dict)
    happened: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    def keep(self, job: Job) -> int:
        """The job's number: equal jobs have the same one, and 0 is no job."""
        name = msgspec.msgpack.encode(job)
        if name not in self.numbers:
            self.numbers[name] = len(self.jobs)
            self.jobs.append(job)
        return self.numbers[name]

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def later(self, n: int) -> int:
        """The same job after a long time: what was to come is due."""
        return self.once(("later", n), lambda: self.keep(due(self.jobs[n])) if n else 0)

    def commit(self, n: int, act: Act) -> Done | str:
        """Carry out an act on the job with this number, or answer why it is refused."""
        key = (n, id(act))
        if key not in self.verdicts:
            self.verdicts[key] = self._commit(self.jobs[n], act)
        return self.verdicts[key]

    def _commit(self, head: Job, act: Act) -> Done | str:
        change = act.change
        conflict = self.rules.refusal(head, change)
        if conflict is not None:
            self.refused.add(f"{act.name}: {conflict.reason}")
            return str(conflict.reason)
        job = self.rules.applied(head, change)
        check_act(head, job, act)
        self.happened.add(str(change.event))
        return Done(
            self.keep(job),
            head.state,
            tuple(self.keep(new) for new in change.inserts),
            tuple((step.path, step.epoch, step.result or "") for step in change.steps),
        )


def due(job: Job) -> Job:
    waits = tuple(wait if wait.until is None else replace(wait, until=0) for wait in job.waits)
    return replace(job, run_at=None if job.run_at is None else 0, waits=waits)


def check_act(head: Job, job: Job, act: Act) -> None:
    """The laws of one accepted act."""
    change, name = act.change, act.name
    entry = lifecycle.entry_of(change, job.version)
    law(head.state not in ENDED, f"S4: {name} left the terminal state {head.state}")
    law(job.version == entry.version == head.version + 1, f"S3: {name} made version {job.version} of {head.version}")
    law(entry.before == head.state and entry.after == job.state, f"S3: the entry of {name} tells another story")
    if change.event == "signal":
        law(job.state == head.state, "S3: a signal changed the state")
    else:
        edge = (str(head.state), str(change.event), str(job.state))
        law(edge in EDGES, f"S3: no such edge: {edge}")
    law(job.epoch == head.epoch + (change.event == "claim"), f"S5: {name} made epoch {job.epoch} of {head.epoch}")
    law((job.state is State.ACTIVE) == (job.worker is not None), f"S8: {job.worker} owns a job that is {job.state}")
    if act.owner_epoch is not None:
        mine = head.state is State.ACTIVE and head.epoch == act.owner_epoch and head.worker == change.by
        law(mine, f"S7: {name} was accepted at epoch {head.epoch}, {head.state}, from epoch {act.owner_epoch}")


def failing(job: Job, event: Event, rules: Rules, **facts: Any) -> Change:
    return rules.decide(job, event, 0, error=Error("E", "it broke"), run_at=LATER, **facts)


# The first model: one job, two workers, one outsider (upkeep, callers, persons), and an undo job.


class World(NamedTuple):
    """Jobs by number. `a`, `b` and `out` are the copies that the workers and the outsider look at, 0 for none."""

    job: int
    undo: int = 0
    a: int = 0
    b: int = 0
    out: int = 0
    steps: tuple[tuple[str, int, str], ...] = ()
    sent: int = 0
    stopping: str = ""  # whose word the undo waits for: a, b, or x for one that was killed
    late: bool = False  # the undo's grace is over


@dataclass(frozen=True)
class Scope:
    """How far a search goes, and which events it leaves to the other searches."""

    starts: tuple[State, ...]
    epochs: int = 2
    signals: int = 0
    lag: int = 1
    workers: tuple[str, ...] = ("a", "b")
    leaves_out: frozenset[str] = frozenset()
    undo: bool = True


def job_in(state: State) -> Job:
    waits = (Wait(WaitKind.ACTIVATION),) if state is State.PENDING else ()
    run_at = {State.AVAILABLE: 0, State.SCHEDULED: LATER, State.PENDING: None}[state]
    options = Options(retry=Retry(retries=1))
    return Job(id=JOB_ID, type="video.make", created_at=0, state=state, run_at=run_at, waits=waits, options=options)


@dataclass
class OneJob:
    """Moves and laws of the first model."""

    scope: Scope
    rules: Rules = Rules()

    def __post_init__(self) -> None:
        self.store = Store(self.rules)

    def search(self) -> Found:
        starts = [World(self.store.keep(job_in(state))) for state in self.scope.starts]
        return explore(starts, self.moves, self.check, self.is_over)

    def is_over(self, world: World) -> bool:
        """Settled, its undo too; or at the edge of the scope, with nothing in the way of going on."""
        job, undo = self.store.jobs[world.job], self.store.jobs[world.undo]
        if job.state is State.AVAILABLE and job.epoch == self.scope.epochs:
            return True
        return job.state in SETTLED and (undo is None or undo.state in SETTLED)

    # Moves.

    def moves(self, world: World) -> Moves:
        job = self.store.jobs[world.job]
        for name in self.scope.workers:
            if getattr(world, name):
                yield from self.worker_moves(world, name)
            elif job.state is State.AVAILABLE and job.run_at == 0 and job.epoch < self.scope.epochs:
                yield f"{name} claim", self.after_claim(world, name)
        yield from self.outsider_moves(world)
        if world.undo:
            yield from self.undo_moves(world)
        yield "time passes", self.after_time(world)

    def after_claim(self, world: World, name: str) -> World:
        job = self.store.jobs[world.job]
        act = self.store.once(
            ("claim", world.job, name), lambda: Act(f"{name} claim", self.rules.decide(job, Event.CLAIM, 0, by=name))
        )
        done = self.store.commit(world.job, act)
        assert isinstance(done, Done)
        return self.seen(world._replace(job=done.job, **{name: done.job}))

    def after_time(self, world: World) -> World:
        job, undo, a, b, out = (self.store.later(n) for n in world[:5])
        return world._replace(job=job, undo=undo, a=a, b=b, out=out, late=bool(undo))

    def worker_moves(self, world: World, name: str) -> Moves:
        mine = getattr(world, name)
        copy, head = self.store.jobs[mine], self.store.jobs[world.job]
        holds = head.state is State.ACTIVE and head.epoch == copy.epoch
        stopped = {name: 0}
        yield f"{name} is killed", world._replace(stopping="x" if world.stopping == name else world.stopping, **stopped)
        if not holds:
            yield f"{name} learns that it stops", world._replace(**stopped)
        elif mine != world.job:
            yield f"{name} looks", world._replace(**{name: world.job})
        if holds or not self.rules.steps_are_fenced:
            law(holds, "S7: a step of a stale worker was recorded")
            yield f"{name} records", self.after_steps(world, (("draw#1", copy.epoch, name),))
        for act in self.store.once(("owner", mine, name), lambda: tuple(self.owner_acts(copy, name))):
            done = self.store.commit(world.job, act)
            if isinstance(done, Done):
                after = self.after_steps(self.seen(world._replace(job=done.job)), done.steps)
                yield act.name, after._replace(**stopped)
                yield f"{act.name}, reply lost", after
            elif not holds:
                yield f"{act.name} refused", world._replace(**stopped)

    def owner_acts(self, copy: Job, name: str) -> Iterator[Act]:
        """Everything an owner can want, by what its copy tells it."""
        takes = tuple(signal.version for signal in copy.inbox)
        heard = tuple(
            Step(
                job=copy.id,
                epoch=copy.epoch,
                path=f"wait#{signal.version}",
                name="wait",
                state=StepState.DONE,
                result=signal.value,
                started_at=0,
            )
            for signal in copy.inbox
        )
        with_it: dict[str, Any] = {"by": name, "takes": takes, "steps": heard}
        waits = (Wait(WaitKind.SIGNAL, "go", LATER),)
        decide = self.rules.decide
        changes = [
            decide(copy, Event.COMPLETE, 0, result="1", **with_it),
            failing(copy, failure_event(copy, "E"), self.rules, **with_it),
            failing(copy, Event.EXHAUST, self.rules, **with_it),
            decide(copy, Event.RELEASE, 0, **with_it),
            decide(copy, Event.REST, 0, run_at=LATER, **with_it),
            decide(copy, Event.SUSPEND, 0, waits=waits, **with_it),
        ]
        for change in changes:
            if change.event not in self.scope.leaves_out:
                yield Act(f"{name} {change.event}", change, copy.epoch)

    def outsider_moves(self, world: World) -> Moves:
        if world.out != world.job:
            yield "out looks", world._replace(out=world.job)
        if not world.out:
            return
        copy = self.store.jobs[world.out]
        progressed = any(epoch == copy.epoch for _, epoch, _ in world.steps)
        key = ("out", world.out, progressed, world.sent)
        for act in self.store.once(key, lambda: tuple(self.outsider_acts(copy, progressed, world.sent))):
            done = self.store.commit(world.job, act)
            if isinstance(done, str):
                yield f"{act.name} refused", world._replace(out=0)
                continue
            after = self.seen(world._replace(job=done.job, out=0, sent=world.sent + (act.change.signal is not None)))
            if act.change.inserts:
                after = self.with_undo(after, done)
            yield act.name, after

    def outsider_acts(self, copy: Job, progressed: bool, sent: int) -> Iterator[Act]:
        """Everything that upkeep, time, callers and persons can want, by what this copy tells them."""
        decide, now = self.rules.decide, 0
        is_due = copy.run_at == 0
        undo = (self.rules.undo_job(copy, "holdfast.undo", now),) if self.scope.undo else ()
        lost = lifecycle.lost_event(copy, progressed=progressed)
        doubt = lifecycle.lost_event(copy, progressed=progressed, in_doubt=True)
        late = Event.OVERRUN if failure_event(copy, "timeout") is Event.FAIL else Event.ABANDON
        wanted: list[tuple[str, Callable[[], Change]]] = [
            ("lost", lambda: failing(copy, lost, self.rules, progressed=progressed)),
            ("in doubt", lambda: failing(copy, doubt, self.rules)),
            ("store restarted", lambda: decide(copy, Event.LAPSE, now, recovery=False)),
            ("too late", lambda: failing(copy, late, self.rules)),
            ("cancel", lambda: decide(copy, Event.CANCEL, now, inserts=undo)),
            ("expire", lambda: decide(copy, Event.EXPIRE, now, inserts=undo)),
            ("replay", lambda: decide(copy, Event.REPLAY, now)),
            ("replay edited", lambda: decide(copy, Event.REPLAY, now, args=("[2]", "2"))),
            ("resolve", lambda: decide(copy, Event.RESOLVE, now, result="1")),
            ("discard", lambda: decide(copy, Event.DISCARD, now, inserts=undo)),
        ]
        if is_due:
            wanted.append(("promote", lambda: decide(copy, Event.PROMOTE, now)))
        if is_due or any(wait.kind is WaitKind.ACTIVATION for wait in copy.waits):
            wanted.append(("activate", lambda: decide(copy, Event.ACTIVATE, now)))
        if sent < self.scope.signals:
            wanted.append(("signal", lambda: self.rules.deliver(copy, "go", str(sent), now)))
        for name, want in wanted:
            try:
                change = want()
            except NotAllowed:
                continue
            if change.event not in self.scope.leaves_out:
                yield Act(name, change)

    def undo_moves(self, world: World) -> Moves:
        undo = self.store.jobs[world.undo]
        told = bool(world.stopping) and (world.stopping == "x" or not getattr(world, world.stopping))
        if undo.state is State.PENDING and (told or undo.run_at == 0):
            act = self.undo_act(world.undo, Event.ACTIVATE)
            yield "undo activate", world._replace(undo=act, stopping="" if told else world.stopping)
        elif undo.state is State.AVAILABLE:
            running = world.stopping in self.scope.workers and getattr(world, world.stopping)
            law(not running or world.late, "undo: claimed while the owner still runs and has not said it stopped")
            yield "undo claim", world._replace(undo=self.undo_act(world.undo, Event.CLAIM))
        elif undo.state is State.ACTIVE:
            yield "undo complete", world._replace(undo=self.undo_act(world.undo, Event.COMPLETE))

    def undo_act(self, n: int, event: Event) -> int:
        act = self.store.once(("undo", n, event), lambda: Act("undo", self.rules.decide(self.store.jobs[n], event, 0, by="c")))
        done = self.store.commit(n, act)
        assert isinstance(done, Done)
        return done.job

    # What goes with an act.

    def with_undo(self, world: World, done: Done) -> World:
        """Insert the undo job once, and note whose word it waits for."""
        law(len(done.inserts) == 1 and not world.undo, "undo: more than one for one job")
        stopping = ""
        if done.before is State.ACTIVE:
            epoch = self.store.jobs[world.job].epoch
            owners = [name for name in self.scope.workers if self.runs(world, name) == epoch]
            stopping = owners[0] if owners else "x"
        return world._replace(undo=done.inserts[0], stopping=stopping)

    def runs(self, world: World, name: str) -> int | None:
        """The epoch that this worker believes to hold."""
        copy = self.store.jobs[getattr(world, name)]
        return copy.epoch if copy else None

    def after_steps(self, world: World, steps: tuple[tuple[str, int, str], ...]) -> World:
        have = world.steps
        for path, epoch, value in steps:
            old = [step for step in have if step[0] == path]
            if old and self.rules.first_write_wins:
                continue
            law(old in ([], [(path, epoch, value)]), f"S9: {path} was recorded twice")
            have = tuple(sorted({*have, (path, epoch, value)}))
        return world if have is world.steps else world._replace(steps=have)

    def seen(self, world: World) -> World:
        """Bound the scope: the outsider forgets a copy that is too old."""
        if world.out and self.store.jobs[world.job].version - self.store.jobs[world.out].version > self.scope.lag:
            return world._replace(out=0)
        return world

    # Laws of every world.

    def check(self, world: World) -> None:
        job = self.store.jobs[world.job]
        a, b = self.store.jobs[world.a], self.store.jobs[world.b]
        law(not (a and b and a.epoch == b.epoch), "S6: two workers believe in one epoch")
        if job.state is State.ACTIVE:
            for name, copy in (("a", a), ("b", b)):
                law(not copy or copy.epoch != job.epoch or job.worker == name, f"S8: {name} is a second owner")
        if self.scope.undo:
            law((job.state in (State.CANCELLED, State.DISCARDED)) == bool(world.undo), f"undo: none, or one too many, {job.state}")
        if world.undo:
            law(self.store.jobs[world.undo].id == derived_id(JOB_ID, "undo"), "undo: another id")
        if self.scope.signals and job.state not in ENDED:
            here = [signal.value for signal in job.inbox]
            taken = [value for path, _, value in world.steps if path.startswith("wait#")]
            law(sorted(here + taken) == [str(n) for n in range(world.sent)], f"signals: {world.sent} sent, {here} here, {taken} taken")
            asleep = job.state is State.PENDING and any(wait.name == "go" for wait in job.waits)
            law(not (asleep and here), "signals: it waits for a signal that is in its inbox")


ALL = (State.AVAILABLE, State.SCHEDULED, State.PENDING)
SCOPES = {
    "two workers and a lease": Scope((State.AVAILABLE,), epochs=3, leaves_out=frozenset({"cancel", "expire"}), undo=False),
    "cancelling and undoing": Scope(ALL, epochs=2),
    "signals": Scope(ALL, epochs=3, signals=2, workers=("a",)),
}

if __name__ == "__main__":
    for name, scope in SCOPES.items():
        model = OneJob(scope)
        t = time.time()
        found = model.search()
        print(name, found.states, found.moves, len(model.store.jobs), found.dead_ends, round(time.time() - t, 1))
        print(sorted(model.store.happened), len(model.store.refused))
