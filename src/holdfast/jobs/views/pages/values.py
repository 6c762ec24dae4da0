"""Stored values for pages: of one that is kept outside its record, the beginning. Must not read a whole large value."""

from contextlib import aclosing, suppress

from holdfast.core.errors import BlobError
from holdfast.core.references import Reference, is_kept_outside, reference_in
from holdfast.engines.contract import Engine
from holdfast.jobs.large_values import stream
from holdfast.jobs.views.pages.parts import SHOWN_CHARACTERS, Value, value_of
from holdfast.safe_text import clean

BEGINNINGS = 1_000
"""How many beginnings are remembered. A blob never changes, and a page is read again and again."""

_beginnings: dict[str, str] = {}


async def value_shown(engine: Engine, text: str) -> Value:
    """Return a stored value: whole if it is small, otherwise its beginning as text."""
    if not is_kept_outside(text):
        return value_of(text)
    reference = reference_in(text)
    return Value(text=await _beginning(engine, reference), bytes=reference.size, is_whole=False)


async def _beginning(engine: Engine, reference: Reference) -> str:
    """Read the beginning of a blob; nothing if it can't be read now."""
    known = _beginnings.get(reference.sha256)
    if known is not None:
        return known
    found = ""
    with suppress(BlobError):
        async with aclosing(stream(engine, reference)) as chunks:
            found = clean((await anext(chunks, b"")).decode(errors="replace")[:SHOWN_CHARACTERS])
        while len(_beginnings) >= BEGINNINGS:
            _beginnings.pop(next(iter(_beginnings)), None)
        _beginnings[reference.sha256] = found
    return found
