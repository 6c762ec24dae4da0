"""Ids, step paths, idempotency keys, and the rules for names.

Must not draw random numbers itself: they are passed in, so that a simulation repeats exactly.
"""

import re
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote

from holdfast.core.errors import Invalid
from holdfast.core.limits import PATH_CHARACTERS

KEY_LIMIT = 80
"""A step key longer than this is replaced by its hash, so that paths stay readable and indexable."""

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TYPE = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*")
_QUEUE = re.compile(r"[a-z0-9][a-z0-9.-]*")


def new_id(now: int, random_bits: int) -> str:
    """A UUIDv7: `now` in milliseconds, then 74 of the random bits. Sorts by time."""
    return _uuid7(now, random_bits)


def derived_id(parent: str, name: str) -> str:
    """The id of something that belongs to a job. Every process derives the same id. It sorts next to its parent."""
    bits = int.from_bytes(sha256(f"{parent}\n{name}".encode()).digest()[:10])
    return _uuid7(int(parent[:8] + parent[9:13], 16), bits)


def created_at_of(id: str) -> int:
    """When an id was created, in milliseconds; 0 if the text isn't an id."""
    return int(id[:8] + id[9:13], 16) if _ID.fullmatch(id) else 0


def _uuid7(milliseconds: int, bits: int) -> str:
    number = (milliseconds & 0xFFFFFFFFFFFF) << 80 | 0x7 << 76 | (bits >> 62 & 0xFFF) << 64
    text = f"{number | 0b10 << 62 | bits & 0x3FFFFFFFFFFFFFFF:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def digest(*texts: str) -> str:
    """A hash of texts, the same in every process and Python version: 32 hexadecimal digits of SHA-256."""
    return sha256("".join([f"{len(text)}:{text}" for text in texts]).encode()).hexdigest()[:32]


def step_path(parent: str, name: str, key: str, nth: int = 1) -> str:
    """The path of a step's record: the enclosing step's path, its name and key, and its number among equal calls.

    >>> step_path("", "send", "order-42")
    'send#order-42'
    >>> step_path("chapter#7", "draw", "a/b", nth=2)
    'chapter#7/draw#a%2Fb#2'
    """
    # A quoted key contains no star, so the hash of a long key never equals a short key.
    shown = key if key.isascii() and key.isalnum() else quote(key, safe=" :,=+@")
    if len(key) > KEY_LIMIT:
        shown = f"*{digest(key)}"
    path = f"{quoted_name(name)}#{shown}"
    if nth > 1:
        path = f"{path}#{nth}"
    whole = f"{parent}/{path}" if parent else path
    if len(whole) > PATH_CHARACTERS:
        raise Invalid(
            f"step {name[:40]!r}: its path has {len(whole):,} characters, and at most {PATH_CHARACTERS:,} are allowed; "
            "give it and the steps around it shorter names, or nest them less deeply"
        )
    return whole


@lru_cache(1_000)
def quoted_name(name: str) -> str:
    """A step's name as it is written in paths."""
    return quote(name, safe=" :")


def idempotency_key(job: str, path: str, generation: str = "") -> str:
    """The key to send to a provider, so that it ignores a repeated call: the same in all attempts and replays.

    A step whose result a person rejected has a new generation, or the provider would return the rejected result again.
    """
    return digest(job, path, generation) if generation else digest(job, path)


def check_id(text: str) -> str:
    """Return a job's id, or raise Invalid."""
    if not _ID.fullmatch(text):
        raise Invalid(f"{text!r} is not a job id; ids look like 0192f3a4-5b6c-7d8e-9f01-23456789abcd")
    return text


@lru_cache(1_000)
def check_type(text: str) -> str:
    """Return a job type, or raise Invalid."""
    if len(text) > 255 or not _TYPE.fullmatch(text):
        raise Invalid(
            f"{text!r} can't be a job type; use lower-case words of letters, digits, '_' and '-', "
            "joined by dots, up to 255 characters, for example video.make"
        )
    return text


@lru_cache(1_000)
def check_queue(text: str) -> str:
    """Return a queue's name, or raise Invalid."""
    if len(text) > 128 or not _QUEUE.fullmatch(text):
        raise Invalid(
            f"{text!r} can't be a queue's name; use lower-case letters, digits, '-' and '.', up to 128 characters, "
            "starting with a letter or digit, for example video"
        )
    return text
