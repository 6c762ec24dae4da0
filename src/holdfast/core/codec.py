"""The one border for values: arguments and results become canonical JSON text by their type hints, and come back.

Must not know jobs or stores, must not run what it reads, and must not guess: a value that would come back as another
is refused, in one line that says what, where and what now. Equal values give the same text in every process and every
Python, because keys are hashes of it.

    encode   value → pydantic checks it by its hint → the walker writes it → does it come back the same? → text
    decode   text → pydantic reads it by its hint → value
    parse    JSON from outside → plain values that `canonical` can write
"""

import inspect
import json
import math
import re
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache, partial, reduce
from io import IOBase
from json.encoder import encode_basestring as quoted
from operator import or_
from pathlib import PurePath
from types import NoneType, UnionType
from typing import IO, Annotated, Any, Generic, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
import pydantic
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic_core import SchemaSerializer, core_schema

from holdfast.core.errors import BadValue

T = TypeVar("T")
Writer = Callable[[Any, int, str], str]
"""Writes a value that lies so deep, with bytes in that form: base64, hex or utf8."""

PAYLOAD_LIMIT = 1 << 20
"""The largest text, in bytes of UTF-8."""

DEPTH_LIMIT = 64
"""How deep lists, objects and models may nest."""

ARGUMENT_DEPTH = 3
"""An argument lies up to this deep in the text of its call: `[{"**":{"name":…}}]`."""

KINDS_KEPT = 1_024
"""How many hints, and how many classes, are remembered with what was worked out for them."""

QUOTE_LIMIT = 80
"""An error line shows no more of a value than this."""


def encode(value: Any, hint: Any = Any) -> str:
    """The canonical JSON text of a value, checked by a type hint."""
    return Codec[Any](hint).encode(value)


def decode(text: str | bytes, hint: Any = Any) -> Any:
    """The value that a text stands for, by a type hint."""
    return Codec[Any](hint).decode(text)


def canonical(value: Any) -> str:
    """The canonical JSON text of anything that may be stored, with no hint to check it by."""
    return _sized(_written(value, "the value"), "the value")


