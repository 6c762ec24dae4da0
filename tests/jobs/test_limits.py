"""Whatever a caller can make grow has a bound with a name, and what is beyond it gets one clear line."""

import asyncio

import pytest
from click.testing import CliRunner

from holdfast import App, progress, step, wait_for
from holdfast.cli import main
from holdfast.core.errors import Invalid, NotAllowed
from holdfast.core.lifecycle import decide
from holdfast.core.limits import (
    INBOX_BYTES,
    INBOX_SIGNALS,
    NOTE_CHARACTERS,
    NOTE_ITEMS,
    PATH_CHARACTERS,
    PROGRESS_CHARACTERS,
    REASON_CHARACTERS,
    SIGNAL_BYTES,
    WAITS,
)
from holdfast.core.model import UNREADABLE, Event, Job, State, Wait, WaitKind
from holdfast.jobs.replays import SAID
from holdfast.worker import suspension as parking
from tests.support.given import in_state, until


@pytest.fixture
def waiter(app):
    @app.job
    async def waiter() -> int:
        return await wait_for("go", as_=int)

    return waiter


async def test_an_inbox_holds_so_many_signals_and_no_more(app, waiter):
    run = await waiter.submit()
    for n in range(INBOX_SIGNALS):
        await run.signal("other", n)
    with pytest.raises(NotAllowed, match="'other' was not sent, because the inbox is full") as told:
        await run.signal("other", "one more")
    assert "\n" not in str(told.value)
    assert len((await app.jobs.get(run.id)).inbox) == INBOX_SIGNALS


