"""One key is one effect in a job, whichever step asks for it, and whatever a later version of the code says."""

import asyncio
import contextlib
import threading
from contextvars import copy_context

import pytest

from holdfast import step, wait_for
from holdfast.core.errors import Invalid
from holdfast.core.keys import derived_id
from holdfast.core.model import Event, State
from tests.support.given import entry_of, finished, in_state, paths, until
from tests.worker.effects import deploy, waiting

ENGINES = ("memory", "sqlite", "postgres", "redis")

CHARGED: list[str] = []
UNDONE: list[str | None] = []
FAIL: list[str] = []


@pytest.fixture(autouse=True)
def fresh():
    CHARGED.clear()
    UNDONE.clear()
    FAIL.clear()


def undo(result: str | None) -> None:
    UNDONE.append(result)


@step(name="charge", effect="once", key=lambda order: order, undo=undo)
async def charge(order: str) -> str:
    CHARGED.append(order)
    await asyncio.sleep(0.05)
    if FAIL:
        raise ConnectionError(FAIL.pop())
    return f"charged {order}"


@step(name="charge_slowly", effect="once", key=lambda order: order)
def charge_slowly(order: str) -> str:
    CHARGED.append(order)
    return f"charged {order}"


@step(name="part", key=lambda n, order: n)
async def part(n: int, order: str) -> str:
    return await charge(order)


@step(name="part_slowly", key=lambda n, order: n)
def part_slowly(n: int, order: str) -> str:
    return charge_slowly(order)


@pytest.mark.parametrize("how", ["one after the other", "at once"])
async def test_one_key_is_one_effect_in_every_step_that_asks_for_it(app, how):
    @app.job(retries=0)
    async def order() -> list[str]:
        if how == "at once":
            return list(await asyncio.gather(part(1, "42"), part(2, "42"), charge("42")))
        return [await part(1, "42"), await part(2, "42"), await charge("42")]

    run = await order.submit()
    async with app.worker():
        assert await run.result(10) == ["charged 42"] * 3
    assert CHARGED == ["42"]
    assert len([path for path in await paths(app, run) if path.endswith("charge#42")]) == 1


