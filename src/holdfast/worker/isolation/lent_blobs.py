"""Blobs for the process of an isolated step, which reads and writes them in a folder that the worker lends it.

Must not talk to the process. The folder is made on first use: most steps have no files.
"""

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.blobs import threads
from holdfast.blobs.blobs import Blobs
from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.here import Place
from holdfast.blobs.local import LocalFile, note_file
from holdfast.blobs.store import BlobStore
from holdfast.core.references import Reference, references_in
from holdfast.worker.attempt import Attempt


class LentBlobs:
    """The folder of one call."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.folder = Path(tempfile.gettempdir()) / f"holdfast-lent-{secrets.token_hex(8)}"

    async def lend(self, text: str) -> None:
        """Copy the files that arguments name into the folder."""
        for reference in references_in(text):
            path = self._path(reference)
            await threads.run(lambda path=path: path.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
            await self._attempt.engine.blobs.save(reference, path)

    async def take_back(self, text: str) -> None:
        """Upload the files that a result names and the step has put into the folder."""
        references = references_in(text)
        paths = [(one, self._path(one)) for one in references]
        files = [note_file(LocalFile(path, one)) for one, path in paths if path.is_file()]
        if references:
            await self._attempt.engine.blobs.refer(references, self._attempt.job.id)
        del files  # until here they stood for their content

    def _path(self, reference: Reference) -> Path:
        return self.folder / reference.sha256[:2] / reference.sha256


@asynccontextmanager
async def lending(attempt: Attempt, text: str) -> AsyncIterator[LentBlobs]:
    """Lend the files that arguments name for the time of one call."""
    lent = LentBlobs(attempt)
    try:
        await lent.lend(text)
        yield lent
    finally:
        if lent.folder.exists():
            await threads.run(lambda: shutil.rmtree(lent.folder, ignore_errors=True))


def borrowed(folder: str, job: str) -> Place:
    """The blobs of the process that runs the call."""

    async def find(create: bool) -> tuple[BlobStore, str]:
        return FolderBlobs(Path(folder)), ""

    return Place(Blobs(find), job)
