"""What a process counts, and how Prometheus reads it."""

import asyncio
import shutil
import subprocess
from typing import Any

import pytest

from holdfast import App, JobFailed, Retry, spend, step
from holdfast.conformance.given import WAITS_FOR_GO, StoreClock, job
from holdfast.core.budgets import budget_key, waiting_key
from holdfast.core.model import Options, State, Use, Wait, WaitKind
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs.limits import declare_limits
from holdfast.jobs.lost_workers import ALIVE, CUT_OFF, UNNOTICED, Past, decide_loss
from holdfast.jobs.questions import ASK
from holdfast.jobs.service import Jobs
from holdfast.jobs.waiters import wait_for_end
from holdfast.telemetry import store
from holdfast.telemetry.counters import PAIRS_LIMIT, Counters
from holdfast.telemetry.metrics import METRICS, SPEND, SUBMITTED, Histogram, as_text, histogram_lines, sample_lines
from holdfast.telemetry.store import store_lines
from holdfast.testing import in_memory
from tests.support.given import until


def counted(app: App) -> Counters:
    counters = Counters()
    app.engine.observe(counters)
    app.hooks.listen("retried", counters.heard_retry)
    return counters


def an_app() -> tuple[App, Any, Any]:
    app = App("memory:")
    tries: list[int] = []

    @step(name="draw", retries=Retry(retries=1, initial_ms=0, jitter=False))
    async def draw(title: str) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("429")
        return title

    @app.job
    async def film(title: str) -> str:
        return await draw(title)

    @app.job(retries=0)
    async def broken() -> None:
        raise ValueError("no")

    return app, film, broken


async def test_attempts_waits_and_retries_are_counted_by_type_queue_and_outcome():
    app, film, broken = an_app()
    async with in_memory(app):
        counters = counted(app)
        async with app.worker():
            run = await film.with_options(key="secret-key").submit("secret title")
            await run.result(timeout=20)
            failing = await broken.submit()
            with pytest.raises(JobFailed):
                await failing.result(timeout=20)

        lines = counters.lines()
        text = as_text([*lines, *await store_lines(Jobs(app.engine))])

    films, brokens = '{type="film",queue="default"', '{type="broken",queue="default"'
    assert f"holdfast_jobs_submitted_total{films}}} 1" in lines
    assert f"holdfast_jobs_started_total{films}}} 1" in lines
    assert f'holdfast_attempts_total{films},outcome="completed"}} 1' in lines
    assert f'holdfast_attempts_total{brokens},outcome="review"}} 1' in lines
    assert f"holdfast_attempt_duration_seconds_count{films}}} 1" in lines
    assert f"holdfast_queue_wait_seconds_count{films}}} 1" in lines
    assert f"holdfast_step_retries_total{films}}} 1" in lines
    assert "holdfast_review_depth 1" in text
    assert 'holdfast_jobs{queue="default",state="completed"} 1' in text
    assert "secret" not in text
    assert run.id not in text
    assert {f"# TYPE {metric.name} {metric.kind}" for metric in METRICS} <= set(text.splitlines())
    promtool_accepts(text)


def promtool_accepts(text: str) -> None:
    if (promtool := shutil.which("promtool")) is not None:
        done = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr


async def test_how_long_the_store_takes_and_when_a_death_is_noticed_are_counted():
    engine, counters, clock = MemoryEngine(), Counters(), StoreClock(settable=True)
    engine.observe(counters)
    await engine.insert([job(clock), job(clock)])
    dead, stale = await engine.claim("w-1", ["default"], 2)
    losses = [
        decide_loss(dead, Past([], []), clock(), by="w-2", why="no heartbeat for 2 s", silent_ms=1_500),
        decide_loss(stale, Past([], []), clock(), by="w-2", why=f"no progress; {ALIVE}", silent_ms=300),
    ]
    await engine.commit(losses)

    lines = counters.lines()
    for act in ("insert", "claim", "commit"):
        assert f'holdfast_store_seconds_count{{act="{act}"}} 1' in lines
    assert "holdfast_claim_duration_seconds_count 1" in lines
    assert "holdfast_death_notice_seconds_count 1" in lines
    assert "holdfast_death_notice_seconds_sum 1.5" in lines
    assert 'holdfast_death_notice_seconds_bucket{le="1"} 0' in lines
    promtool_accepts(as_text(lines))


@pytest.mark.parametrize(
    ("why", "recovery", "reason"),
    [
        (f"process 7 on a {UNNOTICED}; last heartbeat 1 s ago", True, "died"),
        (CUT_OFF, True, "died"),
        ("no heartbeat for 20 s", True, "silent"),
        ("its worker has no status in the store", True, "silent"),
        (f"stage draw showed no progress for 2 min, longer than 1 min; {ALIVE}", True, "stale"),
        ("no heartbeat for 20 s", False, "store"),
    ],
)
async def test_a_recovery_is_counted_with_why_the_worker_was_lost(why: str, recovery: bool, reason: str):
    engine, counters, clock = MemoryEngine(), Counters(), StoreClock(settable=True)
    engine.observe(counters)
    await engine.insert([job(clock, type="film")])
    [held] = await engine.claim("w-1", ["default"], 1)
    await engine.commit([decide_loss(held, Past([], []), clock(), by="w-2", why=why, recovery=recovery)])

    counted_as = f'holdfast_recoveries_total{{type="film",queue="default",reason="{reason}"}} 1'
    assert counted_as in counters.lines()


