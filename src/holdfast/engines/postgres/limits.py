"""Shared limits on Postgres: asks for permits, how much of a limit is used, and buckets that nobody needs any more.

Must not decide who gets a permit: the functions of migration 5 do, with the rules of `core.shared_limits`.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from msgspec import json

from holdfast.core.budgets import is_budget
from holdfast.core.model import PAGE_LIMIT, Admission, Ask, Conflict, Time, Usage
from holdfast.core.shared_limits import (
    BUCKET_KEPT_MS,
    NO_LIMIT,
    Settings,
    bucket_of,
    changed_by,
    filled,
    settings_of,
)
from holdfast.engines.postgres import rows
from holdfast.engines.refusals import ask_refusal, lease_lost
from holdfast.engines.rows import Row, head_of


async def admit(db: Any, sql: SimpleNamespace, asks: Sequence[Ask], news: set[str]) -> list[Admission | Conflict]:
    """Give steps their permits, or take them back: one statement, and a look at the jobs whose leases are over."""
    found = await db.fetch(sql.admit, json.encode(asks).decode())
    lost = [ask.job for ask, row in zip(asks, found, strict=True) if row[0] is None]
    heads = {row[0]: head_of(row) for row in await db.fetch(sql.heads, lost)} if lost else {}
    answers: list[Admission | Conflict] = []
    for ask, (admitted, key, at, topics) in zip(asks, found, strict=True):
        news.update(topics or ())
        if admitted is not None:
            answers.append(Admission(admitted, key or "", at))
        elif (refused := ask_refusal(heads.get(ask.job), ask)) is not None:
            answers.append(refused)
        else:  # by now it could go ahead; it was refused all the same, so somebody was faster
            answers.append(lease_lost(heads[ask.job]))
    return answers


async def recheck_limit(db: Any, sql: SimpleNamespace, record: str) -> None:
    """Let claims look at every key of a limit whose settings, or one of whose buckets, this record is."""
    changed = changed_by(record)
    await db.fetchval(sql.recheck_budget if is_budget(changed) else sql.recheck_limit, changed)


def usages(found: Sequence[Row]) -> list[Usage]:
    """How much of each key is used, from the rows of `usage`; keys of which nothing is used are left out."""
    answer: list[Usage] = []
    for key, held, waiting, text, limit, now in found:
        settings = _settings(limit)
        bucket = filled(settings, None if text is None else bucket_of(text), now)
        closed_until = bucket.closed_until if bucket.closed_until > now else 0
        tokens = bucket.tokens if settings.burst else None
        if held or waiting or closed_until or tokens != settings.burst:
            answer.append(Usage(key, held, waiting, tokens, closed_until))
    return answer[:PAGE_LIMIT]


async def forget_buckets(db: Any, sql: SimpleNamespace) -> None:
    """Remove the buckets that are full, open and unused: a key without one starts full."""
    found = await db.fetch(sql.old_buckets, BUCKET_KEPT_MS, PAGE_LIMIT)
    old = [(name, version) for name, text, version, limit, now in found if _is_full(text, _settings(limit), now)]
    if old:
        await db.execute(sql.drop_buckets, *rows.columns(old, 2))


def _is_full(text: str | None, settings: Settings, now: Time) -> bool:
    if text is None:  # it was only ever locked
        return True
    bucket = bucket_of(text)
    if bucket is None or not settings.refill or bucket.closed_until > now - BUCKET_KEPT_MS:
        return False
    return filled(settings, bucket, now).tokens == settings.burst


def _settings(text: str | None) -> Settings:
    return NO_LIMIT if text is None else settings_of(text)
