"""Canonical JSON: the text of a value, the same in every process and Python version, and a strict reader of JSON.

One pass over the value checks and writes it. Must not know type hints (`codec`), and must not guess: a value that a
store could change or lose is refused.
"""

import json
import math
import re
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from io import IOBase
from json.encoder import encode_basestring as quoted
from pathlib import PurePath
from types import NoneType
from typing import Any, get_args
from uuid import UUID

import msgspec
import pydantic
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic_core import SchemaSerializer

from holdfast.core.errors import BadValue
from holdfast.core.limits import PAYLOAD_BYTES, size_of

Writer = Callable[[Any, int, str], str]
"""Writes a value at a nesting depth, with its bytes in one of these forms: base64, hex or utf8."""

PAYLOAD_LIMIT = PAYLOAD_BYTES
"""The largest text, in bytes of UTF-8."""

DEPTH_LIMIT = 64
"""How deep lists, objects and models may nest."""

KINDS_KEPT = 1_024
"""How many hints, and how many classes, are cached."""

QUOTE_LIMIT = 80
"""An error message shows at most this many characters of a value."""


def canonical(value: Any) -> str:
    """The canonical JSON text of any value that can be stored, without a type hint."""
    return sized(written(value, "the value"), "the value")


def parse(text: str | bytes) -> Any:
    """Plain values from JSON that comes from outside: a command line, HTTP, a file. Stricter than `json.loads`."""
    value = _read(text, PAYLOAD_LIMIT, float)
    sized(written(value, _JSON_TEXT), _JSON_TEXT)
    return value


