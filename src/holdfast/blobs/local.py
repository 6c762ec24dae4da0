"""Files of this machine that stand for blobs: those not yet uploaded, and those held because they couldn't be.

Must not know a blob store. A file that `Blob.from_path` names outside a job is uploaded when it is submitted.
"""

import errno
import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.blobs.store import CHUNK_BYTES
from holdfast.core.errors import BadValue, BlobsAway, Invalid
from holdfast.core.references import Reference, references_in


class LocalFile:
    """A file whose content is known by its hash, as long as it isn't changed."""

    def __init__(self, path: Path, reference: Reference) -> None:
        self.path = path
        self.reference = reference

    def chunks(self) -> Iterator[bytes]:
        """Read the file. Raises BadValue if it was changed or removed since it was named."""
        hashed, size = hashlib.sha256(), 0
        try:
            file = self.path.open("rb", buffering=0)
        except OSError as error:
            raise BadValue(
                f"Blob {self.path}: can't be read: {error.strerror}; keep the file until it is sent"
            ) from None
        with file:
            while chunk := file.read(CHUNK_BYTES):
                hashed.update(chunk)
                size += len(chunk)
                yield chunk
        if hashed.hexdigest() != self.reference.sha256:
            raise BadValue(f"Blob {self.path}: the file was changed after Blob.from_path; call from_path again")


_known: "weakref.WeakValueDictionary[str, LocalFile]" = weakref.WeakValueDictionary()


def read_file(path: str | os.PathLike[str], media: str = "") -> LocalFile:
    """Hash a file, so that it can stand for a blob."""
    whole = Path(path).absolute()
    if whole.is_dir():
        raise Invalid(f"Blob.from_path({str(path)!r}): this is a folder; give a file")
    hashed, size = hashlib.sha256(), 0
    with whole.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            hashed.update(chunk)
            size += len(chunk)
    return note_file(LocalFile(whole, Reference(hashed.hexdigest(), size, media)))


def note_file(file: LocalFile) -> LocalFile:
    """Let this file stand for its content, for as long as somebody keeps the object."""
    _known[file.reference.sha256] = file
    return file


def find_file(reference: Reference) -> LocalFile | None:
    """The local file with this content, if one is known."""
    return _known.get(reference.sha256)


# What couldn't be stored.


def hold_file(file: LocalFile) -> LocalFile:
    """Copy a file to where it stays, because it can't be uploaded now and may be a temporary one."""
    for folder in _folders():
        held = folder / file.reference.sha256
        with suppress(OSError):
            _make_folder(folder)
            if not held.exists():
                _copy(file.path, held)
            return note_file(LocalFile(held, file.reference))
    raise BlobsAway(f"{file.path} can't be uploaded, and it can't be copied to {_named_folders()} either")


def hold_text(name: str, text: str) -> Path:
    """Write a result that can't be stored to a new local file; return its path."""
    trouble = ""
    for folder in _folders():
        try:
            _make_folder(folder)
            descriptor, path = tempfile.mkstemp(suffix=".json", prefix=f"{name}-", dir=folder)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                Path(path).unlink(missing_ok=True)
                raise
            return Path(path)
        except OSError as error:
            trouble = error.strerror or str(error)
    raise BlobsAway(f"the result can't be written to {_named_folders()} either: {trouble}")


def files_beside(path: Path, text: str) -> list[LocalFile]:
    """The held files that a held result refers to. Keep them until the result is stored."""
    found = [(path.parent / one.sha256, one) for one in references_in(text)]
    return [note_file(LocalFile(held, one)) for held, one in found if held.is_file()]


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _copy(path: Path, to: Path) -> None:
    """Copy a file; or, on a disk that is full, give the same file a second name, which needs no room."""
    aside = to.with_suffix(".part")
    try:
        shutil.copyfile(path, aside)
    except OSError as error:
        aside.unlink(missing_ok=True)
        if error.errno != errno.ENOSPC:
            raise
        to.hardlink_to(path)
    else:
        aside.rename(to)


def _folders() -> list[Path]:
    # The home first: a temporary folder is emptied when the machine starts.
    homes = [Path.home() / ".holdfast" / "unstored"] if os.path.expanduser("~") != "~" else []
    return [*homes, Path(tempfile.gettempdir()) / f"holdfast-unstored-{os.getuid()}"]


def _named_folders() -> str:
    return " or ".join(str(folder) for folder in _folders())
