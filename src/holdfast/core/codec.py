"""Encoding and decoding of values: arguments and results become canonical JSON text by their type hints, and back.

Must not know jobs or stores, must not run what it reads, and must not guess: a value that would come back different is
refused with a one-line error. Equal values give the same text in every process and every Python version, because
idempotency keys are hashes of it.

    encode   value → pydantic checks it by its hint → the walker writes it → does it come back the same? → text
    decode   text → pydantic reads it by its hint → value
    parse    JSON from outside → plain values that `canonical` can write
"""

import inspect
import json
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, partial, reduce
from io import IOBase
from operator import or_
from types import NoneType, UnionType
from typing import (
    IO,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import pydantic
from pydantic_core import core_schema

from holdfast.core.canonical import (
    DEPTH_LIMIT,
    KINDS_KEPT,
    PAYLOAD_LIMIT,
    canonical,
    clipped,
    line,
    parse,
    reason_against,
    sized,
    step_to,
    written,
)
from holdfast.core.errors import BadValue
from holdfast.core.open_hints import change_in, leaves_open, with_tuples
from holdfast.core.schemas import FormSchema
from holdfast.core.suggestions import suggest

__all__ = ["DEPTH_LIMIT", "PAYLOAD_LIMIT", "Codec", "Signature", "canonical", "decode", "encode", "parse"]

T = TypeVar("T")

ARGUMENT_DEPTH = 3
"""An argument is nested up to this deep in the text of its call: `[{"**":{"name":…}}]`."""


def encode(value: Any, hint: Any = Any) -> str:
    """The canonical JSON text of a value, checked by a type hint."""
    return Codec[Any](hint).encode(value)


def decode(text: str | bytes, hint: Any = Any) -> Any:
    """The value of a text, read by a type hint."""
    return Codec[Any](hint).decode(text)


class Changed(NamedTuple):
    """An argument that comes back from JSON as another type, because no hint names its own."""

    refusal: BadValue
    only_tuples: bool
    """Whether only tuples change, into lists. A copy that was never in a store keeps its tuples."""


_PLAIN = frozenset({bool, float, int, str, NoneType})
"""Hints whose values are written as they are, and read as the same value again."""


class Codec(Generic[T]):
    """Writes and reads the values of one type hint. Its error messages start with `where`.

    Where the hint leaves a type open, as `Any` and `dict` do, JSON decides what comes back: a datetime becomes a text.
    With `exact`, such a value is refused, because its reader expects the type that was written.
    """

    def __init__(self, hint: Any = Any, where: str = "the value", *, exact: bool = False) -> None:
        self.hint = hint
        self.where = where
        self._exact = exact
        self._adapter: pydantic.TypeAdapter[T] = _adapter(hint, where)

    def encode(self, value: T) -> str:
        """The canonical JSON text, or BadValue."""
        return self.copied(value)[0]

    def decode(self, text: str | bytes) -> T:
        """The value of a text, or BadValue. Fields may use their names or their aliases."""
        return self._read(text, "the text doesn't fit the type hint")

    def copied(self, value: T) -> tuple[str, T]:
        """The canonical JSON text, and the value read back from it: a copy that shares nothing with the original."""
        text, copy = self.part(value)
        return sized(text, self.where), copy

    def part(self, value: T, depth: int = 0, changes: list[Changed] | None = None) -> tuple[str, T]:
        """Like `copied`, for a value nested `depth` levels deep in a larger text, whose size the caller checks.

        With `changes`, a value that would come back as another type is noted there instead of refused, and the copy
        keeps its tuples.
        """
        if self.hint is Any:
            text = written(value, self.where, depth)
            back = self._read(text, "its text can't be read back")
            return text, self._same(value, back, changes) if self._exact else back
        if type(value) is self.hint and self.hint in _PLAIN:  # As pydantic would, in a tenth of the time.
            return written(value, self.where, depth), value
        if hasattr(type(value), "__next__"):
            # pydantic would read an iterator to its end to make a list, and an endless one forever.
            raise BadValue(f"{self.where}: {reason_against(type(value))}")
        try:
            checked = self._adapter.validate_python(value, by_alias=True, by_name=True)
        except _MISFITS as error:
            raise _misfit(error, self.where, "pass a value that fits the type hint") from error
        text = written(checked, self.where, depth)
        # Refuse now what a worker could not read later, or would read as a different value.
        back = self._read(text, "its text can't be read back; change the type hint or the type")
        if back != checked and (again := written(back, self.where, depth)) != text:
            path = _difference(json.loads(text), json.loads(again))
            reason = "would come back changed; is it a subclass of the hint, or does an alias or validator alter it?"
            raise BadValue(line(self.where, path, reason))
        if not self._is_open and back != checked and not _alike(back, checked):
            reason = "the type hint can't tell it from another type that fits; use one type, or a tagged union"
            raise BadValue(f"{self.where}: would come back as another type; {reason}")
        return text, self._same(checked, back, changes) if self._is_open else back

    def _same(self, value: Any, back: Any, changes: list[Changed] | None) -> Any:
        """The value as read back. Refuse or note a value that comes back as another type, for lack of a hint."""
        found = change_in(value, back)
        if found is None:
            return back
        kept = back if changes is None else with_tuples(value, back)
        other = change_in(value, kept)
        found = other or found
        refusal = BadValue(line(self.where, found.path, f"{found.words}; {found.what_now(self.hint, value)}"))
        if changes is None:
            raise refusal
        changes.append(Changed(refusal, other is None))
        return kept

    @cached_property
    def _is_open(self) -> bool:
        """Whether to look into values, because the hint leaves a type open: `dict`, `list[Any]`, a model with `Any`."""
        return self._exact and leaves_open(self._adapter.core_schema)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the values, for those who send one; see `forms`."""
        try:
            return self._adapter.json_schema(schema_generator=FormSchema)
        except (pydantic.PydanticUserError, pydantic.errors.PydanticInvalidForJsonSchema):
            return {}

    def _read(self, text: str | bytes, what_now: str) -> T:
        try:
            return self._adapter.validate_json(text, by_alias=True, by_name=True)
        except _MISFITS as error:
            raise _misfit(error, self.where, what_now) from error


class Signature:
    """Encodes and decodes the arguments and the result of a function. Never calls the function.

    The text is an array of the positional arguments, up to the last one that differs from its default. Keyword-only
    arguments that differ, and those of `**kwargs`, follow in one last `{"**": {…}}`. So a new parameter with a default
    doesn't change the text of old calls.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self._where = f"the arguments of {self.name}"
        self._function = function
        self._signature = inspect.signature(function)
        kinds, parameters = inspect.Parameter, self._signature.parameters.values()
        self._places = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
        self._names = [p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY]
        self._more = next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), "")
        self._others = next((p.name for p in parameters if p.kind is kinds.VAR_KEYWORD), "")
        self._given_defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._required = {*self._places, *self._names} - self._given_defaults.keys()
        self._all_required = self._required == set(self._signature.parameters) == set(self._places)
        # A bad hint is refused here. A hint that names a class defined further down is resolved at the first call.
        with suppress(_NotYet):
            _ = self._codecs

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that can be given by name."""
        return (*self._places, *self._names)

    @property
    def result(self) -> Codec[Any]:
        """The codec of what the function returns."""
        return self._codecs["return"]

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any], changes: list[Changed] | None = None) -> str:
        """The canonical text of a call, or BadValue. For `changes`, see Codec.part."""
        if self._plain_types and not kwargs and [type(value) for value in args] == self._plain_types:
            texts = [written(value, codec.where) for codec, value in zip(self._in_place, args, strict=True)]
            return sized(f"[{','.join(texts)}]", self._where)  # As below, in a third of the time.
        return self.copied(args, kwargs, changes)[0]

    def copied(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], changes: list[Changed] | None = None
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """Like `encode`, with the arguments that `decode` would read from the text."""
        if self._all_required:
            if kwargs or len(args) != len(self._places):
                given = self._bind(args, kwargs)
                args = [given[name] for name in self._places]
            places = [
                codec.part(value, ARGUMENT_DEPTH, changes) for codec, value in zip(self._in_place, args, strict=True)
            ]
            return self._joined([text for text, _ in places], {}), tuple([copy for _, copy in places]), {}
        return self._copied(self._bind(args, kwargs), self._places, changes)

    def _copied(
        self, given: dict[str, Any], names: Sequence[str], changes: list[Changed] | None
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The text and copies of arguments that are bound to parameters, of which these are positional."""
        defaults, codecs = self._defaults, self._codecs
        more = [codecs[self._more].part(value, ARGUMENT_DEPTH, changes) for value in given.pop(self._more, ())]
        others = given.pop(self._others, {})
        parts = {name: codecs[name].part(value, ARGUMENT_DEPTH, changes) for name, value in given.items()}
        differ = {name for name, (text, _) in parts.items() if text != defaults.get(name)}
        last = len(names)
        while last and not more and names[last - 1] not in differ:
            last -= 1
        places = [parts.get(name) or self._default(name, changes) for name in names[:last]] + more
        named = {name: parts[name] for name in self._names if name in differ}
        for name, value in others.items():
            named[name] = codecs[self._others].part(value, ARGUMENT_DEPTH, changes)
        text = self._joined([text for text, _ in places], {name: text for name, (text, _) in named.items()})
        return text, tuple([copy for _, copy in places]), {name: copy for name, (_, copy) in named.items()}

    def encode_after_one(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The text of a call without its first argument, which isn't known yet: what stands after it, or BadValue."""
        if not self._places and not self._more:
            raise BadValue(f"{self.name} takes no positional argument, so it can't get a result; give it a parameter")
        given = self._bind((None, *args), kwargs)
        if not self._places:
            given[self._more] = given[self._more][1:]
            return self._copied(given, [], None)[0]
        del given[self._places[0]]
        return self._copied(given, self._places[1:], None)[0]

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, with the defaults of those that were not passed, or BadValue."""
        given = self._bind(args, kwargs)
        return {**self._given_defaults, **given, **given.get(self._others, {})}

    def plain(self, text: str) -> dict[str, Any]:
        """The arguments of an encoded call by name, as plain JSON values, with the defaults of those it leaves out."""
        places, named = self._split(text)
        given = dict(zip(self._places, places, strict=False)) | named
        return {
            name: parse(one if isinstance(one, str) else bytes(one)) for name, one in (self._defaults | given).items()
        }

    def decode(self, text: str | bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, to pass as `*args, **kwargs`, or BadValue. Defaults are left to the call."""
        if self._plain_types:
            try:
                found = _decode_plainly(text)
            except _UNREADABLE:
                found = None
            if isinstance(found, list) and [type(value) for value in found] == self._plain_types:
                return tuple(found), {}  # As below, in a tenth of the time.
        places, named = self._split(text)
        beyond = len(places) - len(self._places)
        if beyond > 0 and not self._more:
            takes, more = len(self._places), len(places)
            raise BadValue(f"{self.name}() takes {takes} arguments, but the job has {more}; was a parameter removed?")
        names = (*self._places[: len(places)], *[self._more] * beyond)
        args = tuple(self._codecs[name].decode(bytes(raw)) for name, raw in zip(names, places, strict=True))
        kwargs = {}
        for name, raw in named.items():
            known = name if name in self._names else self._others
            if not known:
                what = f"the job has an argument {clipped(name)!r}, but {self.name}() has no such parameter"
                raise BadValue(f"{what}; was it renamed?")
            kwargs[name] = self._codecs[known].decode(bytes(raw))
        if missing := self._required.difference(names, kwargs):
            what = f"the job has no argument {min(missing)!r}, which {self.name}() requires"
            raise BadValue(f"{what}; give the parameter a default")
        return args, kwargs

    def schema(self) -> dict[str, Any]:
        """The arguments as JSON Schema: an object by the parameters' names. What has no schema accepts anything."""
        properties = {name: self._codecs[name].schema() for name in self.names}
        known: dict[str, Any] = {}
        for one in properties.values():
            known |= one.pop("$defs", {})
        for name, text in self._defaults.items():
            if name in properties:
                properties[name] = {**properties[name], "default": parse(text)}
        required = [name for name in self._places if name in self._required]
        required += sorted(self._required.difference(required))
        found = {"type": "object", "properties": properties, "required": required}
        return {**found, "$defs": known} if known else found

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Make a call's arguments of plain JSON values, by the type hints, or raise BadValue. For `*args, **kwargs`."""
        given = self._bind(args, kwargs)
        more, others = given.pop(self._more, ()), given.pop(self._others, {})
        read = {name: self._read_plain(name, value) for name, value in given.items()}
        last = len(args) - len(more)
        places = [read.pop(name) for name in self._places[:last]]
        places += [self._read_plain(self._more, value) for value in more]
        return tuple(places), read | {name: self._read_plain(self._others, value) for name, value in others.items()}

    def read_after_one(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Like `read_call`, for the arguments after a first one that isn't known yet."""
        self._bind((None, *args), {})
        names = [*self._places[1 : len(args) + 1]]
        names += [self._more] * (len(args) - len(names))
        return tuple(self._read_plain(name, value) for name, value in zip(names, args, strict=True))

    def _read_plain(self, name: str, value: Any) -> Any:
        codec = self._codecs[name]
        return codec.decode(written(value, codec.where))

    @cached_property
    def _codecs(self) -> dict[str, Codec[Any]]:
        try:
            hints = get_type_hints(self._function, include_extras=True)
        except (NameError, AttributeError) as error:
            raise _NotYet(f"{self.name}: a type hint can't be resolved: {error}; define it, or import it") from error
        for name, default in self._given_defaults.items():
            if default is None and name in hints:
                hints[name] = hints[name] | None  # People often write `voice: str = None`, and the meaning is clear.
        codecs = {
            name: Codec[Any](hints.get(name, Any), f"argument {name!r} of {self.name}", exact=True)
            for name in self._signature.parameters
        }
        # No parameter can be called "return".
        return codecs | {"return": Codec[Any](hints.get("return", Any), f"result of {self.name}", exact=True)}

    @cached_property
    def _in_place(self) -> list[Codec[Any]]:
        return [self._codecs[name] for name in self._places]

    @cached_property
    def _plain_types(self) -> list[Any]:
        """The hints of all parameters, if all are required and have plain types."""
        hints = [codec.hint for codec in self._in_place]
        plain = self._all_required and all(isinstance(hint, type) and hint in _PLAIN for hint in hints)
        return hints if plain else []

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """The texts of the defaults. A default that can't be stored, such as a sentinel, has none.

        A default that comes back as another type has one, so that passing it explicitly makes the same call.
        """
        texts = {}
        for name, default in self._given_defaults.items():
            with suppress(BadValue):
                texts[name], _ = self._codecs[name].part(default, ARGUMENT_DEPTH, [])
        return texts

    def _default(self, name: str, changes: list[Changed] | None) -> tuple[str, Any]:
        """Like Codec.part, for an argument that was not passed."""
        text = self._defaults.get(name)
        if text is None:
            raise BadValue(f"argument {name!r} of {self.name}: its default can't be stored; pass a value for it")
        return text, self._codecs[name].part(self._given_defaults[name], ARGUMENT_DEPTH, changes)[1]

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self._places[: len(args)]
        if not kwargs and len(args) == len(names) and self._required.issubset(names):
            return dict(zip(names, args, strict=True))  # As inspect would, in a tenth of the time.
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            for name in self.unknown_names(kwargs):
                hint = suggest(name, self.names) or f"; it takes {', '.join(self.names) or 'no arguments'}"
                raise BadValue(f"{self.name} takes no argument {clipped(name)!r}{hint}") from None
            missing = [name for name in self.names if name in self._required and name not in (*names, *kwargs)]
            if missing and str(error).startswith("missing a required"):
                takes = f"; it takes {', '.join(self.names)}"
                raise BadValue(f"{self.name} needs the argument {missing[0]!r}{takes}") from None
            raise BadValue(f"{self.name}: {clipped(str(error))}; check its parameters") from None

    def unknown_names(self, kwargs: Mapping[str, Any]) -> list[str]:
        """Return the names of keyword arguments that the function doesn't take."""
        return [] if self._others else [name for name in kwargs if name not in self._signature.parameters]

    def _joined(self, places: list[str], named: Mapping[str, str]) -> str:
        where = self._where
        if named:
            items = ",".join(f"{written(name, where)}:{named[name]}" for name in sorted(named))
            places.append('{"**":{' + items + "}}")
        elif places and places[-1].startswith('{"**":'):
            places.append('{"**":{}}')  # So that the last argument isn't mistaken for the keyword arguments.
        return sized(f"[{','.join(places)}]", where)

    def _split(self, text: str | bytes) -> tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]:
        try:
            places = msgspec.json.decode(text, type=list[msgspec.Raw])
            if places and bytes(places[-1]).startswith(b"{"):
                last = msgspec.json.decode(places[-1], type=dict[str, msgspec.Raw])
                if last.keys() == {"**"}:
                    return places[:-1], msgspec.json.decode(last["**"], type=dict[str, msgspec.Raw])
        except _UNREADABLE as error:
            raise BadValue(f"the arguments of {self.name}: {clipped(str(error))}; pass a JSON array") from error
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
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_decode_plainly = msgspec.json.Decoder().decode
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
        reason = clipped(str(error).partition("\n")[0])
        if isinstance(error, pydantic.errors.PydanticSchemaGenerationError):
            reason = "pydantic doesn't support this class; use a dataclass or a pydantic model"
        raise BadValue(f"{where}: the type hint {clipped(repr(hint))} can't be used: {reason}") from error


def _built(hint: Any, text: str) -> pydantic.TypeAdapter[Any]:
    # pydantic takes no config beside a class that may have its own. A NewType hides the class; the config then reaches
    # dataclasses and TypedDicts, while models keep theirs.
    hide: Any = NewType
    return pydantic.TypeAdapter(hide("Value", _readable(hint)), config=_CONFIG)


# Cached by the hint's text too: `int | str` equals `str | int`, but pydantic may prefer the first type that fits.
_kept = lru_cache(maxsize=KINDS_KEPT)(_built)


def _readable(hint: Any) -> Any:
    """The hint in a form that pydantic can read: Structs get a reader, and types that can't be stored are refused."""
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Iterable, Callable) or (isinstance(origin, type) and issubclass(origin, _STREAMS)):
        raise BadValue("its values can't be stored; use a list, or the type of the result")
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
        return BadValue(f"{where}: its type hint uses a class that isn't defined; define or import it")
    if not isinstance(error, pydantic.ValidationError):
        return BadValue(f"{where}: {clipped(str(error))}; {what_now}")
    first = error.errors(include_url=False, include_context=False)[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    path = "".join(step_to(key) for key in first["loc"])
    return BadValue(line(where, path, f"{clipped(first['msg'])}{more}; {what_now}"))


def _alike(one: Any, two: Any) -> bool:
    """Whether two values have the same types at every level. Called only for values that aren't equal.

    A tuple may come back as a list: JSON has only lists, unless a hint says otherwise.
    """
    if one is two:  # An enum's members refer to each other in a cycle.
        return True
    if type(one) in (list, tuple, deque) and type(two) in (list, tuple, deque):
        return len(one) != len(two) or all(_alike(*pair) for pair in zip(one, two, strict=True))
    if type(one) is not type(two):
        return False
    if isinstance(one, Mapping):
        return one.keys() != two.keys() or all(_alike(one[key], two[key]) for key in one)
    inside = getattr(one, "__dict__", None)
    return inside is None or _alike(inside, vars(two))


def _difference(one: Any, two: Any) -> str:
    """The path to the first place where two plain values differ."""
    keys = one if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
    for key in keys:
        try:
            if one[key] != two[key]:
                return step_to(key) + _difference(one[key], two[key])
        except (LookupError, TypeError):
            return step_to(key)
    return ""