def parse_document(text: str | bytes, most: int) -> Any:
    """Like `parse`, for up to `most` bytes with several values in it, each of which is checked when it is written."""
    value = _read(text, most, _finite)
    if _HALF.search(text.decode() if isinstance(text, bytes) else text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadValue(f"{_JSON_TEXT}: half of a surrogate pair; write whole characters") from None
    return value


def _read(text: str | bytes, most: int, parse_float: Callable[[str], float]) -> Any:
    where = _JSON_TEXT
    try:
        text = text.decode() if isinstance(text, bytes) else text
        text.encode()
    except UnicodeError:
        raise BadValue(f"{where}: not valid UTF-8; write it as UTF-8") from None
    try:
        _check_nesting(sized(text, where, most))
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_whole_number,
            parse_float=parse_float,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BadValue(f"{where}: not JSON: {error.msg} at {place}; correct it there") from None
    except Unfit as unfit:
        raise unfit.at(where) from None


# Strictness that json.loads lacks.

_JSON_TEXT = "the JSON text"

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""How half of a surrogate pair is written."""

_TOKENS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def _check_nesting(text: str) -> None:
    """Count the nesting before parsing, which would raise a RecursionError."""
    if text.count("[") + text.count("{") <= DEPTH_LIMIT:
        return
    depth = 0
    for token in _TOKENS.finditer(text):
        depth += 1 if token[0] in "[{" else -1 if token[0] in "]}" else 0
        if depth > DEPTH_LIMIT:
            raise Unfit(_TOO_DEEP)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Unfit(f"the key {clipped(repr(key))} appears twice; keep one")
        found[key] = value
    return found


def _whole_number(digits: str) -> int:
    if len(digits) > 20:  # int() itself refuses 5,000 digits, with another error.
        raise Unfit(_TOO_WIDE)
    return int(digits)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise Unfit(f"{clipped(text)} {_NOT_FINITE}")
    return value


def _no_constant(name: str) -> None:
    raise Unfit(f"{name} {_NOT_FINITE}")


# The walker: one pass that checks and writes.

_TOO_DEEP = f"nested deeper than {DEPTH_LIMIT} levels, or contains itself; flatten it, or remove the cycle"
_TOO_LARGE = f"larger than {PAYLOAD_LIMIT >> 20} MiB as JSON; pass a Blob (Blob.from_path), a path or a URL"
_TOO_WIDE = "a whole number beyond 64 bits; pass it as text"
_NOT_FINITE = "is not a finite number; pass None or text"
_AS_BASE64 = 'set ser_json_bytes="base64", val_json_bytes="base64" in its model_config'


class Unfit(Exception):
    """Why a value can't be written. Each container around it adds its part of the path as the error propagates."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    def at(self, where: str) -> BadValue:
        """The error that a user sees."""
        return BadValue(line(where, "".join(reversed(self.path)), str(self)))


def line(where: str, path: str, reason: str) -> str:
    """An error as one line: what, where, why."""
    return f"{where}: {clipped(path)}: {reason}" if path else f"{where}: {reason}"


def step_to(key: object) -> str:
    """One part of the path to a nested value."""
    if isinstance(key, str):
        return f".{key}" if key.isidentifier() and len(key) < QUOTE_LIMIT else f"[{key[:QUOTE_LIMIT]!r}]"
    return f"[{key}]" if isinstance(key, int) and abs(key) < 1 << 64 else f"[{a_or_an(type(key).__name__)}]"


def clipped(text: str) -> str:
    """A text on one line, shortened to QUOTE_LIMIT."""
    text = " ".join(text.split())
    return text if len(text) <= QUOTE_LIMIT else f"{text[: QUOTE_LIMIT - 20]}…{text[-19:]}"


_SPOKEN_WITH_AN = re.compile(r"[aeio]|[AEFHILMNORSX](?![a-z])|[AEIO]")
"""A vowel, or a capital that is spoken as a letter, because no lower-case letter follows: M, SE, HTTPError."""


def a_or_an(name: str) -> str:
    """A noun with its article: "a list", "an AsyncJob", "an SE", "a UUID"."""
    return f"{'an' if _SPOKEN_WITH_AN.match(name) else 'a'} {name}"


def sized(text: str, where: str, most: int | None = None) -> str:
    """The text, or BadValue if it is larger than `most` bytes, by default PAYLOAD_LIMIT."""
    if size_of(text) > (PAYLOAD_LIMIT if most is None else most):
        raise BadValue(f"{where}: {_TOO_LARGE}")
    return text


def written(value: Any, where: str, depth: int = 0) -> str:
    """The text of a value nested `depth` levels deep in a larger one, whose size the caller checks."""
    try:
        return _writer(type(value))(value, depth, "base64")
    except Unfit as unfit:
        raise unfit.at(where) from unfit.__cause__


def _int(value: int, depth: int, form: str) -> str:
    if -(1 << 63) <= value < 1 << 63:
        return repr(value)
    raise Unfit(_TOO_WIDE)


def _float(value: float, depth: int, form: str) -> str:
    if math.isfinite(value):
        return repr(value + 0.0)  # -0.0 becomes 0.0: they are equal, and equal values must have equal hashes.
    raise Unfit(f"{value!r} {_NOT_FINITE}")


def _str(value: str, depth: int = 0, form: str = "") -> str:
    if "\0" in value:
        raise Unfit("text with a NUL character, which not every store can hold; remove it or pass bytes")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unfit("text with a lone surrogate, which is not valid Unicode; clean it or pass bytes") from None
    return quoted(value)


def _bytes(value: bytes | bytearray, depth: int, form: str) -> str:
    if form != "utf8":
        return quoted(b64encode(value).decode() if form == "base64" else value.hex())
    try:
        return _str(value.decode())
    except (UnicodeDecodeError, Unfit):
        raise Unfit(f"bytes that are not plain UTF-8, and its model reads bytes as text; {_AS_BASE64}") from None


def _array(value: Iterable[Any], depth: int, form: str) -> str:
    return f"[{','.join(_members(value, depth, form))}]"


def _set(value: Iterable[Any], depth: int, form: str) -> str:
    return f"[{','.join(sorted(_members(value, depth, form)))}]"


def _members(value: Iterable[Any], depth: int, form: str) -> list[str]:
    if depth >= DEPTH_LIMIT:
        raise Unfit(_TOO_DEEP)
    texts: list[str] = []
    room = PAYLOAD_LIMIT  # Counted while writing, because a small value that contains itself often can be huge as text.
    try:
        for item in value:
            text = _writer(type(item))(item, depth + 1, form)
            room -= len(text) + 1
            if room < 1:
                raise Unfit(_TOO_LARGE)
            texts.append(text)
    except Unfit as unfit:
        unfit.path.append(f"[{len(texts)}]")
        raise
    return texts


def _object(value: Mapping[Any, Any], depth: int, form: str) -> str:
    if depth >= DEPTH_LIMIT:
        raise Unfit(_TOO_DEEP)
    texts: dict[str, str] = {}
    room = PAYLOAD_LIMIT
    key: Any = None
    try:
        for key, item in value.items():
            name = key if type(key) is str else _key(key)
            if name in texts:
                raise Unfit(f"two keys become {clipped(repr(name))} as text; use only strings as keys")
            text = f"{_str(name)}:{_writer(type(item))(item, depth + 1, form)}"
            room -= len(text) + 1
            if room < 1:
                raise Unfit(_TOO_LARGE)
            texts[name] = text
    except Unfit as unfit:
        unfit.path.append(step_to(key))
        raise
    return "{" + ",".join([texts[name] for name in sorted(texts)]) + "}"


def _key(key: Any) -> str:
    """The text of a key that isn't plain text."""
    if isinstance(key, Enum):
        return _key(key.value)
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return _int(int.__index__(key), 0, "")
    for kind, text_of in _TEXTS:
        if isinstance(key, kind) and kind not in (time, timedelta):
            return text_of(key)
    raise Unfit(f"{a_or_an(type(key).__name__)} can't be a key; use a string")


def _datetime(value: datetime) -> str:
    if value.utcoffset() is None:
        return datetime.isoformat(value)
    try:
        return datetime.isoformat(value.astimezone(UTC)).replace("+00:00", "Z")
    except OverflowError:
        raise Unfit("a time outside the years 1 to 9999 in UTC; pass it as text") from None


def _time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Unfit("a time of day whose zone has no fixed offset; pass a datetime, or pass the zone's name separately")
    return time.isoformat(value)


def _timedelta(value: timedelta) -> str:
    span = abs(value)
    return f"{'-' if value < timedelta() else ''}P{span.days}DT{span.seconds}.{span.microseconds:06}S"


def _decimal(value: Decimal) -> str:
    if value.is_finite():
        return str(value)
    raise Unfit(f"{value} {_NOT_FINITE}")


_EXACT: dict[type, Writer] = {
    NoneType: lambda value, depth, form: "null",
    bool: lambda value, depth, form: "true" if value else "false",
    str: _str,
    int: _int,
    float: _float,
    list: _array,
    dict: _object,
}
_BASES: tuple[tuple[Any, Writer], ...] = (
    (Enum, lambda value, depth, form: _writer(type(value.value))(value.value, depth, form)),
    (str, lambda value, depth, form: _str(str.__str__(value))),
    (int, lambda value, depth, form: _int(int.__index__(value), depth, form)),
    (float, lambda value, depth, form: _float(float.__float__(value), depth, form)),
    ((list, tuple, deque), _array),
    ((set, frozenset), _set),
    (Mapping, _object),
    ((bytes, bytearray), _bytes),
)
_TEXTS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (datetime, _datetime),
    (date, date.isoformat),
    (time, _time),
    (timedelta, _timedelta),
    (UUID, str),
    (Decimal, _decimal),
    (PurePath, str),
)
_REFUSED: tuple[tuple[Any, str], ...] = (
    (
        (pydantic.Secret, pydantic.SecretStr, pydantic.SecretBytes),
        "{} must not be stored; pass the secret's name, and look the secret up where you use it",
    ),
    (IOBase, "{} is an open file; pass its path"),
    ((Iterator, AsyncIterable), "{} can be read only once; pass a list"),
    (Awaitable, "{} has no value yet; await it and pass the result"),
    (BaseException, "{} can't be stored; pass its text"),
    (memoryview, "{} can't be stored; pass bytes"),
    (type, "{} can't be stored; pass its name"),
    (type(MISSING), "the field was never set; set it"),
    (object, "{} can't be stored; pass a dataclass, a pydantic model or plain JSON values"),
)


