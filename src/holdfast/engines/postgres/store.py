"""Connecting, checking that a schema is ours, migrating it; and what the database's errors mean.

Must not run an act. A schema that is refused here has not been written.
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
from holdfast.engines.server import CHECK
from holdfast.engines.sql import migrations, queries
from holdfast.safe_text import logger

log = logger("holdfast.postgres")

Connection = asyncpg.Connection

CONNECT_SECONDS = 10.0
STATEMENT_SECONDS = 60.0
"""A statement that takes longer is given up with its connection: the network may have swallowed it."""

MIGRATION_TRIES = 60
"""How often a migration is tried that did not get a lock in time: for two minutes or so."""

MIGRATION_PAUSE_SECONDS = 2.0
"""The pause between two such tries, on average; the first ones are shorter."""

ANOTHERS_SECONDS = 0.2
"""How often is looked whether another one's migration is over."""

OLDEST_SERVER = 130_000

# What a session of ours goes by, whatever the database or the role say. By way of a pooler nothing can be set.
SETTINGS = {
    "application_name": "holdfast",
    "search_path": "pg_catalog",
    "default_transaction_isolation": "read committed",
    "client_encoding": "UTF8",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",  # our statements have one good plan each, and are long to plan
    "enable_seqscan": "off",  # a plan may be from when a table had three rows
    "max_parallel_workers_per_gather": "0",  # those are for others
    "lock_timeout": "15s",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "30s",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}

# For the bodies of transactional steps: the rest is as the role and the database have it, as on the user's connections.
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
    """The statements and migrations of one store. The only place where a name is put into a statement.

    A schema's name can't be a parameter; `url` lets only a-z, 0-9 and _ through, and here it is quoted.
    """

    def __init__(self, schema: str) -> None:
        assert set(schema) <= _PLAIN, "a schema's name is checked before"
        self._schema = f'"{schema}"'
        self.sql = SimpleNamespace(**{name: self._put(text) for name, text in vars(queries(_PACKAGE)).items()})

    def _put(self, text: str) -> str:
        return text.replace(_PLACEHOLDER, self._schema)

    def migrations(self) -> list[tuple[int, str]]:
        """The migrations for this schema, in order."""
        return [(number, self._put(text)) for number, text in migrations(_PACKAGE)]

    @property
    def create_schema(self) -> str:
        """The statement that makes the schema itself."""
        return self._put(_CREATE)

    @property
    def drop_schema(self) -> str:
        """The statement that removes the schema and all that is in it."""
        return self._put(_DROP)

    @property
    def shift(self) -> tuple[str, str]:
        """The statements by which a test moves its schema's clock: it goes by a number kept there."""
        return self._put(_SHIFTED), self._put(_SHIFT)

    @property
    def version(self) -> str:
        """The statement that tells which migrations a schema has had, and for whom it is too new."""
        return self._put(_VERSION)

    @property
    def advance(self) -> str:
        """The statement that notes a migration."""
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
# A migration takes as long as it takes. But who waits for a table lets all others wait behind it: so, not for long.
_UNHURRIED = """
set local search_path = pg_catalog;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = '60s';
set local lock_timeout = '200ms';
"""
_ENCODING = "select pg_catalog.current_setting('server_encoding')"


async def connect(url: StoreUrl, settings: Mapping[str, str] = SETTINGS, *, hurried: bool = True) -> Connection:
    """A connection with our settings. One that is not `hurried` waits for its answers as long as they take."""
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
            raise Invalid(f"{url.shown}: an option of the URL can't be read; check the port and the like") from None
        raise translate_error(error, url) from error


async def prepare(url: StoreUrl, texts: Texts) -> None:
    """Make the schema or check that it is ours, and bring it up to date. Only ever forward."""
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
    """Have the network itself asked whether the server is still there: nothing else ends a wait without a bound."""
    wire = socket_of(db)
    if wire is None or wire.family not in (socket.AF_INET, socket.AF_INET6):
        return
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            wire.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)


async def is_there(url: StoreUrl, texts: Texts) -> bool:
    """Whether the schema is a store; one that is empty is none yet."""
    db = await connect(url)
    try:
        return await _version(db, url, texts) > 0
    except Exception as error:
        raise translate_error(error, url) from error
    finally:
        await close(db)


