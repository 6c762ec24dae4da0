"""An effect in doubt stays in doubt whatever a later version of the code says about it."""

import contextlib

import pytest
from msgspec.structs import replace

from holdfast import current, step, wait_for
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, State, StepState
from holdfast.worker.registry import STEPS
from tests.support.given import AT_ONCE_RETRY, entry_of, in_state
from tests.worker.effects import deploy, waiting

ENGINES = ("memory", "sqlite", "postgres", "redis")

SENT: list[str] = []


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    SENT.clear()
    # Each version of the code is a process of its own, which knows only its own steps.
    known = dict(STEPS)
    STEPS.clear()
    yield
    STEPS.clear()
    STEPS.update(known)


def old_version():
    @step(name="send", effect="once", key=lambda order: order)
    async def send(order: str) -> str:
        SENT.append(order)
        raise ConnectionError("cut")

    return send


def by_order(order):
    return order


def new_version(name="send", **options):
    """Another version of the step, in a process that knows only this one."""
    STEPS.clear()

    @step(name=name, **options)
    async def send(order: str) -> str:
        SENT.append(f"{order} again")
        return "sent"

    return send


def effect_dropped(app):
    send = new_version(key=by_order, retries=AT_ONCE_RETRY)
    return lambda: send("42")


def key_dropped(app):
    send = new_version()
    return lambda: send("42")


def key_changed(app):
    send = new_version(effect="once", key=lambda order: f"order-{order}")
    return lambda: send("42")


def renamed(app):
    post = new_version("post", effect="once", key=by_order)
    return lambda: post("42")


def put_into_another_step(app):
    send = new_version(effect="once", key=by_order)

    @step(name="deliver")
    async def deliver(order: str) -> str:
        return await send(order)

    return lambda: deliver("42")


def new_def_version(**options):
    """As `new_version`, in the other colour."""
    STEPS.clear()

    @step(name="send", key=by_order, **options)
    def send(order: str) -> str:
        SENT.append(f"{order} again")
        return "sent"

    return send


def made_def(app):
    send = new_def_version()
    return lambda: send.aio("42")


def made_undoable(app):
    send = new_version(key=by_order, undo=lambda result: None)
    return lambda: send("42")


def made_transaction(app):
    if app.engine.guarantees.transactions == "no":
        pytest.skip("this store has no transactions")
    send = new_def_version(effect="transaction")
    return lambda: send.aio("42")


def removed(app):
    STEPS.clear()

    async def nothing() -> None: ...

    return nothing


SAME_CALL = [effect_dropped, made_def, made_undoable, made_transaction]
OTHER_CALL = [key_dropped, key_changed, renamed, put_into_another_step, removed]


def delivery(send):
    """A step around the effect, which answers although that failed."""

    @step(name="deliver")
    async def deliver(order: str) -> str:
        with contextlib.suppress(ConnectionError):
            await send(order)
        return "left at the door"

    return deliver


async def begun(app, how="cut off"):
    """A job that is in review because its effect was begun and has no result: it raised, or its worker was killed."""
    send = old_version()

    async def order() -> str:
        return await send("42")

    run = await deploy(app, order).submit()
    async with app.worker():
        await in_state(app, run, State.REVIEW)
    assert SENT == ["42"]
    if how == "cut off":  # nobody lived to tell what it raised
        job, now = await app.jobs.get(run.id), await app.engine.now()
        await app.engine.commit([replace(decide(job, Event.REPLAY, now, by="test"), drops=("~failed/send#42",))])
    else:
        await app.jobs.replay(run.id)
    return run


async def suspended(app):
    """A job that has caught the failure of its effect, and waits."""
    send = old_version()

    async def order() -> str:
        with contextlib.suppress(ConnectionError):
            await send("42")
        return await wait_for("go")

    run = await waiting(app, order)
    assert SENT == ["42"]
    return run


async def doubted(app, run):
    """The job as it stands once a worker has run it: it must be in review, and nothing may have happened again."""
    async with app.worker():
        job = await in_state(app, run, State.REVIEW, State.COMPLETED)
    assert SENT == ["42"]
    assert job.state is State.REVIEW
    assert job.error.type == "EffectInDoubt"
    assert "send#42" in job.error.message
    assert (await run.history())[-1].note["in_doubt"] == ["send#42"]
    return job


@pytest.mark.parametrize("how", ["cut off", "failed"])
@pytest.mark.parametrize("change", [*SAME_CALL, *OTHER_CALL])
async def test_a_replay_with_changed_code_does_not_run_what_is_in_doubt(app, change, how):
    run = await begun(app, how)
    call = change(app)

    async def order() -> str:
        await call()
        return "went on"

    deploy(app, order)
    await doubted(app, run)


async def test_an_effect_in_doubt_is_asked_about_before_any_code_runs(app):
    """Otherwise what the code does before it comes to the doubt would be done, and paid, for nothing."""
    run = await begun(app)
    reached = []

    async def order() -> None:
        reached.append("the handler")

    deploy(app, order)
    await doubted(app, run)
    assert reached == []