def _found(kind: Any) -> Writer:
    """The writer for the values of a class."""
    if kind in _EXACT:
        return _EXACT[kind]
    if any(issubclass(kind, refused) for refused, _ in _REFUSED[:-1]):
        return partial(_refuse, kind)
    if issubclass(kind, pydantic.BaseModel) or is_pydantic_dataclass(kind):
        return _model_writer(kind)
    if is_dataclass(kind):
        config = getattr(kind, "__pydantic_config__", None)
        # Fields that __init__ doesn't take are written too: the codec notices if they come back different.
        names = {field.name: field.name for field in fields(kind)}
        return _record_writer(names, {}, config.get("val_json_bytes", "utf8") if config else "")
    if issubclass(kind, msgspec.Struct):
        names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
        tag, tag_field = kind.__struct_config__.tag, kind.__struct_config__.tag_field
        return _record_writer(names, {tag_field: tag} if tag_field else {}, "base64")
    for base, writer in _BASES:
        if issubclass(kind, base):
            return writer
    for base, text_of in _TEXTS:
        if issubclass(kind, base):
            return lambda value, depth, form: _str(text_of(value))
    return _leaf_writer(kind)


_writer: Callable[[Any], Writer] = lru_cache(maxsize=KINDS_KEPT)(_found)


