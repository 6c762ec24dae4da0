"""Jobs that ended per minute and how, and money that was spent, from samples of a store's counters.

Must not read a store.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.core.keys import created_at_of
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Presence, State, Time
from holdfast.core.spending import Amounts, added, in_words, lessened, plain, total_of
from holdfast.jobs.views.overview import is_alive
from holdfast.jobs.views.pages.losses import LostWorker
from holdfast.jobs.views.pages.overview import MinuteCounts, MoneySeen
from holdfast.jobs.views.pages.parts import moment
from holdfast.jobs.views.shapes import time_text
from holdfast.jobs.views.text import plural

MINUTES = 60
"""How many minutes are kept."""

MINUTE_MS, DAY_MS = 60_000, 86_400_000

REMEMBERED_MS = MINUTES * MINUTE_MS
"""How long a lost worker stays in sight."""

LOST_KEPT = 200
"""How many lost workers are remembered."""

JOBS_KEPT = 2_000
"""Of how many jobs the spending is remembered, and whose histories were read."""


class Sample(Struct, frozen=True, kw_only=True):
    """The counters of a store at one moment. `pruned` is how many jobs were ever pruned."""

    now: Time
    counts: Mapping[tuple[str, State], int]
    workers: tuple[Presence, ...]
    pruned: int = 0

    @property
    def ended(self) -> int:
        """How many jobs have ever ended."""
        return self.pruned + sum(map(self.in_state, TERMINAL))

    def in_state(self, state: State) -> int:
        """Return how many jobs are in a state."""
        return sum(number for (_, one), number in self.counts.items() if one == state)


class Samples:
    """What a server has seen since it began to look. Owned by one event loop."""

    def __init__(self) -> None:
        self._since: Time | None = None
        self._last: Sample | None = None
        self._minutes: dict[int, Counter[State]] = {}
        self._lost: dict[str, LostWorker] = {}
        self.known: Mapping[str, Presence] = {}
        """The workers at the last look, by name."""
        self.looked_at: dict[str, int] = {}
        """The jobs whose history was read for lost workers: which version each had then, by id."""
        self._day = 0
        self._money_since: Time = 0
        self._seen: dict[str, tuple[Amounts, Amounts, Amounts]] = {}
        self._money: tuple[Amounts, Amounts, Amounts] = ({}, {}, {})

    @property
    def has_begun(self) -> bool:
        """Whether there was a first sample."""
        return self._since is not None

    def take(self, one: Sample) -> None:
        """Compare the store's counters with those of the last sample."""
        minute = one.now // MINUTE_MS
        before, self._last = self._last or one, one
        if self._since is None:
            self._since = one.now
        self._minutes.setdefault(minute, Counter()).update(_ended_between(before, one))
        for old in [at for at in self._minutes if at <= minute - MINUTES]:
            del self._minutes[old]
        self._take_money(one)

    def meet(self, workers: Iterable[Presence], lost: Iterable[LostWorker], now: Time) -> None:
        """Take the workers as they are now, and those that were lost since the last look."""
        self.known = {one.worker: one for one in workers}
        gone = {one.presence.worker: one for one in lost}
        for name in [name for name, one in self.known.items() if is_alive(one, now)]:
            self._lost.pop(name, None)  # it was believed to be lost, and works on
        for name, one in gone.items():
            before = self._lost.get(name)
            jobs = tuple(dict.fromkeys((*(before.jobs if before is not None else ()), *one.jobs)))
            # A history knows only the name; an earlier look may have seen the worker itself.
            presence = before.presence if before is not None and not one.presence.started_at else one.presence
            self._lost[name] = LostWorker(presence=presence, at=one.at, jobs=jobs)
        while len(self._lost) > LOST_KEPT:
            del self._lost[next(iter(self._lost))]

    def look_at(self, jobs: Mapping[str, int]) -> None:
        """Note whose histories were read, and at which version."""
        self.looked_at.update(jobs)
        while len(self.looked_at) > JOBS_KEPT:
            del self.looked_at[next(iter(self.looked_at))]

    def lost(self, now: Time) -> list[LostWorker]:
        """Return the workers that were lost in the last hour, the last one first."""
        for name in [name for name, one in self._lost.items() if one.at <= now - REMEMBERED_MS]:
            del self._lost[name]
        return sorted(self._lost.values(), key=lambda one: -one.at)

    def _take_money(self, one: Sample) -> None:
        if one.now // DAY_MS != self._day:
            self._day, self._money_since, self._money = one.now // DAY_MS, one.now, ({}, {}, {})
        for running in (running for worker in one.workers for running in worker.running):
            spending = running.spending
            if spending is None:
                continue
            seen = (total_of(spending), spending.wasted, spending.saved)
            is_ours = created_at_of(running.job) >= (self._since or 0)
            before = self._seen.get(running.job, ({}, {}, {}) if is_ours else seen)
            a, b, c = (lessened(new, old) for new, old in zip(seen, before, strict=True))
            self._money = (added(self._money[0], a), added(self._money[1], b), added(self._money[2], c))
            self._seen[running.job] = seen
        while len(self._seen) > JOBS_KEPT:
            del self._seen[next(iter(self._seen))]

    def finished(self, now: Time) -> MinuteCounts:
        """Return the jobs that ended per minute, from the first minute that was seen."""
        if self._since is None:
            return MinuteCounts(
                since=None, since_words="", first=None, ended=(), cancelled=(), discarded=(), lost=(), words=""
            )
        last = now // MINUTE_MS
        first = max(self._since // MINUTE_MS, last - MINUTES + 1)
        ended = _row({minute: counts.total() for minute, counts in self._minutes.items()}, first, last)
        cancelled, discarded = (self._row_of(state, first, last) for state in (State.CANCELLED, State.DISCARDED))
        others = {"cancelled": sum(cancelled), "discarded": sum(discarded)}
        lost: dict[int, int] = {}
        for one in self.lost(now):
            lost[one.at // MINUTE_MS] = lost.get(one.at // MINUTE_MS, 0) + 1
        since = time_text(self._since)
        clock, begun = (since or "")[11:16], moment(max(first * MINUTE_MS, self._since))[11:16]
        return MinuteCounts(
            since=since,
            since_words=f"since {clock} UTC",
            first=moment(first * MINUTE_MS),
            ended=ended,
            cancelled=cancelled,
            discarded=discarded,
            lost=_row(lost, first, last),
            words=", ".join(
                [
                    f"{plural(sum(ended), 'job')} ended since {begun} UTC",
                    *(f"{number:,} {how}" for how, number in others.items() if number),
                ]
            ),
        )

    def _row_of(self, state: State, first: int, last: int) -> tuple[int, ...]:
        return _row({minute: counts[state] for minute, counts in self._minutes.items()}, first, last)

    def money(self) -> MoneySeen | None:
        """Return what was spent today while this server looked; None if nothing was."""
        spent, wasted, saved = self._money
        if not any((*spent.values(), *wasted.values(), *saved.values())):
            return None
        return MoneySeen(
            since=moment(self._money_since),
            spent=plain(spent),
            wasted=plain(wasted),
            saved=plain(saved),
            words=f"at least {in_words(spent) or 'nothing'} since {moment(self._money_since)[11:16]} UTC",
        )


def _ended_between(before: Sample, after: Sample) -> Counter[State]:
    """Return how many jobs ended between two samples, by state. Which were pruned meanwhile isn't known: one that was
    cancelled or discarded and pruned at once counts as completed.
    """
    found: Counter[State] = Counter()
    left = max(0, after.ended - before.ended)
    for state in (State.CANCELLED, State.DISCARDED):
        found[state] = min(left, max(0, after.in_state(state) - before.in_state(state)))
        left -= found[state]
    found[State.COMPLETED] = left
    return found


def _row(counts: Mapping[int, int], first: int, last: int) -> tuple[int, ...]:
    return tuple(counts.get(minute, 0) for minute in _minutes(first, last))


def _minutes(first: int, last: int) -> Iterable[int]:
    return range(first, last + 1)