def parse(text: str | bytes) -> Any:
    """Plain values from JSON that was written elsewhere: a command line, HTTP, a file. Stricter than `json.loads`."""
    where = "the JSON text"
    try:
        text = text.decode() if isinstance(text, bytes) else text
        text.encode()
    except UnicodeError:
        raise BadValue(f"{where}: not valid UTF-8; write it as UTF-8") from None
    try:
        _check_nesting(_sized(text, where))
        value = json.loads(text, object_pairs_hook=_unique, parse_int=_whole_number, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BadValue(f"{where}: not JSON: {error.msg} at {place}; correct it there") from None
    except _Unfit as unfit:
        raise unfit.at(where) from None
    _sized(_written(value, where), where)
    return value


class Codec(Generic[T]):
    """Writes and reads the values of one type hint. `where` opens its error lines."""

    def __init__(self, hint: Any = Any, where: str = "the value") -> None:
        self.hint = hint
        self.where = where
        self._adapter: pydantic.TypeAdapter[T] = _adapter(hint, where)

    def encode(self, value: T) -> str:
        """The canonical JSON text, or BadValue."""
        return _sized(self.part(value), self.where)

    def decode(self, text: str | bytes) -> T:
        """The value that a text stands for, or BadValue. Fields may go by their names or by their aliases."""
        return self._read(text, "the text doesn't fit the type hint")

    def part(self, value: T, depth: int = 0) -> str:
        """The text of a value that lies so deep in a larger text, whose size is left to the caller."""
        if self.hint is Any:
            return _written(value, self.where, depth)
        if hasattr(type(value), "__next__"):
            # pydantic would read it to its end to make a list of it, and an endless one for ever.
            raise BadValue(f"{self.where}: {_reason_against(type(value))}")
        try:
            checked = self._adapter.validate_python(value, by_alias=True, by_name=True)
        except _MISFITS as error:
            raise _misfit(error, self.where, "give what the type hint says") from error
        text = _written(checked, self.where, depth)
        # Refuse now what a worker could not read later, or would read as something else.
        back = self._read(text, "its text can't be read back; change the type hint or the type")
        if back != checked and (again := _written(back, self.where, depth)) != text:
            path = _difference(json.loads(text), json.loads(again))
            reason = "would come back changed; is it a subclass of the hint, or does an alias or validator alter it?"
            raise BadValue(_line(self.where, path, reason))
        return text

    def _read(self, text: str | bytes, what_now: str) -> T:
        try:
            return self._adapter.validate_json(text, by_alias=True, by_name=True)
        except _MISFITS as error:
            raise _misfit(error, self.where, what_now) from error


class Signature:
    """What a function takes and gives, as text and back. Never calls the function.

    The text is an array of the positional parameters, up to the last one that differs from its default; keyword-only
    ones that differ, and those of `**kwargs`, follow in one last `{"**": {…}}`. So a new parameter with a default
    leaves the text of old calls as it was.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self._function = function
        self._signature = inspect.signature(function)
        kinds, parameters = inspect.Parameter, self._signature.parameters.values()
        self._places = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
        self._names = [p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY]
        self._more = next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), "")
        self._others = next((p.name for p in parameters if p.kind is kinds.VAR_KEYWORD), "")
        self._given_defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._required = {*self._places, *self._names} - self._given_defaults.keys()
        # A bad hint is refused here; one that names a class from further down is asked again at the first call.
        with suppress(_NotYet):
            _ = self._codecs

    @property
    def result(self) -> Codec[Any]:
        """The codec of what the function returns."""
        return self._codecs["return"]

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The canonical text of a call, or BadValue."""
        given, defaults = self._bind(args, kwargs), self._defaults
        texts = {
            name: self._codecs[name].part(given[name], ARGUMENT_DEPTH) if name in given else defaults.get(name)
            for name in (*self._places, *self._names)
        }
        differ = {name for name, text in texts.items() if name in given and text != defaults.get(name)}
        more = [self._codecs[self._more].part(value, ARGUMENT_DEPTH) for value in given.get(self._more, ())]
        last = len(self._places)
        while last and not more and self._places[last - 1] not in differ:
            last -= 1
        places = []
        for name in self._places[:last]:
            text = texts[name]
            if text is None:
                raise BadValue(f"argument {name!r} of {self.name}: its default can't be stored; pass a value for it")
            places.append(text)
        named = {name: str(texts[name]) for name in self._names if name in differ}
        for name, value in given.get(self._others, {}).items():
            named[name] = self._codecs[self._others].part(value, ARGUMENT_DEPTH)
        return self._joined(places + more, named)

    def decode(self, text: str | bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, to be passed as `*args, **kwargs`, or BadValue. Defaults are left to the call."""
        places, named = self._split(text)
        beyond = len(places) - len(self._places)
        if beyond > 0 and not self._more:
            raise BadValue(f"{self.name}: the text has {beyond} more arguments than it takes; was a parameter removed?")
        names = (*self._places[: len(places)], *[self._more] * beyond)
        args = tuple(self._codecs[name].decode(bytes(raw)) for name, raw in zip(names, places, strict=True))
        kwargs = {}
        for name, raw in named.items():
            known = name if name in self._names else self._others
            if not known:
                line = f"argument {_clipped(name)!r} of {self.name}: unknown to the function; was a parameter renamed?"
                raise BadValue(line)
            kwargs[name] = self._codecs[known].decode(bytes(raw))
        if missing := self._required.difference(names, kwargs):
            raise BadValue(f"argument {min(missing)!r} of {self.name}: not in the text; give the parameter a default")
        return args, kwargs

    @cached_property
    def _codecs(self) -> dict[str, Codec[Any]]:
        try:
            hints = get_type_hints(self._function, include_extras=True)
        except (NameError, AttributeError) as error:
            raise _NotYet(f"{self.name}: a type hint can't be resolved: {error}; define or import it") from error
        for name, default in self._given_defaults.items():
            if default is None and name in hints:
                hints[name] = hints[name] | None  # `voice: str = None` is written often, and its meaning is clear.
        codecs = {
            name: Codec[Any](hints.get(name, Any), f"argument {name!r} of {self.name}")
            for name in self._signature.parameters
        }
        # No parameter can be called "return".
        return codecs | {"return": Codec[Any](hints.get("return", Any), f"result of {self.name}")}

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """The texts of the defaults. One that can't be stored, such as a sentinel, has none."""
        texts = {}
        for name, default in self._given_defaults.items():
            with suppress(BadValue):
                texts[name] = self._codecs[name].part(default, ARGUMENT_DEPTH)
        return texts

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self._places[: len(args)]
        if not kwargs and len(args) == len(names) and self._required.issubset(names):
            return dict(zip(names, args, strict=True))  # As inspect would, in a tenth of the time.
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BadValue(f"{self.name}: {_clipped(str(error))}; look at its parameters") from None

    def _joined(self, places: list[str], named: Mapping[str, str]) -> str:
        where = f"the arguments of {self.name}"
        if named:
            items = ",".join(f"{_written(name, where)}:{named[name]}" for name in sorted(named))
            places.append('{"**":{' + items + "}}")
        elif places and places[-1].startswith('{"**":'):
            places.append('{"**":{}}')  # So that the last argument isn't taken for the names.
        return _sized(f"[{','.join(places)}]", where)

    def _split(self, text: str | bytes) -> tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]:
        try:
            places = msgspec.json.decode(text, type=list[msgspec.Raw])
            if places and bytes(places[-1]).startswith(b"{"):
                last = msgspec.json.decode(places[-1], type=dict[str, msgspec.Raw])
                if last.keys() == {"**"}:
                    return places[:-1], msgspec.json.decode(last["**"], type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadValue(f"the arguments of {self.name}: {_clipped(str(error))}; give a JSON array") from error
        return places, {}


# From hints to pydantic.


class _NotYet(BadValue):
    """A hint names something that isn't defined, or not yet."""


class _StructReader:
    """Teaches pydantic to read a msgspec Struct."""

    def __init__(self, hint: Any) -> None:
        self.read = partial(msgspec.convert, type=hint, str_keys=True)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)


_MISFITS = (pydantic.ValidationError, pydantic.errors.PydanticUserError, OverflowError, UnicodeError)
_CONFIG = pydantic.ConfigDict(val_json_bytes="base64", allow_inf_nan=False)
_STREAMS = (Iterator, AsyncIterable, Awaitable, IOBase, IO, type)


def _adapter(hint: Any, where: str) -> pydantic.TypeAdapter[Any]:
    try:
        hash(hint)
        build: Callable[[Any, str], pydantic.TypeAdapter[Any]] = _kept
    except TypeError:
        build = _built
    try:
        return build(hint, repr(hint))
    except (pydantic.errors.PydanticUserError, NameError, TypeError, BadValue) as error:
        reason = _clipped(str(error).partition("\n")[0])
        raise BadValue(f"{where}: the type hint {_clipped(repr(hint))} can't be used: {reason}") from error


def _built(hint: Any, text: str) -> pydantic.TypeAdapter[Any]:
    # pydantic takes no config beside a class that may have its own. A NewType hides the class; the config then reaches
    # dataclasses and TypedDicts, while models keep theirs.
    hide: Any = NewType
    return pydantic.TypeAdapter(hide("Value", _readable(hint)), config=_CONFIG)


# Kept by the hint's text too: `int | str` equals `str | int`, and pydantic may prefer the first of two that fit.
_kept = lru_cache(maxsize=KINDS_KEPT)(_built)


def _readable(hint: Any) -> Any:
    """The hint as pydantic can read it: Structs get a reader, and what can't be stored is refused."""
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Iterable, Callable) or (isinstance(origin, type) and issubclass(origin, _STREAMS)):
        raise BadValue("it can't be stored; use a list, or what it leads to")
    if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
        return Annotated[hint, _StructReader(hint)]
    if not args or origin is Literal:
        return hint
    if origin is Annotated:
        return Annotated[(_readable(args[0]), *args[1:])]
    inner = tuple(_readable(arg) for arg in args)
    if all(new is old for new, old in zip(inner, args, strict=True)):
        return hint
    return reduce(or_, inner) if origin in (Union, UnionType) else origin[inner]


