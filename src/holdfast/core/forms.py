"""The check of a value against a form: the JSON Schema of what a job waits for. Pure.

The sender of a value has only the schema, not the type. So the check rebuilds pydantic's validator from the schema. It
never refuses a value that the type accepts, and refuses what the type refuses as far as the schema describes it. Only
the job itself knows validators that the user wrote.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any

import msgspec
import pydantic
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, SchemaError, SchemaValidator, core_schema

from holdfast.core.canonical import clipped, step_to
from holdfast.core.errors import BadValue
from holdfast.core.schemas import NAMES, NUMBER_TEXTS, STRICT, TRIMMED, UNCHECKED

NAMES_SHOWN = 20
"""How many of a form's fields an error lists."""


def check_form(value: Any, schema: Mapping[str, Any], where: str) -> None:
    """Raise BadValue, in one line, if a plain JSON value doesn't fit the schema."""
    try:
        validator = SchemaValidator(_Reader(schema).whole())
    except (SchemaError, TypeError, ValueError, KeyError, AttributeError, RecursionError):
        return  # A schema that can't be read refuses nothing; the job itself still checks the value.
    try:
        validator.validate_json(msgspec.json.encode(value))
    except pydantic.ValidationError as error:
        raise BadValue(_line(error.errors(include_url=False), schema, where)) from None


# From JSON Schema to pydantic's schema.

_BOUNDS = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}
_ROUNDED: Mapping[str, Callable[[float], int]] = {
    "minimum": math.ceil,
    "exclusiveMinimum": math.floor,
    "maximum": math.floor,
    "exclusiveMaximum": math.ceil,
    "multipleOf": round,
}
_TEXTS: Mapping[str, Callable[[], CoreSchema]] = {
    "date": core_schema.date_schema,
    "date-time": core_schema.datetime_schema,
    "time": core_schema.time_schema,
    "duration": core_schema.timedelta_schema,
    "uuid": core_schema.uuid_schema,
    "uuid1": lambda: core_schema.uuid_schema(version=1),
    "uuid3": lambda: core_schema.uuid_schema(version=3),
    "uuid4": lambda: core_schema.uuid_schema(version=4),
    "uuid5": lambda: core_schema.uuid_schema(version=5),
    "uri": core_schema.url_schema,
    "multi-host-uri": core_schema.multi_host_url_schema,
    "ipv4": lambda: pydantic.TypeAdapter(IPv4Address).core_schema,
    "ipv6": lambda: pydantic.TypeAdapter(IPv6Address).core_schema,
    "ipv4interface": lambda: pydantic.TypeAdapter(IPv4Interface).core_schema,
    "ipv6interface": lambda: pydantic.TypeAdapter(IPv6Interface).core_schema,
    "ipv4network": lambda: pydantic.TypeAdapter(IPv4Network).core_schema,
    "ipv6network": lambda: pydantic.TypeAdapter(IPv6Network).core_schema,
}
"""Texts that pydantic reads as another type, so a length or pattern in the schema doesn't apply to the text."""

_ENCODED = ("binary", "base64", "base64url")
"""Formats of bytes: the lengths in the schema apply to the bytes, not to the text."""

_BRANCH = "\0"
"""Marks a branch of a union in an error's path."""

_HASHABLE = ("string", "integer", "number", "boolean", "null")


