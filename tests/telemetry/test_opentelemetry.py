"""Spans and metrics as OpenTelemetry's own SDK receives them."""

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import App, JobFailed, Retry, spend, step
from holdfast.telemetry.opentelemetry import instrument
from holdfast.testing import in_memory


class Collector:
    """An application's own providers, which keep what they get."""

    def __init__(self) -> None:
        self.traces, self.exporter, self.reader = TracerProvider(), InMemorySpanExporter(), InMemoryMetricReader()
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def attach(self, app: App) -> None:
        instrument(app, tracer_provider=self.traces, meter_provider=self.meters)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        found: dict[str, list[Any]] = {}
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found.setdefault(metric.name, []).extend(metric.data.data_points)
        return found


@pytest.fixture
def collector() -> Collector:
    return Collector()


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def context(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_trace_leads_from_the_submit_to_the_users_own_span_in_a_step(collector, colour):
    app = App("memory:")
    users = collector.traces.get_tracer("users")

    @step(name="draw")
    async def draw(title: str) -> str:
        with users.start_as_current_span("call the provider"):
            return title

    @step(name="draw")
    def draw_blocking(title: str) -> str:
        with users.start_as_current_span("call the provider"):
            return title

    @app.job
    async def film(title: str) -> str:
        return await draw(title)

    @app.job
    def film_blocking(title: str) -> str:
        return draw_blocking(title)

    collector.attach(app)
    async with in_memory(app), app.worker():
        with users.start_as_current_span("request"):
            run = await (film if colour == "async" else film_blocking).submit("secret title")
        await run.result(timeout=20)

    (request,), (sent,) = collector.spans("request"), collector.spans("send default")
    (processed,), (drawn,), (called,) = (
        collector.spans("process default"),
        collector.spans("step draw"),
        collector.spans("call the provider"),
    )
    assert sent.parent == context(request)
    assert (sent.kind, processed.kind, drawn.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.INTERNAL)
    assert [link.context.span_id for link in processed.links] == [context(sent).span_id]
    assert processed.parent is not None
    assert processed.parent.span_id == context(sent).span_id
    assert drawn.parent == context(processed)
    assert called.parent == context(drawn)
    assert {context(one).trace_id for one in (sent, processed, drawn, called)} == {context(request).trace_id}
    assert attributes(processed)["messaging.message.id"] == run.id
    assert attributes(processed)["messaging.system"] == "holdfast"
    assert attributes(processed)["holdfast.job.outcome"] == "completed"
    assert attributes(drawn)["holdfast.step.try"] == 1
    assert "secret" not in "".join(span.to_json() for span in collector.exporter.get_finished_spans())


async def test_an_attempt_after_hours_begins_a_trace_of_its_own_that_is_linked_to_the_submit(collector):
    app = App("memory:")

    @app.job
    async def film() -> None: ...

    collector.attach(app)
    async with in_memory(app) as test:
        run = await film.submit(delay="3h")
        await test.advance("3h")
        assert (await run.status()).state == "completed"

    (sent,), (processed,) = collector.spans("send default"), collector.spans("process default")
    assert processed.parent is None
    assert [link.context.span_id for link in processed.links] == [context(sent).span_id]
    assert context(processed).trace_id != context(sent).trace_id


async def test_every_try_of_a_step_is_a_span_and_failures_say_why_without_secrets(collector):
    app = App("memory:", secrets=["sk-canary-1234"])

    @step(name="draw", retries=Retry(retries=1, initial_ms=0, jitter=False))
    async def draw() -> None:
        raise OSError("401 for sk-canary-1234")

    @app.job(retries=0)
    async def film() -> None:
        await draw()

    collector.attach(app)
    async with in_memory(app), app.worker():
        run = await film.submit()
        with pytest.raises(JobFailed):
            await run.result(timeout=20)

    tries, (processed,) = collector.spans("step draw"), collector.spans("process default")
    assert [attributes(span)["holdfast.step.try"] for span in tries] == [1, 2]
    for span in (*tries, processed):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "OSError"
        assert [event.name for event in span.events] == ["exception"]
    assert attributes(processed)["holdfast.job.outcome"] == "failed"
    assert "canary" not in "".join(span.to_json() for span in collector.exporter.get_finished_spans())


async def test_a_child_is_submitted_within_the_trace_of_its_parent(collector):
    app = App("memory:")

    @app.job
    async def scene(number: int) -> int:
        return number

    @app.job(queue="films")
    async def film() -> list[int]:
        return await scene.map([1, 2])

    collector.attach(app)
    async with in_memory(app), app.worker():
        assert await (await film.submit()).result(timeout=20) == [1, 2]

    attempts = collector.spans("process films")
    sent = [span for span in collector.spans("send default") if attributes(span).get("messaging.batch.message_count")]
    assert len(sent) == 1
    assert sent[0].parent in [context(span) for span in attempts]
    scenes = collector.spans("process default")
    assert {link.context.span_id for span in scenes for link in span.links} == {context(sent[0]).span_id}


async def test_replayed_steps_have_no_span_but_are_counted(collector):
    app = App("memory:")
    runs: list[int] = []

    @step(name="draw")
    async def draw(number: int) -> int:
        spend(usd=0.25)
        return number

    @app.job(retries=Retry(retries=1, initial_ms=0, jitter=False))
    async def film() -> int:
        drawn = await draw(7)
        runs.append(1)
        if len(runs) == 1:
            raise OSError("429")
        return drawn

    collector.attach(app)
    async with in_memory(app), app.worker():
        assert await (await film.submit()).result(timeout=20) == 7

    assert len(collector.spans("step draw")) == 1
    assert len(collector.spans("process default")) == 2
    points = collector.points()
    steps = {point.attributes["holdfast.step.outcome"]: point.value for point in points["holdfast.steps"]}
    assert steps == {"ran": 1, "replayed": 1}
    spent = {point.attributes["holdfast.spend.kind"]: point.value for point in points["holdfast.spend"]}
    assert spent == {"kept": 0.25, "saved": 0.25}
    (sent,), (consumed,) = points["messaging.client.sent.messages"], points["messaging.client.consumed.messages"]
    assert sent.value == 1
    assert consumed.value == 2
    ends = {point.attributes["holdfast.job.outcome"]: point for point in points["messaging.process.duration"]}
    assert ends["completed"].count == 1
    assert ends["failed"].count == 1
    assert ends["failed"].attributes["error.type"] == "OSError"
    acts = {
        point.attributes["messaging.operation.name"]: point for point in points["messaging.client.operation.duration"]
    }
    assert acts["insert"].attributes["messaging.operation.type"] == "send"
    assert acts["insert"].count == 1
    assert acts["claim"].attributes["messaging.operation.type"] == "receive"


async def test_an_own_trace_context_in_meta_is_kept(collector):
    app = App("memory:")
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    @app.job
    async def film() -> None: ...

    collector.attach(app)
    async with in_memory(app), app.worker():
        await (await film.submit(meta={"traceparent": own})).result(timeout=20)

    (processed,) = collector.spans("process default")
    assert [f"{link.context.trace_id:032x}" for link in processed.links] == ["0af7651916cd43dd8448eb211c80319c"]


async def test_without_a_provider_nothing_is_added_to_a_job():
    app = App("memory:")

    @app.job
    async def film() -> None: ...

    instrument(app)
    instrument(app)
    async with in_memory(app), app.worker():
        run = await film.submit(meta={"customer": "7"})
        await run.result(timeout=20)
        (job,) = await app.engine.get([run.id])

    assert job is not None
    assert job.options.meta == {"customer": "7"}


def test_an_app_that_changes_its_store_stays_instrumented(tmp_path, collector):
    app = App("memory:")
    collector.attach(app)

    @app.job
    def film() -> None: ...

    app.use(f"sqlite:///{tmp_path}/jobs.db")
    app.sync.submit(film)

    assert len(collector.spans("send default")) == 1
