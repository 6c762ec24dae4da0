"""The claim's floor: where the last claim of a long drain began, so that the next one needn't walk there again.

What was claimed is dead in the index until it is vacuumed, and while some transaction elsewhere stays open it can't be:
a claim that begins at the front walks over all of it, again and again. So it sets in after several full claims in a
row, for one queue, one priority and the same types. A job of a higher priority ends it at once (`claim` looks), and
every second one claim begins at the front all the same, so that what was inserted behind the floor and committed late,
was handed back, or became due, is seen within that time.
"""

from collections.abc import Sequence

from holdfast.core.model import Time

FULL_IN_A_ROW = 4
"""How many claims in a row must have found all they wanted."""

FRONT_SECONDS = 1.0
"""How often a claim begins at the front in any case."""

Types = Sequence[str] | None
"""What a claim asks for; None: any type, and then it begins at the front."""

Spot = tuple[str, int, Time, int]
"""Where a claimed job stood: queue, priority, run_at, number."""

FRONT = (None, None, None)


class ClaimCursor:
    """What is known of the last claims of one engine. Owns its own state."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin at the front."""
        self._full = 0
        self._spot: Spot | None = None
        self._types: Types = None
        self._front_at = 0.0

    def ahead(self, queues: Sequence[str], types: Types, now: float) -> tuple[int, Time, int] | tuple[None, None, None]:
        """Where to begin the next claim: a priority, and what must not be exceeded there; or FRONT."""
        spot = self._spot
        if spot is None or self._full < FULL_IN_A_ROW or now - self._front_at > FRONT_SECONDS:
            return FRONT
        return spot[1:] if types is not None and types == self._types and spot[0] in queues[:1] else FRONT

    def note(self, queues: Sequence[str], types: Types, limit: int, spots: Sequence[Spot], began: float) -> None:
        """A claim has brought jobs from these places."""
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
