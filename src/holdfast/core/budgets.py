"""Budgets: what a job and its children may spend, and what a step declares that it costs. Must not ask a store.

A budget is a key of the shared limits (`shared_limits`) with a bucket that never refills: it holds what is left, in
millionths of a currency. Every step of the job asks for what it costs, or for nothing at all if it doesn't say, and
starts only while something is left. What it has really spent is settled with its record. A job whose step can't start
waits behind the key with what the step needs in its name (`waiting_key`), so a claim sees whether that is there by now.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, json
from msgspec.structs import replace

from holdfast.core.errors import Invalid
from holdfast.core.model import Ask, Job, Options, Use, Wait, WaitKind
from holdfast.core.named_arguments import call_with_named, check_named
from holdfast.core.shared_limits import BUCKET, BUDGET, Settings, split_need
from holdfast.core.spending import CURRENCIES, MILLION, MOST, Amounts, amounts_of, in_words

SETTINGS = json.encode(Settings(burst=4_000_000_000_000_000, refill=0)).decode()
"""The settings of the limit that all budgets belong to. No budget is larger than its burst."""

MOST_GRANTED = MOST * MILLION
"""The largest budget, with everything that was added."""

NOTES = "budget/"
"""A record `budget/JOB` says who added something to the budget of a job."""


# Keys.


def root_of(job: Job) -> str:
    """The id of the job whose budget a job draws on; empty if it has none."""
    return (job.options.budget_root or job.id) if job.options.budget else ""


def drawing_on(parent: Job, options: Options) -> Options:
    """The options of a child that draws on the budget of its parent, or of the job above; as they are without one."""
    if not parent.options.budget:
        return options
    return replace(options, budget=parent.options.budget, budget_root=root_of(parent))


def budget_key(root: str, currency: str) -> str:
    """The key of a budget's counter."""
    return f"{BUDGET}/{root}/{currency}"


def bucket_prefix(root: str = "") -> str:
    """What the names of a budget's buckets begin with; without a root, those of all budgets."""
    return f"{BUCKET}{BUDGET}/{root}/" if root else f"{BUCKET}{BUDGET}/"


def budget_records(root: str) -> list[str]:
    """The names of all records that belong to the budget of a job."""
    return [NOTES + root, *(BUCKET + budget_key(root, name) for name in CURRENCIES)]


def waiting_key(key: str, units: int) -> str:
    """The key behind which a job waits whose step needs so much of a budget."""
    return f"{key}/{max(1, units)}"


def is_budget(key: str) -> bool:
    """Whether this is the key of a budget, or of a job that waits for one."""
    return key.startswith(f"{BUDGET}/")


def parts_of(key: str) -> tuple[str, str, int]:
    """The root, the currency, and what is needed, of a budget's key or of one to wait behind (else 0 is needed)."""
    base, need = split_need(key)
    _, root, currency = base.split("/")
    return root, currency, need


# What people write.


def budget_of(what: str, given: Any) -> dict[str, int]:
    """Read a budget as people write it, `{"usd": 5}`; or Invalid."""
    if not isinstance(given, Mapping) or not given:
        raise Invalid(f"{what}: budget={given!r}: give what it may spend, such as budget={{'usd': 5}}")
    found = amounts_of(f"{what}: budget", given)
    for name in given:
        if name not in found:
            raise Invalid(f"{what}: budget: {name}={given[name]!r}: give a number above 0, or leave it out")
    return found


class Cost(Struct, frozen=True):
    """What a try of a step costs: always the same, or a function of the step's arguments."""

    amounts: Amounts = {}
    function: Callable[..., Any] | None = None

    def of(self, what: str, arguments: Mapping[str, Any]) -> Amounts:
        """Return what a call with these arguments costs; or raise Invalid."""
        if self.function is None:
            return self.amounts
        return _amounts(f"{what}: cost", call_with_named(f"{what}: its cost function", self.function, arguments))


def cost_of(what: str, given: Any, names: Sequence[str]) -> Cost | None:
    """Read what a step with these parameters declares as its `cost=`; or raise Invalid."""
    if given is None:
        return None
    if callable(given):
        check_named(f"{what}: its cost function", given, names)
        return Cost(function=given)
    return Cost(_amounts(f"{what}: cost", given))


def _amounts(call: str, given: Any) -> dict[str, int]:
    if not isinstance(given, Mapping):
        raise Invalid(f"{call}: {given!r} isn't a cost; give a dict such as {{'usd': 0.04}}")
    return amounts_of(call, given)


# What a call needs.


def budget_uses(job: Job, cost: Amounts) -> tuple[Use, ...]:
    """What a step that costs so much needs of its job's budget. It needs something to be left even if it costs 0."""
    root = root_of(job)
    return tuple(Use(budget_key(root, name), cost.get(name, 0)) for name in CURRENCIES if name in job.options.budget)


def settles_of(job: Job, reserved: Amounts, spent: Amounts) -> tuple[Use, ...]:
    """How much more, or less, than it reserved a step has spent."""
    root = root_of(job)
    more = {name: spent.get(name, 0) - reserved.get(name, 0) for name in CURRENCIES if name in job.options.budget}
    return tuple(Use(budget_key(root, name), units) for name, units in more.items() if units)


def least_needs(waits: tuple[Wait, ...]) -> tuple[Wait, ...]:
    """The waits of a job without those that need more of the same budget than another one does.

    A store wakes a job for one key only; when it runs again, all its steps ask again.
    """
    least: dict[str, int] = {}
    for wait in waits:
        if wait.kind is WaitKind.LIMIT and is_budget(wait.name):
            base, need = split_need(wait.name)
            least[base] = min(need, least.get(base, need))
    if not least:
        return waits
    kept = {waiting_key(base, need) for base, need in least.items()}
    return tuple(w for w in waits if w.kind is not WaitKind.LIMIT or not is_budget(w.name) or w.name in kept)


def unused(ask: Ask) -> tuple[Use, ...]:
    """What a step gives back of a budget that was admitted and never started."""
    return tuple(Use(use.key, -use.units) for use in ask.uses if use.units and is_budget(use.key))


# In words.


def wait_name(key: str) -> str:
    """What a job waits for that waits for a key: "limit openai", or "budget (usd)"."""
    return f"budget ({parts_of(key)[1]})" if is_budget(key) else f"limit {key}"


def spent_of(granted: Amounts, left: Amounts) -> str:
    """Say how much of a budget is spent: "$4.20 of $5.00 and 0 of 200,000 tokens spent"."""
    parts = [
        f"{_short(name, amount - left.get(name, 0))} of {in_words({name: amount})}" for name, amount in granted.items()
    ]
    return f"{' and '.join(parts)} spent" if parts else ""


def _short(name: str, amount: int) -> str:
    """An amount without its currency's name, where the budget itself is named next to it."""
    if name == "usd":
        return in_words({name: amount}) or "$0.00"
    return in_words({name: amount}).removesuffix(f" {name}") or "0"
