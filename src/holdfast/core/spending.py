"""What a job spends, in dollars and tokens: exact sums in millionths, and how people write and read them.

Must not read a store or a clock. `Spending` (in `model`) says where the money went: into steps whose results are kept,
into steps that run right now, into the job's own code between steps, or to waste.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import DecodeError, json
from msgspec.structs import replace

from holdfast.core.errors import Invalid
from holdfast.core.limits import STEP_NAMES
from holdfast.core.model import RunningItem, Spending, Step
from holdfast.core.suggestions import suggest

MILLION = 1_000_000
MOST = 1_000_000_000
"""The largest single amount. Sums of them stay exact in every store."""

CURRENCIES = ("usd", "tokens")
"""What can be spent."""

SPENT_PATH = "~spent/"
"""The path, beside a step's record, of what the step has spent."""

Amounts = Mapping[str, int]
"""Millionths of each currency: usd, tokens."""

SpendKind = Literal["kept", "wasted", "saved"]
"""The final state of money: kept in results, wasted, or saved because a record answered."""


def amounts_of(call: str, given: Mapping[str, Any]) -> dict[str, int]:
    """Read amounts as people write them (`usd=0.04, tokens=1_200`); or Invalid. Zeros are left out."""
    found: dict[str, int] = {}
    for name, number in given.items():
        if name not in CURRENCIES:
            hint = suggest(name, CURRENCIES) or f"; there are {' and '.join(CURRENCIES)}"
            raise Invalid(f"{call}: {name!r} isn't a currency{hint}")
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= MOST:
            raise Invalid(f"{call}: {name}={number!r}: give a number from 0 to {MOST:,}")
        if amount := round(number * MILLION):
            found[name] = amount
    return found


def plain(amounts: Amounts) -> dict[str, float]:
    """Amounts as people read them: {"usd": 1.84, "tokens": 1200}."""
    return {name: amount // MILLION if amount % MILLION == 0 else amount / MILLION for name, amount in amounts.items()}


def in_words(amounts: Amounts) -> str:
    """Amounts in words: "$1.84 and 1,200 tokens".

    >>> in_words({"usd": 1_840_000, "tokens": 1_200_000_000})
    '$1.84 and 1,200 tokens'
    """
    return " and ".join(_in_words(name, amount) for name, amount in sorted(amounts.items(), reverse=True) if amount)


def _in_words(name: str, amount: int) -> str:
    if name == "usd":
        return f"${amount / MILLION:,.2f}" if amount >= MILLION // 100 else f"${amount / MILLION:.4f}"
    whole = amount / MILLION
    return f"{whole:,.0f} {name}" if whole == int(whole) else f"{whole:,.2f} {name}"


def added(*all: Amounts) -> dict[str, int]:
    """The sum of amounts."""
    names = dict.fromkeys(name for one in all for name in one)
    return {name: total for name in names if (total := sum(one.get(name, 0) for one in all))}


def lessened(whole: Amounts, part: Amounts) -> dict[str, int]:
    """What is left of amounts without a part of them; never below zero."""
    return {name: left for name, amount in whole.items() if (left := amount - part.get(name, 0)) > 0}


# Where it went.


def stage_of(path: str) -> str:
    """The stage that a step belongs to: the name of the outermost step around it, or its own."""
    return path.partition("/")[0].partition("#")[0]


def charged(stages: Mapping[str, Amounts], spent: Iterable[tuple[str, Amounts]]) -> Mapping[str, Amounts]:
    """Amounts by stage, with those of steps added, by path. Stages beyond the first STEP_NAMES are left out."""
    found = dict(stages)
    for path, amounts in spent:
        stage = stage_of(path)
        if amounts and (stage in found or len(found) < STEP_NAMES):
            found[stage] = added(found.get(stage, {}), amounts)
    return found


def total_of(spending: Spending) -> dict[str, int]:
    """Everything that was paid."""
    return added(spending.kept, spending.in_flight, spending.loose, spending.wasted)


def closed(spending: Spending, items: Iterable[RunningItem] = (), *, lost: bool) -> Spending:
    """The spending of a lease that has ended: steps that still ran (`items`) will run again, so their money is wasted.

    If the worker was lost, that holds for code between steps too, and more may have been spent since its heartbeat. The
    next lease tells the job's budget what is still unbooked.
    """
    wasted = added(spending.wasted, spending.in_flight, spending.loose if lost else {})
    loose = {} if lost else spending.loose
    wasted_by = charged(spending.wasted_by, ((one.path, one.spent) for one in items))
    is_least = spending.is_least or lost
    return replace(spending, wasted=wasted, wasted_by=wasted_by, in_flight={}, loose=loose, is_least=is_least)


def failed(spending: Spending) -> Spending:
    """The spending of an attempt that failed: what its code spent between steps is not kept."""
    return replace(spending, wasted=added(spending.wasted, spending.loose), loose={})


def settled_since(before: Spending, after: Spending) -> dict[SpendKind, dict[str, int]]:
    """What was decided between two reports of a job: money whose fate is still open comes with a later one."""
    kinds: tuple[tuple[SpendKind, Amounts, Amounts], ...] = (
        ("kept", after.kept, before.kept),
        ("wasted", after.wasted, before.wasted),
        ("saved", after.saved, before.saved),
    )
    return {kind: more for kind, now, then in kinds if (more := lessened(now, then))}


def reconciled(spending: Spending, records: Iterable[Step]) -> Spending:
    """A lost worker's last report, corrected by what the store has: steps may have been recorded after it."""
    kept = added(*(amounts_in(step) for step in records if step.path.startswith(SPENT_PATH)))
    newer = lessened(kept, spending.kept)
    in_flight, unbooked = lessened(spending.in_flight, newer), lessened(spending.unbooked, newer)
    return replace(spending, kept=kept, in_flight=in_flight, unbooked=unbooked)


def amounts_in(record: Step) -> dict[str, int]:
    """Read what a step has spent. A damaged record counts as nothing: it must not stop a job."""
    try:
        return json.decode(record.result or "{}", type=dict[str, int])
    except DecodeError:
        return {}


def spending_in(record: Step) -> Spending:
    """Read a job's totals. A damaged record counts as nothing."""
    try:
        return json.decode(record.result or "{}", type=Spending)
    except DecodeError:
        return Spending()