def _misfit(error: Exception, where: str, what_now: str) -> BadValue:
    if isinstance(error, pydantic.errors.PydanticUserError):
        return BadValue(f"{where}: a class that its type hint leads to isn't defined; define or import it")
    if not isinstance(error, pydantic.ValidationError):
        return BadValue(f"{where}: {_clipped(str(error))}; {what_now}")
    first = error.errors(include_url=False, include_context=False)[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    path = "".join(_step(key) for key in first["loc"])
    return BadValue(_line(where, path, f"{_clipped(first['msg'])}{more}; {what_now}"))


def _difference(one: Any, two: Any) -> str:
    """The path to the first place where two plain values differ."""
    keys = one if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
    for key in keys:
        try:
            if one[key] != two[key]:
                return _step(key) + _difference(one[key], two[key])
        except (LookupError, TypeError):
            return _step(key)
    return ""


# Strictness that json.loads lacks.

_TOKENS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def _check_nesting(text: str) -> None:
    """Counted before parsing, which would answer deep nesting with a RecursionError."""
    if text.count("[") + text.count("{") <= DEPTH_LIMIT:
        return
    depth = 0
    for token in _TOKENS.finditer(text):
        depth += 1 if token[0] in "[{" else -1 if token[0] in "]}" else 0
        if depth > DEPTH_LIMIT:
            raise _Unfit(_TOO_DEEP)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Unfit(f"the key {_clipped(repr(key))} is there twice; keep one")
        found[key] = value
    return found


def _whole_number(digits: str) -> int:
    if len(digits) > 20:  # int() itself refuses 5,000 digits, with another error.
        raise _Unfit(_TOO_WIDE)
    return int(digits)


def _no_constant(name: str) -> None:
    raise _Unfit(f"{name} {_NOT_FINITE}")


# The walker: one pass that checks and writes.

_TOO_DEEP = f"nested deeper than {DEPTH_LIMIT} levels; flatten it, unless it is a cycle"
_TOO_LARGE = f"larger than {PAYLOAD_LIMIT >> 20} MiB as text; keep it elsewhere and pass a path or URL"
_TOO_WIDE = "a whole number beyond 64 bits; pass it as text"
_NOT_FINITE = "is not a finite number; pass None or text"
_AS_BASE64 = 'set ser_json_bytes="base64", val_json_bytes="base64" in its model_config'


class _Unfit(Exception):
    """Why a value can't be written. Each container around it adds a step to the path on the way out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    def at(self, where: str) -> BadValue:
        return BadValue(_line(where, "".join(reversed(self.path)), str(self)))


def _line(where: str, path: str, reason: str) -> str:
    return f"{where}: {_clipped(path)}: {reason}" if path else f"{where}: {reason}"


def _step(key: object) -> str:
    if isinstance(key, str):
        return f".{key}" if key.isidentifier() and len(key) < QUOTE_LIMIT else f"[{key[:QUOTE_LIMIT]!r}]"
    return f"[{key}]" if isinstance(key, int) and abs(key) < 1 << 64 else f"[a {type(key).__name__}]"


def _clipped(text: str) -> str:
    """One line that isn't long."""
    text = " ".join(text.split())
    return text if len(text) <= QUOTE_LIMIT else f"{text[: QUOTE_LIMIT - 20]}…{text[-19:]}"


def _sized(text: str, where: str) -> str:
    if len(text) > PAYLOAD_LIMIT or (not text.isascii() and len(text.encode()) > PAYLOAD_LIMIT):
        raise BadValue(f"{where}: {_TOO_LARGE}")
    return text


def _written(value: Any, where: str, depth: int = 0) -> str:
    try:
        return _writer(type(value))(value, depth, "base64")
    except _Unfit as unfit:
        raise unfit.at(where) from unfit.__cause__


def _int(value: int, depth: int, form: str) -> str:
    if -(1 << 63) <= value < 1 << 63:
        return repr(value)
    raise _Unfit(_TOO_WIDE)


def _float(value: float, depth: int, form: str) -> str:
    if math.isfinite(value):
        return repr(value + 0.0)  # -0.0 becomes 0.0: they are equal, and equal values must have equal hashes.
    raise _Unfit(f"{value!r} {_NOT_FINITE}")


def _str(value: str, depth: int = 0, form: str = "") -> str:
    if "\0" in value:
        raise _Unfit("text with a NUL character, which not every store can hold; remove it or pass bytes")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Unfit("text with a lone surrogate, which is not valid Unicode; clean it or pass bytes") from None
    return quoted(value)


def _bytes(value: bytes | bytearray, depth: int, form: str) -> str:
    if form != "utf8":
        return quoted(b64encode(value).decode() if form == "base64" else value.hex())
    try:
        return _str(value.decode())
    except (UnicodeDecodeError, _Unfit):
        raise _Unfit(f"bytes that are not plain UTF-8, and its model reads bytes as text; {_AS_BASE64}") from None


def _array(value: Iterable[Any], depth: int, form: str) -> str:
    return f"[{','.join(_members(value, depth, form))}]"


def _set(value: Iterable[Any], depth: int, form: str) -> str:
    return f"[{','.join(sorted(_members(value, depth, form)))}]"


def _members(value: Iterable[Any], depth: int, form: str) -> list[str]:
    if depth >= DEPTH_LIMIT:
        raise _Unfit(_TOO_DEEP)
    texts: list[str] = []
    room = PAYLOAD_LIMIT  # Counted on the way, because a small value that holds itself many times is endless as text.
    try:
        for item in value:
            text = _writer(type(item))(item, depth + 1, form)
            room -= len(text) + 1
            if room < 1:
                raise _Unfit(_TOO_LARGE)
            texts.append(text)
    except _Unfit as unfit:
        unfit.path.append(f"[{len(texts)}]")
        raise
    return texts


def _object(value: Mapping[Any, Any], depth: int, form: str) -> str:
    if depth >= DEPTH_LIMIT:
        raise _Unfit(_TOO_DEEP)
    texts: dict[str, str] = {}
    room = PAYLOAD_LIMIT
    key: Any = None
    try:
        for key, item in value.items():
            name = key if type(key) is str else _key(key)
            if name in texts:
                raise _Unfit(f"two keys become {_clipped(repr(name))}; make all keys text")
            text = f"{_str(name)}:{_writer(type(item))(item, depth + 1, form)}"
            room -= len(text) + 1
            if room < 1:
                raise _Unfit(_TOO_LARGE)
            texts[name] = text
    except _Unfit as unfit:
        unfit.path.append(_step(key))
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
    raise _Unfit(f"a {type(key).__name__} can't be a key; make it text")


def _datetime(value: datetime) -> str:
    if value.utcoffset() is None:
        return datetime.isoformat(value)
    try:
        return datetime.isoformat(value.astimezone(UTC)).replace("+00:00", "Z")
    except OverflowError:
        raise _Unfit("a time that lies outside the years 1 to 9999 in UTC; pass it as text") from None


def _time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise _Unfit("a time of day whose zone has no fixed offset; pass a datetime, or the zone's name beside it")
    return time.isoformat(value)


def _timedelta(value: timedelta) -> str:
    span = abs(value)
    return f"{'-' if value < timedelta() else ''}P{span.days}DT{span.seconds}.{span.microseconds:06}S"


def _decimal(value: Decimal) -> str:
    if value.is_finite():
        return str(value)
    raise _Unfit(f"{value} {_NOT_FINITE}")


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
        "a {} must not be kept in history; pass its name and look it up where it is used",
    ),
    (IOBase, "a {} is an open file; pass its path"),
    ((Iterator, AsyncIterable), "a {} can be read only once; pass a list"),
    (Awaitable, "a {} is not there yet; await it and pass the outcome"),
    (BaseException, "a {} can't be stored; pass its text"),
    (memoryview, "a {} can't be stored; pass bytes"),
    (type, "a {} can't be stored; pass its name"),
    (type(MISSING), "the field was never set; set it"),
    (object, "a {} can't be stored; pass a dataclass, a pydantic model or plain JSON values"),
)