async def test_one_key_is_one_effect_in_threads_too(app):
    @app.job(retries=0)
    def order() -> list[str]:
        found: list[str] = []

        def work(n: int) -> None:
            found.append(part_slowly(n, "42"))

        threads = [threading.Thread(target=copy_context().run, args=(work, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        return found

    run = await order.submit()
    async with app.worker():
        assert await run.result(10) == ["charged 42"] * 4
    assert CHARGED == ["42"]


async def test_an_effect_that_two_steps_asked_for_is_undone_once(app):
    @app.job(retries=0)
    async def order() -> str:
        await part(1, "42")
        await part(2, "42")
        return await wait_for("go")

    run = await order.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        await run.cancel()
        await in_state(app, await app.run(derived_id(run.id, "undo")), State.COMPLETED)
    assert (CHARGED, UNDONE) == (["42"], ["charged 42"])


@pytest.mark.parametrize("again", [False, True])
async def test_a_persons_word_on_an_effect_counts_in_every_step_that_asks_for_it(app, again):
    FAIL.append("line broke")

    @app.job(retries=0)
    async def order() -> list[str]:
        with contextlib.suppress(ConnectionError):
            await part(1, "42")
        return [await part(2, "42"), await part(1, "42"), await charge("42")]

    run = await order.submit()
    async with app.worker():
        job = await in_state(app, run, State.REVIEW, State.COMPLETED)
        assert (job.state, CHARGED) == (State.REVIEW, ["42"])
        assert (await entry_of(run, Event.EXHAUST)).note["in_doubt"] == ["part#1/charge#42"]
        await run.resolve_step("part#1/charge#42", **({"again": True} if again else {"result": "charged 42"}))
        assert await run.result(10) == ["charged 42"] * 3
    assert len(CHARGED) == (2 if again else 1)


async def test_an_effect_that_asks_for_itself_is_refused(app):
    @step(name="loop", effect="once", key=lambda order: order)
    async def loop(order: str) -> str:
        CHARGED.append(order)
        return await loop(order) if len(CHARGED) < 3 else "through"

    @app.job(retries=0)
    async def order() -> str:
        try:
            return await loop("42")
        except Invalid as error:
            return str(error)

    run = await order.submit()
    async with app.worker():
        assert "step loop#42 calls itself with the same key" in await run.result(10)
    assert CHARGED == ["42"]


def other_arguments():
    @step(name="outer")
    async def outer(order: str, n: int) -> str:
        return await charge(order)

    return lambda: outer("42", 2)


def other_name():
    @step(name="renamed")
    async def renamed(order: str) -> str:
        return await charge(order)

    return lambda: renamed("42")


def inner_renamed():
    @step(name="pay", was="charge", effect="once", key=lambda order: order)
    async def pay(order: str) -> str:
        CHARGED.append(order)
        return "paid again"

    @step(name="renamed")
    async def renamed(order: str) -> str:
        return await pay(order)

    return lambda: renamed("42")


def taken_out():
    return lambda: charge("42")


def effect_removed():
    plain = charge_without_effect()

    @step(name="renamed")
    async def renamed(order: str) -> str:
        return await plain(order)

    return lambda: renamed("42")


@pytest.mark.parametrize("change", [other_arguments, other_name, inner_renamed, taken_out, effect_removed])
async def test_a_deploy_that_changes_the_step_around_a_recorded_effect_does_not_run_it_again(app, change):
    @step(name="outer")
    async def outer(order: str) -> str:
        await charge(order)
        raise RuntimeError("after the payment")

    async def order() -> str:
        return await outer("42")

    run = await deploy(app, order).submit()
    async with app.worker():
        await in_state(app, run, State.REVIEW)
    call = change()

    async def later() -> str:
        return await call()

    deploy(app, later)
    await run.replay()
    async with app.worker():
        assert await run.result(10) == "charged 42"
    assert CHARGED == ["42"]


def charge_without_effect():
    @step(name="charge", key=lambda order: order)
    async def plain(order: str) -> str:
        CHARGED.append(order)
        return "charged again"

    return plain


@pytest.mark.parametrize("how", ["twice", "in another step"])
async def test_removing_the_effect_in_a_deploy_does_not_run_a_recorded_one_again(app, how):
    async def order() -> str:
        await charge("42")
        await charge("42")
        return await wait_for("go")

    run = await waiting(app, order)

    plain = charge_without_effect()

    @step(name="around")
    async def around(order: str) -> str:
        return await plain(order)

    async def later() -> str:
        first, second = await plain("42"), await (plain("42") if how == "twice" else around("42"))
        return f"{first}, {second}, {await wait_for('go')}"

    deploy(app, later)
    await run.signal("go", "went on")
    async with app.worker():
        assert await run.result(10) == "charged 42, charged 42, went on"
    assert CHARGED == ["42"]


async def test_removing_the_effect_does_not_run_again_what_is_in_doubt_in_an_answered_step(app):
    FAIL.append("line broke")

    @step(name="deliver")
    async def deliver(order: str) -> str:
        with contextlib.suppress(ConnectionError):
            await charge(order)
        return "left at the door"

    async def order() -> str:
        await deliver("42")
        return await wait_for("go")

    run = await waiting(app, order)

    plain = charge_without_effect()

    async def later() -> str:
        await deliver("42")
        await plain("42")
        return await wait_for("go")

    deploy(app, later)
    await run.signal("go", "went on")
    job = await finished(app, run)
    assert CHARGED == ["42"]
    assert (job.state, job.error and job.error.type) == (State.REVIEW, "EffectInDoubt")


async def test_equal_calls_of_a_plain_step_stay_calls_of_their_own(app, interrupted):
    @step(name="note", key=lambda order: order)
    async def note(order: str) -> str:
        CHARGED.append(order)
        return "noted"

    async def job() -> str:
        await note("42")
        await interrupted.point()
        await note("42")
        return "through"

    run = await app.job(name="job")(job).submit()
    await interrupted.between(run)
    assert CHARGED == ["42", "42"]
    await until(lambda: interrupted.runs == 2)


async def test_the_history_does_not_say_that_a_step_ran_which_did_not(app):
    @step(name="mail", effect="once", key=lambda to: to)
    async def mail(to: str) -> str:
        CHARGED.append(to)
        raise ConnectionError("line broke")

    async def order() -> str:
        return await mail("ada")

    run = await deploy(app, order).submit()
    async with app.worker():
        await in_state(app, run, State.REVIEW)

    @step(name="mail")
    async def plain(to: str) -> str:
        CHARGED.append(to)
        return "mailed"

    async def later() -> str:
        return await plain("ada")

    deploy(app, later)
    await run.replay()
    assert (await finished(app, run)).state is State.REVIEW
    assert CHARGED == ["ada"]
    assert " ran" not in str([entry.note.get("drift") for entry in await run.history()])
