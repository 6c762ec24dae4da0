"""`Limit`: a shared limit as code declares it, and what one call needs of it. Must not ask a store.

`app.limit(…)` makes one. From the arguments of a call come the key of its counter (`per`) and its units (`cost`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite
from string import Formatter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.canonical import canonical
from holdfast.core.errors import Invalid
from holdfast.core.model import Use
from holdfast.core.shared_limits import MOST_UNITS, UNIT, Settings, check_name, key_of, settings_from
from holdfast.core.suggestions import suggest

FACTS = ("host", "queue", "type")
"""The fields of `per` that are no arguments: the worker's machine, and the job's queue and type."""

STEPS_ONLY = "host"
"""The one that is known only where a step runs."""


class Limit(Struct, frozen=True, kw_only=True, eq=False):
    """A limit that all workers of a store share: how many calls may run at once, and how many may start in a period.

    Made by `app.limit(…)`. Give it to steps and jobs: `@step(limit=openai)`, `@app.job(limit=openai)`.
    """

    name: str
    settings: Settings
    at_once: int | None = None
    rate: str | None = None
    burst: float | None = None
    per: str = ""
    home: object = None
    """What holds the jobs and limits of the app that declared it."""
    cost_function: Callable[..., Any] | None = None

    def cost(self, function: Callable[..., float]) -> "Limit":
        """Return this limit with a number of units for each call: what `function` returns for the call's arguments.

        The function gets those arguments of the step or job that it names: `tokens.cost(lambda prompt: len(prompt))`.
        Where the rate is written without a decimal point, a fraction of a unit counts as a whole one.
        """
        if self.rate is None:
            raise Invalid(f"limit {self.name} has no rate= that units could count against; give it one")
        if not callable(function):
            raise Invalid(f"limit {self.name}: cost({function!r}): give a function of the call's arguments")
        return replace(self, cost_function=function)

    def __repr__(self) -> str:
        return f"<limit {self.name}: {self.words()}>"

    def words(self) -> str:
        """The settings as they are written in code: `at_once=20, rate='500/m'`."""
        given = {"at_once": self.at_once, "rate": self.rate, "burst": self.burst, "per": self.per or None}
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)


def declare(name: Any, at_once: Any, rate: Any, burst: Any, per: Any, home: object) -> Limit:
    """Make a limit of what a person writes, or raise Invalid."""
    check_name(name)
    settings = settings_from(name, at_once, rate, burst)
    limit = Limit(name=name, settings=settings, at_once=at_once, rate=rate, burst=burst, per=per, home=home)
    if per != "" and not _fields(limit):
        raise Invalid(f"limit {name}: per={per!r} names no field; write an argument's name in braces: per='{{model}}'")
    return limit


# Where a step or a job uses limits.


def check_uses(what: str, given: Any, names: Sequence[str], *, is_job: bool = False) -> tuple[Limit, ...]:
    """Return the limits that a step or job is given, whose parameters have these names; or raise Invalid."""
    limits = (given,) if isinstance(given, Limit) else tuple(given) if isinstance(given, list | tuple) else None
    if given is None or limits is None:
        limits = ()
    if given is not None and (not limits or not all(isinstance(one, Limit) for one in limits)):
        raise Invalid(f"{what}: limit={given!r}: give what app.limit('name', …) returns, or a list of such limits")
    if twice := [one.name for place, one in enumerate(limits) if one.name in [other.name for other in limits[:place]]]:
        raise Invalid(f"{what}: limit {twice[0]} is given twice; give it once")
    for limit in limits:
        for field in _fields(limit):
            _check_field(what, limit, field.partition(".")[0], names, is_job=is_job)
        _check_cost(what, limit, names)
    return limits


def _fields(limit: Limit) -> list[str]:
    """The fields in a limit's `per`: `["model"]` for "{model}"."""
    try:
        parts = list(Formatter().parse(limit.per))
    except (ValueError, TypeError) as error:
        raise Invalid(f"limit {limit.name}: per={limit.per!r} can't be read: {error}") from None
    fields = [(field, spec, conversion) for _, field, spec, conversion in parts if field is not None]
    for field, spec, conversion in fields:
        if spec or conversion or not all(part.isidentifier() for part in field.split(".")):
            raise Invalid(f"limit {limit.name}: per={limit.per!r}: write plain names in the braces: '{{model}}'")
    return [field for field, _, _ in fields]