class _Reader:
    """Builds pydantic's schema from JSON Schema. It accepts anything for keywords that it doesn't know."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._known: Mapping[str, Any] = schema.get("$defs", {})

    def whole(self) -> CoreSchema:
        """The schema with all its definitions."""
        for name in self._known:
            self._check_loops(name, ())
        definitions: list[CoreSchema] = [
            core_schema.chain_schema([self._made(one)], ref=name)  # A link to another definition has no name itself.
            for name, one in self._known.items()
        ]
        made = self._made(self._root)
        return core_schema.definitions_schema(made, definitions) if definitions else made

    def _check_loops(self, name: str, passed: tuple[str, ...]) -> None:
        """Refuse a definition that refers to itself directly: the validator would follow it forever."""
        if name in passed:
            raise ValueError(f"{name} is defined by itself")
        schema = self._known.get(name, {})
        for one in [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]:
            if "$ref" in one:
                self._check_loops(_last(one["$ref"]), (*passed, name))

    def _made(self, schema: Any) -> CoreSchema:
        if not isinstance(schema, dict) or schema.get(UNCHECKED):
            return core_schema.any_schema()
        if "$ref" in schema:
            name = _last(schema["$ref"])
            known = name in self._known
            return core_schema.definition_reference_schema(name) if known else core_schema.any_schema()
        if schema.get(NUMBER_TEXTS) and "anyOf" in schema:
            return core_schema.decimal_schema(**_bounds(schema["anyOf"][0], lambda _, bound: Decimal(repr(bound))))
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._union(schema[word], schema.get("discriminator"))
        if "allOf" in schema:
            return self._all(schema["allOf"])
        if "const" in schema or "enum" in schema:
            return _choice([schema["const"]] if "const" in schema else schema["enum"], schema.get(NUMBER_TEXTS))
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._union([{**schema, "type": one} for one in kind], None)
        read = _READERS.get(str(kind))
        return core_schema.any_schema() if read is None else read(self, schema)

    def _union(self, several: Sequence[Any], discriminator: Any) -> CoreSchema:
        others = [one for one in several if one != {"type": "null"}]
        if isinstance(discriminator, dict) and (tags := self._tags(discriminator)):
            made: CoreSchema = core_schema.tagged_union_schema(tags, discriminator["propertyName"])
        elif len(others) == 1:
            made = self._made(others[0])
        else:
            made = core_schema.union_schema([(self._made(one), _BRANCH) for one in others])
        return made if len(others) == len(several) else core_schema.nullable_schema(made)

    def _tags(self, discriminator: Mapping[str, Any]) -> dict[Any, Any]:
        """The branches of a tagged union by their tags; none, if the tags aren't texts under one name."""
        name, mapping = discriminator.get("propertyName"), discriminator.get("mapping", {})
        for tag, place in mapping.items():
            branch = self._known.get(_last(place), {})
            found = branch.get("properties", {}).get(name, {})
            if tag not in [found.get("const"), *found.get("enum", ())] or branch.get(NAMES) or branch.get(UNCHECKED):
                return {}
        return {tag: self._made({"$ref": place}) for tag, place in mapping.items()}

    def _all(self, several: Sequence[Any]) -> CoreSchema:
        """A value that fits each of several schemas; each schema checks the original value."""
        made = [self._made(one) for one in several]
        if len(made) == 1:
            return made[0]
        keep: list[CoreSchema] = [core_schema.no_info_wrap_validator_function(_kept, one) for one in made]
        return core_schema.chain_schema(keep) if keep else core_schema.any_schema()

    def text(self, schema: Mapping[str, Any]) -> CoreSchema:
        """A text, or a type that JSON writes as text."""
        form = str(schema.get("format", ""))
        if form in _TEXTS:
            return _TEXTS[form]()
        if form in _ENCODED:
            return core_schema.str_schema()
        if schema.get("contentMediaType") == "application/json":
            return core_schema.json_schema(self._made(schema.get("contentSchema")))
        lengths = _some(schema, {"minLength": "min_length", "maxLength": "max_length"})
        return core_schema.str_schema(**lengths, **_pattern(schema), strip_whitespace=bool(schema.get(TRIMMED)))

    def integer(self, schema: Mapping[str, Any]) -> CoreSchema:
        """A whole number with its bounds."""
        bounds = _bounds(schema, lambda word, bound: _ROUNDED[word](bound))
        return core_schema.int_schema(**bounds, strict=schema.get(STRICT))

    def number(self, schema: Mapping[str, Any]) -> CoreSchema:
        """A number with its bounds."""
        return core_schema.float_schema(**_bounds(schema, lambda _, bound: bound), strict=schema.get(STRICT))

    def array(self, schema: Mapping[str, Any]) -> CoreSchema:
        """A list, a set or a tuple."""
        limits = _some(schema, {"minItems": "min_length", "maxItems": "max_length"})
        if "prefixItems" in schema:
            items = [self._made(one) for one in schema["prefixItems"]]
            more = "items" in schema or schema.get("maxItems", math.inf) > len(items)
            rest = [self._made(schema.get("items"))] if more and schema.get("items") is not False else []
            return core_schema.tuple_schema(items + rest, variadic_item_index=len(items) if rest else None)
        made = self._made(schema.get("items"))
        if not schema.get("uniqueItems"):
            return core_schema.list_schema(made, **limits)
        is_simple = isinstance(schema.get("items"), dict) and schema["items"].get("type") in _HASHABLE
        return core_schema.set_schema(made, **limits) if is_simple else core_schema.list_schema(made)

    def object(self, schema: Mapping[str, Any]) -> CoreSchema:
        """An object with known fields, or with any."""
        fields, more = schema.get("properties"), schema.get("additionalProperties", True)
        if fields is None:
            return self._mapping(schema, more)
        names, required = schema.get(NAMES, {}), schema.get("required", ())
        made = {
            name: core_schema.typed_dict_field(
                self._made(one),
                required=name in required,
                validation_alias=[[name], [names[name]]] if name in names else None,
            )
            for name, one in fields.items()
        }
        if more is False:
            return core_schema.typed_dict_schema(made, extra_behavior="forbid")
        return core_schema.typed_dict_schema(made, extra_behavior="allow", extras_schema=self._made(more))

    def _mapping(self, schema: Mapping[str, Any], more: Any) -> CoreSchema:
        limits = _some(schema, {"minProperties": "min_length", "maxProperties": "max_length"})
        keys = self._made({"type": "string", **schema["propertyNames"]}) if "propertyNames" in schema else None
        patterns = schema.get("patternProperties", {})
        if len(patterns) == 1 and "additionalProperties" not in schema:
            ((pattern, more),) = patterns.items()
            keys = core_schema.str_schema(**_pattern({"pattern": pattern}))
        if more is False:
            return core_schema.typed_dict_schema({}, extra_behavior="forbid")
        return core_schema.dict_schema(keys, self._made(more), **limits)


