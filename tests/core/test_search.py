"""Every interleaving of two small scopes, searched over the shipped `decide`, `refusal`, `applied`, `deliver` and
`undo_job`: the laws hold in every world, and a planted bug is always found.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.keys import derived_id
from holdfast.core.model import LEASE_LOST, OUTRUN, Change, Event, Job, State
from tests.core.search_group import Group
from tests.core.search_job import OneJob, Scope
from tests.core.search_store import Broken, Rules

NO_END = frozenset({"cancel", "expire"})
LEASES = Scope((State.AVAILABLE,), epochs=3, leaves_out=NO_END, undo=False)
UNDOING = Scope((State.AVAILABLE, State.SCHEDULED, State.PENDING))
SIGNALS = Scope(
    (State.AVAILABLE,),
    signals=2,
    leaves_out=NO_END | {"exhaust", "release", "overrun", "resolve", "discard", "replay edited"},
    undo=False,
)
ALONE = Scope((State.AVAILABLE,), leaves_out=NO_END, undo=False, workers=("a",))
SEARCHES: dict[str, Callable[[Rules], Any]] = {
    "leases": lambda rules: OneJob(LEASES, rules),
    "undoing": lambda rules: OneJob(UNDOING, rules),
    "signals": lambda rules: OneJob(SIGNALS, rules),
    "children": lambda rules: Group(rules),
    "alone": lambda rules: OneJob(ALONE, rules),
}
HAPPENS = {
    "leases": "promote activate claim complete fail exhaust release suspend rest lapse overrun abandon replay resolve "
    "discard",
    "undoing": "promote activate claim complete fail exhaust release suspend rest lapse overrun abandon replay resolve "
    "discard cancel expire",
    "signals": "promote activate claim complete fail suspend rest lapse abandon replay signal",
    "children": "activate claim complete exhaust release suspend lapse cancel replay signal",
}
LEASES_ARE_LOST = {
    "leases": "a complete, a fail, a exhaust, a release, a suspend, a rest, b complete, b suspend",
    "undoing": "a complete, a fail, a exhaust, a release, a suspend, a rest, b complete, b suspend",
    "signals": "a complete, a suspend, a rest, b complete, b suspend, b rest",
    "children": "a complete, a release, a suspend",
}
OTHERS_ARE_FASTER = {
    "leases": "promote, activate, lost, in doubt, too late, store restarted, replay, replay edited, resolve, discard",
    "undoing": "promote, activate, lost, in doubt, too late, replay, resolve, discard, cancel, expire",
    "signals": "signal, a suspend, b suspend, a rest, b rest, lost, activate",
    "children": "a suspend, waker activate",
}


@pytest.mark.parametrize("name", HAPPENS)
def test_every_law_holds_in_every_world(name):
    model = SEARCHES[name](Rules())

    worlds = model.search()

    assert worlds > 20_000, "the scope has become too small to mean much"
    assert model.store.happened == set(HAPPENS[name].split())
    for reason, losers in ((LEASE_LOST, LEASES_ARE_LOST[name]), (OUTRUN, OTHERS_ARE_FASTER[name])):
        never = [loser for loser in losers.split(", ") if f"{loser}: {reason}" not in model.store.refused]
        assert never == [], f"the search didn't race: {reason}"


def test_every_event_happens_in_some_search():
    happens = {event for events in HAPPENS.values() for event in events.split()}

    assert happens == {"signal", *Event} - {"submit"}


# Mutants: each plants one bug, and the search must find it for the right reason.


def deciding(event: Event, **wrong: Any) -> Rules:
    """`decide` with one event's job spoilt."""

    def decide(job: Job, what: Event, now: int, **facts: Any) -> Change:
        change = lifecycle.decide(job, what, now, **facts)
        return replace(change, job=replace(change.job, **wrong)) if what is event else change

    return Rules(decide=decide)


def changing(events: set[Event], **wrong: Any) -> Rules:
    """`decide` with the Changes of some events spoilt."""

    def decide(job: Job, what: Event, now: int, **facts: Any) -> Change:
        change = lifecycle.decide(job, what, now, **facts)
        return replace(change, **wrong) if what in events else change

    return Rules(decide=decide)


def refusing(spoil: Callable[[Job, Change], Change]) -> Rules:
    """`refusal` that looks at a spoilt change."""
    return Rules(refusal=lambda head, change: lifecycle.refusal(head, spoil(head, change)))


def applying(spoil: Callable[[Job, Change, Job], Job]) -> Rules:
    """`applied` with a spoilt answer."""
    return Rules(applied=lambda head, change: spoil(head, change, lifecycle.applied(head, change)))


def cancels_what_has_ended(job: Job, event: Event, now: int, **facts: Any) -> Change:
    if event is Event.CANCEL and job.state is State.COMPLETED:
        change = lifecycle.decide(replace(job, state=State.AVAILABLE), event, now, **facts)
        return replace(change, before=job.state)
    return lifecycle.decide(job, event, now, **facts)


def lapses_in_place(job: Job, event: Event, now: int, **facts: Any) -> Change:
    if event is Event.LAPSE:
        change = lifecycle.decide(job, event, now, **facts)
        return replace(change, job=replace(change.job, state=State.ACTIVE, worker=job.worker))
    return lifecycle.decide(job, event, now, **facts)


def keeps_signals_asleep(job: Job, name: str, value: str, now: int) -> Change:
    change = lifecycle.deliver(replace(job, waits=()), name, value, now)
    return replace(change, job=job)


