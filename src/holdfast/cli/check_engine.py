"""The doctor's checks for one kind of engine: SQLite's file, a server's settings and how full it is.

Must not read jobs. Only the command line may name concrete engines; checks for all engines are in `jobs.checkup`.
"""

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.durations import in_words
from holdfast.engines.contract import Engine, system_clock
from holdfast.engines.sqlite import SqliteEngine
from holdfast.engines.sqlite.store import connect, file_system, schema_version
from holdfast.jobs.checkup.check_store import size_words
from holdfast.jobs.checkup.finding import Finding, Level

if TYPE_CHECKING:
    from holdfast.engines.postgres import reads as postgres
    from holdfast.engines.redis import store as redis

CHECKED_BYTES = 500_000_000
"""The largest database that is checked for damage; a larger one would take too long."""

WAL_BYTES = 256 * 1024 * 1024
"""A larger log means that it hasn't been checkpointed for long: some reader holds it open."""

CROWDED = 0.8
"""Warn when a server uses more than this part of its memory or connections. A full server refuses work."""

OLD_SECONDS = 600.0
"""Warn about a transaction that is open for longer: it stops the server from removing dead rows."""

LOSS_SHOWN_MS = 24 * 3_600_000
"""How long to report that files of a store were removed while processes used them."""


def check_file_system(path: Path | None) -> list[Finding]:
    """Return which file system holds the store's file, if that is known."""
    kind = file_system(path) if path is not None else ""
    return [Finding("file system", Level.OK, kind)] if kind else []


def check_file(engine: Engine) -> list[Finding]:
    """Return what SQLite reports about its file. Other engines have no such checks."""
    if not isinstance(engine, SqliteEngine):
        return []
    path = engine.path
    size, log = path.stat().st_size, _size(path.with_name(path.name + "-wal"))
    db = connect(path, read_only=True)
    try:
        schema = Finding("schema", Level.OK, f"version {schema_version(db)}")
        return [
            schema,
            Finding("size", Level.OK, f"{size_words(size)}, log {size_words(log)}"),
            *_journal(db, log),
            _damage(db),
            *_losses(engine),
        ]
    finally:
        db.close()


def _losses(engine: SqliteEngine) -> list[Finding]:
    loss = recent_loss(engine)
    return [Finding("files", Level.WARN, loss)] if loss else []


def recent_loss(engine: Engine) -> str:
    """Return which files of the store its processes found missing within the last day, or ""."""
    loss = engine.last_loss() if isinstance(engine, SqliteEngine) else None
    since = LOSS_SHOWN_MS if loss is None else system_clock() - loss.at
    return "" if loss is None or since >= LOSS_SHOWN_MS else f"{in_words(max(0, since))} ago: {loss.text}"


async def check_server(engine: Engine) -> list[Finding]:
    """Return what a server reports about itself: what its settings can lose, and how full it is."""
    match engine.guarantees.name:  # the other engines' drivers may not be installed
        case "redis":
            from holdfast.engines.redis import RedisEngine

            assert isinstance(engine, RedisEngine)
            return _check_redis(await engine.health())
        case "postgres":
            from holdfast.engines.postgres import PostgresEngine

            assert isinstance(engine, PostgresEngine)
            return _check_postgres(await engine.health())
    return []


def _check_redis(health: "redis.Health") -> list[Finding]:
    kept = "appendonly is yes: a killed server loses nothing, a power cut what appendfsync allows (by default a second)"
    return [
        Finding("durability", Level.WARN if health.can_lose else Level.OK, health.can_lose or kept),
        _memory(health.used, health.limit),
    ]


def _check_postgres(health: "postgres.Health") -> list[Finding]:
    return [
        _durability(health.fsync, health.synchronous_commit),
        _connections(health.connections, health.limit),
        _transactions(health.oldest_seconds, sees_all=health.sees_all),
    ]


def _durability(fsync: str, commit: str) -> Finding:
    if fsync == "off":
        text = "fsync is off: a power cut can destroy the whole database; set fsync = on"
        return Finding("durability", Level.WARN, text)
    if commit == "off":
        text = "synchronous_commit is off: a crash of the server loses the last moments of work; set it to on"
        return Finding("durability", Level.WARN, text)
    return Finding("durability", Level.OK, f"fsync is on, synchronous_commit is {commit}: what was committed stays")


def _connections(taken: int, limit: int) -> Finding:
    text = f"{taken} of {limit} are taken"
    if taken > CROWDED * limit:
        return Finding("connections", Level.WARN, f"{text}: raise max_connections, or put a pooler in front")
    return Finding("connections", Level.OK, text)


def _transactions(oldest: float | None, *, sees_all: bool) -> Finding:
    if oldest is not None and oldest > OLD_SECONDS:
        text = f"one has been open for {in_words(int(oldest * 1_000))}: the server can't remove dead rows; end it"
        return Finding("transactions", Level.WARN, f"{text} (pg_stat_activity.xact_start)")
    if not sees_all:
        text = "none of ours is open for long; to see those of others, grant the role pg_read_all_stats"
        return Finding("transactions", Level.OK, text)
    return Finding("transactions", Level.OK, "none is open for long")


def _memory(used: int, limit: int) -> Finding:
    if not limit:
        return Finding("memory", Level.OK, f"{size_words(used)} used; the server has no maxmemory")
    text = f"{size_words(used)} of {size_words(limit)} used ({100 * used // limit} %)"
    if used >= limit:
        return Finding("memory", Level.FAIL, f"{text}: writes are refused; raise maxmemory, or lower the jobs' keep=")
    if used > CROWDED * limit:
        return Finding("memory", Level.WARN, f"{text}: full, it refuses writes; raise maxmemory soon")
    return Finding("memory", Level.OK, text)


def _journal(db: sqlite3.Connection, log: int) -> list[Finding]:
    mode = str(db.execute("pragma journal_mode").fetchone()[0])
    if mode != "wal":
        return [Finding("journal", Level.FAIL, f"mode {mode}, not wal: some program changed it; workers will be slow")]
    if log > WAL_BYTES:
        text = f"the log has grown to {size_words(log)}: some program keeps the database open for reading"
        return [Finding("journal", Level.WARN, text)]
    return [Finding("journal", Level.OK, "mode wal")]


def _damage(db: sqlite3.Connection) -> Finding:
    pages, page = (int(db.execute(f"pragma {name}").fetchone()[0]) for name in ("page_count", "page_size"))
    if pages * page > CHECKED_BYTES:
        return Finding("integrity", Level.OK, f"not checked, larger than {size_words(CHECKED_BYTES)}")
    try:
        answer = str(db.execute("pragma quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        answer = str(error)
    if answer != "ok":
        return Finding("integrity", Level.FAIL, f"damaged ({answer}): stop the workers and restore a backup")
    return Finding("integrity", Level.OK, "no damage found")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
