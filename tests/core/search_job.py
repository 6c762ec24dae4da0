"""The first small scope: one job, two workers, outsiders (upkeep, time, callers, persons), and an undo job.

A pause needs no state of its own: it is an interleaving in which a worker doesn't move while others do. A kill
forgets the worker's copy. A lost reply leaves a copy behind that is no longer true.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.core import lifecycle
from holdfast.core.errors import NotAllowed
from holdfast.core.keys import derived_id
from holdfast.core.model import Change, Event, Job, State, Step, StepState, Wait, WaitKind
from holdfast.core.outcome import failure_event
from tests.core.search_store import (
    ENDED,
    JOB_ID,
    LATER,
    SETTLED,
    Act,
    Done,
    Moves,
    Rules,
    Store,
    as_field,
    explore,
    failing,
    job_in,
    law,
)


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


@dataclass
class OneJob:
    """Moves and laws of the first model."""

    scope: Scope
    rules: Rules

    def __post_init__(self) -> None:
        self.store = Store(self.rules)

    def search(self) -> int:
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
        return self.seen(world._replace(job=done.job, **as_field(name, done.job)))

    def after_time(self, world: World) -> World:
        job, undo, a, b, out = (self.store.later(n) for n in world[:5])
        return world._replace(job=job, undo=undo, a=a, b=b, out=out, late=bool(undo))

    def worker_moves(self, world: World, name: str) -> Moves:
        mine = getattr(world, name)
        copy, head = self.store.jobs[mine], self.store.jobs[world.job]
        holds = head.state is State.ACTIVE and head.epoch == copy.epoch
        stopped: dict[str, Any] = {name: 0}
        yield f"{name} is killed", world._replace(stopping="x" if world.stopping == name else world.stopping, **stopped)
        if not holds:
            yield f"{name} learns that it stops", world._replace(**stopped)
        elif mine != world.job:
            yield f"{name} looks", world._replace(**as_field(name, world.job))
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
        """One of them looks first and acts later, the others act at once: so any two of them can race."""
        if world.out != world.job:
            yield "out looks", world._replace(out=world.job)
        for n, kept in ((world.job, world.out), (world.out, 0)):
            for act in self.outsider_acts(n, world) if n else ():
                done = self.store.commit(world.job, act)
                if isinstance(done, Done):
                    yield act.name, self.after_outsider(world._replace(out=kept), act, done)
                else:
                    yield f"{act.name} refused", world._replace(out=kept)

    def outsider_acts(self, n: int, world: World) -> tuple[Act, ...]:
        copy = self.store.jobs[n]
        progressed = any(epoch == copy.epoch for _, epoch, _ in world.steps)
        key = ("out", n, progressed, world.sent)
        return self.store.once(key, lambda: tuple(self.wanted_outside(copy, progressed, world.sent)))

    def after_outsider(self, world: World, act: Act, done: Done) -> World:
        sent = world.sent + (act.change.signal is not None)
        after = self.seen(world._replace(job=done.job, sent=sent))
        return self.with_undo(after, done) if act.change.inserts else after

    def wanted_outside(self, copy: Job, progressed: bool, sent: int) -> Iterator[Act]:
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
            if not {name, change.event} & self.scope.leaves_out:
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
        act = self.store.once(
            ("undo", n, event), lambda: Act("undo", self.rules.decide(self.store.jobs[n], event, 0, by="c"))
        )
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
            law(
                (job.state in (State.CANCELLED, State.DISCARDED)) == bool(world.undo),
                f"undo: none, or one too many, {job.state}",
            )
        if world.undo:
            law(self.store.jobs[world.undo].id == derived_id(JOB_ID, "undo"), "undo: another id")
        if self.scope.signals and job.state not in ENDED:
            here = [signal.value for signal in job.inbox]
            taken = [value for path, _, value in world.steps if path.startswith("wait#")]
            law(
                sorted(here + taken) == [str(n) for n in range(world.sent)],
                f"signals: {world.sent} sent, {here} here, {taken} taken",
            )
            asleep = job.state is State.PENDING and any(wait.name == "go" for wait in job.waits)
            law(not (asleep and here), "signals: it waits for a signal that is in its inbox")
