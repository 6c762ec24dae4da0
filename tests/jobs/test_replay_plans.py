"""What a replay would do is told before it is asked for, and it then does that."""

import pytest

from holdfast import App, step
from holdfast.core.errors import NotAllowed
from holdfast.core.model import Entry, State
from holdfast.core.summaries import StepCounts, StepSummary
from holdfast.jobs.replay_plans import Typical, in_review_ms, preview_replays
from holdfast.jobs.selections import Selection
from holdfast.jobs.views.review_groups import view_groups
from holdfast.worker.context import spend
from tests.support.given import until

ENGINES = ["memory", "file", "sqlite", "postgres", "redis"]

made: list[str] = []
broken: set[str] = set()


class ProviderError(Exception):
    pass


@step
async def draw(scene: str) -> str:
    made.append(scene)
    if scene in broken:
        raise ProviderError("quota exceeded")
    spend(usd=0.5)
    return f"{scene}.png"


@step(effect="once", key=lambda film: film)
async def publish(film: str) -> str:
    made.append(film)
    if film in broken:
        raise ProviderError("no answer")
    return film


@step
async def announce(film: str) -> str:
    return f"see {film}"


@pytest.fixture
def film(app: App):
    made.clear()
    broken.clear()

    @app.job(retries=0)
    async def film(scenes: list[str]) -> str:
        await draw.map(scenes, need=len(scenes))
        return await announce(await publish("film"))

    return film


async def ended(app: App, *runs: object) -> None:
    async def is_over() -> bool:
        found = await app.engine.get([run.id for run in runs])  # type: ignore[attr-defined]
        return all(job is not None and job.state in (State.COMPLETED, State.REVIEW) for job in found)

    await until(is_over)


async def test_a_plan_tells_what_runs_again_and_what_is_kept_and_the_replay_does_that(app: App, film):
    broken.add("sea")
    async with app.worker():
        good = await film.submit(["hill", "lake"])
        run = await film.submit(["hill", "sea", "lake"])
        await ended(app, good, run)
        plan = await run.preview_replay()

        assert [path.partition("#")[0] for path in plan.will_run] == ["draw"]
        assert [path.partition("#")[0] for path in plan.recorded] == ["draw", "draw"]
        assert (plan.in_doubt, plan.effects, plan.runs) == ((), (), 1)
        assert plan.expected == {"announce": 1, "publish": 1}
        told = str(plan)
        assert '1 step runs again: draw "sea"' in told
        assert plan.first_effects == ("publish",)
        assert "effects that would happen for the first time: publish" in told
        assert "2 recorded steps are kept" in told
        assert "as in recent runs, it then has about 1 announce, 1 publish to do" in told
        assert "as in 1 recent run" in told

        made.clear()
        broken.clear()
        await run.replay()
        await ended(app, run)
        assert await run.result() == "see film"
    assert made == ["sea", "film"]


async def test_a_plan_names_the_effects_in_doubt_and_those_that_happened(app: App, film):
    broken.add("film")
    async with app.worker():
        run = await film.submit(["hill"])
        await ended(app, run)

    plan = await run.preview_replay()

    assert plan.in_doubt == ("publish#film",)
    assert plan.will_run == plan.effects == ()
    assert "in doubt, decide first with holdfast resolve --step: publish#film" in str(plan)


