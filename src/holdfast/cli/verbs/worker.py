"""`holdfast worker`: run the jobs of an App until a signal stops it. Must not do what a worker does (`app.worker`)."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence

import click

from holdfast.app.app import App
from holdfast.cli import lifeline
from holdfast.cli.errors import LostStore
from holdfast.cli.lifeline import say, stop_signals
from holdfast.cli.load_app import load_app
from holdfast.cli.log_format import log_format_option, log_level_option, set_up_logging
from holdfast.cli.metrics import metrics_of
from holdfast.cli.open_store import refuse_server
from holdfast.cli.options import inherited_url
from holdfast.cli.supervise import supervise
from holdfast.cli.worker_process import run_worker
from holdfast.core.errors import Invalid, Moved, StoreLost
from holdfast.engines import engine_for
from holdfast.engines.contract import Engine


@click.command(
    epilog="""\b
Examples:
  holdfast worker video:app
  holdfast worker examples/video.py:app --at-once 4
  holdfast worker video:app --queues urgent,video --processes 4
  holdfast worker video:app --has gpu,large
  holdfast worker video:app --log-format json
  holdfast worker video:app --metrics-port 9464

\b
On SIGTERM, Ctrl-C or a closed terminal, the worker claims no more jobs, gives running jobs its
grace time to finish, and hands over the rest. A second signal stops it at once. Neither costs
an attempt or a finished step. With --processes, the workers also stop if the first process
dies, even by kill -9.

\b
Exit code 1: a job ended the worker's event loop (sys.exit in a task, loop.stop()).
Exit code 3: while the worker ran, the store was emptied, went back to an older state, or its
jobs were moved elsewhere. The worker wrote nothing more. Check the store before you restart.
"""
)
@click.argument("target", metavar="MODULE:APP")
@click.option("--queues", help="Queues in order, separated by commas. Default: those of the App's jobs.")
@click.option("--at-once", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Slots in each process.")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option("--has", help="What this worker has for jobs with needs=, separated by commas: gpu,large.")
@click.option("--metrics-port", type=click.IntRange(1, 65_535), help="Serve /metrics, /health and /ready at this port.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address of that port.")
@click.option("--url", metavar="URL", help="Use this store instead of the App's own.", callback=inherited_url)
@log_level_option
@log_format_option
def worker(
    target: str,
    queues: str | None,
    at_once: int,
    processes: int,
    has: str | None,
    metrics_port: int | None,
    metrics_host: str,
    url: str | None,
    log_level: str,
    log_format: str,
) -> None:
    """Run the jobs of MODULE:APP until a signal stops it."""
    line = lifeline.inherited_line()
    set_up_logging(log_level, log_format)
    if url is not None:
        refuse_server(url, "worker")
        # Check the URL here, so that a wrong one isn't reported as an App that can't be imported.
        _check_shared(engine_for(url), processes)
        os.environ["HOLDFAST_URL"] = url
    if processes > 1 and line is None:
        sys.exit(supervise(processes, own=_own_port(metrics_port, processes)))
    names, words = _words(queues) or None, _words(has)
    for one in stop_signals():  # until there is a worker with jobs to hand over
        signal.signal(one, signal.default_int_handler)
    app: App | None = None
    if line is not None:
        lifeline.stop_with(line, lambda: 0.0 if app is None else app.settings.grace_seconds)
    try:
        app = load_app(target)
        if url is not None:
            app.use(url)
        refuse_server(app.url, "worker")
        _check_shared(app.engine, processes)
        with contextlib.nullcontext() if metrics_port is None else metrics_of(app, metrics_host, metrics_port):
            asyncio.run(run_worker(app, names, at_once, words))
    except KeyboardInterrupt:
        say("stopped")
    except (StoreLost, Moved) as error:
        raise LostStore(str(error)) from error


def _own_port(first: int | None, processes: int) -> Callable[[int], Sequence[str]]:
    """Return the argument that gives each process its own port for metrics: the first one and those after it."""
    if first is None:
        return lambda number: ()
    if first + processes - 1 > 65_535:
        raise Invalid(f"--metrics-port {first} --processes {processes}: each process needs a port; start lower")
    return lambda number: ("--metrics-port", str(first + number))


def _words(given: str | None) -> list[str]:
    """What an option with commas names."""
    return [word.strip() for word in (given or "").split(",") if word.strip()]


def _check_shared(engine: Engine, processes: int) -> None:
    """Refuse several processes for a store that only one can use.

    Without --url, each process finds out by itself, because the first process doesn't import the App.
    """
    if processes > 1 and not engine.guarantees.shared:
        raise Invalid(
            f"--processes {processes}: a {engine.guarantees.name} store is for one process; leave it out and raise "
            "--at-once, or use sqlite:///jobs.db"
        )