def _found(kind: Any) -> Writer:
    """How the values of a class are written."""
    if kind in _EXACT:
        return _EXACT[kind]
    if any(issubclass(kind, refused) for refused, _ in _REFUSED[:-1]):
        return partial(_refuse, kind)
    if issubclass(kind, pydantic.BaseModel) or is_pydantic_dataclass(kind):
        return _model_writer(kind)
    if is_dataclass(kind):
        config = getattr(kind, "__pydantic_config__", None)
        # Fields that __init__ doesn't take are written too: if they don't come back as they were, that is seen.
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


def _reason_against(kind: type) -> str:
    return next(reason.format(kind.__name__) for refused, reason in _REFUSED if issubclass(kind, refused))


def _refuse(kind: type, value: Any, depth: int, form: str) -> str:
    raise _Unfit(_reason_against(kind))


# Objects with fields, and what only pydantic knows.

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
    """Fields by name; those that the class has serializers of its own for, as these say."""
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
            if depth >= DEPTH_LIMIT:  # Counts as a level, so that one around itself comes to an end.
                raise _Unfit(_TOO_DEEP)
            return _writer(type(items["root"]))(items["root"], depth + 1, own_form)
        extra = getattr(value, "__pydantic_extra__", None) or {}
        if clash := items.keys() & extra.keys():
            raise _Unfit(f"the extra field {_clipped(min(clash))!r} has the name of a declared one; rename it")
        return _object(items | extra, depth, own_form)

    return write


def _is_rewritten(*notes: Any) -> bool:
    """Whether a hint, or a note in it, makes pydantic write a value in a way of its own."""
    return any(isinstance(n, _REWRITERS) or n is pydantic.Json or _is_rewritten(*get_args(n)) for n in notes)


def _leaf_writer(kind: Any) -> Writer:
    """Addresses, patterns, URLs: what pydantic knows how to write."""
    try:
        serializer = pydantic.TypeAdapter(kind).serializer
    except (pydantic.errors.PydanticUserError, NameError):
        return partial(_refuse, kind)

    def write(value: Any, depth: int, form: str) -> str:
        with suppress(_Unfit):
            plain = _dumped(serializer, value)
            if type(plain) in _EXACT:
                return _EXACT[type(plain)](plain, depth, form)
        raise _Unfit(_reason_against(kind))

    return write


def _dumped(serializer: SchemaSerializer, value: Any, include: set[str] | None = None) -> Any:
    options: dict[str, Any] = {"mode": "json", "round_trip": True, "by_alias": False, "warnings": "error"}
    try:
        return serializer.to_python(value, include=include, **options)
    except (ValueError, RecursionError) as error:
        raise _Unfit(f"its serializer failed: {_clipped(str(error))}; correct the serializer or the value") from error