async def drop(url: StoreUrl, texts: Texts) -> None:
    """Remove a schema and all that is in it."""
    db = await connect(url)
    try:
        await db.execute(texts.drop_schema)
    except Exception as error:
        raise translate_error(error, url) from error
    finally:
        await close(db)


async def shift(db: Connection, texts: Texts, milliseconds: int) -> None:
    """Move the clock of a test's schema."""
    make, move = texts.shift
    await db.execute(make)
    await db.execute(move, milliseconds)


async def close(db: Connection) -> None:
    """Take leave of the server, or of a connection that doesn't answer."""
    try:
        await db.close(timeout=2.0)
    except (Exception, asyncio.CancelledError):
        db.terminate()


async def _refuse_server(db: Connection, url: StoreUrl) -> None:
    version = db.get_server_version()
    if version.major * 10_000 < OLDEST_SERVER:
        raise Invalid(f"{url.shown}: PostgreSQL {version.major} is too old; use 13 or newer")
    encoding = await db.fetchval(_ENCODING)
    if encoding != "UTF8":
        raise StoreForeign(f"{url.shown}: the database is encoded as {encoding}; make one with encoding UTF8")


async def _version(db: Connection, url: StoreUrl, texts: Texts) -> int:
    """The last migration that this schema has had; 0 for one that is not there, or empty."""
    if not await db.fetchval(_IS_THERE, url.schema):
        if not await db.fetchval(_STRANGERS, url.schema):
            return 0
        if not await db.fetchval(_IS_THERE, url.schema):  # else somebody has just made it, between our two looks
            raise StoreForeign(
                f"{url.shown}: that schema holds somebody else's tables; nothing was written: "
                "name another one with ?schema="
            )
    try:
        row = await db.fetchrow(texts.version)
    except asyncpg.UndefinedColumnError:
        row = None
    if row is None:
        raise StoreForeign(f"{url.shown}: has a table called store that is not ours; name another schema")
    newest = texts.migrations()[-1][0]
    if row["oldest"] > newest:
        raise StoreForeign(
            f"{url.shown}: its schema is version {row['version']}, and this program knows {newest}: "
            "nothing was written; upgrade holdfast"
        )
    return int(row["version"])


async def _migrate(db: Connection, url: StoreUrl, texts: Texts) -> None:
    """Run what this schema has not had, each in a transaction of its own. Others who come at the same time wait.

    A migration only adds, so that programs of the version before go on. One that can't leave them going on raises
    `store.oldest` to its own number in its own SQL: programs that don't know it then refuse the store.
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
                    f"{url.shown}: migration {number} did not get its locks in {tries} tries, and the version is "
                    f"still {version}: end the transactions that have been open for long, and start again"
                ) from error
            await asyncio.sleep(min(0.1 * tries, MIGRATION_PAUSE_SECONDS) * (0.5 + random.random()))  # noqa: S311 (a pause)
        except _NOT_ITS_FAULT:
            raise
        except asyncpg.PostgresError as error:
            raise StoreError(
                f"{url.shown}: migration {number} failed ({str(error).partition(chr(10))[0]}); "
                f"nothing of it was written, and the version is still {version}"
            ) from error
        else:
            if ours:
                tries = 0
                log.info("%s: migrated to version %s", url.shown, number)
                continue
            if not waiting:
                waiting = True
                log.info("%s: another process migrates it; waiting until that is done", url.shown)
            await asyncio.sleep(ANOTHERS_SECONDS)


# Errors.

GUARDED = "HF003"
"""The state with which the guard of a store that is being moved refuses (`add_guard`)."""

_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


def is_passing(error: BaseException) -> bool:
    """Whether the database took everything back because of others who came at the same time: try again."""
    return isinstance(error, _AGAIN)


def is_broken(error: BaseException) -> bool:
    """Whether a connection can't be used any more after this."""
    return not isinstance(error, asyncpg.PostgresError | HoldfastError) or isinstance(error, _GONE)


