"""`holdfast serve`: jobs over HTTP, and a worker beside if asked. Must not know a route (`server`) or run a job."""

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
from holdfast.cli.open_store import refuse_server
from holdfast.cli.options import DEFAULT_PORT, can_serve, url_option
from holdfast.cli.supervise import supervise
from holdfast.core.errors import Invalid, Moved, StoreLost


@click.command(
    epilog="""\b
Examples:
  holdfast serve
  holdfast serve video:app --with-worker
  holdfast serve --port 8080 --processes 4
  holdfast serve --host 0.0.0.0      (needs a token: holdfast token create NAME --scope read)

\b
Only this machine can reach the server unless you pass --host. While the store has no token, it
is open to every program on this machine. From the first token on, every request needs one.

\b
On SIGTERM or Ctrl-C it accepts no more requests, open ones may finish, and event streams end.
"""
)
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on, or unix:PATH.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=DEFAULT_PORT, show_default=True, help="0 picks a free port."
)
@click.option("--with-worker", is_flag=True, help="Run the jobs of MODULE:APP in the same process.")
@click.option("--queues", help="With --with-worker: queues in order, separated by commas.")
@click.option(
    "--at-once", type=click.IntRange(1, 10_000), default=8, show_default=True, help="With --with-worker: slots."
)
@click.option("--has", help="With --with-worker: what it has for jobs with needs=, separated by commas.")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Server processes.")
@click.option("--allow-host", "names", multiple=True, metavar="NAME", help="Another host name to accept: your proxy's.")
@click.option("--no-auth", is_flag=True, help="Let everybody who reaches the server do everything.")
@click.option("--require-lease-token", is_flag=True, help="Refuse writes of workers over HTTP without a lease token.")
@click.option("--test-hooks", is_flag=True, help="Add a route that deletes everything, for tests. Loopback only.")
@url_option
@log_level_option
@log_format_option
def serve(
    target: str | None,
    host: str,
    port: int,
    with_worker: bool,
    queues: str | None,
    at_once: int,
    has: str | None,
    processes: int,
    names: tuple[str, ...],
    no_auth: bool,
    require_lease_token: bool,
    test_hooks: bool,
    url: str | None,
    log_level: str,
    log_format: str,
) -> None:
    """Serve the jobs of a store over HTTP."""
    line = lifeline.inherited_line()
    set_up_logging(log_level, log_format)
    if not can_serve():
        raise Invalid("the server isn't installed; run pip install 'holdfast-jobs[server]'")
    from holdfast.cli import server_process

    if target is None or url is not None:
        refuse_server(url, "serve")
    if with_worker and target is None:
        raise Invalid("--with-worker: name the App whose jobs to run, for example holdfast serve video:app")
    serving = server_process.Serving(
        host, port, names, no_auth, test_hooks, with_worker, _words(queues) or None, at_once, tuple(_words(has)),
        require_lease_token,
    )  # fmt: skip
    server_process.check_serving(serving)
    for one in stop_signals():
        signal.signal(one, signal.default_int_handler)
    try:
        listener = server_process.listen(serving)
        if processes > 1 and line is None:
            os.environ[server_process.SOCKET] = str(listener.fileno())
            sys.exit(supervise(processes, [listener.fileno()]))
        app = _app(target, url)
        refuse_server(app.url, "serve")
        if processes > 1 and not app.engine.guarantees.shared:
            name = app.engine.guarantees.name
            raise Invalid(f"--processes {processes}: a {name} store is for one process; use sqlite:///jobs.db")
        if line is not None:
            lifeline.stop_with(line, lambda: app.settings.grace_seconds)
        with asyncio.Runner(loop_factory=server_process.loop_factory(serving)) as runner:
            runner.run(server_process.run_server(app, listener, serving, typed=target is not None))
    except KeyboardInterrupt:
        pass
    except (StoreLost, Moved) as error:
        raise LostStore(str(error)) from error
    say("stopped serving")


def _app(target: str | None, url: str | None) -> App:
    if target is None:
        return App(url)
    if url is not None:
        os.environ["HOLDFAST_URL"] = url
    app = load_app(target)
    if url is not None:
        app.use(url)
    return app


def _words(given: str | None) -> list[str]:
    return [word.strip() for word in (given or "").split(",") if word.strip()]