@pytest.mark.parametrize("change", SAME_CALL)
async def test_a_caught_failure_of_an_effect_is_raised_again_whatever_the_step_says_now(app, change):
    run = await suspended(app)
    call = change(app)
    heard = []

    async def order() -> str:
        for _ in range(2):  # without effect="once" the second call would be another one
            try:
                await call()
            except ConnectionError as error:
                heard.append(str(error))
        return await wait_for("go")

    deploy(app, order)
    await run.signal("go", "went on")
    async with app.worker():
        job = await in_state(app, run, State.REVIEW, State.COMPLETED)
    assert SENT == ["42"]
    assert heard == ["cut", "cut"]
    assert job.state is State.COMPLETED
    assert await run.result(5) == "went on"


@pytest.mark.parametrize("change", OTHER_CALL)
async def test_a_caught_failure_that_the_code_does_not_ask_for_any_more_needs_a_person(app, change):
    run = await suspended(app)
    call = change(app)

    async def order() -> str:
        with contextlib.suppress(ConnectionError):
            await call()
        return await wait_for("go")

    deploy(app, order)
    await run.signal("go", "went on")
    await doubted(app, run)
    # A person's word settles it, although no step has that path any more.
    await run.resolve_step("send#42", "it was sent")
    async with app.worker():
        assert (await in_state(app, run, State.COMPLETED, State.REVIEW)).state is State.COMPLETED


async def test_a_caught_failure_inside_a_recorded_step_is_settled_by_that_record(app):
    deliver = delivery(old_version())

    async def order() -> list[str]:
        return [await deliver("42"), await wait_for("go")]

    run = await deploy(app, order).submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("go", "went on")
        assert await run.result(5) == ["left at the door", "went on"]
    assert SENT == ["42"]


async def test_an_effect_that_a_recorded_step_has_answered_for_holds_up_no_later_attempt(app):
    deliver = delivery(old_version())

    async def order() -> str:
        word = await deliver("42")
        await wait_for("go")
        if current().attempt == 1:
            raise ValueError("something else")
        return word

    app.registry._jobs.clear()
    run = await app.job(name="order", retries=AT_ONCE_RETRY)(order).submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.signal("go")
        assert await run.result(5) == "left at the door"
    assert SENT == ["42"]


async def test_a_renamed_step_around_an_effect_in_doubt_does_not_run_it(app):
    send = old_version()
    deliver = delivery(send)

    async def order() -> str:
        await deliver("42")
        return await wait_for("go")

    run = await waiting(app, order)

    @step(name="hand_over")
    async def hand_over(order: str) -> str:
        await send(order)
        return "handed over"

    async def later() -> str:
        await hand_over("42")
        return await wait_for("go")

    deploy(app, later)
    await run.signal("go", "went on")
    async with app.worker():
        job = await in_state(app, run, State.REVIEW, State.COMPLETED)
    assert SENT == ["42"]
    assert job.error.type == "EffectInDoubt"


@pytest.mark.parametrize("event", [Event.RELEASE, Event.OVERRUN, Event.LAPSE])
async def test_however_a_job_came_back_to_its_queue_its_effect_stays_in_doubt(app, event):
    """A worker that was handed over in mid-air, or cut off, leaves the intent in the store and no word about it."""
    run = await begun(app)
    engine = app.engine
    (job,) = await engine.claim("w-before", ["default"], 1)
    now = await engine.now()
    facts = {"run_at": now} if event is Event.OVERRUN else {}
    await engine.commit([decide(job, event, now, by="test", **facts)])
    call = effect_dropped(app)

    async def order() -> str:
        return await call()

    deploy(app, order)
    await doubted(app, run)


async def test_a_transaction_that_becomes_once_runs_once(app):
    if app.engine.guarantees.transactions == "no":
        pytest.skip("this store has no transactions")

    @step(name="book", effect="transaction", key=lambda order: order)
    def book(order: str) -> str:
        SENT.append(f"{order} rolled back")
        raise ConnectionError("cut")

    async def order() -> str:
        with contextlib.suppress(ConnectionError):
            await book.aio("42")
        return await wait_for("go")

    run = await waiting(app, order)
    (failed,) = [one for one in await app.engine.steps(run.id) if one.path == "book#42"]
    assert failed.state is StepState.FAILED  # it happened not at all, and everybody knows

    @step(name="book", effect="once", key=lambda order: order)
    async def book_once(order: str) -> str:
        SENT.append(order)
        return "booked"

    async def later() -> str:
        with contextlib.suppress(Exception):
            await book_once("42")
        return await wait_for("go")

    deploy(app, later)
    await run.signal("go", "went on")
    async with app.worker():
        assert await run.result(5) == "went on"
    assert SENT == ["42 rolled back"]
    assert "in_doubt" not in (await entry_of(run, Event.COMPLETE)).note
