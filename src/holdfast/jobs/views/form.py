"""A form for an answer: the fields of a JSON Schema, in words.

Must not read a store or judge a whole answer: `jobs` does. Knows objects with simple fields; everything else must be
given as JSON.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.jobs.questions import Question
from holdfast.jobs.views.shapes import Shape, refusal_shape, time_text
from holdfast.jobs.views.text import one_line
from holdfast.safe_text import clean

REFERENCES = 10
"""How many references in a row are followed in a schema."""

CHOICES_SHOWN = 10
DEFAULT_SHOWN = 40
PATTERN_SHOWN = 60

LIMITS = (
    ("minimum", "maximum", "{} to {}", "at least {}", "at most {}"),
    ("exclusiveMinimum", "exclusiveMaximum", "more than {}, less than {}", "more than {}", "less than {}"),
    ("minLength", "maxLength", "{} to {} characters", "at least {} characters", "at most {} characters"),
    ("minItems", "maxItems", "{} to {} items", "at least {} items", "at most {} items"),
    ("minProperties", "maxProperties", "{} to {} entries", "at least {} entries", "at most {} entries"),
)
"""The bounds of a field: their keywords in a schema, and the words for both, for the lower, for the upper."""

EMPTY: tuple[Any, ...] = (None, "", [], {})
"""Defaults that only mean that a field may be left out."""

KINDS = {"string": "text", "boolean": "yes or no", "integer": "whole number", "number": "number", "json": "JSON"}
"""The kinds of fields, in words."""

SAMPLES: dict[str, Any] = {"string": "…", "boolean": True, "integer": 0, "number": 0.5, "json": None}


class Field(NamedTuple):
    """One field of a form. Without a name, it is the whole answer."""

    name: str
    kind: str
    choices: Mapping[str, Any]
    is_required: bool
    description: str
    limits: str
    default: Any
    schema: Mapping[str, Any]

    def shape(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "type": self.kind,
            "choices": list(self.choices.values()),
            "required": self.is_required,
            "description": self.description,
            "limits": self.limits,
            "default": self.default,
        }

    def takes(self) -> str:
        """Return what can be given: "yes or no", "text, at most 8 characters", "one of draft, final"."""
        if not self.choices:
            return KINDS[self.kind] + (f", {self.limits}" if self.limits else "")
        more = " …" if len(self.choices) > CHOICES_SHOWN else ""
        return f"one of {', '.join(clean(one) for one in list(self.choices)[:CHOICES_SHOWN])}{more}"

    def words(self, left_out: str = "may be left out") -> str:
        """Return the field in words: "note (text, may be left out)", "stars (whole number, 1 to 5, default 3)"."""
        default = "" if self.default in EMPTY else one_line(json.dumps(self.default, ensure_ascii=False), DEFAULT_SHOWN)
        optional = "" if self.is_required else f", default {default}" if default else f", {left_out}"
        return f"{one_line(self.name, 60)} ({self.takes()}{optional})" if self.name else self.takes()


def fields_of(schema: Mapping[str, Any]) -> list[Field]:
    """Return the fields of an answer; a single one without a name if the answer isn't an object with known fields."""
    known = schema.get("$defs", {})
    whole = _followed(schema, known)
    properties = whole.get("properties")
    if not isinstance(properties, dict) or not properties:
        return [_field("", schema, known, is_required=True)]
    # A stored schema has its properties sorted by name; only `required` keeps the order in which they were written.
    required = [name for name in whole.get("required", ()) if name in properties]
    names = dict.fromkeys([*required, *properties])
    return [_field(name, properties[name], known, is_required=name in required) for name in names]


def question_shape(one: Question) -> Shape:
    """Return a question as JSON, with the fields of its answer."""
    return {
        "job": one.job,
        "type": one.type,
        "name": one.name,
        "question": one.value,
        "fields": [field.shape() for field in fields_of(one.schema)],
        "schema": one.schema,
        "asked_at": time_text(one.asked_at),
        "until": time_text(one.until),
        "refused": None if one.refused is None else refusal_shape(one.refused),
    }


def form_words(fields: Sequence[Field]) -> str:
    """Return a form in one line: "ok (yes or no), note (text, may be left out)"."""
    return ", ".join(field.words() for field in fields)


def sample_answer(fields: Sequence[Field]) -> str:
    """Return an answer that fits, for the shell: the required fields, with sample values to replace."""
    values = {field.name: _example(field) for field in fields}
    whole = values[""] if "" in values else {field.name: values[field.name] for field in fields if field.is_required}
    return shlex.quote(clean(json.dumps(whole, ensure_ascii=False)))


def _example(field: Field) -> Any:
    if field.choices:
        return next(iter(field.choices.values()))
    bounds = [field.schema[word] for word in ("minimum", "maximum") if word in field.schema]
    return bounds[0] if bounds and field.kind in ("integer", "number") else SAMPLES[field.kind]


def _field(name: str, schema: Mapping[str, Any], known: Mapping[str, Any], *, is_required: bool) -> Field:
    inner = _followed(schema, known)
    values = [inner["const"]] if "const" in inner else inner.get("enum", ())
    kind = str(inner.get("type", ""))
    return Field(
        name=name,
        kind=kind if kind in KINDS else "json",
        choices={one if isinstance(one, str) else json.dumps(one): one for one in values},
        is_required=is_required,
        description=str(schema.get("description", inner.get("description", "")) if name else ""),
        limits=_limits(inner),
        default=schema.get("default"),
        schema={**inner, "$defs": known},
    )


def _limits(schema: Mapping[str, Any]) -> str:
    """Return the bounds of a field in words: "1 to 5", "at most 8 characters, like ^[a-z]+$"."""
    limits = []
    for low, high, both, at_least, at_most in LIMITS:
        if low in schema and high in schema:
            limits.append(both.format(schema[low], schema[high]))
        elif low in schema or high in schema:
            limits.append(at_least.format(schema[low]) if low in schema else at_most.format(schema[high]))
    if "multipleOf" in schema:
        limits.append(f"a multiple of {schema['multipleOf']}")
    if "pattern" in schema:
        limits.append(f"like {one_line(str(schema['pattern']), PATTERN_SHOWN)}")
    if "format" in schema:
        limits.append(one_line(str(schema["format"]), PATTERN_SHOWN))
    return ", ".join(limits)


def _followed(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with its references resolved, and without a null that is combined with only one other kind."""
    for _ in range(REFERENCES):
        several = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
        if "$ref" in schema:
            schema = known.get(str(schema["$ref"]).rpartition("/")[2], {})
        elif len(several) == 1:
            schema = several[0]
        else:
            break
    return schema