async def test_dollars_are_counted_by_what_became_of_them():
    app, tries = App("memory:"), list[int]()

    @step(name="write")
    async def write() -> None:
        spend(usd=0.25, tokens=1_000)

    @app.job(retries=Retry(retries=1, initial_ms=0, jitter=False))
    async def film() -> None:
        await write()
        spend(usd=1.5)
        tries.append(1)
        if len(tries) == 1:
            raise OSError("429")

    async with in_memory(app):
        counters = counted(app)
        async with app.worker():
            run = await film.submit()
            await run.result(timeout=20)
        status = await run.status()

    spent = [line for line in counters.lines() if line.startswith(f"{SPEND.name}{{")]
    labels = 'holdfast_spend_usd_total{type="film",queue="default",kind='
    assert sorted(spent) == [f'{labels}"kept"}} 1.75', f'{labels}"saved"}} 0.25', f'{labels}"wasted"}} 1.5']
    assert (status.spent["usd"], status.wasted["usd"], status.saved["usd"]) == (3.25, 1.5, 0.25)
    promtool_accepts(as_text(counters.lines()))


async def test_dollars_of_a_step_that_a_cancel_cuts_are_wasted():
    app, begun = App("memory:"), asyncio.Event()

    @app.job
    async def film() -> None:
        spend(usd=2)
        begun.set()
        await asyncio.Event().wait()

    async with in_memory(app):
        counters = counted(app)
        async with app.worker():
            run = await film.submit()
            await asyncio.wait_for(begun.wait(), 20)
            await run.cancel()
            wasted = f'{SPEND.name}{{type="film",queue="default",kind="wasted"}} 2'
            await until(lambda: wasted in counters.lines())


async def test_what_jobs_wait_for_is_counted():
    engine, clock = MemoryEngine(), StoreClock(settable=True)
    later = clock() + 60_000
    waits: list[tuple[Wait, ...]] = [
        (Wait(WaitKind.SIGNAL, "approved"),),
        (Wait(WaitKind.SIGNAL, f"{ASK}one"), Wait(WaitKind.TIME, until=later)),
        (wait_for_end("0192f3a4-5b6c-7d8e-9f01-23456789abcd"),),
        (Wait(WaitKind.CHILDREN, "g"),),
        (Wait(WaitKind.LIMIT, waiting_key(budget_key("0192f3a4", "usd"), 1)),),
        (Wait(WaitKind.ACTIVATION),),
    ]
    await engine.insert([job(clock, state=State.PENDING, run_at=None, waits=one) for one in waits])
    await engine.insert([job(clock, state=State.SCHEDULED, run_at=later)])

    lines = await store_lines(Jobs(engine))

    shown = {line for line in lines if line.startswith("holdfast_waiting{")}
    numbers = {"time": 2, "signal": 1, "person": 1, "job": 2, "activation": 1, "limit": 0, "budget": 1, "other": 0}
    assert shown == {f'holdfast_waiting{{for="{name}"}} {number}' for name, number in numbers.items()}


async def test_jobs_that_a_limit_holds_back_wait_for_it_and_only_some_pending_ones_are_read(monkeypatch):
    monkeypatch.setattr(store, "WAITS_READ", 2)
    engine, clock = MemoryEngine(), StoreClock(settable=True)
    await declare_limits(engine, [App("memory:").limit("gpu", at_once=1)], by="test")
    await engine.insert([job(clock, options=Options(limits=(Use("gpu"),))) for _ in range(3)])
    assert len(await engine.claim("w-1", ["default"], 3)) == 1
    await engine.insert([job(clock, state=State.PENDING, run_at=None, waits=WAITS_FOR_GO) for _ in range(5)])

    lines = await store_lines(Jobs(engine))

    assert 'holdfast_waiting{for="limit"} 2' in lines
    assert 'holdfast_waiting{for="signal"} 2' in lines
    assert 'holdfast_waiting{for="other"} 3' in lines


async def test_pairs_beyond_the_limit_are_counted_together():
    counters = Counters()
    clock = StoreClock(settable=True)
    counters.heard_inserts([job(clock, type=f"type-{n}") for n in range(PAIRS_LIMIT + 5)])

    lines = [line for line in counters.lines() if line.startswith(SUBMITTED.name + "{")]
    assert len(lines) == PAIRS_LIMIT + 1
    assert 'holdfast_jobs_submitted_total{type="other",queue="other"} 5' in lines


def test_a_label_is_escaped():
    lines = sample_lines(SUBMITTED, {('a"b\\c\nd', "q"): 1.5})

    assert lines[-1] == 'holdfast_jobs_submitted_total{type="a\\"b\\\\c\\nd",queue="q"} 1.5'


def test_the_buckets_of_a_histogram_add_up():
    metric = next(one for one in METRICS if one.kind == "histogram")
    one = Histogram()
    for seconds in (0.005, 0.01, 2.0, 1e6):
        one.add(seconds)

    lines = histogram_lines(metric, {("film", "default"): one})
    counts = [int(line.rsplit(" ", 1)[1]) for line in lines if "_bucket" in line]

    assert counts == sorted(counts)
    assert (counts[0], counts[1], counts[-1]) == (1, 2, 4)
    assert lines[-2].endswith(" 1000002.015")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_wants(metric):
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.name.startswith("holdfast_")
    assert metric.meaning.endswith(".")
    assert not {"job", "id", "key", "args"} & set(metric.labels)
