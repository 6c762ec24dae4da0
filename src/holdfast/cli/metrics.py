"""The metrics of a worker process. Must not count or listen itself (`telemetry`)."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.app.app import App
from holdfast.cli.lifeline import say
from holdfast.telemetry.counters import Counters
from holdfast.telemetry.listener import Listener


@contextmanager
def metrics_of(app: App, host: str, port: int) -> Iterator[None]:
    """Count what an App's worker does and serve it, until the block ends."""
    counters = Counters()
    app.engine.observe(counters)
    app.hooks.listen("retried", counters.heard_retry)
    listener = Listener(host, port, app.open, counters, lambda line: say(line, err=True))
    listener.start()
    try:
        yield
    finally:
        listener.stop()
