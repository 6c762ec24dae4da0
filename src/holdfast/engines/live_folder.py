"""The folder next to a store's file where its processes meet, and who may use it: whoever may use the store's file.

SQLite gives its log the permissions of the database. The folder `jobs.db-live` and its files get them here, so that the
users who share a database also see each other's workers. Must not know what the files hold.
"""

import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

ENDING = "-live"
READ_WRITE = 0o666


def make_live_folder(folder: Path) -> None:
    """Make the folder if it isn't there, with the permissions of the store's file."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with suppress(OSError):  # The store's file isn't there yet, or the folder belongs to another user.
        shared = os.stat(folder.with_name(folder.name.removesuffix(ENDING))).st_mode & READ_WRITE
        found = stat.S_IMODE(os.stat(folder).st_mode)
        wanted = (found & ~0o777) | 0o700 | shared | (shared & 0o444) >> 2
        if found != wanted:
            os.chmod(folder, wanted)


def open_live_file(path: Path, *, create: bool = True) -> int:
    """Open a file of the folder to read and write. A new file gets the folder's permissions."""
    with suppress(FileNotFoundError):
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if not create:
        raise FileNotFoundError(path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # Another user has just made the file.
        os.fchmod(descriptor, 0o600 | os.stat(path.parent).st_mode & READ_WRITE)
    return descriptor


def share_socket(path: Path) -> None:
    """Let everybody who may use the folder send to this socket."""
    with suppress(OSError):
        os.chmod(path, 0o600 | os.stat(path.parent).st_mode & READ_WRITE)


def why_denied(path: Path) -> str:
    """Return why this user may not use a store's file: "user ada may not read and write …"; empty if they may."""
    for one in (path.parent, path, path.with_name(path.name + ENDING)):
        with suppress(OSError):
            found = os.stat(one)
            if os.statvfs(one).f_flag & os.ST_RDONLY:
                return ""
            if not os.access(one, os.R_OK | os.W_OK):
                mode = stat.S_IMODE(found.st_mode)
                it = f"{one}: it belongs to {_name(found.st_uid)} and has mode {mode:o}"
                return f"user {_name(os.getuid())} may not read and write {it}"
    return ""


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
