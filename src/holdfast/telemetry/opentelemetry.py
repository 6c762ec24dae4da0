"""OpenTelemetry: traces from a submit to its steps, and the metrics of messaging. Needs the extra `telemetry`.

Must not know an exporter: which provider gets the spans and metrics is the application's choice. Must not send a job's
arguments, results or key. Names follow the semantic conventions of messaging as far as those fit jobs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from msgspec.structs import replace
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast import __version__
from holdfast.core.limits import LABELS, META_CHARACTERS
from holdfast.core.model import Change, Error, Event, Job, State
from holdfast.core.spending import MILLION, Amounts, SpendKind
from holdfast.engines.contract import Engine
from holdfast.engines.observers import Act, StepOutcome
from holdfast.jobs.lost_workers import loss_of
from holdfast.telemetry.counters import OUTCOMES
from holdfast.telemetry.metrics import ACT_SECONDS, SECONDS

SYSTEM = "holdfast"

CHILD_MS = 1_000
"""An attempt that starts this soon after its submit is a child of the submit's span. A later one is only linked to it:
a trace over hours helps nobody.
"""

OPERATIONS: Mapping[Act, str] = {"insert": "send", "claim": "receive", "turn": "receive", "commit": "settle"}
"""Which operation of messaging an act of the store is."""

FAILURES = frozenset({Event.FAIL, Event.OVERRUN, Event.EXHAUST})


Attributes = dict[str, str | int]

_PROPAGATOR = TraceContextTextMapPropagator()


class Instrumented(Protocol):
    """What can be instrumented: an App."""

    engine: Engine


def instrument(
    app: Instrumented, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Send spans and metrics of what this process does with an App's jobs to OpenTelemetry.

    Call it once, where the App is made, so that it counts in workers and in processes that submit. Without providers,
    those apply that the application has set, for example with `opentelemetry-instrument`.
    """
    if not isinstance(app.engine.tracer, OpenTelemetry):
        telemetry = OpenTelemetry(tracer_provider, meter_provider)
        app.engine.tracer = telemetry
        app.engine.observe(telemetry)


