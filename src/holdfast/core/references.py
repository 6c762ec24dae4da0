"""References to large values and files: the small JSON that stands in a record for what a blob store keeps.

Must not read or write a blob store.

    {"$blob":{"encoding":"json","sha256":"…","size":123456}}     a value as JSON text, kept outside its record
    {"$blob":{"media":"video/mp4","sha256":"…","size":987654}}   a `Blob`: a file, anywhere in a value
"""

import re

import msgspec
from msgspec import Struct

from holdfast.core.errors import BadValue
from holdfast.core.limits import INLINE_BYTES, LARGE_BYTES, size_of

MARK = "$blob"
"""The only key of a reference."""

_QUOTED_MARK = f'"{MARK}"'
_VALUE_START = f'{{"{MARK}":{{"encoding":"json",'
_REFERENCE = re.compile(
    r'\{"\$blob":\{"(?:encoding":"(?P<encoding>json)|media":"(?P<media>[\w.+/-]{0,100}))",'
    r'"sha256":"(?P<sha256>[0-9a-f]{64})","size":(?P<size>\d{1,19})\}\}'
)
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Reference(Struct, frozen=True, gc=False):
    """What names a blob: its hash, its size, and its media type if it is a file."""

    sha256: str
    size: int
    media: str = ""
    is_value: bool = False
    """Whether the blob is the JSON text of a whole value, and not a file."""

    @property
    def text(self) -> str:
        """The reference as canonical JSON."""
        kind = '"encoding":"json"' if self.is_value else f'"media":"{self.media}"'
        return f'{{"{MARK}":{{{kind},"sha256":"{self.sha256}","size":{self.size}}}}}'


def is_kept_outside(text: str) -> bool:
    """Whether a recorded text is a reference to the real text."""
    return text.startswith(_VALUE_START)


def may_need_blobs(text: str) -> bool:
    """Whether a text is large, or may have references in it. Cheap: nearly every text is neither."""
    return len(text) > LARGE_BYTES // 4 or _QUOTED_MARK in text


def is_large(text: str) -> bool:
    """Whether a text is kept outside its record, where there is a blob store."""
    return len(text) > LARGE_BYTES or (len(text) > LARGE_BYTES // 4 and size_of(text) > LARGE_BYTES)


def reference_in(text: str) -> Reference:
    """The reference that a text kept outside stands for. Raises BadValue if it is damaged."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise BadValue(f"the reference {text[:120]} is damaged, so the value can't be found; restore the record")
    return _reference(found)


def references_in(text: str | None) -> list[Reference]:
    """Every blob that a text refers to: the text itself if it is kept outside, else the files in it."""
    if text is None or MARK not in text:
        return []
    if _QUOTED_MARK not in text:  # a text inside a text, as in the record of a wait for another job's result
        text = text.replace('\\"', '"')
    return [_reference(found) for found in _REFERENCE.finditer(text)]


def _reference(found: "re.Match[str]") -> Reference:
    return Reference(found["sha256"], int(found["size"]), found["media"] or "", found["encoding"] is not None)


def check_own(text: str, where: str) -> str:
    """Refuse a value that would be read as a reference to another value."""
    if text.startswith(_VALUE_START):
        raise BadValue(f"{where}: a dict with the only key {MARK!r} is reserved for Holdfast; use another key")
    return text


def check_inline(text: str, where: str) -> str:
    """Refuse a text that is too large for a record, because there is no blob store."""
    if len(text) > INLINE_BYTES // 4 and size_of(text) > INLINE_BYTES:
        raise BadValue(
            f"{where}: larger than {INLINE_BYTES >> 20} MiB as JSON, and there is no blob store for it; name one with "
            "App(blobs=…) or $HOLDFAST_BLOBS, or store it elsewhere and pass a path or URL"
        )
    return text


def reference_from(shape: object) -> Reference:
    """Read the JSON of a `Blob`. Raises ValueError if it is something else."""
    inside = shape.get(MARK) if isinstance(shape, dict) and len(shape) == 1 else None
    if not isinstance(inside, dict) or "encoding" in inside:
        raise ValueError("this is not a Blob; make one with Blob.from_path(path)")
    try:
        given = msgspec.convert(inside, Reference)
    except msgspec.ValidationError as error:
        raise ValueError(f"this is not a Blob: {error}") from None
    if not _SHA256.fullmatch(given.sha256) or given.size < 0 or not _REFERENCE.fullmatch(given.text):
        raise ValueError("this is not a Blob: its hash, size or media type isn't valid")
    return given
