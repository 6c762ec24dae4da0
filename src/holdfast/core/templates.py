"""Texts with arguments in braces, such as "{customer}": which fields they name, and what a call puts there.

Must not know who uses them: each caller says in its own words where a template stands (`where`, `saying`).
"""

from collections.abc import Mapping
from string import Formatter
from typing import Any

from holdfast.core.canonical import canonical
from holdfast.core.errors import Invalid


def fields_of(where: str, template: str) -> list[str]:
    """The fields that a template names: `["model"]` for "{model}"; or raise Invalid."""
    try:
        parts = list(Formatter().parse(template))
    except (ValueError, TypeError) as error:
        raise Invalid(f"{where} can't be read: {error}") from None
    fields = [(field, spec, conversion) for _, field, spec, conversion in parts if field is not None]
    for field, spec, conversion in fields:
        if spec or conversion or not all(part.isidentifier() for part in field.split(".")):
            raise Invalid(f"{where}: write plain names in the braces: '{{model}}'")
    return [field for field, _, _ in fields]


def filled_in(saying: str, template: str, known: Mapping[str, Any]) -> str:
    """The template with the values of its fields; or raise Invalid if a value lacks what the template asks for."""
    texts = []
    for literal, field, _, _ in Formatter().parse(template):
        texts.append(literal)
        if field is not None:
            texts.append(_text(saying, field, known))
    return "".join(texts)


def _text(saying: str, field: str, known: Mapping[str, Any]) -> str:
    first, *more = field.split(".")
    value = known[first]
    for name in more:
        try:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        except (KeyError, AttributeError):
            raise Invalid(f"{saying} {{{field}}}, but the value given has no {name!r}") from None
    return value if isinstance(value, str) else canonical(value)
