"""`holdfast doctor`: check whether a store is healthy. Must not repair anything, and must not create a store."""

import asyncio

import click
from rich.table import Table
from rich.text import Text

from holdfast.cli.check_engine import check_file, check_file_system, check_server
from holdfast.cli.load_app import load_app
from holdfast.cli.open_store import engine_at, path_of_engine, place_of_store, refuse_server, use_store
from holdfast.cli.options import json_option, url_option
from holdfast.cli.render.screen import console, say_json
from holdfast.core.errors import StoreError
from holdfast.jobs.checkup.check_blobs import check_blobs
from holdfast.jobs.checkup.check_code import check_app
from holdfast.jobs.checkup.check_jobs import check_jobs
from holdfast.jobs.checkup.check_queues import Code
from holdfast.jobs.checkup.check_store import check_store
from holdfast.jobs.checkup.check_values import check_values
from holdfast.jobs.checkup.finding import Finding, Level
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.text import plural
from holdfast.worker.attachments import ATTACH
from holdfast.worker.drift import call_misfit
from holdfast.worker.registry import STEPS, result_misfit

STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


@click.command(
    epilog="""\b
Examples:
  holdfast doctor
  holdfast doctor video:app
  holdfast doctor --url sqlite:////srv/jobs.db --json

\b
With MODULE:APP, checks the App's own store (unless --url names another), and whether the App
fits the jobs that aren't finished there: their types, their recorded steps, their arguments, and
the recorded results. Run it with the new code before a deploy. The exit code is 1 if a check
fails, or if a run that has begun would break; warnings don't count. --json has every
reason with the ids of its jobs.
"""
)
@click.argument("target", metavar="[MODULE:APP]", required=False)
@json_option
@url_option
def doctor(target: str | None, as_json: bool, url: str | None) -> None:
    """Check whether a store is healthy, and say what to fix."""
    app = None if target is None else load_app(target)
    refuse_server(url or (None if app is None else app.url), "doctor")
    engine = engine_at(url or (None if app is None else app.url))
    place = place_of_store(engine, url or (None if app is None else app.url))

    async def work(jobs: Jobs) -> list[Finding]:
        code = None
        if app is not None and target is not None:
            specs = [app.registry.get(type) for type in app.registry.types()]
            code = Code(target, frozenset(spec.queue for spec in specs if spec is not None))
        findings = [*await check_server(jobs.engine), *await check_jobs(jobs, code), *await check_blobs(jobs)]
        if app is None or code is None:
            return findings
        types = app.registry.types()
        findings += await check_app(jobs, types, {*STEPS, ATTACH}, code.queues)
        return [*findings, *await check_values(jobs, types, app.registry.args_misfit, result_misfit, call_misfit)]

    try:
        found = asyncio.run(use_store(engine, place, work))
        inside = [*check_file(engine), *found]
    except StoreError as error:
        inside = [Finding("open", Level.FAIL, str(error))]
    path = path_of_engine(engine)
    findings = [*check_store(engine, place, path), *check_file_system(path), *inside]
    _print(findings, place, as_json)
    if any(finding.level is Level.FAIL for finding in findings):
        raise SystemExit(1)


def _print(findings: list[Finding], place: str, as_json: bool) -> None:
    bad = [finding for finding in findings if finding.level is not Level.OK]
    fails = sum(finding.level is Level.FAIL for finding in bad)
    if as_json:
        say_json({"store": place, "healthy": fails == 0, "checks": [one.shape() for one in findings]})
        return
    out = console()
    for one in findings:
        level, text = Text(f"{one.level.value:5}", STYLES[one.level]), Text() + Text(f"{one.name}: ", "dim")
        text.append(one.text)
        # On a terminal, long lines wrap next to the level. Elsewhere they stay whole, so that you can search them.
        if out.is_terminal:
            row = Table.grid()
            row.add_row(level, text)
            out.print(row)
        else:
            out.print(Text() + level + text, soft_wrap=True)
    out.print()
    warnings = len(bad) - fails
    verdict = "healthy" if not fails else f"{plural(fails, 'failure')}"
    out.print(Text(verdict + (f", {plural(warnings, 'warning')}" if warnings else ""), style="bold"))
