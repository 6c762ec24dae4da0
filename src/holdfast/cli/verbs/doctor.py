"""`holdfast doctor`: is this store healthy, and what would break. Must not mend anything, and must not make a store."""

import asyncio

import click
from rich.table import Table
from rich.text import Text

from holdfast.cli.ailments import Finding, Level, look_at_app, look_at_jobs
from holdfast.cli.load_app import load_app
from holdfast.cli.open_store import engine_at, json_option, place_of_store, url_option, within
from holdfast.cli.premises import look_at_file, look_at_place, look_at_server
from holdfast.cli.words import console, counted, say_json
from holdfast.core.errors import StoreError
from holdfast.jobs.service import Jobs

STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


@click.command(
    epilog="""\b
Examples:
  holdfast doctor
  holdfast doctor video:app
  holdfast doctor --url sqlite:////srv/jobs.db --json

\b
With MODULE:APP its own store is looked at, unless --url names another, and whether the App
knows the jobs that wait there. Exit code 1 when something fails; a warning is none.
"""
)
@click.argument("target", metavar="[MODULE:APP]", required=False)
@json_option
@url_option
def doctor(target: str | None, as_json: bool, url: str | None) -> None:
    """Tell whether a store is healthy, and what would break."""
    app = None if target is None else load_app(target)
    engine = engine_at(url or (None if app is None else app.url))
    place = place_of_store(engine, url or (None if app is None else app.url))

    async def work(jobs: Jobs) -> list[Finding]:
        about_jobs = [*await look_at_jobs(jobs), *(await look_at_app(jobs, app) if app is not None else ())]
        return [*await look_at_server(jobs.engine), *about_jobs]

    try:
        told = asyncio.run(within(engine, place, work))
        inside = [*look_at_file(engine), *told]
    except StoreError as error:
        inside = [Finding("open", Level.FAIL, str(error))]
    findings = [*look_at_place(engine, place), *inside]
    _tell(findings, place, as_json)
    if any(finding.level is Level.FAIL for finding in findings):
        raise SystemExit(1)


def _tell(findings: list[Finding], place: str, as_json: bool) -> None:
    bad = [finding for finding in findings if finding.level is not Level.OK]
    fails = sum(finding.level is Level.FAIL for finding in bad)
    if as_json:
        checks = [{"name": one.name, "level": one.level.value, "text": one.text} for one in findings]
        say_json({"store": place, "healthy": fails == 0, "checks": checks})
        return
    out = console()
    for one in findings:
        level, text = Text(f"{one.level.value:5}", STYLES[one.level]), Text() + Text(f"{one.name}: ", "dim")
        text.append(one.text)
        # In a terminal long lines are wrapped beside the level; elsewhere they are whole, to be searched.
        if out.is_terminal:
            row = Table.grid()
            row.add_row(level, text)
            out.print(row)
        else:
            out.print(Text() + level + text, soft_wrap=True)
    out.print()
    warnings = len(bad) - fails
    verdict = "healthy" if not fails else f"{counted(fails, 'failure')}"
    out.print(Text(verdict + (f", {counted(warnings, 'warning')}" if warnings else ""), style="bold"))
