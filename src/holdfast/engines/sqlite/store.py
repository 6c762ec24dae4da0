"""Opening the database file: whether it is ours, writable and up to date; and the translation of SQLite's errors.

Must not run an act. A file that is refused here is left unchanged.
"""

import functools
import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.errors import (
    HoldfastError,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreUnwritable,
)
from holdfast.engines.live_folder import why_denied
from holdfast.engines.sql import migrations

APPLICATION_ID = int.from_bytes(b"Hold")
BUSY_MS = 10_000
"""How long to wait for the file's lock: longer than our own transactions can hold it (`transactions.LIMIT_SECONDS`)."""

STATEMENTS = 256
WAL_RETRY_SECONDS = 0.01

# 16 MB of cache for each connection; 256 MB of the file is memory-mapped, which the kernel shares between them.
SETTINGS = ("pragma cache_size = -16384", "pragma mmap_size = 268435456", "pragma temp_store = memory")
READING = ("pragma query_only = on",)
# A checkpoint every 4,000 pages (16 MB): rare enough for bulk writes, frequent enough to keep the log small.
WRITING = (
    "pragma synchronous = full",
    "pragma wal_autocheckpoint = 4000",
    "pragma journal_size_limit = 67108864",
)

_PACKAGE = "holdfast.engines.sqlite"
_OCTAL = re.compile(r"\\([0-7]{3})")
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "glusterfs", "lustre", "ocfs2", "gfs2", "beegfs"}
    | {f"fuse.{name}" for name in ("sshfs", "glusterfs", "s3fs", "rclone", "gcsfuse")}
)


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with our settings. The file must exist."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS, timeout=BUSY_MS / 1000
    )
    try:
        for pragma in (*SETTINGS, *(READING if read_only else WRITING)):
            connection.execute(pragma)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(path: Path) -> sqlite3.Connection:
    """Create the file or check that it is ours, bring its schema up to date, and open it for writing."""
    with translated_errors(path):
        _refuse_network(path)
        _create(path)
        connection = connect(path)
        try:
            _refuse_foreign(connection, path)
            _use_wal(connection, path)
            migrate(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Switch to the write-ahead log. SQLite doesn't wait for other processes here, as it does elsewhere, so we do."""
    deadline = time.monotonic() + BUSY_MS / 1_000
    while True:
        try:
            mode = connection.execute("pragma journal_mode = wal").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(WAL_RETRY_SECONDS)
    if mode != "wal":
        raise StoreUnwritable(f"{path}: this file system doesn't support SQLite's write-ahead log; use a local disk")


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the migrations that this file still needs, each completely or not at all. Only ever forward."""
    steps = migrations(_PACKAGE)
    newest = steps[-1][0]
    while (version := schema_version(connection)) < newest:
        connection.execute("begin immediate")
        try:
            # Another process may have run it while we waited for the lock.
            if schema_version(connection) == version:
                for statement in _statements(next(text for number, text in steps if number > version)):
                    connection.execute(statement)
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
    if version > newest:
        raise _too_new(path, version, newest)


def schema_version(connection: sqlite3.Connection) -> int:
    """The number of the last migration that ran on this file."""
    return int(connection.execute("pragma user_version").fetchone()[0])


@functools.cache
def own_names() -> frozenset[str]:
    """The names of all our tables, views and indexes: those that the migrations create in an empty database."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for _, script in migrations(_PACKAGE):
            database.executescript(script)
        return frozenset(row[0].lower() for row in database.execute("select name from sqlite_schema"))
    finally:
        database.close()


def reads_raw(error: BaseException | None, connection: sqlite3.Connection | None) -> bool:
    """Whether a read failed on text that isn't UTF-8. If so, this connection escapes such text from now on.

    Escaping needs a slower text reader in Python, so a connection uses it only after the first such text.
    """
    if connection is None or connection.text_factory is not str or not isinstance(error, sqlite3.OperationalError):
        return False
    if not str(error).startswith("Could not decode to UTF-8"):
        return False
    connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    return True


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into ours."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise translate_error(error, path) from error


def translate_error(error: BaseException, path: Path) -> HoldfastError:
    """Translate an error of SQLite or the system for a person."""
    name = getattr(error, "sqlite_errorname", None) or ""
    if isinstance(error, OSError):
        if error.errno == 28:
            name = "SQLITE_FULL"
        elif isinstance(error, PermissionError | FileNotFoundError | IsADirectoryError | NotADirectoryError):
            name = "SQLITE_CANTOPEN"
        elif error.errno == 30:
            name = "SQLITE_READONLY"
    primary = "_".join(name.split("_")[:2])
    match primary:
        case "SQLITE_BUSY" | "SQLITE_LOCKED":
            return StoreBusy(
                f"{path} was locked by another program for over {BUSY_MS // 1000} s; nothing was written: "
                "close the program that holds it (a backup, a SQLite shell), and try again"
            )
        case "SQLITE_FULL":
            return StoreFull(f"{path}: no space left on the disk; nothing was written: free space, and try again")
        case "SQLITE_CORRUPT" | "SQLITE_NOTADB":
            return StoreDamaged(
                f"{path} is not a readable SQLite database ({error}); the file was not changed: "
                "restore a backup, or move it away to start with an empty store"
            )
        case "SQLITE_READONLY" | "SQLITE_CANTOPEN" | "SQLITE_PERM" | "SQLITE_AUTH":
            if denied := why_denied(path):
                return StoreUnwritable(f"{denied}; give this user access, or use another store")
            return StoreUnwritable(
                f"{path} can't be written ({error}); check that its folder exists, and that both are writable"
            )
        case "SQLITE_IOERR":
            return StoreError(
                f"{path}: the disk failed ({error}); this write may or may not be stored: check, then try again"
            )
    return StoreError(f"{path}: {error}")


def _create(path: Path) -> None:
    """Create an empty file that only its owner can read, unless the file exists."""
    if not path.parent.is_dir():
        raise StoreUnwritable(f"{path}: the folder {path.parent} doesn't exist; create it, or use another path")
    # Never open an existing file here: closing it again would drop SQLite's own locks in this process.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise StoreForeign(f"{path} is not a regular file; use another path for the store") from None


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    # One statement, so that both values are consistent: another process may be creating the file right now.
    ((application, tables),) = connection.execute(
        "select application_id, (select count(*) from sqlite_schema) from pragma_application_id"
    )
    if application != APPLICATION_ID and (application or tables):
        raise StoreForeign(
            f"{path} is a SQLite database of another program; the file was not changed: use another file name"
        )
    newest = migrations(_PACKAGE)[-1][0]
    version = schema_version(connection)
    if version > newest:
        raise _too_new(path, version, newest)


def _too_new(path: Path, version: int, newest: int) -> StoreForeign:
    return StoreForeign(
        f"{path} was written by a newer Holdfast (schema {version}; this version supports {newest}); "
        "the file was not changed: upgrade this installation"
    )


def _statements(script: str) -> Iterator[str]:
    """The single statements of a script."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _refuse_network(path: Path) -> None:
    """Refuse network file systems, if we can detect them: SQLite's locks and shared memory don't work there."""
    kind = file_system(path)
    if kind in _NETWORK:
        raise StoreForeign(
            f"{path} is on a network file system ({kind}), where SQLite can lose data; "
            "use a local disk, or Postgres or Redis for several machines"
        )


def file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of file system of a path; "" if it can't be determined."""
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    target = os.path.realpath(path)
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = _OCTAL.sub(lambda code: chr(int(code[1], 8)), left.split(" ")[4])
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:
            best, kind = len(mount), right.split(" ")[0]
    return kind
