"""Shared limits, for any caller: declare, list, change, close and open them. Must not give a permit: engines do that.

The record `limit/NAME` holds the settings that engines read, and beside them `code` (what the worker that started last
declares), `person` (what a person has set, which beats code) and the last `changes`. The record `bucket/KEY` says until
when a key is closed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import DecodeError, Struct
from msgspec.structs import replace

from holdfast.core.declared_limits import Limit
from holdfast.core.durations import in_words
from holdfast.core.errors import Invalid, NotFound, Outrun
from holdfast.core.limits import REASON_CHARACTERS
from holdfast.core.model import Conflict, Record, Time, Usage
from holdfast.core.shared_limits import (
    BUCKET,
    BUDGET,
    LIMIT,
    Bucket,
    Settings,
    bucket_of,
    closed,
    filled,
    limit_of,
    settings_from,
    settings_of,
    too_slow,
)
from holdfast.core.suggestions import suggest
from holdfast.engines.contract import Engine

CHANGES_KEPT = 20
"""How many of the last changes of a limit are kept."""

CHANGE_TRIES = 50
"""How often a record that others keep changing is read and written again. A bucket changes with every start."""

CODE = "code"
"""Who made a change that a worker's code declares."""


class Setting(Struct, frozen=True, omit_defaults=True):
    """The settings of a limit as somebody wrote them, with who, when and why."""

    at_once: int | None = None
    rate: str | None = None
    burst: float | None = None
    per: str = ""
    by: str = ""
    reason: str = ""
    at: Time = 0

    def words(self) -> str:
        """The settings in words: "at most 20 at once, 500/m"."""
        parts = [
            f"at most {self.at_once:,} at once" if self.at_once is not None else "",
            f"{self.rate}" if self.rate is not None else "",
            f"burst {self.burst:g}" if self.burst is not None else "",
            f"per {self.per}" if self.per else "",
        ]
        return ", ".join(part for part in parts if part)


class LimitChange(Struct, frozen=True, omit_defaults=True):
    """One change of a limit: who, when and what."""

    by: str
    at: Time
    what: str


class LimitRecord(Struct, frozen=True, omit_defaults=True):
    """The record of a limit. The first four fields are the settings that count; engines read them."""

    at_once: int | None = None
    burst: int | None = None
    refill: int = 0
    period_ms: int = 1
    code: Setting | None = None
    person: Setting | None = None
    changes: tuple[LimitChange, ...] = ()

    def text(self) -> str:
        """The record as the store has it."""
        return msgspec.json.encode(self).decode()

    @property
    def now(self) -> Setting:
        """The settings that count: a person's, and where a person has set nothing, the code's."""
        code, person = self.code or Setting(), self.person or Setting()
        at_once = code.at_once if person.at_once is None else person.at_once
        rate, burst = (code.rate, code.burst) if person.rate is None else (person.rate, person.burst)
        return Setting(at_once, rate, burst, code.per)

    @property
    def settings(self) -> Settings:
        """What engines read of it."""
        return Settings(self.at_once, self.burst, self.refill, self.period_ms)


class LimitView(Struct, frozen=True, kw_only=True):
    """A limit with its settings and how much of it is used, key by key."""

    name: str
    settings: Settings
    now: Setting
    code: Setting | None
    person: Setting | None
    changes: tuple[LimitChange, ...]
    usage: tuple[Usage, ...]


def limit_in(record: Record) -> LimitRecord:
    """Read a limit's record. One that can't be read counts as none."""
    try:
        return msgspec.json.decode(record.value, type=LimitRecord)
    except DecodeError:
        return LimitRecord()


# By a worker.


async def declare_limits(engine: Engine, limits: Sequence[Limit], *, by: str) -> list[str]:
    """Write what code declares, for limits whose declaration has changed. Return what is worth a line in the log."""
    known = {record.name: limit_in(record) for record in await engine.records(LIMIT)} if limits else {}
    told = []
    for limit in limits:
        there = known.get(LIMIT + limit.name, LimitRecord()).code
        if there is None or not _is_same(there, limit):
            told += await _declare(engine, limit, by)
    return told


