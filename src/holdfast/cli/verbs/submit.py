"""`holdfast submit`: submit a job of an App. Must not decide what a submit does (`app.job`)."""

import asyncio
import os
import shlex
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from holdfast.app.app import App
from holdfast.app.job import DecoratedJob
from holdfast.app.run import Run
from holdfast.app.settings import store_url
from holdfast.cli.errors import OneLine, echo
from holdfast.cli.json_options import parse_call, read_text
from holdfast.cli.load_app import load_app, spec_in
from holdfast.cli.options import inherited_url, json_option
from holdfast.cli.render.screen import say_json
from holdfast.cli.worker_process import unknown_queues
from holdfast.core.durations import milliseconds
from holdfast.core.errors import Invalid, JobCancelled, JobFailed
from holdfast.core.keys import check_queue
from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import Job, Time
from holdfast.engines import engine_for
from holdfast.engines.urls import masked
from holdfast.jobs.large_values import result_of
from holdfast.jobs.requests import PRIORITY_LIMIT
from holdfast.jobs.views.shapes import job_shape
from holdfast.jobs.views.text import one_line, short_id
from holdfast.safe_text import escaped

T = TypeVar("T")

SAMPLE_TIME = "2026-03-01T09:00+01:00"


@click.command(
    epilog="""\b
Examples:
  holdfast submit video:app make_video --args '["The Lighthouse", 30]'
  holdfast submit video:app make_video --args '{"title": "The Lighthouse"}' --key order-42
  holdfast submit video:app make_video --args @brief.json --wait --timeout 1h
  holdfast submit video:app report --at 2026-03-01T09:00+01:00 --tag nightly --meta customer=42

\b
JOB is the job's type: the function's name, unless @app.job(name=...) gives another.
--args is a JSON list of positional arguments or a JSON object of named ones. The job's type
hints check them before anything is stored. @FILE reads a file, - reads standard input.
Durations look like 90s, 10m, 2h or 7d.
The same --key always gives the same job, so you can repeat the command safely.
--wait prints the job's result as JSON. If the job fails, the exit code is 1.
--json prints the job as holdfast show --json does, under "job".
"""
)
@click.argument("target", metavar="MODULE:APP")
@click.argument("type", metavar="JOB")
@click.option("--args", "text", metavar="JSON", default="[]", help="The job's arguments: a list or an object.")
@click.option("--key", help="Idempotency key: submit the job once for this key.")
@click.option("--key-for", metavar="DURATION", help="How long the key is remembered. Default: as long as the job.")
@click.option("--queue", help="The queue, instead of the job's own.")
@click.option("--priority", type=click.IntRange(-PRIORITY_LIMIT, PRIORITY_LIMIT), default=0, help="Higher runs first.")
@click.option("--delay", metavar="DURATION", help="Run the job after this time.")
@click.option("--at", metavar="TIME", help="Run the job at this time, with its zone: 2026-03-01T09:00+01:00.")
@click.option(
    "--expires", metavar="WHEN", help="Discard the job unless it is running or has ended by then: a duration or a time."
)
@click.option("--tag", "tags", multiple=True, help="A tag; may be repeated.")
@click.option("--meta", multiple=True, metavar="K=V", help="A named text; may be repeated.")
@click.option("--wait", is_flag=True, help="Wait for the result.")
@click.option("--timeout", metavar="DURATION", help="How long to wait. The job itself is not stopped.")
@json_option
@click.option("--url", metavar="URL", help="The store, instead of the App's own.", callback=inherited_url)
def submit(target: str, type: str, text: str, wait: bool, timeout: str | None, url: str | None, **given: Any) -> None:
    """Submit the job JOB of MODULE:APP."""
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is for --wait: give both")
    patience = None if timeout is None else _duration("--timeout", timeout)
    as_json, options = given.pop("as_json"), _options(given)
    args, kwargs = parse_call("--args", read_text("--args", text))
    usual = store_url(None)
    app = _load(target, url)
    spec = spec_in(app, target, type)
    call = spec.signature.read_call(args, kwargs)
    job = DecoratedJob[Any, Any](app.open, spec)

    async def work() -> tuple[Job, Exception | None, str]:
        jobs = await app.open()
        try:
            for line in [] if options["queue"] is None else await unknown_queues(app, [options["queue"]]):
                echo(line, err=True)
            before, failure = await jobs.engine.now(), None
            run = await job.submit(*call[0], **call[1], **options)
            if not as_json:
                _say_submitted(await jobs.get(run.id), before, wait, "" if app.url == usual else app.url)
            if wait:
                failure = await _wait(run, patience)
            found = await jobs.get(run.id)
            return found, failure, await result_of(jobs.engine, found) if wait and failure is None else "null"
        finally:
            await app.close()

    found, failure, text = asyncio.run(work())
    if as_json:
        say_json({"job": job_shape(found)})
    if failure is not None:
        raise OneLine(str(failure)) from failure
    if wait and not as_json:
        click.echo(escaped(text))


