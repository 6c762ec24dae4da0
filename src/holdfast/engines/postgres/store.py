"""Connects to a database, checks and migrates the schema, and translates database errors.

Must not read or write jobs. If it refuses a schema, it has written nothing to it.
"""

import asyncio
import random
import socket
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import asyncpg

from holdfast.core.errors import (
    HoldfastError,
    Invalid,
    Moved,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreUnwritable,
)
from holdfast.core.moves import mark_of
from holdfast.engines.postgres.url import StoreUrl
from holdfast.engines.server import CHECK, TIMED_OUT, UNKNOWN
from holdfast.engines.sql import migrations, queries
from holdfast.safe_text import logger

log = logger("holdfast.postgres")

Connection = asyncpg.Connection

CONNECT_SECONDS = 10.0
STATEMENT_SECONDS = 60.0
"""A slower statement is cancelled and its connection closed, because the network may have lost the answer."""

MIGRATION_TRIES = 60
"""How often to retry a migration that didn't get its locks in time; takes about two minutes in all."""

MIGRATION_PAUSE_SECONDS = 2.0
"""The average pause between these retries. The first pauses are shorter."""

ANOTHERS_SECONDS = 0.2
"""How often to check whether another process has finished its migration."""

OLDEST_SERVER = 130_000

# Settings of every session of ours; they override the database's and the role's. A pooler allows none of them.
SETTINGS = {
    "application_name": "holdfast",
    "search_path": "pg_catalog",
    "default_transaction_isolation": "read committed",
    "client_encoding": "UTF8",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",  # each of our statements has one good plan, and planning them is slow
    "enable_seqscan": "off",  # the plan may have been made when the table had three rows
    "max_parallel_workers_per_gather": "0",  # leave them to the other users of the server
    "lock_timeout": "15s",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "30s",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}

# The bodies of transactional steps keep the role's and the database's settings, as on the user's own connections.
_FOR_OUR_STATEMENTS = (
    "search_path",
    "default_transaction_isolation",
    "jit",
    "plan_cache_mode",
    "enable_seqscan",
    "max_parallel_workers_per_gather",
)
BODY_SETTINGS = {name: value for name, value in SETTINGS.items() if name not in _FOR_OUR_STATEMENTS}

_PACKAGE = "holdfast.engines.postgres"
_PLACEHOLDER = "{schema}"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")


class Texts:
    """The statements and migrations of one store. The only place that puts a name into a statement.

    A schema's name can't be a parameter: `url` allows only a-z, 0-9 and _, and this class quotes the name.
    """

    def __init__(self, schema: str) -> None:
        assert set(schema) <= _PLAIN, "parse_url has already checked the schema's name"
        self._schema = f'"{schema}"'
        self.sql = SimpleNamespace(**{name: self._put(text) for name, text in vars(queries(_PACKAGE)).items()})

    def _put(self, text: str) -> str:
        return text.replace(_PLACEHOLDER, self._schema)

    def migrations(self) -> list[tuple[int, str]]:
        """The migrations for this schema, in order."""
        return [(number, self._put(text)) for number, text in migrations(_PACKAGE)]

    @property
    def create_schema(self) -> str:
        """The statement that creates the schema."""
        return self._put(_CREATE)

    @property
    def drop_schema(self) -> str:
        """The statement that drops the schema with everything in it."""
        return self._put(_DROP)

    @property
    def shift(self) -> tuple[str, str]:
        """The statements that a test uses to shift its schema's clock, by an offset that is stored there."""
        return self._put(_SHIFTED), self._put(_SHIFT)

    @property
    def version(self) -> str:
        """The statement that reads the schema's version and the oldest version that may still use it."""
        return self._put(_VERSION)

    @property
    def advance(self) -> str:
        """The statement that records a finished migration."""
        return self._put(_ADVANCE)


