"""How a bug is planted: something in the product is replaced for a while. Must not know which bugs there are."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.simulation.plan import Plan
from tests.simulation.run import patched


@dataclass(frozen=True)
class Bug:
    """One planted bug. `caught_by` begins the line of a law that must see it."""

    name: str
    caught_by: tuple[str, ...]
    place: Any
    attribute: str
    spoil: Callable[[Any], Any]
    plan: Callable[[Plan], Plan] | None = None
    """What to make of a seed's plan, where the bug needs a kind of trouble that is rare."""


BUGS: dict[str, Bug] = {}


def bug(
    name: str, caught_by: str, place: Any, attribute: str, plan: Callable[[Plan], Plan] | None = None
) -> Callable[[Callable[[Any], Any]], None]:
    """Plant a bug: the function is given what is there, and answers with what is there instead."""

    def enter(spoil: Callable[[Any], Any]) -> None:
        BUGS[name] = Bug(name, tuple(caught_by.split()), place, attribute, spoil, plan)

    return enter


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The product with this bug."""
    with ExitStack() as stack:
        if name is not None:
            one = BUGS[name]
            there = getattr(one.place, one.attribute)
            stack.enter_context(patched(one.place, one.attribute, one.spoil(there)))
        yield