_READERS: Mapping[str, Callable[[_Reader, Mapping[str, Any]], CoreSchema]] = {
    "string": _Reader.text,
    "integer": _Reader.integer,
    "number": _Reader.number,
    "array": _Reader.array,
    "object": _Reader.object,
    "boolean": lambda _, schema: core_schema.bool_schema(strict=schema.get(STRICT)),
    "null": lambda _, schema: core_schema.none_schema(),
}


def _last(reference: Any) -> str:
    """The name of a definition, from a reference to it."""
    return str(reference).rpartition("/")[2]


def _some(schema: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    return {ours: schema[word] for word, ours in words.items() if word in schema}


def _bounds(schema: Mapping[str, Any], made: Callable[[str, float], Any]) -> dict[str, Any]:
    return {ours: made(word, schema[word]) for word, ours in _BOUNDS.items() if word in schema}


def _pattern(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The pattern of a text, with the regex engine that supports it."""
    pattern = schema.get("pattern")
    if pattern is None:
        return {}
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern))
        return {"pattern": pattern}
    except SchemaError:
        return {"pattern": pattern, "regex_engine": "python-re"}


def _choice(values: Sequence[Any], by_text: Any) -> CoreSchema:
    def check(value: Any) -> Any:
        if value not in values and not (by_text and isinstance(value, str) and _number(value) in values):
            raise PydanticCustomError("choice", "{choices}", {"choices": _choices(values)})
        return value

    return core_schema.no_info_plain_validator_function(check)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _choices(values: Sequence[Any]) -> str:
    return f"must be {values[0]!r}" if len(values) == 1 else f"must be one of {', '.join(map(repr, values))}"


def _kept(value: Any, handler: Callable[[Any], Any]) -> Any:
    handler(value)
    return value


# The error message for a value that doesn't fit.

_KINDS = {
    "string": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "set": "array",
    "tuple": "array",
    "dict": "object",
    "none": "null",
}
"""Kinds as pydantic names them in its errors, and as JSON Schema does."""


def _line(errors: Sequence[ErrorDetails], schema: Mapping[str, Any], where: str) -> str:
    deepest = max(len(error["loc"]) for error in errors)
    error = next(error for error in errors if len(error["loc"]) == deepest)
    place = [step for step in error["loc"] if step != _BRANCH]
    last = place[-1] if place else ""
    if error["type"] == "missing":
        place, reason = place[:-1], f"{last!r} is missing; give it"
    elif error["type"] == "extra_forbidden":
        names = list(schema.get("properties", ()))[:NAMES_SHOWN] if len(place) == 1 else []
        place, reason = place[:-1], f"{last!r} is unknown" + (f"; it takes {', '.join(names)}" if names else "")
    elif _BRANCH in error["loc"] and all(_kind(one) for one in errors):
        kinds = dict.fromkeys(_kind(one) for one in errors)
        reason = f"must be of type {' or '.join(kinds)}, but is {clipped(repr(error['input']))}"
    elif kind := _kind(error):
        reason = f"must be of type {kind}, but is {clipped(repr(error['input']))}"
    elif error["type"] == "choice":
        reason = error["msg"]
    else:
        said = error["msg"].replace("Input should be", "must be", 1)
        reason = f"{said[:1].lower()}{said[1:]}, but is {clipped(repr(error['input']))}"
    path = "".join(step_to(step) for step in place).lstrip(".")
    return f"{where}: {path}: {reason}" if path else f"{where}: {reason}"


def _kind(error: ErrorDetails) -> str:
    """The JSON type that was expected, if an error is about the type."""
    kind, _, what = error["type"].partition("_")
    return _KINDS.get(kind, "") if what in ("type", "parsing", "from_float", "required") else ""
