"""Stores as text, for each engine: where to make one, what it holds, and a new one that holds the same.

Must not use an engine of ours: it is what was written that is kept.
"""

import asyncio
import base64
import contextlib
import json
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import redis

from tests.support import postgres_server, redis_server

SCHEMA = "holdfast_made"
"""The schema, and the app, in which a store is made."""


class Sqlite:
    """A SQLite database as the statements that make it."""

    @contextlib.contextmanager
    def place(self, folder: Path) -> Iterator[str]:
        yield f"sqlite:///{folder / 'jobs.db'}"

    def save(self, url: str, folder: Path) -> None:
        db = sqlite3.connect(url.removeprefix("sqlite:///"))
        marks = [f"pragma {name} = {db.execute(f'pragma {name}').fetchone()[0]};" for name in MARKS]
        (folder / "sqlite.sql").write_text("\n".join([*db.iterdump(), *marks]) + "\n")
        db.close()

    def load(self, folder: Path, url: str) -> None:
        db = sqlite3.connect(url.removeprefix("sqlite:///"))
        db.executescript((folder / "sqlite.sql").read_text())
        db.close()


MARKS = ("application_id", "user_version")


class File:
    """A checkpoint file as it is."""

    @contextlib.contextmanager
    def place(self, folder: Path) -> Iterator[str]:
        yield f"file:{folder / 'jobs.json'}"

    def save(self, url: str, folder: Path) -> None:
        (folder / "file.json").write_text(Path(url.removeprefix("file:")).read_text())

    def load(self, folder: Path, url: str) -> None:
        Path(url.removeprefix("file:")).write_text((folder / "file.json").read_text())


class Postgres:
    """A schema, as pg_dump tells it."""

    @contextlib.contextmanager
    def place(self, folder: Path) -> Iterator[str]:
        with postgres_server.server() as running:
            yield f"{running.url}?schema={SCHEMA}"

    def save(self, url: str, folder: Path) -> None:
        program = postgres_server.find_programs() / "pg_dump"
        options = ("--schema", SCHEMA, "--inserts", "--no-owner", "--no-privileges", "--no-comments")
        told = subprocess.run(
            [program, *options, url.partition("?")[0]], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        lines = [
            line
            for line in told.splitlines()
            if line and not line.startswith(("--", "SET ", "\\", "SELECT pg_catalog.set_config"))
        ]
        (folder / "postgres.sql").write_text("\n".join(lines) + "\n")

    def load(self, folder: Path, url: str) -> None:
        """Into the schema that the URL names."""
        name = parse_qs(urlsplit(url).query)["schema"][0]
        text = re.sub(rf'\b{SCHEMA}\.|"{SCHEMA}"\.', f"{name}.", (folder / "postgres.sql").read_text())
        text = text.replace(f"CREATE SCHEMA {SCHEMA};", f"CREATE SCHEMA {name};")

        async def run() -> None:
            db = await asyncpg.connect(url.partition("?")[0], server_settings={"check_function_bodies": "off"})
            await db.execute(text)
            await db.close()

        asyncio.run(run())


class Redis:
    """All keys of an app, each with its kind and what it holds."""

    @contextlib.contextmanager
    def place(self, folder: Path) -> Iterator[str]:
        with redis_server.server() as running:
            yield f"{running.url}?app={SCHEMA}"

    def save(self, url: str, folder: Path) -> None:
        keys: dict[str, list[object]] = {}
        with redis.Redis.from_url(url.partition("?")[0]) as db:
            for key in sorted(db.scan_iter(f"{{{SCHEMA}}}:*")):
                kind = db.type(key).decode()
                keys[_text(key).removeprefix(f"{{{SCHEMA}}}:")] = [kind, _holds(db, kind, key)]
        (folder / "redis.json").write_text(json.dumps(keys, indent=1) + "\n")

    def load(self, folder: Path, url: str) -> None:
        """Into the app that the URL names."""
        name = parse_qs(urlsplit(url).query)["app"][0]
        with redis.Redis.from_url(url.partition("?")[0]) as db:
            for key, (kind, holds) in json.loads((folder / "redis.json").read_text()).items():
                _put(db, kind, f"{{{name}}}:{key}".encode(), holds)


def _text(value: bytes) -> str:
    """A text as it is, and else its bytes."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()
    assert not text.startswith("base64:")
    return text


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.removeprefix("base64:")) if text.startswith("base64:") else text.encode()


def _holds(db: "redis.Redis[bytes]", kind: str, key: bytes) -> object:  # type: ignore[type-arg]
    match kind:
        case "string":
            return _text(db.get(key))  # type: ignore[arg-type]
        case "hash":
            return {_text(name): _text(value) for name, value in sorted(db.hgetall(key).items())}  # type: ignore[arg-type]
        case "set":
            return sorted(map(_text, db.smembers(key)))  # type: ignore[arg-type]
        case "zset":
            return [[_text(member), repr(score)] for member, score in db.zrange(key, 0, -1, withscores=True)]  # type: ignore[arg-type,str-unpack]
        case "list":
            return list(map(_text, db.lrange(key, 0, -1)))  # type: ignore[arg-type]
    raise AssertionError(kind)


def _put(db: "redis.Redis[bytes]", kind: str, key: bytes, holds: object) -> None:  # type: ignore[type-arg]
    match kind, holds:
        case "string", str():
            db.set(key, _bytes(holds))
        case "hash", dict():
            db.hset(key, mapping={_bytes(name): _bytes(value) for name, value in holds.items()})
        case "set", list():
            db.sadd(key, *map(_bytes, holds))
        case "zset", list():
            db.zadd(key, {_bytes(member): float(score) for member, score in holds})
        case "list", list():
            db.rpush(key, *map(_bytes, holds))


STORES = {"sqlite": Sqlite(), "file": File(), "postgres": Postgres(), "redis": Redis()}
