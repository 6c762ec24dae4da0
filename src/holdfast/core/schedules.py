"""What a schedule is, which of its ticks are due, and what a due tick means while its last job still runs.

Must not read a clock, load a zone's rules or touch a store. A *tick* is a moment at which a schedule fires. The
schedule remembers the last tick that is settled (`after`): fired, skipped, or before its time. Whoever fires a tick
moves `after` on in the same act, by compare-and-set, so no tick fires twice.
"""

from datetime import tzinfo
from hashlib import sha256

import msgspec
from msgspec import DecodeError, Struct

from holdfast.core.cron import last_time, next_time, parse_cron
from holdfast.core.durations import as_utc, in_words
from holdfast.core.errors import Invalid
from holdfast.core.keys import digest, new_id
from holdfast.core.limits import INLINE_BYTES
from holdfast.core.model import Options, Record, Time

SCHEDULE = "schedule/"
"""The record `schedule/NAME` holds a schedule."""

TICKS_AT_ONCE = 100
"""How many ticks of one schedule fire at once. More that are on time follow; of missed ones, the newest count."""

SHORTEST_MS = 1_000
"""The shortest time between two ticks."""

DEFINITION_BYTES = INLINE_BYTES // 2
"""How large a definition may be, with the arguments of its job: it is a part of a record."""

CHANGES_KEPT = 20
"""How many of the last changes of a schedule are kept."""

MISSED = ("skip", "once", "all")
"""What becomes of ticks at which no worker lived that declares the schedule."""

OVERLAP = ("allow", "skip", "wait", "cancel_previous")
"""What becomes of a tick while the schedule's last job has not ended."""