_CREATE = "create schema if not exists {schema}"
_DROP = "drop schema if exists {schema} cascade"
_SHIFTED = """
do $do$ begin
  if to_regclass('{schema}.shift') is null then
    create table {schema}.shift as select 0::bigint as ms;
    create or replace function {schema}.now_ms() returns bigint language sql volatile as $$
      select floor(extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint + ms from {schema}.shift
    $$;
  end if;
end $do$
"""
_SHIFT = "update {schema}.shift set ms = ms + $1"
_VERSION = "select version, oldest from {schema}.store"
_ADVANCE = "update {schema}.store set version = $1"
_IS_THERE = "select pg_catalog.to_regclass(pg_catalog.quote_ident($1) || '.store') is not null"
_STRANGERS = """
select pg_catalog.count(*) from pg_catalog.pg_class
where relnamespace operator(pg_catalog.=) pg_catalog.to_regnamespace(pg_catalog.quote_ident($1))
"""
_HAS_SCHEMA = "select pg_catalog.to_regnamespace(pg_catalog.quote_ident($1)) is not null"
_ONE_AT_A_TIME = """
select pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('holdfast migration ' || $1, 0))
"""
# A migration may take long, but must not wait long for a lock: everybody else would queue up behind it.
_UNHURRIED = """
set local search_path = pg_catalog;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = '60s';
set local lock_timeout = '200ms';
"""
_ENCODING = "select pg_catalog.current_setting('server_encoding')"


async def connect(url: StoreUrl, settings: Mapping[str, str] = SETTINGS, *, hurried: bool = True) -> Connection:
    """Open a connection with our settings. If it isn't `hurried`, statements have no timeout."""
    try:
        return await asyncpg.connect(
            url.dsn,
            timeout=CONNECT_SECONDS,
            command_timeout=STATEMENT_SECONDS if hurried else None,
            statement_cache_size=0 if url.pooled else 256,
            max_cached_statement_lifetime=0,
            server_settings=None if url.pooled else dict(settings),
        )
    except TimeoutError as error:
        raise StoreError(f"{url.shown}: can't be reached (no answer in {CONNECT_SECONDS:g} s): {CHECK}") from error
    except Exception as error:
        if isinstance(error, ValueError) and not isinstance(error, asyncpg.InterfaceError | OSError | UnicodeError):
            raise Invalid(
                f"{url.shown}: the URL has an invalid option; check the port and the options after '?'"
            ) from None
        raise translate_error(error, url) from error


async def prepare(url: StoreUrl, texts: Texts) -> None:
    """Create the schema, or check that it is ours and migrate it to the newest version. Never downgrades."""
    db = await connect(url)
    try:
        await _refuse_server(db, url)
        if await _version(db, url, texts) < texts.migrations()[-1][0]:
            await close(db)
            db = await connect(url, hurried=False)
            _watch(db)
            await _migrate(db, url, texts)
    except Exception as error:
        raise translate_error(error, url) from error
    finally:
        await close(db)


def _watch(db: Connection) -> None:
    """Turn on TCP keepalive: without a timeout, only that notices a server that is gone."""
    wire = socket_of(db)
    if wire is None or wire.family not in (socket.AF_INET, socket.AF_INET6):
        return
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)


async def is_there(url: StoreUrl, texts: Texts) -> bool:
    """Whether the schema holds a store. An empty schema doesn't."""
    db = await connect(url)
    try:
        return await _version(db, url, texts) > 0
    except Exception as error:
        raise translate_error(error, url) from error
    finally:
        await close(db)


async def drop(url: StoreUrl, texts: Texts) -> None:
    """Drop a schema with everything in it."""
    db = await connect(url)
    try:
        await db.execute(texts.drop_schema)
    except Exception as error:
        raise translate_error(error, url) from error
    finally:
        await close(db)


async def shift(db: Connection, texts: Texts, milliseconds: int) -> None:
    """Shift the clock of a test's schema."""
    make, move = texts.shift
    await db.execute(make)
    await db.execute(move, milliseconds)


async def close(db: Connection) -> None:
    """Close the connection; drop it if the server doesn't answer."""
    try:
        await db.close(timeout=2.0)
    except (Exception, asyncio.CancelledError):
        db.terminate()


