"""Records of one attempt that come in one turn of the loop go to the store in one call, and none is lost by it."""

import asyncio

from holdfast import App, step
from holdfast.app.run import Run
from holdfast.core.errors import BadValue, StoreError
from holdfast.core.lifecycle import decide
from holdfast.core.model import Applied, Conflict, Event, Recorded, State, Step, StepState
from holdfast.worker.record_batch import RECORD_BATCH_LIMIT, RecordBatcher
from tests.conformance.mutants import StepsWithoutAFence
from tests.support.given import QUICK, Watched, events, finished, in_state, paths

ENGINES = ("memory", "sqlite", "postgres", "redis")


@step
async def draw(n: int) -> int:
    await asyncio.sleep(0)
    return n


def record(n: int) -> Step:
    return Step(job="j", epoch=1, path=f"draw#{n}", name="draw", state=StepState.DONE, started_at=0, result=str(n))


async def test_the_items_of_a_map_that_end_together_are_recorded_together(app, engine):
    @app.job
    async def film() -> int:
        return sum(await draw.map(range(100), at_once=100))

    run = await film.submit()
    assert (await finished(app, run)).state is State.COMPLETED
    assert await run.result() == sum(range(100))
    assert len(await paths(app, run)) == 100
    assert engine.calls["record"] <= 2


async def test_items_that_are_done_when_their_worker_is_told_to_stop_are_kept(app, engine):
    """Their tasks are cancelled while the store is asked; the release comes behind the records."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def hold(name, args):
        if name == "record":
            asked.set()
            await go_on.wait()

    @app.job
    async def film() -> int:
        return sum(await draw.map(range(8), at_once=8))

    run = await film.submit()
    engine.before = hold
    async with app.worker():
        await asked.wait()
        asyncio.get_running_loop().call_later(0.5, go_on.set)  # longer than the grace
    engine.before = None
    assert (await app.jobs.get(run.id)).state is State.AVAILABLE
    assert len(await paths(app, run)) == 8


async def filmed_over_a_lost_lease(app, engine) -> Run[int]:
    """Run a film of eight items whose lease another worker breaks just before its first records are written."""

    async def lose(name, args):
        if name == "record":
            engine.before = None
            job = await app.jobs.get(run.id)
            (answer,) = await engine.commit([decide(job, Event.LAPSE, await engine.now(), by="another")])
            assert isinstance(answer, Applied)

    @app.job
    async def film() -> int:
        return sum(await draw.map(range(8), at_once=8))

    run = await film.submit()
    engine.before = lose
    async with app.worker():
        await in_state(app, run, State.COMPLETED)
    return run


async def epochs_of_steps(app, run) -> list[int]:
    return [step.epoch for step in await app.engine.steps(run.id) if not step.path.startswith("~")]


async def test_a_lost_lease_stops_them_all_and_nothing_is_recorded(app, engine):
    run = await filmed_over_a_lost_lease(app, engine)

    assert await events(run) == ["submit", "claim", "lapse", "claim", "complete"]
    assert await epochs_of_steps(app, run) == [2] * 8
    assert await run.result() == sum(range(8))


async def test_a_store_that_takes_the_records_of_a_lost_lease_is_caught():
    """The planted bug that shows that the law above can fail."""
    engine = Watched(StepsWithoutAFence())
    app = App("memory:", settings=QUICK, engine=engine)  # type: ignore[arg-type]

    run = await filmed_over_a_lost_lease(app, engine)

    assert 1 in await epochs_of_steps(app, run)


async def test_what_can_not_be_stored_does_not_harm_its_neighbours():
    async def write(steps):
        if any(step.path == "draw#1" for step in steps):
            raise BadValue("not that one")
        return [Recorded(step, True) for step in steps]

    together = RecordBatcher(write)
    futures = [together.add([record(n)]) for n in range(3)]
    answers = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Recorded, BadValue, Recorded]


async def test_trouble_with_the_store_is_told_to_each():
    async def write(steps):
        raise StoreError("away")

    together = RecordBatcher(write)
    answers = await asyncio.gather(*[together.add([record(n)]) for n in range(3)], return_exceptions=True)
    assert [str(answer) for answer in answers] == ["away"] * 3


async def test_each_hears_the_answer_to_its_own_first_record_and_no_call_is_without_bounds():
    calls = []

    async def write(steps):
        calls.append(len(steps))
        return [Conflict(step.path, "") if step.path == "draw#3" else Recorded(step, True) for step in steps]

    together = RecordBatcher(write)
    futures = [together.add([record(n), record(-n)]) for n in range(RECORD_BATCH_LIMIT + 1)]
    await together.wait_until_written()
    answers = [future.result() for future in futures]
    assert calls == [2 * RECORD_BATCH_LIMIT, 2]
    assert [n for n, answer in enumerate(answers) if isinstance(answer, Conflict)] == [3]
    assert all(answer.step.path == f"draw#{n}" for n, answer in enumerate(answers) if n != 3)