class Template(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job that a schedule submits, as data: any worker can fire it."""

    type: str
    args: str = "[]"
    queue: str = "default"
    priority: int = 0
    expires_ms: int | None = None
    options: Options = Options()


class Definition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody declares: when, which job, and the rules. One of `cron`, `every_ms` and `at` is given."""

    job: Template
    cron: str = ""
    every_ms: int = 0
    at: Time | None = None
    tz: str = "UTC"
    missed: str = "skip"
    overlap: str = "allow"
    jitter_ms: int = 0

    def fingerprint(self) -> str:
        """The same for equal definitions, in every process."""
        return digest(msgspec.json.encode(self, order="sorted").decode())

    def timing(self) -> tuple[object, ...]:
        """What decides when it fires. If this changes, the schedule starts anew."""
        return self.cron, self.every_ms, self.at, self.tz

    def words(self) -> str:
        """When it fires, for people: "0 9 * * mon-fri Europe/Berlin"."""
        if self.every_ms:
            return f"every {in_words(self.every_ms)}"
        return f"{self.cron} {self.tz}" if self.at is None else f"once, at {iso(self.at)}"


class Pause(Struct, frozen=True, omit_defaults=True):
    """Who paused a schedule, when and why."""

    by: str
    at: Time
    reason: str = ""


class Change(Struct, frozen=True, omit_defaults=True):
    """One change of a schedule: who, when and what."""

    by: str
    at: Time
    what: str


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a schedule.

    `born` is part of the ids of its jobs, so that a schedule that was removed and made again has new ones. `start` is
    when its present timing began; ticks of `every` are counted from there. `waiting` is the tick whose job waits for
    the end of the last one (overlap="wait"). `runs` is how many jobs it has submitted. `error` is why the last tick had
    no job.
    """

    definition: Definition
    is_code: bool = False
    born: str
    start: Time
    after: Time
    tick: Time | None = None
    job: str = ""
    waiting: Time | None = None
    skipped: int = 0
    runs: int = 0
    paused: Pause | None = None
    error: str = ""
    error_at: Time = 0
    changes: tuple[Change, ...] = ()

    def text(self) -> str:
        """The schedule as the store has it."""
        return msgspec.json.encode(self).decode()

    def with_change(self, by: str, at: Time, what: str) -> tuple[Change, ...]:
        """Its changes, and one more."""
        return (*self.changes, Change(by, at, what))[-CHANGES_KEPT:]


def schedule_in(record: Record) -> Schedule | None:
    """Read a schedule's record; None if it can't be read."""
    try:
        return msgspec.json.decode(record.value, type=Schedule)
    except DecodeError:
        return None


def check_definition(name: str, one: Definition) -> Definition:
    """Refuse a definition that means nothing, or never fires."""
    what = f"schedule {name}"
    if [bool(one.cron), bool(one.every_ms), one.at is not None].count(True) != 1:
        raise Invalid(f"{what}: give one of a cron expression, every= and at=")
    if one.cron:
        try:
            parse_cron(one.cron)
        except Invalid as error:
            raise Invalid(f"{what}: {error}") from None
    elif one.tz != "UTC":
        raise Invalid(f"{what}: tz= works only with a cron expression; leave it out")
    if one.every_ms and one.every_ms < SHORTEST_MS:
        raise Invalid(f"{what}: every= must be at least {in_words(SHORTEST_MS)}")
    for option, value, known in (("missed", one.missed, MISSED), ("overlap", one.overlap, OVERLAP)):
        if value not in known:
            raise Invalid(f"{what}: {option}={value!r} is unknown; use {', '.join(map(repr, known))}")
    size = len(msgspec.json.encode(one))
    if size > DEFINITION_BYTES:
        raise Invalid(
            f"{what}: with its job's arguments it has {size >> 10:,} KiB, and {DEFINITION_BYTES >> 10} KiB are "
            "allowed; keep the value elsewhere, and give the job a path or URL"
        )
    return one


# Time.


def next_tick(one: Schedule, zone: tzinfo, after: Time) -> Time | None:
    """The first tick after this moment; None if there is none."""
    definition = one.definition
    if definition.at is not None:
        return definition.at if definition.at > after else None
    if definition.every_ms:
        count = max(0, after - one.start) // definition.every_ms + 1
        return one.start + count * definition.every_ms
    return next_time(parse_cron(definition.cron), zone, after)


def last_tick(one: Schedule, zone: tzinfo, until: Time) -> Time | None:
    """The last tick up to this moment; None if there is none."""
    definition = one.definition
    if definition.at is not None:
        return definition.at if definition.at <= until else None
    if definition.every_ms:
        count = (until - one.start) // definition.every_ms
        return one.start + count * definition.every_ms if count > 0 else None
    return last_time(parse_cron(definition.cron), zone, until)


def newest_ticks(one: Schedule, zone: tzinfo, after: Time, until: Time, most: int = TICKS_AT_ONCE) -> list[Time]:
    """The last ticks after one moment, up to another, oldest first."""
    found: list[Time] = []
    while len(found) < most and (tick := last_tick(one, zone, until)) is not None and tick > after:
        found.append(tick)
        until = tick - 1
    return found[::-1]


def oldest_ticks(one: Schedule, zone: tzinfo, after: Time, until: Time, most: int = TICKS_AT_ONCE) -> list[Time]:
    """The first ticks after one moment, up to another, oldest first."""
    found: list[Time] = []
    while len(found) < most and (tick := next_tick(one, zone, after)) is not None and tick <= until:
        found.append(tick)
        after = tick
    return found


def missed_moment(one: Schedule, now: Time) -> Time | None:
    """The moment at which a schedule should have fired once, if that has passed and it is not settled."""
    at = one.definition.at
    return at if at is not None and one.paused is None and one.after < at <= now else None


def due_ticks(one: Schedule, zone: tzinfo, now: Time, lived_since: Time | None) -> list[Time]:
    """The ticks that must be settled now, oldest first.

    A worker that could fire this schedule has lived since `lived_since`; None if there is no such worker. Ticks from
    then on are on time, however late it is now. What was before is missed, and `missed` decides. If there are
    TICKS_AT_ONCE, there may be more. Where jobs don't overlap, only the newest matter, so older ones may be left out.
    """
    if one.paused is not None or lived_since is None:
        return []
    ticks_of = oldest_ticks if one.definition.overlap == "allow" else newest_ticks
    on_time = ticks_of(one, zone, max(one.after, lived_since - 1), now)
    most = {"skip": 0, "once": 1, "all": TICKS_AT_ONCE - len(on_time)}[one.definition.missed]
    missed = newest_ticks(one, zone, one.after, min(now, lived_since - 1), most) if lived_since > one.after else []
    return [*missed, *on_time]


# Overlap.


class Plan(Struct, frozen=True):
    """What to do about ticks: which of them get a job now, which one waits, how many are skipped.

    `cancels` says that the last job must be cancelled first.
    """

    fires: tuple[Time, ...] = ()
    waiting: Time | None = None
    skipped: int = 0
    cancels: bool = False

    def cut(self, most: int) -> "Plan":
        """The same with only so many jobs: the other ticks are skipped."""
        left = self.fires[:most]
        skipped = self.skipped + len(self.fires) - len(left)
        return Plan(left, self.waiting, skipped, self.cancels and bool(left))


def plan_ticks(one: Schedule, ticks: list[Time], *, is_busy: bool) -> Plan:
    """Decide about due ticks by the schedule's `overlap`. `is_busy` says that its last job has not ended."""
    match one.definition.overlap:
        case "skip":
            fires = () if is_busy else tuple(ticks[-1:])
            return Plan(fires, skipped=len(ticks) - len(fires))
        case "wait":
            line = ticks if one.waiting is None else [one.waiting, *ticks]
            fires = () if is_busy else tuple(line[:1])
            left = line[len(fires) :]
            return Plan(fires, waiting=left[0] if left else None, skipped=max(0, len(left) - 1))
        case "cancel_previous":
            return Plan(tuple(ticks[-1:]), skipped=max(0, len(ticks) - 1), cancels=is_busy and bool(ticks))
        case _:
            return Plan(tuple(ticks))


# Jobs.


def tick_id(born: str, what: str, at: Time) -> str:
    """The id of a tick's job: every process derives the same one. It sorts by the tick's time."""
    return new_id(at, int.from_bytes(sha256(f"{born}\n{what}".encode()).digest()[:10]))


def jitter_of(one: Schedule, tick: Time) -> int:
    """How much later a tick's job starts: the same in every process."""
    most = one.definition.jitter_ms
    return int.from_bytes(sha256(f"{one.born}\n{tick}\njitter".encode()).digest()[:8]) % (most + 1) if most else 0


def iso(at: Time) -> str:
    """A moment as text, in UTC: "2026-11-18T09:00:00Z", with milliseconds only if it has some."""
    text = as_utc(at).isoformat(timespec="milliseconds" if at % 1_000 else "seconds")
    return text.replace("+00:00", "Z")