def reason_against(kind: type) -> str:
    """Why values of a class can't be stored, and what to pass instead."""
    return next(reason.format(a_or_an(kind.__name__)) for refused, reason in _REFUSED if issubclass(kind, refused))


def _refuse(kind: type, value: Any, depth: int, form: str) -> str:
    raise Unfit(reason_against(kind))


# Objects with fields, and types that only pydantic knows.

_REWRITERS: tuple[Any, ...] = (
    pydantic.PlainSerializer,
    pydantic.WrapSerializer,
    pydantic.EncodedBytes,
    pydantic.EncodedStr,
    pydantic.Json,
)


def _record_writer(names: Mapping[str, str], fixed: Mapping[str, Any], own_form: str) -> Writer:
    def write(value: Any, depth: int, form: str) -> str:
        items = {key: getattr(value, name, MISSING) for key, name in names.items()}
        return _object({**fixed, **items} if fixed else items, depth, own_form or form)

    return write


def _model_writer(kind: Any) -> Writer:
    """Write the fields by name, and use the class's own serializers where it has them."""
    is_model = issubclass(kind, pydantic.BaseModel)
    config = (kind.model_config if is_model else kind.__pydantic_config__) or {}
    own_form = config.get("val_json_bytes", "utf8")
    declared, marks, serializer = kind.__pydantic_fields__, kind.__pydantic_decorators__, kind.__pydantic_serializer__
    names = [name for name, field in declared.items() if field.init is not False or config.get("extra") != "forbid"]
    marked = {name for mark in marks.field_serializers.values() for name in mark.info.fields}
    custom = {
        name
        for name in names
        if marked & {name, "*"} or _is_rewritten(declared[name].annotation, *declared[name].metadata)
    }

    def write(value: Any, depth: int, form: str) -> str:
        if marks.model_serializers:
            plain = _dumped(serializer, value)
            return _writer(type(plain))(plain, depth, own_form)
        # A model's __dict__ and not getattr, which would warn about deprecated fields.
        get = value.__dict__.get if is_model else partial(getattr, value)
        items = {name: get(name, MISSING) for name in names}
        for name, plain in _dumped(serializer, value, include=custom).items() if custom else ():
            was_set = isinstance(items[name], set | frozenset) and isinstance(plain, list)
            items[name] = json.loads(_set(plain, depth, own_form)) if was_set else plain
        if issubclass(kind, pydantic.RootModel):
            if depth >= DEPTH_LIMIT:  # Counts as a level, so that a model that contains itself is refused.
                raise Unfit(_TOO_DEEP)
            return _writer(type(items["root"]))(items["root"], depth + 1, own_form)
        extra = getattr(value, "__pydantic_extra__", None) or {}
        if clash := items.keys() & extra.keys():
            raise Unfit(f"the extra field {clipped(min(clash))!r} has the name of a declared field; rename it")
        return _object(items | extra, depth, own_form)

    return write


def _is_rewritten(*notes: Any) -> bool:
    """Whether a hint, or an annotation in it, makes pydantic serialize a value in a special way."""
    return any(isinstance(n, _REWRITERS) or n is pydantic.Json or _is_rewritten(*get_args(n)) for n in notes)


def _leaf_writer(kind: Any) -> Writer:
    """The writer for types that pydantic can serialize: addresses, patterns, URLs."""
    try:
        serializer = pydantic.TypeAdapter(kind).serializer
    except (pydantic.errors.PydanticUserError, NameError):
        return partial(_refuse, kind)

    def write(value: Any, depth: int, form: str) -> str:
        with suppress(Unfit):
            plain = _dumped(serializer, value)
            if type(plain) in _EXACT:
                return _EXACT[type(plain)](plain, depth, form)
        raise Unfit(reason_against(kind))

    return write


def _dumped(serializer: SchemaSerializer, value: Any, include: set[str] | None = None) -> Any:
    options: dict[str, Any] = {"mode": "json", "round_trip": True, "by_alias": False, "warnings": "error"}
    try:
        return serializer.to_python(value, include=include, **options)
    except (ValueError, RecursionError) as error:
        raise Unfit(f"its serializer failed: {clipped(str(error))}; fix the serializer or the value") from error
