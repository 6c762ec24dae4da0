"""Turn: a commit and the next claim, whether the engine makes one act of them or two."""

from holdfast.conformance.given import StoreClock, claimed, current, inserted, job
from holdfast.core.lifecycle import decide, deliver
from holdfast.core.model import Applied, Change, Conflict, Event, Job, State, Step, StepState
from holdfast.engines.contract import Engine


async def held_and_waiting(engine: Engine, clock: StoreClock, held: int, waiting: int) -> tuple[list[Job], list[Job]]:
    """Return some jobs that a worker holds, and some that nobody has claimed yet."""
    await engine.insert([job(clock) for _ in range(held)])
    ours = await engine.claim("w-1", ["default"], held)
    new = [job(clock) for _ in range(waiting)]
    await engine.insert(new)
    return ours, new


async def ends(engine: Engine, jobs: list[Job]) -> list[Change]:
    now = await engine.now()
    return [decide(one, Event.COMPLETE, now, by="w-1", result="1") for one in jobs]


async def test_a_turn_commits_and_claims(engine: Engine, clock: StoreClock) -> None:
    held, new = await held_and_waiting(engine, clock, held=3, waiting=5)

    answers, jobs = await engine.turn(await ends(engine, held), "w-1", ["default"], 3)

    assert answers == [Applied(3)] * 3
    assert [one.id for one in jobs] == [one.id for one in new[:3]]
    assert all(one.state is State.ACTIVE and one.worker == "w-1" and one.epoch == 1 for one in jobs)
    for one in held:
        assert (await current(engine, one)).state is State.COMPLETED
        history = await engine.history(one.id)
        assert [(entry.version, entry.event) for entry in history] == [(1, "submit"), (2, "claim"), (3, "complete")]
        assert [entry.by for entry in history] == ["", "w-1", "w-1"]
        assert history == sorted(history, key=lambda entry: entry.version)
    counts = await engine.count()
    assert {state: number for (_, state), number in counts.items()} == {
        State.COMPLETED: 3,
        State.ACTIVE: 3,
        State.AVAILABLE: 2,
    }


async def test_a_refused_end_touches_no_neighbour_and_no_claim(engine: Engine, clock: StoreClock) -> None:
    held, new = await held_and_waiting(engine, clock, held=2, waiting=1)
    changes = await ends(engine, held)
    await engine.commit([decide(held[0], Event.RELEASE, await engine.now(), by="w-1")])
    [again] = await engine.claim("w-2", ["default"], 1)  # its run_at is older than that of the waiting job
    assert again.id == held[0].id

    answers, jobs = await engine.turn(changes, "w-1", ["default"], 5)

    assert isinstance(answers[0], Conflict)
    assert isinstance(answers[1], Applied)
    assert [one.id for one in jobs] == [new[0].id]
    assert await current(engine, again) == again


async def test_an_end_may_bring_something_along(engine: Engine, clock: StoreClock) -> None:
    held, new = await held_and_waiting(engine, clock, held=1, waiting=1)
    now = await engine.now()
    step = Step(
        job=held[0].id, epoch=1, path="draw#1", name="draw", state=StepState.DONE, result="1", started_at=now,
        finished_at=now,
    )  # fmt: skip
    change = decide(held[0], Event.COMPLETE, now, by="w-1", result="1", note={"drift": ["x"]}, steps=(step,))

    answers, jobs = await engine.turn([change], "w-1", ["default"], 1)

    assert isinstance(answers[0], Applied)
    assert [one.id for one in jobs] == [new[0].id]
    assert await engine.steps(held[0].id) == [step]
    assert (await engine.history(held[0].id))[-1].note == {"drift": ["x"]}


async def test_a_turn_for_no_slots_claims_nothing(engine: Engine, clock: StoreClock) -> None:
    held, new = await held_and_waiting(engine, clock, held=1, waiting=1)

    answers, jobs = await engine.turn(await ends(engine, held), "w-1", ["default"], 0)

    assert (answers, jobs) == ([Applied(3)], [])
    assert (await current(engine, new[0])).state is State.AVAILABLE


async def test_a_turn_without_ends_is_a_claim(engine: Engine, clock: StoreClock) -> None:
    new = await inserted(engine, clock)

    answers, jobs = await engine.turn([], "w-1", ["default"], 2)

    assert answers == []
    assert [one.id for one in jobs] == [new.id]


async def test_what_happens_between_claim_and_end_keeps_its_place_in_the_history(
    engine: Engine, clock: StoreClock
) -> None:
    held = await claimed(engine, clock)
    signal = deliver(held, "go", "1", await engine.now(), by="someone")
    await engine.commit([signal])

    await engine.turn(await ends(engine, [held]), "w-1", [], 1)

    history = await engine.history(held.id)
    assert [(entry.version, entry.event) for entry in history] == [
        (1, "submit"),
        (2, "claim"),
        (3, "signal"),
        (4, "complete"),
    ]
    assert [entry.by for entry in history] == ["", "w-1", "someone", "w-1"]
