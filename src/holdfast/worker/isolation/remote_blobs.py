"""The blobs of a job in its own process: it asks the worker, and gets and gives files by their paths.

Must not know a blob store.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.blobs.blobs import Blobs
from holdfast.blobs.local import LocalFile, find_file, note_file
from holdfast.blobs.store import CHUNK_BYTES
from holdfast.core.errors import Invalid
from holdfast.core.references import Reference, may_need_blobs, references_in


class RemoteBlobs(Blobs):
    """Like the worker's blobs, as far as an attempt may use them."""

    def __init__(self, ask: Callable[..., Awaitable[Any]]) -> None:
        super().__init__(_find_none)
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self.prefix = ""

    async def ready(self, *, create: bool = False) -> "RemoteBlobs":
        """See Blobs. The worker finds them."""
        return self

    async def keep(self, text: str, job: str, where: str = "the value", *, always: bool = False) -> str:
        """See Blobs."""
        if not always and not may_need_blobs(text):
            return text
        kept: str = await self._call("keep_blob", text, job, where, always, _paths(references_in(text)))
        return kept

    async def fetch(self, text: str) -> str:
        """See Blobs."""
        fetched: str = await self._call("fetch_blob", text)
        return fetched

    async def refer(self, references: Iterable[Reference], job: str) -> None:
        """See Blobs."""
        asked = list(dict.fromkeys(references))
        await self._call("refer_blobs", asked, job, _paths(asked))

    async def put_file(self, file: LocalFile, job: str) -> None:
        """See Blobs."""
        await self.refer([file.reference], job)

    def chunks(self, reference: Reference) -> Generator[bytes, None, None]:
        """See Blobs. The worker writes the blob to a temporary file first."""
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            path = Path(folder) / reference.sha256
            self.save_now(reference, path)
            with path.open("rb", buffering=0) as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk

    def save_now(self, reference: Reference, path: Path) -> None:
        """See Blobs."""
        here = None
        with suppress(RuntimeError):
            here = asyncio.get_running_loop()
        if here is self._loop:
            raise Invalid("in an isolated async job, open a Blob with: async with blob.open()")
        asked = _awaited(self._ask("save_blob", reference, str(path.absolute())))
        asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    async def _call(self, act: str, *args: Any) -> Any:
        """Ask on the attempt's own loop, whatever loop runs here."""
        if asyncio.get_running_loop() is self._loop:
            return await self._ask(act, *args)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(self._ask(act, *args)), self._loop))


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


async def _find_none(create: bool) -> tuple[None, str]:
    return None, ""


def _paths(references: Sequence[Reference]) -> dict[str, str]:
    """The local files that stand for blobs here, by their hashes."""
    known = [(one, find_file(one)) for one in references]
    return {one.sha256: str(file.path) for one, file in known if file is not None}


# The worker's side.


class ServedBlobs:
    """Does what a process asks of its worker's blobs."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def keep_blob(self, text: str, job: str, where: str, always: bool, paths: dict[str, str]) -> str:
        """See Blobs.keep. `paths` are the files of the process that stand for blobs."""
        files = _note(references_in(text), paths)
        kept = await self._blobs.keep(text, job, where, always=always)
        del files
        return kept

    async def fetch_blob(self, text: str) -> str:
        """See Blobs.fetch."""
        return await self._blobs.fetch(text)

    async def refer_blobs(self, references: list[Reference], job: str, paths: dict[str, str]) -> None:
        """See Blobs.refer."""
        files = _note(references, paths)
        await self._blobs.refer(references, job)
        del files

    async def save_blob(self, reference: Reference, path: str) -> None:
        """See Blobs.save."""
        await self._blobs.save(reference, Path(path))


def _note(references: Sequence[Reference], paths: dict[str, str]) -> list[LocalFile]:
    return [note_file(LocalFile(Path(paths[one.sha256]), one)) for one in references if one.sha256 in paths]