async def _refuse_server(db: Connection, url: StoreUrl) -> None:
    version = db.get_server_version()
    if version.major * 10_000 < OLDEST_SERVER:
        raise Invalid(f"{url.shown}: PostgreSQL {version.major} is too old; use version 13 or newer")
    encoding = await db.fetchval(_ENCODING)
    if encoding != "UTF8":
        raise StoreForeign(f"{url.shown}: the database's encoding is {encoding}; create a database with encoding UTF8")


async def _version(db: Connection, url: StoreUrl, texts: Texts) -> int:
    """The schema's version: the number of its last migration, 0 if the schema is missing or empty."""
    if not await db.fetchval(_IS_THERE, url.schema):
        if not await db.fetchval(_STRANGERS, url.schema):
            return 0
        if not await db.fetchval(_IS_THERE, url.schema):  # otherwise another process has just created it
            raise StoreForeign(
                f"{url.shown}: this schema holds tables of another program; nothing was written; "
                "choose another schema with ?schema="
            )
    try:
        row = await db.fetchrow(texts.version)
    except asyncpg.UndefinedColumnError:
        row = None
    if row is None:
        raise StoreForeign(f"{url.shown}: its table 'store' isn't Holdfast's; choose another schema with ?schema=")
    newest = texts.migrations()[-1][0]
    if row["oldest"] > newest:
        raise StoreForeign(
            f"{url.shown}: the schema has version {row['version']}, but this Holdfast knows only up to {newest}; "
            "nothing was written; upgrade Holdfast"
        )
    return int(row["version"])


async def _migrate(db: Connection, url: StoreUrl, texts: Texts) -> None:
    """Run the missing migrations, each in its own transaction. Other processes that start now wait.

    A migration only adds things, so programs of the version before keep working. If it breaks them, it sets
    `store.oldest` to its own number in its SQL: older programs then refuse the store.
    """
    every = texts.migrations()
    tries, waiting = 0, False
    while (version := await _version(db, url, texts)) < every[-1][0]:
        number, text = next(each for each in every if each[0] > version)
        try:
            async with db.transaction():
                await db.execute(_UNHURRIED)
                if ours := await db.fetchval(_ONE_AT_A_TIME, url.schema):
                    if await _version(db, url, texts) != version:
                        continue
                    if not await db.fetchval(_HAS_SCHEMA, url.schema):
                        await db.execute(texts.create_schema)
                    await db.execute(text)
                    await db.execute(texts.advance, number)
        except (asyncpg.LockNotAvailableError, *_AGAIN) as error:
            tries += 1
            if tries >= MIGRATION_TRIES:
                raise StoreBusy(
                    f"{url.shown}: migration {number} couldn't get its locks in {tries} tries; the schema is still "
                    f"at version {version}; end long-running transactions on this database, then start again"
                ) from error
            await asyncio.sleep(min(0.1 * tries, MIGRATION_PAUSE_SECONDS) * (0.5 + random.random()))  # noqa: S311 (a pause)
        except _NOT_ITS_FAULT:
            raise
        except asyncpg.PostgresError as error:
            raise StoreError(
                f"{url.shown}: migration {number} failed ({str(error).partition(chr(10))[0]}); "
                f"nothing of it was written; the schema is still at version {version}"
            ) from error
        else:
            if ours:
                tries = 0
                log.info("%s: migrated to version %s", url.shown, number)
                continue
            if not waiting:
                waiting = True
                log.info("%s: waiting for another process to finish its migration", url.shown)
            await asyncio.sleep(ANOTHERS_SECONDS)


# Errors.

GUARDED = "HF003"
"""The SQLSTATE that a store's guard raises while the store is being moved (`add_guard`)."""

_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


def is_passing(error: BaseException) -> bool:
    """Whether the database rolled everything back because of a concurrent transaction: try again."""
    return isinstance(error, _AGAIN)


def is_broken(error: BaseException) -> bool:
    """Whether the connection is unusable after this error."""
    return not isinstance(error, asyncpg.PostgresError | HoldfastError) or isinstance(error, _GONE)


_GONE: tuple[type[BaseException], ...] = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
# Errors that a correct migration can run into.
_NOT_ITS_FAULT: tuple[type[BaseException], ...] = (
    *_GONE,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.DiskFullError,
    asyncpg.OutOfMemoryError,
    asyncpg.QueryCanceledError,
)