async def _declare(engine: Engine, limit: Limit, by: str) -> list[str]:
    told: list[str] = []

    def change(old: LimitRecord, now: Time) -> LimitRecord:
        told.clear()
        if old.code is not None and _is_same(old.code, limit):
            return old
        code = Setting(limit.at_once, limit.rate, limit.burst, limit.per, by=by, at=now)
        if old.person is not None:
            told.append(f"limit {limit.name}: a person's setting counts, not the code's: {old.person.words()}")
        elif old.code is not None:
            told.append(f"limit {limit.name}: now {code.words()}; other code declared {old.code.words()} before")
        return _changed(limit.name, replace(old, code=code), by, now, f"{CODE}: {code.words()}")

    await _update(engine, limit.name, change)
    return told


def _is_same(setting: Setting, limit: Limit) -> bool:
    return (setting.at_once, setting.rate, setting.burst, setting.per) == (
        limit.at_once, limit.rate, limit.burst, limit.per,
    )  # fmt: skip


async def close_key(engine: Engine, key: str, until: Time) -> None:
    """Close a limit's key for all workers until then. If it is closed for longer already, that stands."""
    await _update_bucket(engine, key, lambda bucket: closed(bucket, until))


# By a person.


async def set_limit(
    engine: Engine,
    name: str,
    *,
    at_once: int | None = None,
    rate: str | None = None,
    burst: float | None = None,
    by: str,
    reason: str = "",
) -> LimitView:
    """Set a limit, whatever code says. What isn't given stays as it is."""
    if at_once is None and rate is None and burst is None:
        raise Invalid(f"limit {name}: say what to set: --at-once, --rate or --burst")
    _check_reason(reason)

    def change(old: LimitRecord, now: Time) -> LimitRecord:
        before, standing = old.person or Setting(), old.now
        if burst is not None and rate is None and standing.rate is None:
            raise Invalid(
                f"limit {name}: burst={burst:g}: the limit has no rate that a burst could belong to; set --rate, too"
            )
        new = Setting(
            before.at_once if at_once is None else at_once,
            (standing.rate if burst is not None else before.rate) if rate is None else rate,
            burst if burst is not None or rate is not None else before.burst,
            by=by,
            reason=reason,
            at=now,
        )
        changed = _changed(name, replace(old, person=new), by, now, _because(f"set: {new.words()}", reason))
        if not _is_fractional(old.code) and (trouble := too_slow(name, changed.settings)) is not None:
            raise Invalid(trouble)
        return changed

    await _update(engine, name, change, must_exist=True)
    return await get_limit(engine, name)


async def reset_limit(engine: Engine, name: str, *, by: str, reason: str = "") -> LimitView:
    """Let the code's settings count again."""
    _check_reason(reason)

    def change(old: LimitRecord, now: Time) -> LimitRecord:
        if old.person is None:
            raise NotFound(f"limit {name}: no person has set it, so there is nothing to reset")
        return _changed(name, replace(old, person=None), by, now, _because("reset to the code's settings", reason))

    await _update(engine, name, change, must_exist=True)
    return await get_limit(engine, name)


async def close_limit(engine: Engine, key: str, for_ms: int, *, by: str, reason: str = "") -> Time:
    """Close a limit for this long: nothing starts under it. Return until when. A key of one value is "NAME/VALUE"."""
    _check_reason(reason)
    if for_ms <= 0:
        raise Invalid(
            f"limit {key}: say for how long to close it, above 0: 10m; to open it: holdfast limits open {key}"
        )
    await _check_key(engine, key)
    until = await engine.now() + for_ms
    await close_key(engine, key, until)
    await _note(engine, key, by, _because(f"closed{_which(key)} for {in_words(for_ms)}", reason))
    return until


async def open_limit(engine: Engine, key: str, *, by: str, reason: str = "") -> None:
    """Open a limit that is closed, fully and at once."""
    _check_reason(reason)
    await _check_key(engine, key)
    is_closed = [one for one in await engine.usage(limit_of(key)) if one.key == key and one.closed_until]
    if not is_closed:
        raise NotFound(f"limit {key} is not closed, so there is nothing to open")
    await _update_bucket(engine, key, lambda bucket: replace(bucket, closed_until=0, starts=0))
    await _note(engine, key, by, _because(f"opened{_which(key)}", reason))


async def list_limits(engine: Engine) -> list[LimitView]:
    """List all limits that the store knows, by name, with how much of each is used."""
    return [await _view(engine, record) for record in await _limits(engine)]


async def _limits(engine: Engine) -> list[Record]:
    """All limits that code or a person has set; the budgets of jobs are no such limit."""
    return [record for record in await engine.records(LIMIT) if record.name != LIMIT + BUDGET]


