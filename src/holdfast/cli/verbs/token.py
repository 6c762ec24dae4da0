"""`holdfast token`: make, list and revoke the tokens of the HTTP API. Must not check a request."""

import click

from holdfast.cli.errors import VerbGroup, echo
from holdfast.cli.open_store import refuse_server, run_in_store
from holdfast.cli.options import json_option, url_option
from holdfast.cli.person import whoami
from holdfast.cli.render.screen import console, last_cell, plain_table, say_json
from holdfast.core.durations import milliseconds
from holdfast.jobs.service import Jobs
from holdfast.jobs.tokens import SCOPES, create_token, list_tokens, revoke_token
from holdfast.jobs.views.shapes import token_shape
from holdfast.jobs.views.text import ago, one_line, utc_clock


@click.group(
    cls=VerbGroup,
    epilog="""\b
Examples:
  holdfast token create ci --scope submit,read --expires 30d
  holdfast token list
  holdfast token revoke ci
""",
)
def token() -> None:
    """Make, list and revoke the tokens of the HTTP API."""


@token.command(
    epilog="""\b
Examples:
  holdfast token create ci --scope submit,read
  holdfast token create gpu-7 --scope work --expires 30d
  TOKEN=$(holdfast token create me --scope submit,read,act,review)

\b
Scopes:
"""
    + "\n".join(f"  {scope:<7} {what}" for scope, what in SCOPES.items())
    + """

\b
Prints only the token on stdout. It is shown once; the store keeps its hash. Send it as
Authorization: Bearer TOKEN.
"""
)
@click.argument("name")
@click.option("--scope", "scopes", required=True, metavar="SCOPE,…", help=f"What it may do: {', '.join(SCOPES)}.")
@click.option("--expires", metavar="TIME", help="When it expires: 12h, 30d. Default: never.")
@url_option
def create(name: str, scopes: str, expires: str | None, url: str | None) -> None:
    """Make a token and print it."""
    refuse_server(url, "token create")
    wanted = [one.strip() for one in scopes.split(",") if one.strip()]
    expires_ms = None if expires is None else milliseconds(expires)

    async def work(jobs: Jobs) -> None:
        text, made = await create_token(jobs.engine, name, wanted, by=whoami(), expires_ms=expires_ms)
        click.echo(text)
        until = f" until {utc_clock(made.expires_at)}" if made.expires_at is not None else ""
        echo(f"token {name} may {', '.join(made.scopes)}{until}; it isn't shown again", err=True)

    run_in_store(url, work, write=True, create=True)


@token.command(
    name="list",
    epilog="""\b
Examples:
  holdfast token list
  holdfast token list --json
""",
)
@json_option
@url_option
def list_all(as_json: bool, url: str | None) -> None:
    """List all tokens, without their secrets."""
    refuse_server(url, "token list")

    async def work(jobs: Jobs) -> None:
        found, now = await list_tokens(jobs.engine), await jobs.engine.now()
        if as_json:
            say_json({"tokens": [token_shape(one, now) for one in found]})
            return
        if not found:
            console().print("no tokens: a server on this machine is open to every program here")
            return
        table = plain_table("NAME", "ID", "STATE", "SCOPES", "EXPIRES", "LAST USED", "MADE")
        for one in found:
            expires = "never" if one.expires_at is None else utc_clock(one.expires_at)
            used = "never" if one.used_at is None else ago(one.used_at, now)
            made = f"{ago(one.made_at, now)} by {one_line(one.made_by)}"
            scopes = ",".join(one.scopes)
            table.add_row(one_line(one.name), one.id, one.state(now), scopes, expires, used, last_cell(made))
        console().print(table)

    run_in_store(url, work)


@token.command(
    epilog="""\b
Examples:
  holdfast token revoke ci

\b
From the next request on, every server refuses the token. Its open streams end.
"""
)
@click.argument("name", metavar="NAME|ID")
@url_option
def revoke(name: str, url: str | None) -> None:
    """Revoke a token, by its name or id."""
    refuse_server(url, "token revoke")

    async def work(jobs: Jobs) -> None:
        revoked = await revoke_token(jobs.engine, name, by=whoami())
        console().print(f"revoked {revoked.name}")

    run_in_store(url, work, write=True)