@pytest.mark.parametrize("engine", ["memory", "sqlite"], indirect=True)
async def test_a_plan_for_many_jobs_tells_which_effects_it_touches(app: App, film):
    @app.job(retries=0)
    async def drawn(scene: str) -> str:
        return await draw(f"{await publish('first')} {scene}")

    broken.update({"sea", "first sea"})
    async with app.worker():
        runs = [await film.submit(scenes) for scenes in (["hill"], ["sea"], ["lake", "sea"])]
        await ended(app, *runs, await drawn.submit("sea"))
    jobs = await app.open()

    films = await preview_replays(jobs, Selection(type="film"))
    published = await preview_replays(jobs, Selection(type="drawn"))

    assert (films.total, films.effects, films.first_effects) == (2, 0, ("publish",))
    assert "effects that would happen for the first time: publish" in str(films)
    assert (published.total, published.effects, published.first_effects) == (1, 1, ())
    assert "1 effect already happened and won't happen again" in str(published)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_plan_counts_the_money_that_recent_runs_spent(app: App, film):
    broken.add("sea")
    async with app.worker():
        good = await film.submit(["hill", "lake", "wood"])
        run = await film.submit(["hill", "sea"])
        await ended(app, good, run)

    plan = await run.preview_replay()

    assert plan.spent == {"usd": 1_000_000}  # two drawings fewer than the good run
    assert "$1.00, as in 1 recent run" in str(plan)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_what_has_failed_is_counted_also_in_a_run_that_is_larger_than_recent_ones(app: App, film):
    broken.add("sea")
    async with app.worker():
        good = await film.submit(["hill"])
        run = await film.submit(["hill", "lake", "wood", "sea"])
        await ended(app, good, run)

    plan = await run.preview_replay()

    assert plan.spent == {"usd": 500_000}
    typical = Typical(runs=1, ms=100, counts={"draw": 1}, ms_each={"draw": 80})
    missing = typical.missing(StepSummary(run.id, {"draw": StepCounts(done=3, failed=1)}))
    assert (missing, typical.ms_of(missing)) == ({"draw": 1}, 100)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_with_other_arguments_a_plan_keeps_only_what_has_a_key(app: App, film):
    broken.add("film 2")

    @app.job(retries=0)
    async def films(scene: str) -> str:
        await draw(scene)
        await publish("film 1")
        return await announce(await draw("film 2"))

    async with app.worker():
        run = await films.submit("sea")
        await ended(app, run)

    plan = await run.preview_replay(args=["hill"])

    assert plan.recorded == ("publish#film 1",)
    assert [plan.names[path] for path in plan.may_run] == ['draw "sea"']
    assert "so whatever receives a changed value runs, too: up to 1 recorded step" in str(plan)


def test_the_time_that_a_job_waits_for_a_decision_is_not_its_own():
    states = [State.ACTIVE, State.REVIEW, State.REVIEW, State.AVAILABLE, State.ACTIVE, State.REVIEW, State.COMPLETED]
    history = [
        Entry(job="", version=n, at=n * 10, event="", before=None, after=state, by="", epoch=1)
        for n, state in enumerate(states)
    ]

    assert in_review_ms(history) == 20 + 10


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_only_a_job_in_review_has_a_plan(app: App, film):
    run = await film.submit(["hill"])

    with pytest.raises(NotAllowed, match=f"job {run.id} is available, so it can't be replayed; possible now: "):
        await run.preview_replay()


async def test_jobs_in_review_are_grouped_by_what_stopped_them(app: App, film):
    @app.job(retries=0)
    async def write(number: int) -> None:
        raise ValueError(f"wrong brief {number}")

    broken.update({"sea", "film"})
    async with app.worker():
        first = [await film.submit(["sea", f"{n}"]) for n in range(3)]
        doubted = [await film.submit(["hill"])]
        others = [await write.submit(n) for n in range(2)]
        await ended(app, *first, *doubted, *others)
    jobs = await app.open()

    groups = await view_groups(jobs)

    told = [(group.type, group.step, group.error.rpartition(".")[2], group.count, group.in_doubt) for group in groups]
    assert told[0] == ("film", "draw", "ProviderError", 3, 0)
    assert sorted(told[1:]) == [
        ("film", "publish", "EffectInDoubt", 1, 1),
        ("write", "(the job's own code)", "ValueError", 2, 0),
    ]
    assert groups[0].first <= groups[0].last
    assert set(groups[0].examples) == {run.id for run in first}
    assert [group.type for group in await view_groups(jobs, Selection(type="write"))] == ["write"]
    for error in ("ProviderError", "ItemsFailed", groups[0].error):
        assert (await preview_replays(jobs, Selection(error=error))).total == 3
    assert (await preview_replays(jobs, Selection(error="ValueError"))).total == 2
    plan = await preview_replays(jobs, groups[0].selection())
    assert (plan.total, dict(plan.types), plan.will_run, plan.recorded, plan.in_doubt) == (3, {"film": 3}, 3, 3, 0)
    assert str(plan).startswith("replay of 3 jobs: 3 film\n  3 failed steps run again\n  3 recorded steps are kept")
