"""`holdfast dev`: a server and a worker that restart when the code changes, with the jobs' progress line by line.

Must not do what they do: both are in a separate process, so that new code never meets old modules.
"""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import click

from holdfast.cli.errors import echo
from holdfast.cli.job_news import JobNews
from holdfast.cli.lifeline import Lifeline, say, stop_signals
from holdfast.cli.log_format import log_format_option, log_level_option
from holdfast.cli.open_store import refuse_server
from holdfast.cli.options import DEFAULT_PORT, can_serve, inherited_url
from holdfast.cli.source_files import changed_files, files_below, folder_of

POLL_SECONDS = 0.5
"""How often to check the files and the jobs."""

STOP_SECONDS = 30.0
"""A worker that hasn't stopped this long after SIGTERM is killed; its jobs are recovered."""


@click.command(
    epilog="""\b
Examples:
  holdfast dev video:app
  holdfast dev examples/video.py:app --at-once 2 --port 8080

\b
Serves the jobs over HTTP on this machine and runs them. Watches the .py files below the module's
folder. When one changes, the process stops (its running jobs are handed over and lose no attempt)
and a new one starts. Ctrl-C or a closed terminal ends both.
"""
)
@click.argument("target", metavar="MODULE:APP")
@click.option("--queues", help="Queues in order, separated by commas. Default: those of the App's jobs.")
@click.option("--at-once", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Slots.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=DEFAULT_PORT, show_default=True, help="0 picks a free port."
)
@click.option("--url", metavar="URL", help="Use this store instead of the App's own.", callback=inherited_url)
@log_level_option
@log_format_option
def dev(
    target: str, queues: str | None, at_once: int, port: int, url: str | None, log_level: str, log_format: str
) -> None:
    """Serve and run the jobs of MODULE:APP, and restart when its code changes."""
    refuse_server(url, "dev")
    folder = folder_of(target)
    serving = ["serve", target, "--with-worker", "--port", str(port)]
    if not can_serve():
        echo("not serving over HTTP: run pip install 'holdfast-jobs[server]'", err=True)
        serving = ["worker", target]
    command = [sys.executable, "-m", "holdfast.cli", *serving, "--at-once", str(at_once)]
    command += ["--log-level", log_level, "--log-format", log_format]
    command += ["--queues", queues] if queues else []
    command += ["--url", url] if url else []
    echo(f"watching the .py files in {folder}; press Ctrl-C to end")
    for one in stop_signals():
        signal.signal(one, signal.default_int_handler)
    try:
        asyncio.run(_keep_running(command, folder, target, url))
    except KeyboardInterrupt:
        say("ended")


async def _keep_running(command: list[str], folder: Path, target: str, url: str | None) -> None:
    """Keep one worker running with the current code, and print the jobs' progress."""
    news, files, line = JobNews(target, url), files_below(folder), Lifeline()
    child: subprocess.Popen[bytes] | None = line.start(command)
    try:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if child is not None and child.poll() is not None:
                echo(f"the worker ended with exit code {child.returncode}; waiting for a change", err=True)
                child = None
            now = await asyncio.to_thread(files_below, folder)
            if names := changed_files(files, now):
                files = now
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                echo(f"{Path(names[0]).relative_to(folder)}{more} changed; restarting the worker")
                if child is not None:
                    await asyncio.to_thread(stop, child)
                child = line.start(command)
            await news.print_new()
    finally:
        if child is not None:
            stop(child)
        await news.close()


def stop(child: "subprocess.Popen[bytes]") -> None:
    """Ask a worker to stop. If it takes too long, kill it."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