def undoes_at_once(job: Job, type: str, now: int) -> Job:
    return replace(lifecycle.undo_job(job, type, now), state=State.AVAILABLE, run_at=now, waits=())


def undoes_under_a_drawn_id(job: Job, type: str, now: int) -> Job:
    return replace(lifecycle.undo_job(job, type, now), id=derived_id(job.id, f"undo {job.version}"))


OUTSIDE = {Event.PROMOTE, Event.ACTIVATE, Event.LAPSE, Event.CANCEL, Event.EXPIRE, Event.REPLAY, Event.RESOLVE}
OWNER = {Event.COMPLETE, Event.FAIL, Event.EXHAUST, Event.RELEASE, Event.SUSPEND, Event.REST}
MUTANTS: dict[str, tuple[str, Rules, str]] = {
    "refusal ignores the epoch": ("leases", refusing(lambda head, change: replace(change, epoch=None)), "S7"),
    "refusal compares the epoch with itself": (
        "leases",
        refusing(lambda head, change: replace(change, epoch=change.epoch and head.epoch)),
        "S7",
    ),
    "refusal ignores that the job is no longer active": (
        "leases",
        Rules(refusal=lambda head, change: lifecycle.refusal(replace(head, state=State.ACTIVE), change)),
        "S7",
    ),
    "refusal ignores the version": ("undoing", refusing(lambda head, change: replace(change, version=None)), "S3"),
    "refusal ignores the version on suspend": (
        "signals",
        refusing(lambda head, change: replace(change, version=None) if change.epoch else change),
        "signals: it waits",
    ),
    "owners forget to name their epoch": ("leases", changing(OWNER, epoch=None), "S7"),
    "outsiders forget to expect a version": ("undoing", changing(OUTSIDE, version=None), "S3"),
    "cancel forgets to expect a version": ("undoing", changing({Event.CANCEL}, version=None), "S3"),
    "suspend expects the epoch only": ("signals", changing({Event.SUSPEND}, version=None), "signals: it waits"),
    "claim doesn't count the epoch": ("leases", deciding(Event.CLAIM, epoch=1), "S5"),
    "replay starts the epoch anew": ("leases", deciding(Event.REPLAY, epoch=0), "S5"),
    "lapse leaves the owner in place": ("leases", Rules(decide=lapses_in_place), "S3"),
    "release keeps the worker's name": ("leases", deciding(Event.RELEASE, worker="a"), "S8"),
    "cancel leads out of a terminal state": ("undoing", Rules(decide=cancels_what_has_ended), "S4"),
    "fail leads to a terminal state": ("leases", deciding(Event.FAIL, state=State.DISCARDED), "S3"),
    "fail forgets when to try again": ("alone", deciding(Event.FAIL, run_at=None), "dead end"),
    "suspend forgets when the wait is over": ("alone", deciding(Event.SUSPEND, run_at=None), "dead end"),
    "rest forgets when to come back": ("alone", deciding(Event.REST, run_at=None), "dead end"),
    "cancel forgets its undo": ("undoing", changing({Event.CANCEL}, inserts=()), "undo: none"),
    "an undo doesn't wait for the owner": ("undoing", Rules(undo_job=undoes_at_once), "undo: claimed"),
    "an undo draws its id": ("undoing", Rules(undo_job=undoes_under_a_drawn_id), "undo: another id"),
    "applied drops the inbox": ("signals", applying(lambda head, change, job: replace(job, inbox=())), "signals: 1"),
    "applied writes the inbox of the copy": (
        "signals",
        applying(lambda head, change, job: job if change.signal else replace(job, inbox=change.job.inbox)),
        "signals: 1",
    ),
    "taking one signal takes all": (
        "signals",
        applying(lambda head, change, job: replace(job, inbox=()) if change.takes else job),
        "signals: 2",
    ),
    "applied doesn't count a signal's version": (
        "signals",
        applying(lambda head, change, job: replace(job, version=head.version) if change.signal else job),
        "S3",
    ),
    "applied counts from the copy's version": (
        "signals",
        applying(lambda head, change, job: replace(job, version=change.job.version + 1)),
        "S3",
    ),
    "a signal doesn't wake": ("signals", Rules(deliver=keeps_signals_asleep), "signals: it waits"),
    "steps aren't fenced": ("leases", Rules(steps_are_fenced=False), "S7"),
    "the last write of a step wins": ("leases", Rules(first_write_wins=False), "S9"),
    "applied forgets that a child has arrived": (
        "children",
        applying(lambda head, change, job: replace(job, arrived=change.arrives)),
        "arrivals",
    ),
    "arrivals are counted whenever they come": ("children", Rules(arrivals_count_once=False), "arrivals"),
    "a child in review doesn't arrive": ("children", changing({Event.EXHAUST}, arrives=False), "arrivals"),
    "suspend doesn't look at its group": (
        "children",
        Rules(awaited_groups_are_checked=False),
        "children: it waits for a group that has arrived",
    ),
    "a waker expects no version": ("children", changing({Event.ACTIVATE}, version=None), "S4"),
}


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_is_found(bug):
    name, rules, reason = MUTANTS[bug]

    with pytest.raises(Broken) as broken:
        SEARCHES[name](rules).search()

    assert str(broken.value).startswith(reason)


def test_the_small_search_for_dead_ends_finds_none_without_a_bug():
    assert SEARCHES["alone"](Rules()).search() > 500
