"""What users write: decorators that refuse what can't work, plain calls, submitting, several apps and loops."""

import asyncio
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import App, HoldfastError, JobCancelled, JobFailed, current, step
from holdfast.core.errors import Invalid, StoreError, WrongColour
from holdfast.core.model import State, Where
from holdfast.worker.context import NoJob
from tests.support.given import AT_ONCE_RETRY, QUICK, events, finished, in_state, paths


@step
async def draw(n: int) -> str:
    return f"{n}.png"


@step
def narrate(text: str) -> str:
    return text.upper()


# Decorators.


async def _generator():
    yield 1


class Owner:
    def method(self) -> None: ...


@pytest.mark.parametrize("what", [lambda: 1, _generator, Owner.method, Owner, len, Owner().method])
def test_what_has_no_identity_of_its_own_is_refused(app, what):
    with pytest.raises(Invalid, match="@step on"):
        step(what)
    with pytest.raises(Invalid, match="@job on"):
        app.job(what)


def test_a_nested_step_needs_a_name():
    async def inner() -> None: ...

    with pytest.raises(Invalid, match="give it name='…'"):
        step(inner)
    assert step(name="inner")(inner).name == "inner"


@pytest.mark.parametrize("name", ["key", "key_for", "queue", "priority", "delay", "at", "unique", "tags", "meta"])
def test_a_parameter_with_an_options_name_is_refused(app, name):
    scope: dict[str, object] = {}
    exec(f"async def job({name}): ...", scope)
    with pytest.raises(Invalid, match=f"a parameter can't be called {name!r}, which is an option of submit"):
        app.job(scope["job"])


def test_two_jobs_of_one_name_in_one_app_are_refused_and_both_are_named(app):
    async def first() -> None: ...

    async def second() -> None: ...

    app.job(name="video.make")(first)
    with pytest.raises(
        Invalid, match=r"two jobs have the name 'video.make': .*first .* and .*second .*; give one of them"
    ):
        app.job(name="video.make")(second)
    app.job(name="video.make")(first)


def test_a_second_function_of_the_same_name_does_not_replace_the_first_in_silence(app):
    def define(answer: int):
        if answer:

            @app.job
            async def same() -> int:
                return 1

        else:

            @app.job
            async def same() -> int:
                return 2

        return same

    define(1)
    with pytest.raises(Invalid, match="two jobs have the name 'same'"):
        define(0)


@pytest.mark.parametrize(
    "options",
    [{"tags": [1]}, {"tags": "abc" * 100}, {"meta": {"a": 1}}, {"meta": ["x"]}, {"key": 5}, {"priority": "9"}],
)
async def test_a_submit_that_would_stop_the_workers_is_refused(app, options):
    async def job() -> None: ...

    with pytest.raises(Invalid):
        await app.job(job).submit(**options)

    assert await (await app.open()).engine.count() == {}


@pytest.mark.parametrize("queues", ["video", []])
async def test_queues_are_a_list(app, queues):
    with pytest.raises(Invalid, match="give a list of queues"):
        async with app.worker(queues=queues):
            pass


def test_a_name_outside_the_pattern_and_an_unknown_option_are_refused(app):
    async def job() -> None: ...

    with pytest.raises(Invalid, match="can't be a job type"):
        app.job(name="Video Make")(job)
    with pytest.raises(TypeError, match="effect"):
        app.job(effect="once")(job)
    with pytest.raises(TypeError, match="retry"):
        step(name="x", retry=1)(job)  # type: ignore[call-overload]


# Plain calls.


async def test_outside_a_job_everything_is_a_plain_call(app):
    @app.job
    async def film(n: int) -> list[str]:
        return [await draw(n), *await draw.map([1, 2]), await narrate.aio("a"), *await narrate.aio.map(["b"])]

    assert await film(0) == ["0.png", "1.png", "2.png", "A", "B"]
    assert narrate("x") == "X"
    with pytest.raises(NoJob):
        current()


@step(name="charge")
async def charge(n: int) -> tuple[str, str]:
    return current().job_id, current().idempotency_key


@step(name="charge_slowly")
def charge_slowly(n: int) -> tuple[str, str]:
    return current().job_id, current().idempotency_key


async def test_a_plain_call_has_a_stand_in_for_the_job_and_a_key_of_its_own(app):
    @app.job
    async def film() -> list[tuple[str, str]]:
        return [await charge(1), await charge(1), *await charge.map([1, 2]), await charge_slowly.aio(1)]

    calls = await film()

    assert len({job for job, _ in calls}) == 1
    assert len({key for _, key in calls}) == 5
    assert (await film())[0][0] != calls[0][0]
    assert charge_slowly(1) != charge_slowly(1)
    with pytest.raises(NoJob):
        current()