def _check_field(what: str, limit: Limit, field: str, names: Sequence[str], *, is_job: bool) -> None:
    if field in names:
        return
    if is_job and field == STEPS_ONLY:
        raise Invalid(
            f"{what}: limit {limit.name} counts per {{{field}}}, which isn't known before the job runs; use it on steps"
        )
    if field not in FACTS:
        hint = suggest(field, [*names, *FACTS]) or f"; there are {', '.join([*names, *FACTS])}"
        raise Invalid(f"{what}: limit {limit.name} counts per {{{field}}}, which isn't a parameter{hint}")


def _check_cost(what: str, limit: Limit, names: Sequence[str]) -> None:
    if limit.cost_function is None:
        return
    for one in _parameters(limit).values():
        is_named = one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) or (one.default is not one.empty and is_named):
            continue
        if one.name not in names or not is_named:
            hint = suggest(one.name, names) or f"; there are {', '.join(names) or 'none'}"
            raise Invalid(
                f"{what}: the cost function of limit {limit.name} takes {one.name!r}, which isn't a parameter{hint}"
            )


def _parameters(limit: Limit) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(limit.cost_function or (lambda: 0)).parameters
    except (ValueError, TypeError):  # some builtins have none
        raise Invalid(
            f"limit {limit.name}: cost: give a function whose parameters have names, such as a lambda"
        ) from None


# What one call needs.


def uses_of(what: str, limits: Sequence[Limit], given: Mapping[str, Any], facts: Mapping[str, str]) -> tuple[Use, ...]:
    """Return what a call with these arguments needs of each limit; or raise Invalid, which names the limit."""
    known = {**facts, **given}
    return tuple(Use(key_of(one.name, _value(what, one, known)), _units(what, one, given)) for one in limits)


def _value(what: str, limit: Limit, known: Mapping[str, Any]) -> str:
    if not limit.per:
        return ""
    texts = []
    for literal, field, _, _ in Formatter().parse(limit.per):
        texts.append(literal)
        if field is not None:
            texts.append(_text(what, limit, field, known))
    return "".join(texts)


def _text(what: str, limit: Limit, field: str, known: Mapping[str, Any]) -> str:
    first, *more = field.split(".")
    value = known[first]
    for name in more:
        try:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        except (KeyError, AttributeError):
            raise Invalid(
                f"{what}: limit {limit.name} counts per {{{field}}}, but the value given has no {name!r}"
            ) from None
    return value if isinstance(value, str) else canonical(value)


def _units(what: str, limit: Limit, given: Mapping[str, Any]) -> int:
    function = limit.cost_function
    if function is None:
        return UNIT
    taken = _parameters(limit)
    takes_all = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    try:
        units: Any = function(**{name: value for name, value in given.items() if takes_all or name in taken})
    except Exception as error:
        where = f"{function.__module__}.{getattr(function, '__qualname__', '?')}"
        raise Invalid(
            f"{what}: the cost function of limit {limit.name} ({where}) raised {type(error).__name__}: {error}"
        ) from error
    if isinstance(units, bool) or not isinstance(units, int | float) or not isfinite(units) or units < 0:
        raise Invalid(f"{what}: the cost function of limit {limit.name} returned {units!r}; return a number, 0 or more")
    is_whole = "." not in (limit.rate or "")
    exact = min(ceil(units) if is_whole else units, MOST_UNITS + 1)
    burst = limit.settings.burst or 0
    if exact * UNIT > burst:
        raise Invalid(
            f"{what}: a cost of {exact:g} is above the burst of limit {limit.name} ({burst / UNIT:g}), so it could "
            "never start; give app.limit a higher burst=, up to the rate, or make the call smaller"
        )
    return round(exact * UNIT)
