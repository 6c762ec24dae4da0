"""A first look at a value by the JSON Schema of what is waited for, where the type itself isn't known. Pure.

Knows the words that pydantic writes and that people get wrong; the others are left to the waiting side, which checks
the value in full by its type.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.core.errors import BadValue

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def check_form(value: Any, schema: Mapping[str, Any], where: str) -> None:
    """Raise BadValue, in one line, when a plain JSON value can't be what the schema asks for."""
    trouble = _trouble(value, schema, schema.get("$defs", {}))
    if trouble is not None:
        path, reason = trouble
        raise BadValue(f"{where}: {path.lstrip('.')}: {reason}" if path else f"{where}: {reason}")


def _trouble(value: Any, schema: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first thing that is wrong, with the path to it."""
    if "$ref" in schema:
        return _trouble(value, known.get(str(schema["$ref"]).rpartition("/")[2], {}), known)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            found = [_trouble(value, one, known) for one in schema[word]]
            return None if None in found else found[0]
    if "const" in schema and value != schema["const"]:
        return "", f"must be {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        return "", f"must be one of {', '.join(map(repr, schema['enum']))}"
    kind = str(schema.get("type", ""))
    if kind in _TYPES and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return "", f"must be of type {kind}, and is {value!r}"
    if isinstance(value, dict):
        return _trouble_inside(value, schema, known)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for place, item in enumerate(value):
            if (trouble := _trouble(item, schema["items"], known)) is not None:
                return f"[{place}]{trouble[0]}", trouble[1]
    return None


def _trouble_inside(
    value: Mapping[str, Any], schema: Mapping[str, Any], known: Mapping[str, Any]
) -> tuple[str, str] | None:
    fields = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return "", f"{name!r} is missing; give it"
    for name, item in value.items():
        if name in fields:
            trouble = _trouble(item, fields[name], known)
        elif schema.get("additionalProperties") is False:
            return "", f"{name!r} is unknown; it takes {', '.join(fields) or 'nothing'}"
        else:
            more = schema.get("additionalProperties")
            trouble = _trouble(item, more, known) if isinstance(more, dict) else None
        if trouble is not None:
            return f".{name}{trouble[0]}", trouble[1]
    return None