def translate_error(error: BaseException, url: StoreUrl) -> BaseException:
    """Turn an error of the database or the network into one that a person understands."""
    where = url.shown
    reason = str(error) if isinstance(error, asyncpg.PostgresError) else f"{type(error).__name__}: {error}".strip(": ")
    reason = reason.partition("\n")[0]  # details and hints follow on separate lines
    match error:
        case HoldfastError() | asyncio.CancelledError():
            return error
        case _ if (mark := mark_told(error)) is not None:
            return Moved(mark_of(mark).words())
        case asyncpg.InvalidCatalogNameError():
            return StoreError(f"{where}: {reason}; create the database first")
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return StoreUnwritable(f"{where}: {reason}; check the user, the password and pg_hba.conf")
        case asyncpg.InsufficientPrivilegeError() | asyncpg.ReadOnlySQLTransactionError():
            return StoreUnwritable(
                f"{where}: {reason}; this user may not write there; see 'Grant rights to roles' in the Postgres guide"
            )
        case asyncpg.TooManyConnectionsError():
            return StoreBusy(f"{where}: {reason}; raise the server's max_connections or lower ?connections=")
        case asyncpg.DiskFullError() | asyncpg.OutOfMemoryError():
            return StoreFull(f"{where}: {reason}; nothing was written; free some space and try again")
        case asyncpg.LockNotAvailableError() | asyncpg.SerializationError() | asyncpg.DeadlockDetectedError():
            return StoreBusy(f"{where}: {reason}; nothing was written; try again")
        case asyncpg.InvalidCachedStatementError() | asyncpg.OutdatedSchemaCacheError():
            return StoreBusy(f"{where}: a table was altered at the same time; nothing was written; try again")
        case asyncpg.QueryCanceledError() | TimeoutError():
            return StoreBusy(f"{where}: {TIMED_OUT}")
        case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            return StoreDamaged(f"{where}: {reason}; the database is corrupted; restore a backup")
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError() | asyncpg.InvalidSchemaNameError():
            return StoreDamaged(f"{where}: {reason}; the schema was dropped, or another program changed it")
        case FileNotFoundError(filename=None):
            return StoreError(f"{where}: a file named in the URL doesn't exist; check sslrootcert, sslcert and sslkey")
        case asyncpg.ProtocolViolationError() if "startup parameter" in reason:
            return StoreError(f"{where}: {reason}; this is a connection pooler; add pooler=transaction to the URL")
        case ConnectionRefusedError() | socket.gaierror():
            return StoreError(f"{where}: can't be reached ({reason}): {CHECK}")
        case OSError() | asyncpg.InterfaceError() | asyncpg.InternalClientError():
            return StoreError(f"{where}: can't be reached ({reason}); {UNKNOWN}")
        case _ if isinstance(error, _GONE):
            return StoreError(f"{where}: can't be reached ({reason}); {UNKNOWN}")
    return error


def mark_told(error: BaseException) -> str | None:
    """The mark of a move, if the store's guard raised this error, through our driver or the caller's; else None."""
    source, state = _said(error)
    if state != GUARDED:
        return None
    reason = getattr(getattr(source, "diag", None), "message_primary", None)
    return reason or getattr(source, "message", None) or str(source)


def is_elsewhere(error: BaseException) -> bool:
    """Whether the caller's connection leads to a database that doesn't hold this store."""
    return _said(error)[1] in (asyncpg.UndefinedTableError.sqlstate, asyncpg.InvalidSchemaNameError.sqlstate)


def _said(error: BaseException) -> tuple[Any, str | None]:
    """The driver's own error, and its SQLSTATE."""
    source: Any = getattr(error, "orig", None) or error  # SQLAlchemy wraps the driver's error
    return source, getattr(source, "sqlstate", None) or getattr(source, "pgcode", None)


def socket_of(db: Connection) -> Any:
    """The connection's socket, so that a forked child can close it."""
    transport = getattr(db, "_transport", None)
    wrapped = None if transport is None else transport.get_extra_info("socket")
    return getattr(wrapped, "_sock", None)
