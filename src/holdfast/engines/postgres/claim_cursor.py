"""Where the last claim of a long drain started, so that the next claim needn't walk there again.

Claimed jobs leave dead entries in the index until it is vacuumed, which can't happen while some transaction elsewhere
stays open. A claim that starts at the front walks over all of them each time. So after several full claims in a row,
for one queue, one priority and the same types, claims start at the cursor. A job of a higher priority resets it at once
(`claim` checks). And once per second a claim starts at the front anyway, to find jobs before the cursor that were
committed late, handed back, or became due.
"""

from collections.abc import Sequence

from holdfast.core.model import Time

FULL_IN_A_ROW = 4
"""How many claims in a row must have found all they wanted."""

FRONT_SECONDS = 1.0
"""How often a claim starts at the front in any case."""

Types = Sequence[str] | None
"""The types that a claim asks for. None means any type; then it starts at the front."""

Spot = tuple[str, int, Time, int]
"""Where a claimed job was found: queue, priority, run_at, number."""

FRONT = (None, None, None)


class ClaimCursor:
    """What one engine knows about its last claims. Owns its own state."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start at the front again."""
        self._full = 0
        self._spot: Spot | None = None
        self._types: Types = None
        self._front_at = 0.0

    def ahead(self, queues: Sequence[str], types: Types, now: float) -> tuple[int, Time, int] | tuple[None, None, None]:
        """Where to start the next claim: a priority and the position there; or FRONT."""
        spot = self._spot
        if spot is None or self._full < FULL_IN_A_ROW or now - self._front_at > FRONT_SECONDS:
            return FRONT
        return spot[1:] if types is not None and types == self._types and spot[0] in queues[:1] else FRONT

    def note(self, queues: Sequence[str], types: Types, limit: int, spots: Sequence[Spot], began: float) -> None:
        """Note where a claim found its jobs."""
        lowest, highest = min(spots), max(spots)
        if len(spots) < limit or lowest[:2] != highest[:2] or lowest[0] != queues[0]:
            self.reset()
            return
        if self._spot is None or self._spot[:2] != lowest[:2] or types != self._types:
            self._full = 0
        if self.ahead(queues, types, began) is FRONT:
            self._front_at = began
        self._full += 1
        self._spot, self._types = lowest, types
