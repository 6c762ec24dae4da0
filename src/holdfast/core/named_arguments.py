"""Functions that get those arguments of a call which they name: `lambda prompt: 4 * len(prompt)`.

Must not know what their answers are for.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.errors import Invalid
from holdfast.core.suggestions import suggest


def check_named(what: str, function: Callable[..., Any], names: Sequence[str]) -> None:
    """Refuse a function that needs something else than the parameters with these names."""
    for one in _parameters(what, function).values():
        is_named = one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) or (one.default is not one.empty and is_named):
            continue
        if one.name not in names or not is_named:
            hint = suggest(one.name, names) or f"; there are {', '.join(names) or 'none'}"
            raise Invalid(f"{what} takes {one.name!r}, which isn't a parameter{hint}")


def needs_named(function: Callable[..., Any], name: str) -> bool:
    """Whether a function gets the argument with this name."""
    taken = _parameters("", function)
    return name in taken or any(one.kind is one.VAR_KEYWORD for one in taken.values())


def call_with_named(what: str, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a function with those of the given arguments that it names. Whatever it raises becomes Invalid."""
    taken = _parameters(what, function)
    takes_all = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    try:
        return function(**{name: value for name, value in given.items() if takes_all or name in taken})
    except Exception as error:
        where = f"{function.__module__}.{getattr(function, '__qualname__', '?')}"
        raise Invalid(f"{what} ({where}) raised {type(error).__name__}: {error}") from error


def _parameters(what: str, function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # some builtins have none
        raise Invalid(f"{what}: give a function whose parameters have names, such as a lambda") from None
