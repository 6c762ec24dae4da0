"""The second small scope: a parent, a group of two children, and whoever owes the parent a wake-up."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.core.errors import NotAllowed
from holdfast.core.keys import derived_id
from holdfast.core.model import Event, Job, State, Wait, WaitKind
from tests.core.search_store import (
    ENDED,
    JOB_ID,
    SETTLED,
    Act,
    Done,
    Moves,
    Rules,
    Store,
    as_field,
    explore,
    job_in,
    law,
)


class Family(NamedTuple):
    """Jobs by number. `missing` is the store's counter for the group; `ended` is what really happened."""

    parent: int
    kids: tuple[int, ...] = ()
    a: int = 0
    b: int = 0
    missing: int = 0
    ended: frozenset[int] = frozenset()
    sent: int = 0
    wake: int = 0  # 0: nobody owes a wake-up, -1: owed, else the copy of the parent that the waker looks at


@dataclass
class Group:
    """Moves and laws of the second model.

    Whoever makes the last child arrive looks at the parent and activates it when it waits. Upkeep takes over what a
    dead waker owes, so a debt is never forgotten: what can be lost is a wake-up that nobody owes any more.
    """

    rules: Rules
    epochs: int = 2

    def __post_init__(self) -> None:
        self.store = Store(self.rules)

    def search(self) -> int:
        start = Family(self.store.keep(job_in(State.AVAILABLE)))
        return explore([start], self.moves, self.check, self.is_over)

    def is_over(self, world: Family) -> bool:
        parent = self.store.jobs[world.parent]
        return parent.state in SETTLED or (parent.state is State.AVAILABLE and parent.epoch == self.epochs)

    def act(self, n: int, event: Event, by: str = "", epoch: int | None = None, **facts: Any) -> Act | None:
        """What somebody wants who looks at this copy; None when the lifecycle has no such edge."""

        def make() -> Act | None:
            try:
                change = self.rules.decide(self.store.jobs[n], event, 0, by=by, **facts)
            except NotAllowed:
                return None
            return Act(f"{by} {event}", change, epoch)

        return self.store.once((n, event, by), make)

    def moves(self, world: Family) -> Moves:
        parent = self.store.jobs[world.parent]
        for name in ("a", "b"):
            if getattr(world, name):
                yield from self.worker_moves(world, name)
            elif parent.state is State.AVAILABLE and parent.epoch < self.epochs:
                done = self.store.commit(world.parent, self.act(world.parent, Event.CLAIM, name))  # type: ignore[arg-type]
                yield f"{name} claim", world._replace(parent=done.job, **as_field(name, done.job))
        for event in (Event.LAPSE, Event.CANCEL):
            if act := self.act(world.parent, event, "out"):
                yield act.name, world._replace(parent=self.store.commit(world.parent, act).job)
        if not world.sent and parent.state not in ENDED:
            act = self.store.once(("go", world.parent), lambda: Act("signal", self.rules.deliver(parent, "go", "0", 0)))
            yield "signal", world._replace(parent=self.store.commit(world.parent, act).job, sent=1)
        for place, kid in enumerate(world.kids):
            yield from self.kid_moves(world, place, kid)
        if world.wake:
            yield from self.waker_moves(world)

    def worker_moves(self, world: Family, name: str) -> Moves:
        mine = getattr(world, name)
        copy, head = self.store.jobs[mine], self.store.jobs[world.parent]
        holds = head.state is State.ACTIVE and head.epoch == copy.epoch
        yield f"{name} is killed", world._replace(**as_field(name, 0))
        if holds and mine != world.parent:
            yield f"{name} looks", world._replace(**as_field(name, world.parent))
        if holds and not world.kids:
            yield f"{name} inserts children", world._replace(kids=self.children(copy), missing=2)
        waits = (Wait(WaitKind.CHILDREN, "images"), Wait(WaitKind.SIGNAL, "go"))
        takes = tuple(signal.version for signal in copy.inbox)
        wanted = [self.act(mine, Event.RELEASE, name, copy.epoch, takes=takes)]
        if world.kids:
            wanted.append(self.act(mine, Event.SUSPEND, name, copy.epoch, waits=waits, takes=takes))
        if world.kids and not world.missing:
            wanted.append(self.act(mine, Event.COMPLETE, name, copy.epoch, result="1", takes=takes))
        for act in wanted:
            if act.change.event is Event.SUSPEND and self.rules.awaited_groups_are_checked and not world.missing:
                continue
            done = self.store.commit(world.parent, act)  # type: ignore[arg-type]
            if isinstance(done, Done):
                yield act.name, world._replace(parent=done.job, **as_field(name, 0))
            elif not holds:
                yield f"{act.name} refused", world._replace(**as_field(name, 0))

    def children(self, parent: Job) -> tuple[int, ...]:
        return tuple(
            self.store.keep(
                replace(job_in(State.AVAILABLE), id=derived_id(JOB_ID, name), parent=parent.id, group="images")
            )
            for name in ("images/1", "images/2")
        )

    def kid_moves(self, world: Family, place: int, kid: int) -> Moves:
        job = self.store.jobs[kid]
        wanted = [Event.COMPLETE, Event.EXHAUST]
        if job.epoch < self.epochs:
            wanted += [Event.CLAIM, Event.REPLAY]
        for act in filter(None, (self.act(kid, event, f"kid{place}") for event in wanted)):
            done = self.store.commit(kid, act)
            kids = (*world.kids[:place], done.job, *world.kids[place + 1 :])
            after = world._replace(kids=kids)
            if act.change.arrives and not (self.rules.arrivals_count_once and job.arrived):
                missing = world.missing - 1
                after = after._replace(missing=missing, wake=world.wake if missing else -1)
            if self.store.jobs[done.job].state in SETTLED:
                after = after._replace(ended=world.ended | {place})
            yield act.name, after

    def waker_moves(self, world: Family) -> Moves:
        if world.wake != world.parent:
            yield "waker looks", world._replace(wake=world.parent)
        if world.wake < 0:
            return
        if not self.waits(self.store.jobs[world.wake]):
            yield "waker has nothing to do", world._replace(wake=0)
            return
        done = self.store.commit(world.parent, self.act(world.wake, Event.ACTIVATE, "waker"))  # type: ignore[arg-type]
        if isinstance(done, Done):
            yield "waker activate", world._replace(parent=done.job, wake=0)
        else:
            yield "waker refused", world._replace(wake=-1)

    @staticmethod
    def waits(parent: Job) -> bool:
        return parent.state is State.PENDING and any(wait.kind is WaitKind.CHILDREN for wait in parent.waits)

    def check(self, world: Family) -> None:
        if world.kids:
            law(world.missing == 2 - len(world.ended), f"arrivals: {world.missing} missing, ended: {set(world.ended)}")
        parent = self.store.jobs[world.parent]
        asleep = self.waits(parent) and not world.missing and not world.wake
        law(not asleep, "children: it waits for a group that has arrived, and nobody will wake it")