def test_outside_a_job_and_a_loop_the_sync_view_runs_its_own():
    assert draw.sync(1) == "1.png"
    assert draw.sync.map([1, 2]) == ["1.png", "2.png"]
    assert narrate.map(["a", "b"]) == ["A", "B"]


async def test_a_sync_view_in_a_loop_names_what_to_await():
    with pytest.raises(WrongColour, match=r"await draw\(…\)"):
        draw.sync(1)


async def test_wrong_colours_in_a_job_name_the_view(app):
    told = []

    async def job() -> None:
        for call in (lambda: narrate("x"), lambda: narrate.map(["x"]), lambda: draw.sync(1)):
            try:
                call()
            except WrongColour as error:
                told.append(str(error))

    def def_job() -> None:
        try:
            draw(1)  # type: ignore[unused-coroutine]
        except WrongColour as error:
            told.append(str(error))

    await finished(app, await app.job(job).submit())
    await finished(app, await app.job(def_job).submit())
    assert [text.split("; ", 1)[1] for text in told] == [
        "in an async job, call await narrate.aio(…)",
        "in an async job, call await narrate.aio.map(…)",
        "in async code, call await draw(…)",
        "in a def job, call draw.sync(…)",
    ]


# Jobs inside jobs.


async def test_a_job_called_inside_a_job_is_a_plain_call_whose_steps_are_the_callers(app):
    @app.job
    async def part(n: int) -> str:
        return await draw(n)

    @app.job
    async def whole() -> str:
        return await part(1) + await draw(2)

    run = await whole.submit()
    await finished(app, run)
    assert await run.result() == "1.png2.png"
    assert len(await paths(app, run)) == 2
    assert sum((await app.engine.count()).values()) == 1


async def test_a_submit_inside_a_job_happens_once_over_attempts(app):
    @app.job
    async def child(n: int) -> int:
        return n

    @app.job(retries=AT_ONCE_RETRY)
    async def parent() -> list[str]:
        runs = [await child.submit(1), await child.submit(1), await child.submit(2, key="k")]
        runs += await child.submit_many([3, 3, 4])
        if current().attempt < 3:
            raise ValueError
        return [run.id for run in runs]

    @app.job(retries=AT_ONCE_RETRY)
    def def_parent() -> str:
        run = app.sync.submit(child, 9)
        if current().attempt < 3:
            raise ValueError
        return run.id

    run, other = await parent.submit(), await def_parent.submit()
    async with app.worker():
        ids = await run.result(5)
        child_id = await other.result(5)
        values = [await (await app.run(id)).result(5) for id in [*ids, child_id]]
    assert len(set(ids)) == 6
    assert values == [1, 1, 2, 3, 3, 4, 9]
    assert (await app.engine.count())["default", State.COMPLETED] == 2 + 7
    assert (await app.jobs.get(ids[0])).parent == run.id


# Submitting.


async def test_a_key_gives_one_run_and_other_arguments_are_an_error(app):
    @app.job
    async def job(n: int) -> None: ...

    one, two = await job.submit(1, key="order-42"), await job.submit(1, key="order-42")
    assert one.id == two.id
    with pytest.raises(HoldfastError, match="already belongs to job"):
        await job.submit(2, key="order-42")


async def test_submitting_in_bulk_is_one_act_for_a_thousand(app, engine):
    @app.job
    async def job(a: int, b: int = 0) -> None: ...

    runs = await job.submit_many([(n, 1) if n % 2 else n for n in range(2_500)], priority=3)
    assert engine.calls["insert"] == 3
    assert len({run.id for run in runs}) == 2_500
    assert (await app.jobs.get(runs[7].id)).args == "[7,1]"
    with pytest.raises(Invalid, match="takes no 'key'"):
        await job.submit_many([1], key="x")


async def test_a_cancelled_bulk_submit_waits_for_nothing(app, engine, monkeypatch):
    async def job(n: int) -> None: ...

    async def never(jobs, parent=None):
        await asyncio.sleep(60)

    def numbers():
        yield from range(2)
        submitting.cancel()
        yield from range(2)

    monkeypatch.setattr(app.engine, "insert", never)
    monkeypatch.setattr(app.engine, "insert_at_once", 2)
    submitting = asyncio.ensure_future(app.job(job).submit_many(numbers()))
    async with asyncio.timeout(5):
        await asyncio.wait([submitting])
    assert submitting.cancelled()
    assert "***" in repr(App("postgresql://me:s3cret@127.0.0.1:1/d"))


