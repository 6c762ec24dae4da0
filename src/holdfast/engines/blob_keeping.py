"""The large values and files of a store for jobs: where they are kept, and under which prefix.

Must not read or write a blob (`blobs`). Each engine has a blob store of its own kind, or none. If another one is
configured, a record of the store names it, so that every process finds it: the command line, and later versions. The
record also names the places before it, which still have what was stored there.
"""

import secrets
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.blobs.blobs import Blobs
from holdfast.blobs.opening import blob_store
from holdfast.blobs.store import BlobStore
from holdfast.core.errors import Invalid
from holdfast.core.model import Conflict, Job, Record
from holdfast.core.unreadable import record_content
from holdfast.engines.records import BLOBS

NAMING_TRIES = 5


FORMER_KEPT = 20
"""How many former places are remembered."""


class KeepsBlobs:
    """The part of every engine that knows its blobs."""

    _blobs: Blobs | None = None
    _configured: BlobStore | None = None

    @property
    def blobs(self) -> Blobs:
        """The large values and files of this store's jobs."""
        if self._blobs is None:
            self._blobs = Blobs(self._find_blobs, self._find_former_blobs)
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
            record, known = await self._known_place()
            folder, at = known.get("folder"), known.get("at")
            store = self._configured or (blob_store(at) if isinstance(at, str) else self.own_blobs())
            if store is None or (self._configured is None and not isinstance(at, str)):
                return store, ""
            if isinstance(folder, str) and at == store.address:
                return store, f"{folder}/"
            if not create:
                return store, f"{folder}/" if isinstance(folder, str) else None
            before = [one for one in (at, *_former_places(known)) if isinstance(one, str) and one != store.address]
            place = {"at": store.address, "folder": folder or f"holdfast-{secrets.token_hex(6)}"}
            text = msgspec.json.encode(place | ({"before": before[:FORMER_KEPT]} if before else {})).decode()
            await self.put_record(BLOBS, text, expected=0 if record is None else record.version)
        raise AssertionError("somebody else keeps changing where the blobs are")

    async def _find_former_blobs(self) -> list[Blobs]:
        """Return the blobs in the places that were used before the present one."""
        _, known = await self._known_place()
        folder, at = known.get("folder"), known.get("at")
        if self._configured is None and not isinstance(at, str):
            return []
        own, found = self.own_blobs(), list[Blobs]()
        if own is not None:
            found.append(_blobs_in(own, ""))
        present = at if self._configured is None else self._configured.address
        for place in (at, *_former_places(known)):
            if isinstance(place, str) and isinstance(folder, str) and place != present:
                with suppress(Invalid):  # obstore is no longer installed, say
                    found.append(_blobs_in(blob_store(place), f"{folder}/"))
        return found

    async def _known_place(self) -> tuple[Record | None, dict[str, Any]]:
        record = next((one for one in await self.records(BLOBS) if one.name == BLOBS), None)
        return record, {} if record is None else record_content(record.value)

    # Of the contract.

    def records(self, prefix: str) -> Awaitable[list[Record]]:
        """See Engine."""
        raise NotImplementedError

    def put_record(
        self, name: str, value: str | None, expected: int | None = None, jobs: Sequence[Job] = ()
    ) -> Awaitable[Record | Conflict]:
        """See Engine."""
        raise NotImplementedError


def _former_places(known: dict[str, Any]) -> Sequence[Any]:
    """Return the former places in a record, the latest one first."""
    before = known.get("before")
    return before if isinstance(before, list) else ()


def _blobs_in(store: BlobStore, prefix: str) -> Blobs:
    async def find(create: bool) -> tuple[BlobStore, str]:
        return store, prefix

    return Blobs(find)
