"""`Blob`: a file as a value of jobs and steps. Only its hash and size travel; its content is streamed.

Must not know jobs: `here` says which blobs a running job has.
"""

import os
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from holdfast.blobs import here, threads
from holdfast.blobs.blobs import Blobs
from holdfast.blobs.local import LocalFile, find_file, hold_file, read_file
from holdfast.blobs.reading import BlobStream
from holdfast.core.errors import BlobGone, BlobsAway, Invalid
from holdfast.core.references import MARK, Reference, reference_from


class FromPath:
    """`await Blob.from_path("film.mp4")`. In a `def` step or job: `Blob.from_path.sync("film.mp4")`."""

    async def __call__(self, path: str | os.PathLike[str], *, media: str = "") -> "Blob":
        """Make a Blob of a file. In a job it is uploaded at once, so the file may be removed after this.

        Elsewhere it is uploaded when a job is submitted with it. `media` is its type, such as "video/mp4".
        """
        file = await threads.run(read_file, path, _checked(media))
        place = here.place_here()
        if place is None:
            return Blob(file.reference, None, file)
        try:
            await place.blobs.put_file(file, place.job)
        except BlobsAway:  # whoever made the file may have paid for it
            return Blob(file.reference, place.blobs, await threads.run(hold_file, file))
        return Blob(file.reference, place.blobs)

    def sync(self, path: str | os.PathLike[str], *, media: str = "") -> "Blob":
        """The same in a `def` step or job."""
        return here.run_blocking(self(path, media=media), "Blob.from_path")


class SaveTo:
    """`await blob.save_to("film.mp4")`. In a `def` step or job: `blob.save_to.sync("film.mp4")`."""

    def __init__(self, blob: "Blob") -> None:
        self._blob = blob

    async def __call__(self, path: str | os.PathLike[str]) -> None:
        """Write the content to a file. An existing file is replaced once the whole content is there."""
        target, blobs = Path(path), self._blob._blobs_to_read()
        await threads.run(_check_target, target)
        if blobs is None:
            await threads.run(self._blob._copy_to, target)
        else:
            await blobs.save(self._blob._reference, target)

    def sync(self, path: str | os.PathLike[str]) -> None:
        """The same in a `def` step or job."""
        here.run_blocking(self(path), "blob.save_to")


class Blob:
    """A file as a value: an argument, a result, or a field of one. Make one with `Blob.from_path(path)`."""

    __slots__ = ("__weakref__", "_blobs", "_file", "_reference")

    from_path = FromPath()

    def __init__(self, reference: Reference, blobs: Blobs | None = None, file: LocalFile | None = None) -> None:
        self._reference = reference
        self._blobs = blobs
        self._file = file

    @property
    def sha256(self) -> str:
        """The hash of the content, in hexadecimal."""
        return self._reference.sha256

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self._reference.size

    @property
    def media(self) -> str:
        """Its media type, if one was given."""
        return self._reference.media

    @property
    def save_to(self) -> SaveTo:
        """Write the content to a file: `await blob.save_to(path)`."""
        return SaveTo(self)

    def open(self) -> BlobStream:
        """Open the content to stream it.

        `async with blob.open() as stream:` gives `await stream.read(n)` and `async for chunk in stream`;
        `with blob.open() as file:` gives a binary file, for code without an event loop.
        """
        blobs, file = self._blobs_to_read(), self._file
        if blobs is None and file is not None:
            return BlobStream(self._reference, file)
        if blobs is None:
            raise BlobGone(f"{self!r} belongs to no store here, so it can't be read; get it from a job's result")
        return BlobStream(self._reference, blobs)

    def _blobs_to_read(self) -> Blobs | None:
        """The blobs to read from; None to read the local file."""
        is_here = self._file is not None and self._file.path.exists()
        return None if is_here else self._blobs or here.blobs_here()

    def _copy_to(self, path: Path) -> None:
        with self.open() as source, path.open("wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)

    def __eq__(self, other: object) -> bool:
        return self._reference == other._reference if isinstance(other, Blob) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._reference)

    def __repr__(self) -> str:
        return f"<Blob {self.sha256[:12]} {self.size:,} bytes{' ' + self.media if self.media else ''}>"

    def __copy__(self) -> "Blob":
        return self

    def __deepcopy__(self, memo: object) -> "Blob":
        return self

    @classmethod
    def _from_shape(cls, shape: object) -> "Blob":
        reference = reference_from(shape)
        return cls(reference, here.blobs_here(), find_file(reference))

    def _shape(self) -> dict[str, Any]:
        return {MARK: {"media": self.media, "sha256": self.sha256, "size": self.size}}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_plain_validator_function(cls._from_shape),
            python_schema=core_schema.is_instance_schema(cls),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda blob: blob._shape()),
        )


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise Invalid(f"blob.save_to({str(path)!r}): this is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise Invalid(f"blob.save_to({str(path)!r}): there is no folder {str(path.parent)!r}; create it first")


def _checked(media: str) -> str:
    reference_from({MARK: {"media": media, "sha256": "0" * 64, "size": 0}})
    return media
