"""The large values and files of a store for jobs: where they are kept, and under which prefix.

Must not read or write a blob (`blobs`). Each engine has a blob store of its own kind, or none. If another one is
configured, a record of the store names it, so that every process finds it: the command line, and later versions.
"""

import secrets
from collections.abc import Awaitable, Sequence

import msgspec

from holdfast.blobs.blobs import Blobs
from holdfast.blobs.opening import blob_store
from holdfast.blobs.store import BlobStore
from holdfast.core.model import Conflict, Job, Record
from holdfast.core.unreadable import record_content
from holdfast.engines.records import BLOBS

NAMING_TRIES = 5


class KeepsBlobs:
    """The part of every engine that knows its blobs."""

    _blobs: Blobs | None = None
    _configured: BlobStore | None = None

    @property
    def blobs(self) -> Blobs:
        """The large values and files of this store's jobs."""
        if self._blobs is None:
            self._blobs = Blobs(self._find_blobs)
        return self._blobs

    def own_blobs(self) -> BlobStore | None:
        """The blob store of this engine when none is configured; None if it has none."""
        return None

    def keep_blobs_in(self, store: BlobStore) -> None:
        """Keep large values and files in this blob store, in a folder of this store's own."""
        self._configured = store

    async def _find_blobs(self, create: bool) -> tuple[BlobStore | None, str | None]:
        """Return the blob store and the prefix of everything in it; no prefix if nothing was ever kept there."""
        for _ in range(NAMING_TRIES):
            record = next((one for one in await self.records(BLOBS) if one.name == BLOBS), None)
            known = {} if record is None else record_content(record.value)
            folder, at = known.get("folder"), known.get("at")
            store = self._configured or (blob_store(at) if isinstance(at, str) else self.own_blobs())
            if store is None or (self._configured is None and not isinstance(at, str)):
                return store, ""
            if isinstance(folder, str) and at == store.address:
                return store, f"{folder}/"
            if not create:
                return store, f"{folder}/" if isinstance(folder, str) else None
            text = msgspec.json.encode(
                {"at": store.address, "folder": folder or f"holdfast-{secrets.token_hex(6)}"}
            ).decode()
            await self.put_record(BLOBS, text, expected=0 if record is None else record.version)
        raise AssertionError("somebody else keeps changing where the blobs are")

    # Of the contract.

    def records(self, prefix: str) -> Awaitable[list[Record]]:
        """See Engine."""
        raise NotImplementedError

    def put_record(
        self, name: str, value: str | None, expected: int | None = None, jobs: Sequence[Job] = ()
    ) -> Awaitable[Record | Conflict]:
        """See Engine."""
        raise NotImplementedError