class OpenTelemetry:
    """The spans and metrics of one process. See `engines.observers.Tracer` and `Observer`."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(SYSTEM, __version__, tracer_provider)
        meter = metrics.get_meter(SYSTEM, __version__, meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", unit="{message}", description="Jobs that this process submitted."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", unit="{message}", description="Jobs that this process claimed."
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="From the claim of a job to its end here.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._acts = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="How long the store takes to answer this process.",
            explicit_bucket_boundaries_advisory=ACT_SECONDS,
        )
        self._wait = meter.create_histogram(
            "holdfast.queue.wait",
            unit="s",
            description="From when a job was due to its first claim.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._steps = meter.create_counter(
            "holdfast.steps", unit="{step}", description="Calls of steps, by how they ended."
        )
        self._recoveries = meter.create_counter(
            "holdfast.recoveries", unit="{job}", description="Jobs that this process took from a lost worker."
        )
        self._spent = meter.create_counter(
            "holdfast.spend", unit="USD", description="Dollars kept in results, wasted, or saved by records."
        )
        self._fenced = meter.create_counter(
            "holdfast.fenced_writes", unit="{write}", description="Writes refused because their lease was lost."
        )

    # Spans.

    @contextmanager
    def sending(self, jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
        """See Tracer. The new jobs carry where this trace is in their `meta`, as W3C trace context."""
        if not jobs:
            yield jobs
            return
        queues = {job.queue for job in jobs}
        queue = queues.pop() if len(queues) == 1 else ""
        attributes: Attributes = _operation("send", queue)
        if len(jobs) == 1:
            attributes |= {"messaging.message.id": jobs[0].id, "holdfast.job.type": jobs[0].type}
        else:
            attributes["messaging.batch.message_count"] = len(jobs)
        with self._span(f"send {queue}".strip(), SpanKind.PRODUCER, attributes):
            carried: dict[str, str] = {}
            _PROPAGATOR.inject(carried)
            yield [_carrying(job, carried) for job in jobs] if carried else jobs

    @contextmanager
    def processing(self, job: Job) -> Iterator[Callable[[str, Error | None], None]]:
        """See Tracer. Linked to the submit; a child of it if the job has hardly waited."""
        sent = trace.get_current_span(_PROPAGATOR.extract(job.options.meta, Context())).get_span_context()
        is_child = job.epoch == 1 and (job.claimed_at or 0) - job.created_at <= CHILD_MS
        attributes: Attributes = {
            **_operation("process", job.queue),
            "messaging.message.id": job.id,
            "messaging.client.id": job.worker or "",
            "holdfast.job.type": job.type,
            "holdfast.job.attempt": job.attempt,
            "holdfast.job.epoch": job.epoch,
            "holdfast.job.recovered": job.recoveries,
        }
        links = [Link(sent)] if sent.is_valid else []
        within = _context_of(sent) if is_child and links else Context()
        with self._span(f"process {job.queue}", SpanKind.CONSUMER, attributes, links, within) as span:

            def end(outcome: str, error: Error | None) -> None:
                span.set_attribute("holdfast.job.outcome", outcome)
                if error is not None:
                    _fail(span, error)

            yield end

    @contextmanager
    def running(self, job: Job, step: str, path: str, tries: int) -> Iterator[Callable[[Error], None]]:
        """See Tracer. A child of the attempt's span, or of the step around it."""
        attributes: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.message.id": job.id,
            "holdfast.job.type": job.type,
            "holdfast.step.name": step,
            "holdfast.step.path": path,
            "holdfast.step.try": tries,
        }
        with self._span(f"step {step}", SpanKind.INTERNAL, attributes) as span:
            yield lambda error: _fail(span, error)

    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        links: Sequence[Link] = (),
        within: Context | None = None,
    ) -> AbstractContextManager[Span]:
        """Start a span, by default within the current one. Exceptions go into it only as Holdfast records them."""
        return self._tracer.start_as_current_span(
            name,
            context=within,
            kind=kind,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        )

    # Metrics.

    def heard_inserts(self, jobs: Sequence[Job]) -> None:
        """See Observer."""
        for job in jobs:
            self._sent.add(1, _labels("send", job))

    def heard_claims(self, jobs: Sequence[Job]) -> None:
        """See Observer."""
        for job in jobs:
            labels = _labels("receive", job)
            self._consumed.add(1, labels)
            if job.epoch == 1 and job.claimed_at is not None:
                self._wait.record(max(0, job.claimed_at - max(job.created_at, job.run_at or 0)) / 1_000, labels)

    def heard_changes(self, changes: Sequence[Change]) -> None:
        """See Observer."""
        for change in changes:
            outcome = OUTCOMES.get(change.event)
            if change.before is not State.ACTIVE or outcome is None:
                continue
            labels = _labels("process", change.job)
            if change.event == Event.LAPSE:
                self._recoveries.add(1, {**labels, "holdfast.recovery.reason": loss_of(change.note)})
            elif change.held_since is not None:
                labels["holdfast.job.outcome"] = outcome
                if change.event in FAILURES and change.job.error is not None:
                    labels["error.type"] = change.job.error.type
                self._duration.record(max(0, change.at - change.held_since) / 1_000, labels)

    def heard_fenced(self, number: int) -> None:
        """See Observer."""
        self._fenced.add(number)

    def heard_step(self, job: Job, step: str, outcome: StepOutcome) -> None:
        """See Observer."""
        self._steps.add(
            1, {"holdfast.job.type": job.type, "holdfast.step.name": step, "holdfast.step.outcome": outcome}
        )

    def heard_spending(self, job: Job, kind: SpendKind, amounts: Amounts) -> None:
        """See Observer."""
        if "usd" in amounts:
            labels = _labels("process", job) | {"holdfast.spend.kind": kind}
            self._spent.add(amounts["usd"] / MILLION, labels)

    def heard_act(self, act: Act, seconds: float) -> None:
        """See Observer."""
        if (what := OPERATIONS.get(act)) is not None:
            self._acts.record(seconds, {**_operation(what, ""), "messaging.operation.name": act})


def _operation(what: str, queue: str) -> Attributes:
    named: Attributes = {"messaging.system": SYSTEM, "messaging.operation.type": what, "messaging.operation.name": what}
    return {**named, "messaging.destination.name": queue} if queue else named


def _labels(what: str, job: Job) -> Attributes:
    return _operation(what, job.queue) | {"holdfast.job.type": job.type}


def _carrying(job: Job, carried: Mapping[str, str]) -> Job:
    """Return a job with this trace context in its meta, unless it has one already or no room."""
    options, meta = job.options, job.options.meta
    is_small = all(len(name) + len(value) <= META_CHARACTERS for name, value in carried.items())
    if "traceparent" in meta or len(meta) + len(carried) > LABELS or not is_small:
        return job
    return replace(job, options=replace(options, meta={**meta, **carried}))


def _context_of(sent: SpanContext) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(sent), Context())


def _fail(span: Span, error: Error) -> None:
    """Mark a span as failed. The error's text is the one that Holdfast records: without registered secrets."""
    span.set_attribute("error.type", error.type)
    span.set_status(Status(StatusCode.ERROR, error.message))
    span.add_event(
        "exception",
        {"exception.type": error.type, "exception.message": error.message, "exception.stacktrace": error.traceback},
    )
