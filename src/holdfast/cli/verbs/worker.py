"""`holdfast worker`: run the jobs of an App until a signal stops it. Must not do what a worker does (`app.worker`)."""

import asyncio
import os
import signal
import sys

import click

from holdfast.app.app import App
from holdfast.cli import lifeline
from holdfast.cli.errors import LostStore
from holdfast.cli.lifeline import say, stop_signals
from holdfast.cli.load_app import load_app
from holdfast.cli.log_format import log_format_option, log_level_option, set_up_logging
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
  holdfast worker video:app --log-format json

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
@click.option("--url", help="Use this store instead of the App's own.")
@log_level_option
@log_format_option
def worker(
    target: str, queues: str | None, at_once: int, processes: int, url: str | None, log_level: str, log_format: str
) -> None:
    """Run the jobs of MODULE:APP until a signal stops it."""
    line = lifeline.inherited_line()
    set_up_logging(log_level, log_format)
    if url is not None:
        # Check the URL here, so that a wrong one isn't reported as an App that can't be imported.
        _check_shared(engine_for(url), processes)
        os.environ["HOLDFAST_URL"] = url
    if processes > 1 and line is None:
        sys.exit(supervise(processes))
    names = [name.strip() for name in queues.split(",") if name.strip()] if queues else None
    for one in stop_signals():  # until there is a worker with jobs to hand over
        signal.signal(one, signal.default_int_handler)
    app: App | None = None
    if line is not None:
        lifeline.stop_with(line, lambda: 0.0 if app is None else app.settings.grace_seconds)
    try:
        app = load_app(target)
        if url is not None:
            app.use(url)
        _check_shared(app.engine, processes)
        asyncio.run(run_worker(app, names, at_once))
    except KeyboardInterrupt:
        say("stopped")
    except (StoreLost, Moved) as error:
        raise LostStore(str(error)) from error


def _check_shared(engine: Engine, processes: int) -> None:
    """Refuse several processes for a store that only one can use.

    Without --url, each process finds out by itself, because the first process doesn't import the App.
    """
    if processes > 1 and not engine.guarantees.shared:
        raise Invalid(
            f"--processes {processes}: a {engine.guarantees.name} store is for one process; leave it out and raise "
            "--at-once, or use sqlite:///jobs.db"
        )
