"""Observers of an engine hear what its calls have stored, and nothing that the store refused."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import StoreClock, job
from holdfast.core.changes import complete
from holdfast.core.errors import Invalid
from holdfast.core.model import Applied, Change, Conflict, Job, Spending, Step, StepState
from holdfast.core.spending import Amounts, SpendKind
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.observers import Act, StepOutcome


class Ears:
    def __init__(self) -> None:
        self.inserted: list[str] = []
        self.claimed: list[str] = []
        self.changed: list[tuple[str, str]] = []
        self.fenced = 0
        self.acts: list[str] = []
        self.spent: list[tuple[str, Amounts]] = []

    def heard_inserts(self, jobs: Sequence[Job]) -> None:
        self.inserted += [job.id for job in jobs]

    def heard_claims(self, jobs: Sequence[Job]) -> None:
        self.claimed += [job.id for job in jobs]

    def heard_changes(self, changes: Sequence[Change]) -> None:
        self.changed += [(change.job.id, change.event) for change in changes]

    def heard_fenced(self, number: int) -> None:
        self.fenced += number

    def heard_step(self, job: Job, step: str, outcome: StepOutcome) -> None: ...

    def heard_spending(self, job: Job, kind: SpendKind, amounts: Amounts) -> None:
        self.spent.append((kind, amounts))

    def heard_act(self, act: Act, seconds: float) -> None:
        assert 0 <= seconds < 60
        self.acts.append(act)


def given() -> tuple[MemoryEngine, StoreClock, Ears]:
    clock, ears = StoreClock(settable=True), Ears()
    engine = MemoryEngine(clock)
    engine.observe(ears)
    engine.observe(ears)
    return engine, clock, ears


async def test_an_observer_hears_of_new_jobs_once():
    engine, clock, ears = given()
    first, second = job(clock, key="one"), job(clock)

    await engine.insert([first])
    await engine.insert([replace(first, id=job(clock).id), second])
    await engine.insert([second])

    assert ears.inserted == [first.id, second.id]


async def test_an_observer_hears_how_long_each_act_took_that_the_store_answered():
    engine, clock, ears = given()
    await engine.insert([job(clock), job(clock)])
    one, two = await engine.claim("w-1", ["default"], 2)
    await engine.commit([complete(one, clock(), by="w-1", result="1")])
    await engine.turn([complete(two, clock(), by="w-1", result="1")], "w-1", ["default"], 1)
    with pytest.raises(Invalid):
        await engine.claim("", ["default"], 1)

    assert ears.acts == ["insert", "claim", "commit", "turn"]


async def test_an_observer_hears_of_accepted_changes_only():
    engine, clock, ears = given()
    jobs = [job(clock), job(clock), job(clock)]
    await engine.insert(jobs)
    one, two, three = await engine.claim("w-1", ["default"], 3)
    ends = [complete(held, clock(), by="w-1", result="1") for held in (one, two, three)]
    stale = replace(ends[1], epoch=7)

    accepted, refused = await engine.commit([ends[0], stale])
    (turned,), _ = await engine.turn([ends[2]], "w-1", ["default"], 0)

    assert isinstance(accepted, Applied)
    assert isinstance(refused, Conflict)
    assert isinstance(turned, Applied)
    assert ears.changed == [(one.id, "complete"), (three.id, "complete")]


async def test_an_observer_hears_of_the_jobs_that_a_claim_or_a_turn_brings():
    engine, clock, ears = given()
    await engine.insert([job(clock), job(clock)])

    (one,) = await engine.claim("w-1", ["default"], 1)
    _, (two,) = await engine.turn([complete(one, clock(), by="w-1", result="1")], "w-1", ["default"], 1)
    await engine.claim("w-1", ["default"], 1)

    assert ears.claimed == [one.id, two.id]


async def test_a_change_says_who_held_the_job_and_since_when():
    engine, clock, _ = given()
    await engine.insert([job(clock)])
    (held,) = await engine.claim("w-1", ["default"], 1)

    change = complete(held, clock(), by="w-1", result="1")

    assert (change.held_by, change.held_since) == ("w-1", held.claimed_at)
    assert (change.job.worker, change.job.claimed_at) == (None, None)


async def test_an_observer_hears_how_many_writes_were_fenced_off():
    engine, clock, ears = given()
    await engine.insert([job(clock)])
    (held,) = await engine.claim("w-1", ["default"], 1)
    stale = replace(complete(held, clock(), by="w-1", result="1"), epoch=held.epoch + 1)
    late = Step(job=held.id, epoch=held.epoch + 1, path="draw#1", name="draw", state=StepState.DONE, started_at=clock())

    await engine.commit([stale])
    await engine.record([late])
    await engine.admit([], [late])

    assert ears.fenced == 3


def test_an_observer_hears_of_money_once_its_fate_is_decided():
    engine, clock, ears = given()
    begun = Spending(kept={"usd": 5}, in_flight={"usd": 2}, loose={"usd": 1})
    ended = Spending(kept={"usd": 7, "tokens": 3}, wasted={"usd": 1})

    engine.announce_spending(job(clock), Spending(), begun)
    engine.announce_spending(job(clock), begun, ended)
    engine.announce_spending(job(clock), ended, ended)

    assert ears.spent == [("kept", {"usd": 5}), ("kept", {"usd": 2, "tokens": 3}), ("wasted", {"usd": 1})]
