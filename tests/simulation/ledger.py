"""The permits of a run, counted from what the store answered: who held which key, from when to when, and who waited.

Must not judge, and must not read what the engine keeps of limits: it is the second copy.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from holdfast.core.model import Admission, Applied, Ask, Record, Recorded, State, StepState, Use, WaitKind
from holdfast.core.shared_limits import BUCKET, LIMIT, NO_LIMIT, RESERVED_MS, Bucket, Settings, limit_of, settings_of
from tests.simulation.lives import Life
from tests.simulation.wire import START_AT, Act

REOPENED_SECONDS = 12.0
"""How long after its closing a limit is surely fully open again."""

Name = tuple[str, str, str]
"""A key, a job and the path of a step; no path for the job's own permit."""


@dataclass(frozen=True)
class Grant:
    """A permit that began: how many of its key others held then, and what the limit allowed."""

    act: Act
    name: Name
    units: int
    others: int
    settings: Settings
    closed_until: int


@dataclass
class Waiter:
    """A step or a job that waited for a key, in the world's time. `until` is None if it never got it."""

    key: str
    job: str
    path: str
    epoch: int
    since: float
    until: float | None = None


@dataclass
class Ledger:
    """What the acts of a run say about permits."""

    lives: dict[str, Life]
    shift_ms: int
    grants: list[Grant] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)
    kept: list[tuple[Act, Name]] = field(default_factory=list)
    """Permits that a step still had after its end was recorded."""
    full: defaultdict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """For each key how many permits were held, from each time on."""
    settings: dict[str, Settings] = field(default_factory=dict)
    changed_at: dict[str, float] = field(default_factory=dict)
    """When the settings of a limit, or the end of its closing, changed last."""
    _held: dict[Name, tuple[int, int]] = field(default_factory=dict)
    _closed: dict[str, int] = field(default_factory=dict)
    _waiting: dict[tuple[str, str], Waiter] = field(default_factory=dict)

    def read(self, acts: list[Act]) -> "Ledger":
        """Read all acts, in the order of the store."""
        for act in acts:
            if act.ok:
                self._read(act)
        return self

    def _read(self, act: Act) -> None:
        match act.name:
            case "put_record" if isinstance(act.answer, Record):
                self._set(act, act.args[0], act.args[1])
            case "claim":
                for job in act.answer:
                    for use in job.options.limits:
                        self._begin(act, (use.key, job.id, ""), use, job.epoch, 1)
            case "commit":
                for change, answer in zip(act.args[0], act.answer, strict=True):
                    if isinstance(answer, Applied) and change.job.state is not State.ACTIVE:
                        self._end(act, change.job.id)
            case "admit":
                for ask, answer in zip(act.args[0], act.answer[0], strict=True):
                    if isinstance(answer, Admission):
                        self._answer(act, ask, answer)
                steps = zip(act.args[1], act.answer[1], strict=True)
                written = [one for one, answer in steps if isinstance(answer, Recorded)]
                ended = {(one.job, one.path) for one in written if one.state is not StepState.STARTED}
                self.kept += [(act, name) for name in self._held if name[1:] in ended]

    def _set(self, act: Act, name: str, value: str | None) -> None:
        if name.startswith(LIMIT) and value:
            self.settings[name.removeprefix(LIMIT)] = settings_of(value)
            self.changed_at[name.removeprefix(LIMIT)] = act.at
        if name.startswith(BUCKET) and value:
            key = name.removeprefix(BUCKET)
            self._closed[key] = msgspec.json.decode(value, type=Bucket).closed_until
            self.changed_at[limit_of(key)] = max(act.at, (self._closed[key] - START_AT - self.shift_ms) / 1_000)

    def _answer(self, act: Act, ask: Ask, answer: Admission) -> None:
        step = (ask.job, ask.path)
        if not ask.uses:
            self._end(act, *step)
        elif answer.admitted:
            for use in ask.uses:
                self._begin(act, (use.key, *step), use, ask.epoch, ask.try_number)
        if ask.uses and (known := self._waiting.pop(step, None)) is not None:
            known.until = act.at
        if not answer.admitted:
            self._waiting[step] = Waiter(answer.key, *step, ask.epoch, act.at)
            self.waiters.append(self._waiting[step])

    def _begin(self, act: Act, name: Name, use: Use, epoch: int, try_number: int) -> None:
        if self._held.get(name) == (epoch, try_number):
            return  # the same try asks again
        others = sum(one[0] == name[0] for one in self._held if one != name)
        settings = self.settings.get(limit_of(name[0]), NO_LIMIT)
        self.grants.append(Grant(act, name, use.units, others, settings, self._closed.get(name[0], 0)))
        self._held[name] = (epoch, try_number)
        self._count(act, name[0])

    def _end(self, act: Act, job: str, path: str | None = None) -> None:
        for name in [one for one in self._held if one[1] == job and path in (None, one[2])]:
            del self._held[name]
            self._count(act, name[0])
        if path is None:
            for step in [one for one in self._waiting if one[0] == job]:
                self._waiting.pop(step).until = act.at

    def _count(self, act: Act, key: str) -> None:
        self.full[key].append((act.at, sum(one[0] == key for one in self._held)))

    # Room, as intervals of time.

    def room(self, key: str, since: float, until: float) -> list[tuple[float, float]]:
        """When a key surely had room within this time: not counting permits that are kept for a job that was woken."""
        limit = self.settings.get(limit_of(key), NO_LIMIT)
        if limit.at_once is None or limit.burst is not None:
            return []
        reopens = REOPENED_SECONDS if key in self._closed else 0.0
        since = max(since, self.changed_at.get(limit_of(key), 0.0) + reopens)
        kept = self._reserved(key)
        edges = sorted({since, until, *(at for at, _ in self.full[key]), *(at for pair in kept for at in pair)})
        edges = [at for at in edges if since <= at <= until]
        found: list[tuple[float, float]] = []
        for begin, end in pairwise(edges):
            held = next((count for at, count in reversed(self.full[key]) if at <= begin), 0)
            if held + sum(one < end and begin < other for one, other in kept) >= limit.at_once:
                continue
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        return found

    def _reserved(self, key: str) -> list[tuple[float, float]]:
        """From when to when a permit of a key may have been kept for a job that was woken for it."""
        found = []
        for life in self.lives.values():
            for entry, then in zip(life.entries, [*life.entries[1:], None], strict=True):
                if entry.event != "activate" or entry.by != "limit":
                    continue
                begin = self.world_time(entry.at)
                ends = [begin + RESERVED_MS / 1_000]
                if then is not None and then.event != "claim":
                    ends.append(self.world_time(then.at))
                asked = [one.act.at for one in self.grants if one.name[:2] == (key, life.job.id) and one.act.at > begin]
                found.append((begin, min([*ends, *asked[:1]])))
        return found

    def world_time(self, store_ms: int) -> float:
        """The world's time of a store's time, once nobody sets the store's clock any more."""
        return (store_ms - START_AT - self.shift_ms) / 1_000

    def parked(self) -> list[Waiter]:
        """The jobs that gave up their slots to wait for a key."""
        found = []
        for life in self.lives.values():
            for entry, then in zip(life.entries, [*life.entries[1:], None], strict=True):
                if entry.event != "suspend" or (act := life.made.get(entry.version)) is None:
                    continue
                change = next(one for one in act.args[0] if one.job.id == life.job.id)
                keys = [wait.name for wait in change.job.waits if wait.kind is WaitKind.LIMIT]
                until = None if then is None else self.world_time(then.at)
                found += [Waiter(key, life.job.id, "", entry.epoch, act.at, until) for key in keys[:1]]
        return found
