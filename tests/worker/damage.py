"""Stores with a damaged row, and verbs that look at them: damaged as a hand, a foreign program or a bad disk would."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec
from click.testing import CliRunner, Result

from holdfast import App
from holdfast.cli import main
from holdfast.engines.postgres.url import parse_url
from tests.support.given import QUICK

GARBAGE = '[{"damaged'
"""What a part of a row is replaced by. It is not JSON."""

WRONG = '{"retry":{"retries":"many"}}'
"""JSON, and not what belongs there."""


@asynccontextmanager
async def an_app(url: str) -> AsyncIterator[App]:
    app = App(url, settings=QUICK)
    try:
        yield app
    finally:
        await app.close()


def double(app: App) -> Any:
    @app.job(name="double")
    async def double(n: int) -> int:
        return 2 * n

    return double


COLUMNS = {"options": "body", "args": "body", "inbox": "job", "waits": "job", "error": "job", "result": "job"}
FIELDS = {"options": "b", "args": "b", "inbox": "i2", "error": "x", "result": "r"}


async def damage(app: App, id: str, part: str, text: str = GARBAGE) -> None:
    """Replace a part of a job's row by a text."""
    await app.open()
    if app.url.startswith("sqlite"):
        table = COLUMNS[part]
        await asyncio.to_thread(
            run_sqlite, app.url, f"update {table} set {part} = ? where n = (select n from job where id = ?)", text, id
        )
    elif app.url.startswith("postgres"):
        for table in ("job", "done"):
            await run_postgres(app.url, f"update {{schema}}.{table} set {part} = $1 where id = $2", text, id)
    else:
        await _damage_in_redis(app, id, part, text)


async def damage_record(app: App, id: str, path: str, text: str = GARBAGE) -> None:
    """Replace what a step's record says."""
    if app.url.startswith("sqlite"):
        which = "update step set result = ? where job = (select n from job where id = ?) and path = ?"
        await asyncio.to_thread(run_sqlite, app.url, which, text, id, path)
    elif app.url.startswith("postgres"):
        which = (
            "update {schema}.step set result = $1 where path = $3 and n = (select n from {schema}.name where id = $2)"
        )
        await run_postgres(app.url, which, text, id, path)
    else:
        key = app.engine._key(f"s:{id}")  # type: ignore[attr-defined]
        old = await in_redis(app, "HGET", key, path)
        await in_redis(app, "HSET", key, path, old[:13] + text.encode())


async def damage_note(app: App, id: str, version: int, text: str = GARBAGE) -> None:
    """Replace the note of a history entry; on Redis the entry."""
    if app.url.startswith("sqlite"):
        which = "update entry set note = ? where job = (select n from job where id = ?) and version = ?"
        await asyncio.to_thread(run_sqlite, app.url, which, text, id, version)
    elif app.url.startswith("postgres"):
        which = (
            "update {schema}.entry set note = $1 where n = (select n from {schema}.name where id = $2) and version = $3"
        )
        await run_postgres(app.url, which, text, id, version)
    else:
        await in_redis(app, "HSET", app.engine._key(f"j:{id}"), f"e{version}", text)  # type: ignore[attr-defined]


def run_sqlite(url: str, statement: str, *params: Any) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10) as db:
        assert db.execute(statement, params).rowcount == 1
    db.close()


async def run_postgres(url: str, statement: str, *params: Any) -> None:
    place = parse_url(url)
    db = await asyncpg.connect(place.dsn)
    try:
        await db.execute(statement.format(schema=place.schema), *params)
    finally:
        await db.close()


async def in_redis(app: App, *words: Any) -> Any:
    engine = app.engine
    return await engine._call(lambda: engine._looks.call(*words))  # type: ignore[attr-defined]


async def _damage_in_redis(app: App, id: str, part: str, text: str) -> None:
    key = app.engine._key(f"j:{id}")  # type: ignore[attr-defined]
    head = msgspec.msgpack.decode(await in_redis(app, "HGET", key, "h"))
    if part == "waits":
        head[17] = text
    elif part == "inbox":
        head[20] = [2]
    elif part in ("error", "result"):
        head[22] |= 2 if part == "error" else 1
    await in_redis(app, "HSET", key, "h", msgspec.msgpack.encode(head))
    if part == "args":
        body = json.loads(await in_redis(app, "HGET", key, "b"))
        text = json.dumps([text, *body[1:]])
    if part != "waits":
        await in_redis(app, "HSET", key, FIELDS[part], text)


def called(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--url", url], prog_name="holdfast", catch_exceptions=False)


async def in_thread(url: str, *words: str) -> Result:
    return await asyncio.to_thread(called, url, *words)
