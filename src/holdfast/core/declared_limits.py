"""`Limit`: a shared limit as code declares it, and what one call needs of it. Must not ask a store.

`app.limit(…)` makes one. From the arguments of a call come the key of its counter (`per`) and its units (`cost`).
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import Invalid
from holdfast.core.model import Use
from holdfast.core.named_arguments import call_with_named, check_named, needs_named
from holdfast.core.shared_limits import MOST_UNITS, UNIT, Settings, check_name, key_of, settings_from, too_slow
from holdfast.core.suggestions import suggest
from holdfast.core.templates import fields_of, filled_in

FACTS = ("host", "queue", "type")
"""The fields of `per` that are no arguments: the worker's machine, and the job's queue and type."""

STEPS_ONLY = "host"
"""The one that is known only where a step runs."""


@runtime_checkable
class Home(Protocol):
    """What holds the limits of an app: it knows the step that is running."""

    def settle(self, limit: "Limit", units: int) -> None:
        """Correct what the running step uses of a limit, in millionths of a unit."""


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

    def settle(self, units: float) -> None:
        """Say how many units of the rate the running step has really used, whatever its cost was estimated to be.

        Call it in a step that uses this limit. The last call counts, and the rate is corrected when the step ends: what
        was used beyond the estimate is missing afterwards. Outside a job, it does nothing.
        """
        if self.rate is None:
            raise Invalid(f"limit {self.name} has no rate= whose units could be settled; give it one")
        if isinstance(units, bool) or not isinstance(units, int | float) or not 0 <= units <= MOST_UNITS:
            raise Invalid(f"limit {self.name}: settle({units!r}): give the units used, from 0 to {MOST_UNITS:,}")
        assert isinstance(self.home, Home)
        self.home.settle(self, self.exact_units(units))

    @property
    def counts_parts(self) -> bool:
        """Whether parts of a unit count: its rate is written with a decimal point."""
        return "." in (self.rate or "")

    def exact_units(self, units: float) -> int:
        """Units in millionths. Where the rate has no decimal point, a fraction of a unit counts as a whole one."""
        return round((units if self.counts_parts else ceil(units)) * UNIT)

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
    return fields_of(f"limit {limit.name}: per={limit.per!r}", limit.per)


def needs_argument(limit: Limit, name: str) -> bool:
    """Whether a limit's `per` or its cost depends on this argument."""
    if name in [field.partition(".")[0] for field in _fields(limit)]:
        return True
    return limit.cost_function is not None and needs_named(limit.cost_function, name)


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
    if limit.cost_function is not None:
        check_named(_cost_of(what, limit), limit.cost_function, names)
    elif (trouble := too_slow(limit.name, limit.settings)) is not None:
        raise Invalid(f"{what}: {trouble}, or give it a cost: limit.cost(…)")


def _cost_of(what: str, limit: Limit) -> str:
    return f"{what}: the cost function of limit {limit.name}"


# What one call needs.


def fixed_uses(limits: Sequence[Limit]) -> tuple[Use, ...] | None:
    """Return what every call needs of these limits, or None if that depends on its arguments."""
    if any(one.per or one.cost_function is not None for one in limits):
        return None
    return tuple(Use(one.name, UNIT) for one in limits)


def uses_of(what: str, limits: Sequence[Limit], given: Mapping[str, Any], facts: Mapping[str, str]) -> tuple[Use, ...]:
    """Return what a call with these arguments needs of each limit; or raise Invalid, which names the limit."""
    known = {**facts, **given}
    return tuple(Use(key_of(one.name, _value(what, one, known)), _units(what, one, given)) for one in limits)


def _value(what: str, limit: Limit, known: Mapping[str, Any]) -> str:
    return filled_in(f"{what}: limit {limit.name} counts per", limit.per, known) if limit.per else ""


def _units(what: str, limit: Limit, given: Mapping[str, Any]) -> int:
    function = limit.cost_function
    if function is None:
        return UNIT
    units: Any = call_with_named(_cost_of(what, limit), function, given)
    if isinstance(units, bool) or not isinstance(units, int | float) or not isfinite(units) or units < 0:
        raise Invalid(f"{what}: the cost function of limit {limit.name} returned {units!r}; return a number, 0 or more")
    exact = min(units if limit.counts_parts else ceil(units), MOST_UNITS + 1)
    burst = limit.settings.burst or 0
    if exact * UNIT > burst:
        raise Invalid(
            f"{what}: a cost of {exact:g} is above the burst of limit {limit.name} ({burst / UNIT:g}), so it could "
            "never start; give app.limit a higher burst=, up to the rate, or make the call smaller"
        )
    return round(exact * UNIT)