async def test_an_inbox_holds_so_many_bytes_and_no_more(app, waiter):
    run = await waiter.submit()
    large = "x" * (SIGNAL_BYTES - 2)
    for _ in range(INBOX_BYTES // SIGNAL_BYTES - 1):
        await run.signal("other", large)
    with pytest.raises(NotAllowed, match="the inbox is full"):
        for _ in range(2):
            await run.signal("other", large)


async def test_a_signals_value_is_measured_in_bytes(app, waiter):
    run = await waiter.submit()
    wide = "\N{GRINNING FACE}"
    with pytest.raises(Invalid, match=r"the value at most 512 KiB") as told:
        await run.signal("other", wide * (SIGNAL_BYTES // 4))  # and two quotes
    assert "\n" not in str(told.value)
    await run.signal("other", wide * (SIGNAL_BYTES // 4 - 1))


async def test_an_inbox_is_measured_in_bytes(app, waiter):
    run = await waiter.submit()
    large = "\N{GRINNING FACE}" * (SIGNAL_BYTES // 4 - 1)
    with pytest.raises(NotAllowed, match="the inbox is full"):
        for _ in range(INBOX_BYTES // SIGNAL_BYTES):
            await run.signal("\N{GRINNING FACE}" * 100, large)
    held = (await app.jobs.get(run.id)).inbox
    assert sum(len((signal.name + signal.value).encode()) for signal in held) <= INBOX_BYTES


async def test_a_flood_of_other_signals_keeps_no_job_from_the_one_it_waits_for(app, waiter):
    run = await waiter.submit()
    async with app.worker():
        await in_state(app, run, State.PENDING)
        for n in range(INBOX_SIGNALS):
            await run.signal("other", n)
        with pytest.raises(NotAllowed):
            await run.signal("other", 0)
        await run.signal("go", 42)
        assert await run.result(10) == 42


async def test_what_a_job_takes_makes_room(app):
    @app.job
    async def taker() -> int:
        total = 0
        for _ in range(3):
            total += await wait_for("n", as_=int)
        await wait_for("end")
        return total

    run = await taker.submit()
    for n in range(INBOX_SIGNALS):
        await run.signal("n", n)
    async with app.worker():
        await in_state(app, run, State.PENDING)
    await run.signal("other")
    assert len((await app.jobs.get(run.id)).inbox) == INBOX_SIGNALS - 2


@pytest.mark.parametrize("name", [SAID, UNREADABLE])
async def test_nobody_sends_a_signal_that_would_be_taken_for_our_own(app, waiter, name):
    run = await waiter.submit()
    with pytest.raises(Invalid, match="reserved for Holdfast"):
        await run.signal(name, {})
    with pytest.raises(Invalid, match=UNREADABLE):
        await waiter.submit(meta={UNREADABLE: "x"})


async def test_a_reason_has_a_bound(app, waiter):
    run = await waiter.submit()
    long = "x" * (REASON_CHARACTERS + 1)
    for call in (run.cancel(long), app.jobs.pause("default", reason=long)):
        with pytest.raises(Invalid, match="reason"):
            await call
    await run.cancel(long[1:])


async def test_a_path_that_is_too_long_is_refused_before_the_step_runs(app):
    ran = []

    @step(name="n" * 300)
    async def nested(depth: int) -> None:
        ran.append(depth)
        await nested(depth + 1)

    @app.job(retries=0)
    async def deep() -> None:
        await nested(0)

    run = await deep.submit()
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
    assert "its path has" in job.error.message
    assert len(ran) * 300 < PATH_CHARACTERS
    assert all(len(one.path) <= PATH_CHARACTERS for one in await app.engine.steps(run.id))


async def test_a_job_waits_for_so_many_things_at_once_and_no_more(app, monkeypatch):
    monkeypatch.setattr(parking, "WAITS", 5)
    assert WAITS > 5

    @app.job(retries=0)
    async def greedy() -> None:
        await asyncio.gather(*(wait_for(f"s-{n}") for n in range(6)))

    run = await greedy.submit()
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
    assert "at most 5 things at once" in job.error.message


@pytest.mark.parametrize("number", [10**30, 1.5, "many"])
async def test_progress_that_no_heartbeat_can_carry_is_refused_where_it_is_told(app, number):
    @app.job(retries=0)
    async def teller() -> None:
        progress(number)

    run = await teller.submit()
    async with app.worker():
        job = await in_state(app, run, State.REVIEW)
    assert "progress(done=" in job.error.message


async def test_a_long_text_of_progress_is_cut(app):
    go = asyncio.Event()

    @app.job
    async def teller() -> None:
        progress(1, 2, "x" * 10_000 + "\ud800")
        await go.wait()

    run = await teller.submit()
    async with app.worker():
        shown = await until(lambda: _text(run))
        go.set()
        await run.result(10)
    assert shown == "x" * PROGRESS_CHARACTERS


async def _text(run):
    return (await run.status()).text


def test_the_history_cuts_long_texts_and_lists():
    job = Job(id="j", type="t", created_at=0, state=State.PENDING, waits=(Wait(WaitKind.ACTIVATION),))
    note = {"long": "x" * (NOTE_CHARACTERS + 5), "many": list(range(NOTE_ITEMS + 7)), "few": [1], "inside": {"a": "b"}}
    kept = decide(job, Event.ACTIVATE, 1, note=note).note
    assert kept["long"] == "x" * NOTE_CHARACTERS + " … and 5 more characters"
    assert kept["many"] == [*range(NOTE_ITEMS), "… and 7 more"]
    assert (kept["few"], kept["inside"]) == ([1], {"a": "b"})


def test_the_command_line_refuses_in_one_line(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def fill() -> str:
        app = App(url)

        @app.job
        async def waiter() -> None: ...

        run = await waiter.submit()
        for _ in range(INBOX_BYTES // SIGNAL_BYTES - 1):
            await run.signal("other", "x" * (SIGNAL_BYTES - 2))
        await run.signal("other", "x" * (SIGNAL_BYTES - 100))
        await app.close()
        return run.id

    id = asyncio.run(fill())
    long = "x" * 1_000
    answer = CliRunner().invoke(
        main, ["signal", id, "other", "--json", f'"{long}"', "--url", url], prog_name="holdfast"
    )
    assert answer.exit_code == 1
    assert answer.stderr.count("\n") == 1
    assert "the inbox is full" in answer.stderr