_GONE: tuple[type[BaseException], ...] = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
# What can befall a migration that is right in itself.
_NOT_ITS_FAULT: tuple[type[BaseException], ...] = (
    *_GONE,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.DiskFullError,
    asyncpg.OutOfMemoryError,
    asyncpg.QueryCanceledError,
)


def translate_error(error: BaseException, url: StoreUrl) -> BaseException:
    """What an error of the database or the network means for a person."""
    where = url.shown
    told = str(error) if isinstance(error, asyncpg.PostgresError) else f"{type(error).__name__}: {error}".strip(": ")
    told = told.partition("\n")[0]  # details and hints come on lines of their own
    match error:
        case HoldfastError() | asyncio.CancelledError():
            return error
        case _ if (mark := mark_told(error)) is not None:
            return Moved(mark_of(mark).words())
        case asyncpg.InvalidCatalogNameError():
            return StoreError(f"{where}: {told}; create the database first")
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return StoreUnwritable(f"{where}: {told}; check the user, the password and pg_hba.conf")
        case asyncpg.InsufficientPrivilegeError() | asyncpg.ReadOnlySQLTransactionError():
            return StoreUnwritable(f"{where}: {told}; this user may not write there: see the roles in the docs")
        case asyncpg.TooManyConnectionsError():
            return StoreBusy(f"{where}: {told}; allow more connections, or give ?connections= a smaller number")
        case asyncpg.DiskFullError() | asyncpg.OutOfMemoryError():
            return StoreFull(f"{where}: {told}; nothing was written: make room, and try again")
        case asyncpg.LockNotAvailableError() | asyncpg.SerializationError() | asyncpg.DeadlockDetectedError():
            return StoreBusy(f"{where}: {told}; nothing was written: try again")
        case asyncpg.InvalidCachedStatementError() | asyncpg.OutdatedSchemaCacheError():
            return StoreBusy(f"{where}: a table was altered meanwhile; nothing was written: try again")
        case asyncpg.QueryCanceledError() | TimeoutError():
            return StoreBusy(f"{where}: took too long and was given up; it may or may not be there: look, then repeat")
        case asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError():
            return StoreDamaged(f"{where}: {told}; restore a backup")
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError() | asyncpg.InvalidSchemaNameError():
            return StoreDamaged(f"{where}: {told}; the schema was changed by somebody else, or dropped")
        case FileNotFoundError(filename=None):
            return StoreError(f"{where}: a file that the URL names is not there; check sslrootcert, sslcert and sslkey")
        case asyncpg.ProtocolViolationError() if "startup parameter" in told:
            return StoreError(f"{where}: {told}; a pooler is in between: add pooler=transaction to the URL")
        case ConnectionRefusedError() | socket.gaierror():
            return StoreError(f"{where}: can't be reached ({told}): {CHECK}")
        case OSError() | asyncpg.InterfaceError() | asyncpg.InternalClientError():
            return StoreError(f"{where}: can't be reached ({told}); what was under way may or may not be there")
        case _ if isinstance(error, _GONE):
            return StoreError(f"{where}: can't be reached ({told}); what was under way may or may not be there")
    return error


def mark_told(error: BaseException) -> str | None:
    """What the mark of a move says, where it was the guard that refused; also as the caller's own driver tells it."""
    source, state = _said(error)
    if state != GUARDED:
        return None
    told = getattr(getattr(source, "diag", None), "message_primary", None)
    return told or getattr(source, "message", None) or str(source)


def is_elsewhere(error: BaseException) -> bool:
    """Whether a caller's connection leads to a database in which this store is not."""
    return _said(error)[1] in (asyncpg.UndefinedTableError.sqlstate, asyncpg.InvalidSchemaNameError.sqlstate)


def _said(error: BaseException) -> tuple[Any, str | None]:
    """What a driver raised, whichever it is, and the state that the server told it."""
    source: Any = getattr(error, "orig", None) or error  # SQLAlchemy wraps what its driver raised
    return source, getattr(source, "sqlstate", None) or getattr(source, "pgcode", None)


def socket_of(db: Connection) -> Any:
    """The socket under a connection, for a forked child to close."""
    transport = getattr(db, "_transport", None)
    wrapped = None if transport is None else transport.get_extra_info("socket")
    return getattr(wrapped, "_sock", None)