async def get_limit(engine: Engine, name: str) -> LimitView:
    """Return one limit, or raise NotFound."""
    records = await _limits(engine)
    for record in records:
        if record.name == LIMIT + name:
            return await _view(engine, record)
    raise _unknown(name, records)


async def _view(engine: Engine, record: Record) -> LimitView:
    name, limit = record.name.removeprefix(LIMIT), limit_in(record)
    return LimitView(
        name=name,
        settings=settings_of(record.value),
        now=limit.now,
        code=limit.code,
        person=limit.person,
        changes=limit.changes,
        usage=tuple(await engine.usage(name)),
    )


def _is_fractional(code: Setting | None) -> bool:
    """Whether code counts parts of units, so that its calls may cost less than a whole one."""
    return code is not None and "." in (code.rate or "")


# Writing.


async def _update(
    engine: Engine, name: str, change: Callable[[LimitRecord, Time], LimitRecord], *, must_exist: bool = False
) -> None:
    """Change a limit's record, and start over if somebody else did in between."""
    for _ in range(CHANGE_TRIES):
        records = await (_limits(engine) if must_exist else engine.records(LIMIT + name))
        there = next((record for record in records if record.name == LIMIT + name), None)
        if there is None and must_exist:
            raise _unknown(name, records)
        old = LimitRecord() if there is None else limit_in(there)
        new = change(old, await engine.now())
        if new == old:
            return
        answer = await engine.put_record(LIMIT + name, new.text(), 0 if there is None else there.version)
        if not isinstance(answer, Conflict):
            return
    raise Outrun(f"limit {name}: others kept changing it, so nothing was changed; try again")


async def _update_bucket(engine: Engine, key: str, change: Callable[[Bucket], Bucket]) -> None:
    for _ in range(CHANGE_TRIES):
        settings = await _settings(engine, limit_of(key))
        there = next((one for one in await engine.records(BUCKET + key) if one.name == BUCKET + key), None)
        bucket = filled(settings, None if there is None else bucket_of(there.value), await engine.now())
        answer = await engine.put_record(BUCKET + key, change(bucket).text(), 0 if there is None else there.version)
        if not isinstance(answer, Conflict):
            return
    raise Outrun(f"limit {key}: others kept using it, so it could not be closed or opened; try again")


async def _settings(engine: Engine, name: str) -> Settings:
    records = await engine.records(LIMIT + name)
    return next((settings_of(one.value) for one in records if one.name == LIMIT + name), Settings())


async def _note(engine: Engine, key: str, by: str, what: str) -> None:
    """Keep who closed or opened a limit with its changes."""

    def change(old: LimitRecord, now: Time) -> LimitRecord:
        return replace(old, changes=_with(old, LimitChange(by, now, what)))

    await _update(engine, limit_of(key), change)


def _changed(name: str, new: LimitRecord, by: str, now: Time, what: str) -> LimitRecord:
    """Return the record with the settings that count now, and with one more change."""
    setting = new.now
    counts = settings_from(name, setting.at_once, setting.rate, setting.burst)
    fields: dict[str, Any] = {field: getattr(counts, field) for field in Settings.__struct_fields__}
    return replace(new, **fields, changes=_with(new, LimitChange(by, now, what)))


def _with(limit: LimitRecord, change: LimitChange) -> tuple[LimitChange, ...]:
    return (*limit.changes, change)[-CHANGES_KEPT:]


async def _check_key(engine: Engine, key: str) -> None:
    limit = await get_limit(engine, limit_of(key))
    per = limit.now.per
    if per and "/" not in key:
        values = [one.key for one in limit.usage]
        known = f", one of {', '.join(values[:5])}" if values else ""
        raise Invalid(f"limit {key} counts each {per} on its own; give the value too: {key}/VALUE{known}")
    if "/" in key and not per:
        raise Invalid(f"limit {limit_of(key)} has one counter for all; leave out /{key.partition('/')[2]}")


def _which(key: str) -> str:
    return f" {key}" if "/" in key else ""


def _unknown(name: str, records: Sequence[Record]) -> NotFound:
    names = [record.name.removeprefix(LIMIT) for record in records]
    hint = suggest(name, names) or (f"; there are {', '.join(names)}" if names else "; no worker has declared any yet")
    return NotFound(f"there is no limit {name!r} in this store{hint}")


def _because(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what


def _check_reason(reason: str) -> None:
    if len(reason) > REASON_CHARACTERS:
        raise Invalid(f"reason has {len(reason):,} characters, but the limit is {REASON_CHARACTERS:,}; shorten it")
