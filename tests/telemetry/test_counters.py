"""What a process counts, and how Prometheus reads it."""

import shutil
import subprocess
from typing import Any

import pytest

from holdfast import App, JobFailed, Retry, step
from holdfast.conformance.given import StoreClock, job
from holdfast.engines.memory import MemoryEngine
from holdfast.jobs.lost_workers import ALIVE, Past, decide_loss
from holdfast.jobs.service import Jobs
from holdfast.telemetry.counters import PAIRS_LIMIT, Counters
from holdfast.telemetry.metrics import METRICS, SUBMITTED, Histogram, as_text, histogram_lines, sample_lines
from holdfast.telemetry.store import store_lines
from holdfast.testing import in_memory


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
