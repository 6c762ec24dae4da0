"""The claim's floor: where the last claim of a long drain began, so that the next one needn't walk there again.

While some transaction elsewhere stays open, what was claimed can't be vacuumed, and a claim that begins at the front
walks over all of it, again and again. Must not change the order in which jobs come while claims are fast: it sets in
only after several full claims in a row that were slow, and every second one claim begins at the front all the same,
so that what was inserted behind the floor and committed late is seen within that time.
"""

from collections.abc import Sequence

from holdfast.core.model import Time

FULL_IN_A_ROW = 8
"""How many claims in a row must have found all they wanted."""

SLOW_SECONDS = 0.004
"""How long they must have taken on average: a claim that walks over nothing is faster."""

FRONT_SECONDS = 1.0
"""How often a claim begins at the front in any case."""

Spot = tuple[str, int, Time, int]
"""Where a claimed job stood: queue, priority, run_at, number."""


class Floor:
    """What is known of the last claims of one engine. Owns its own state."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin at the front."""
        self._full = 0
        self._slow = 0.0
        self._spot: Spot | None = None
        self._front_at = 0.0

    def ahead(self, queues: Sequence[str], now: float) -> Spot | None:
        """Where to begin the next claim; None for the front."""
        if self._spot is None or now - self._front_at > FRONT_SECONDS or self._spot[0] not in queues[:1]:
            return None
        return self._spot if self._full >= FULL_IN_A_ROW and self._slow > SLOW_SECONDS else None

    def note(self, queues: Sequence[str], limit: int, spots: Sequence[Spot], began: float, ended: float) -> None:
        """A claim has brought jobs from these places."""
        level = {spot[:2] for spot in spots}
        if len(spots) < limit or len(level) != 1 or spots[0][0] != queues[0]:
            self.reset()
            return
        if self._spot is None or self._spot[:2] != spots[0][:2]:
            self._full = 0
        if self.ahead(queues, began) is None:
            self._front_at = began
            # Only a claim from the front tells how slow the front is.
            self._slow = ended - began if not self._full else (self._slow + ended - began) / 2
        self._full += 1
        self._spot = min(spots, key=lambda spot: (spot[2], spot[3]))
