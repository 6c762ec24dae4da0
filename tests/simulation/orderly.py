"""The jobs of a simulation that take turns, of which there is one at a time, or that a schedule submits.

Must not check anything, and must not know who runs them or what goes wrong.
"""

from holdfast import Unique
from tests.simulation.plan import ONE_OF, ORDERLY
from tests.simulation.shapes import make, shape

SPELL_SECONDS = 6.0
"""For how long no other job like a `spell` is submitted."""

ONE_OF |= {
    "sole": Unique(by=("args.m",)),
    "lonely": Unique(by=("args.m",), then="refuse"),
    "heir": Unique(by=("args.m",), then="replace"),
    "spell": Unique(by=("args.m",), within=SPELL_SECONDS),
}


@shape(4, into=ORDERLY, fair="{m}")
async def turn(n: int, m: int) -> list[str]:
    return [await make(n)]


@shape(1, into=ORDERLY)
async def sole(n: int, m: int) -> list[str]:
    return [await make(n)]


@shape(1, into=ORDERLY)
async def lonely(n: int, m: int) -> list[str]:
    return [await make(n)]


@shape(2, into=ORDERLY)
async def heir(n: int, m: int) -> list[str]:
    """The next one like it cancels it, also while it runs."""
    return [await make(n)]


@shape(2, into=ORDERLY)
async def spell(n: int, m: int) -> list[str]:
    return [await make(n)]


@shape(0)
async def ticked(n: int) -> list[str]:
    return [await make(n)]