async def _wait(run: Run[Any], timeout: str | None) -> Exception | None:
    """Wait until the job has ended. Return the error if there is no result."""
    try:
        await run.result(timeout=timeout)
    except (JobFailed, JobCancelled, TimeoutError) as error:
        return error
    return None


def _say_submitted(job: Job, before: Time, wait: bool, url: str) -> None:
    """Print the id and what to do next. With --wait, print to stderr, separate from the result.

    `url` is empty if the next command finds the store without --url.
    """
    verb = "submitted" if job.created_at >= before else "already submitted:"
    key = "" if job.key is None else f" with key {one_line(job.key, 60)}"
    echo(f"{verb} {job.type} {job.id}{key}", err=wait)
    watch = " --watch" if job.state not in SETTLED else ""
    store = f" --url {shlex.quote(masked(url))}" if url else ""
    echo(f"next: holdfast status {short_id(job.id)}{watch}{store}", err=wait)


def _load(target: str, url: str | None) -> App:
    """Load the App, with its own store or the one that the call names."""
    if url is not None:
        engine_for(url)  # so that a wrong URL isn't reported as an App that can't be imported
        os.environ["HOLDFAST_URL"] = url
    app = load_app(target)
    if url is not None:
        app.use(url)
    if app.engine.guarantees.durable == "nothing":
        raise Invalid(f"{app.place()}: a store in memory is lost when this command ends; name another with --url")
    return app


# Options.


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `submit`, checked, so that an error names the option as it was typed."""
    if given["delay"] is not None and given["at"] is not None:
        raise click.UsageError("give --delay or --at, not both")
    return {
        "key": given["key"],
        "key_for": _parsed(_duration, "--key-for", given["key_for"]),
        "queue": None if given["queue"] is None else check_queue(given["queue"]),
        "priority": given["priority"],
        "delay": _parsed(_duration, "--delay", given["delay"]),
        "at": _parsed(_time, "--at", given["at"]),
        "expires": _parsed(_duration_or_time, "--expires", given["expires"]),
        "tags": given["tags"],
        "meta": dict(_pair(text) for text in given["meta"]),
    }


def _parsed(parse: Callable[[str, str], T], option: str, text: str | None) -> T | None:
    return None if text is None else parse(option, text)


def _duration(option: str, text: str) -> str:
    try:
        milliseconds(text)
    except Invalid:
        raise Invalid(f"{option} {text!r}: not a duration; write it like 90s, 10m, 2h or 7d") from None
    return text


def _time(option: str, text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{option} {text!r}: not a time; write it like {SAMPLE_TIME}") from None
    if at.tzinfo is None:
        raise Invalid(f"{option} {text!r}: add the time zone, as in {SAMPLE_TIME} or with Z for UTC")
    return at


def _duration_or_time(option: str, text: str) -> str | datetime:
    return _time(option, text) if "-" in text else _duration(option, text)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Invalid(f"--meta {text!r}: write it like customer=42")
    return name, value