async def test_a_part_is_made_ready_while_the_store_is_at_those_before_it(app, engine, monkeypatch):
    async def job(n: int) -> None: ...

    taken, under_way, seen = list[Any](), 0, list[Any]()
    insert = app.engine.insert

    async def slowly(jobs, parent=None):
        nonlocal under_way
        under_way += 1
        for _ in range(20):
            await asyncio.sleep(0)
        seen.append((under_way, len(taken)))
        under_way -= 1
        return await insert(jobs, parent)

    def numbers():
        for n in range(9):
            taken.append(n)
            yield n
        yield "no number"

    monkeypatch.setattr(app.engine, "insert", slowly)
    monkeypatch.setattr(app.engine, "insert_at_once", 2)
    with pytest.raises(Invalid, match="argument 'n' of job"):
        await app.job(job).submit_many(numbers())
    assert seen[0] == (3, 8), "while three parts are with the store, the fourth is made ready"
    assert max(most for most, _ in seen) == 3
    assert under_way == 0, "when it is told, nothing is under way any more"
    assert [one.args for one in await app.engine.find(Where())] == [f"[{n}]" for n in range(8)]


async def test_of_a_bulk_submit_that_fails_half_way_what_came_before_is_there(app, engine, monkeypatch):
    async def job(n: int) -> None: ...

    insert = app.engine.insert

    async def refusing(jobs, parent=None):
        await asyncio.sleep(0)
        if jobs[0].args in ("[2]", "[4]"):
            raise StoreError(f"no room for {jobs[0].args}")
        return await insert(jobs, parent)

    monkeypatch.setattr(app.engine, "insert", refusing)
    monkeypatch.setattr(app.engine, "insert_at_once", 2)
    with pytest.raises(StoreError, match=r"no room for \[2\]"):
        await app.job(job).submit_many(range(20))
    there = [one.args for one in await app.engine.find(Where())]
    assert there[:2] == ["[0]", "[1]"]
    assert len(there) < 20 - 4, "it was not gone on with"


async def test_arguments_and_options_that_do_not_fit_are_refused_at_submit(app):
    @app.job
    async def job(n: int) -> None: ...

    for call in (
        lambda: job.submit("one"),
        lambda: job.submit(),
        lambda: job.submit(1, 2),
        lambda: job.submit(1, unique=True),
        lambda: job.submit(1, delay=5, at=datetime.now(UTC)),
        lambda: job.submit(1, at=datetime(2030, 1, 1)),  # noqa: DTZ001
        lambda: job.submit(1, priority=1_000),
        lambda: job.submit(1, queue="No Such"),
    ):
        with pytest.raises(Invalid):
            await call()
    assert not await app.engine.count()


async def test_a_delay_a_moment_and_an_expiry_are_the_stores_time(app):
    @app.job
    async def job() -> None: ...

    later = await job.submit(delay="2h", expires="3h", tags=["a"], meta={"who": "me"})
    stored = await app.jobs.get(later.id)
    assert stored.state is State.SCHEDULED
    assert abs(stored.run_at - stored.created_at - 7_200_000) < 100
    assert stored.expires_at - stored.run_at == 3_600_000
    assert (stored.options.tags, stored.options.meta) == (("a",), {"who": "me"})


# Apps.


async def test_several_apps_in_one_process_keep_to_themselves():
    apps = [App("memory:", settings=QUICK) for _ in range(2)]
    made = []
    for number, app in enumerate(apps):

        async def job(number: int = number) -> int:
            return number

        made.append(app.job(name="job")(job))
    runs = [await job.submit() for job in made]
    async with apps[0].worker(), apps[1].worker():
        assert [await run.result(5) for run in runs] == [0, 1]


def test_one_app_serves_several_loops_and_threads(tmp_path):
    app = App(f"sqlite:///{tmp_path / 'x.db'}", settings=QUICK)

    @app.job
    async def job(n: int) -> int:
        return n

    barrier = threading.Barrier(4)
    answers = []

    async def ask(n: int) -> None:
        run = await job.submit(n)
        answers.append(await run.result(10))

    def in_thread(n: int) -> None:
        barrier.wait(10)
        asyncio.run(ask(n))

    def in_sync(n: int) -> None:
        barrier.wait(10)
        answers.append(app.sync.submit(job, n).result(10))

    async def work() -> None:
        async with app.worker():
            threads = [
                threading.Thread(target=f, args=(n,), daemon=True) for n, f in enumerate([in_thread, in_sync] * 2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join, 20)

    asyncio.run(work())
    assert sorted(answers) == [0, 1, 2, 3]
    app.sync.call(app.close())


def test_the_sync_run_has_all_that_the_async_one_has(app):
    @app.job(retries=0)
    async def bad() -> None:
        raise ValueError("no")

    run = app.sync.submit(bad)
    assert run.status().state is State.AVAILABLE
    with pytest.raises(TimeoutError, match="timed out after 0.05 s; job .* is "):
        run.result(0.05)

    async def work() -> None:
        async with app.worker():
            with pytest.raises(JobFailed, match="ValueError: no"):
                await asyncio.to_thread(run.result, 5)

    asyncio.run(work())
    assert [entry.event for entry in run.history()] == ["submit", "claim", "exhaust"]
    (other,) = app.sync.submit_many(bad, [()])
    other.cancel("not wanted")
    assert app.sync.run(other.id).status().state is State.CANCELLED


async def test_a_store_that_cannot_be_opened_is_told_to_all_who_wait_and_tried_again():
    class Engine:
        def __init__(self):
            self.tries, self.go = 0, asyncio.Event()

        async def open(self):
            self.tries += 1
            await self.go.wait()
            if self.tries < 2:
                raise StoreError("no disk")

        async def records(self, prefix):
            return []

    engine = Engine()
    app = App("memory:", engine=engine)  # type: ignore[arg-type]
    waiting = [asyncio.create_task(app.open()) for _ in range(3)]
    await asyncio.sleep(0)
    engine.go.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["no disk"] * 3
    assert await app.open() is app.jobs
    assert engine.tries == 2


async def test_who_opens_and_is_interrupted_leaves_it_to_the_next():
    class Engine:
        def __init__(self):
            self.tries, self.entered = 0, asyncio.Event()

        async def open(self):
            self.tries += 1
            if self.tries == 1:
                self.entered.set()
                await asyncio.sleep(30)

        async def records(self, prefix):
            return []

    engine = Engine()
    app = App("memory:", engine=engine)  # type: ignore[arg-type]
    first = asyncio.create_task(app.open())
    await engine.entered.wait()
    second = asyncio.create_task(app.open())
    await asyncio.sleep(0)
    first.cancel()
    assert await second is app.jobs
    assert engine.tries == 2


async def test_the_history_tells_it_all(app):
    @app.job
    async def job() -> None: ...

    run = await job.submit()
    await finished(app, run)
    assert await events(run) == ["submit", "claim", "complete"]


async def test_a_caller_hears_why_a_job_was_cancelled(app):
    @app.job
    async def film() -> None: ...

    run = await film.submit()
    await run.cancel("wrong brief")

    with pytest.raises(JobCancelled, match="was cancelled: wrong brief"):
        await run.result()


def test_a_step_is_not_submitted(app):
    with pytest.raises(Invalid, match="<step draw> is a step, which runs inside a job"):
        app.sync.submit(draw, 1)


async def test_review_in_python_is_checked_by_the_jobs_types(app):
    @app.job(retries=0)
    async def film(scenes: list[int]) -> int:
        if not scenes:
            raise ValueError("no scenes")
        return sum(scenes)

    first, second = await film.submit([]), await film.submit([])
    async with app.worker():
        await in_state(app, first, State.REVIEW)
        await in_state(app, second, State.REVIEW)
        assert [status.id for status in await app.review()] == [first.id, second.id]
        with pytest.raises(Invalid, match="scenes"):
            await first.replay(args=["kelp"])
        with pytest.raises(Invalid, match="scenes"):
            await first.replay(args='["kelp"]')
        with pytest.raises(Invalid, match="result of film"):
            await second.resolve("kelp")
        await first.replay(args=[[1, 2]])
        await second.resolve(7, reason="counted by hand")
        assert (await first.result(5), await second.result(5)) == (3, 7)
        assert await app.review() == []


def test_a_key_that_is_the_name_of_an_argument_is_refused():
    with pytest.raises(Invalid, match="key='to' is the same for every call; write key=lambda …: to"):

        @step(name="send", effect="once", key="to")
        def send(to: str) -> None: ...


async def test_who_waited_in_vain_is_told_in_time_also_when_the_store_does_not_answer(app, engine):
    @app.job
    async def film() -> None: ...

    run = await film.submit()
    looks = []

    async def hang(name, args):
        if name == "get":
            looks.append(1)
            if len(looks) > 1:
                await asyncio.sleep(60)

    engine.before = hang
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"timed out after 0.05 s; job .* has not settled"):
        await run.result(timeout=0.05)
    assert time.monotonic() - began < 10
