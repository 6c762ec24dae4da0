"""Reads that need more than one statement, and the statements themselves. Must not write."""

import sqlite3
from collections.abc import Sequence
from heapq import merge
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.limits import STEP_NAMES
from holdfast.core.model import Beat, Job, Presence, State, Step, StepState, Time, Where
from holdfast.core.moves import HeldKey, Whole, put_together
from holdfast.core.searches import SCAN_LIMIT, Page
from holdfast.core.summaries import StepHead, StepSummary, gone
from holdfast.engines.liveness import beat_answer
from holdfast.engines.records import PAUSE, QUIET
from holdfast.engines.refusals import no_job_before
from holdfast.engines.rows import Row, entry_of, head_of, job_of, step_head_of, step_of, summary_of
from holdfast.engines.search_walks import SHORT_SCAN, Walk, is_dense, joined, page_of_key, whole_walk
from holdfast.engines.sql import beyond, queries
from holdfast.engines.sqlite import rows
from holdfast.engines.topics import DUE_WINDOW_MS

SQL = queries("holdfast.engines.sqlite")

PAST_ALL_TEXTS = b""
"""Sorts after every text, as all bytes do."""

PAST_ALL_IDS = "~"
"""Sorts after every id: where a scan from the newest job starts."""


def holders(db: sqlite3.Connection, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], HeldKey]:
    """Who has these keys."""
    found = ((name, db.execute(SQL.key, {"type": name[0], "key": name[1]}).fetchone()) for name in names)
    return {name: HeldKey(*name, *row) for name, row in found if row is not None}


def find(db: sqlite3.Connection, where: Where, after: str, limit: int) -> list[Job]:
    """A page of jobs, read by the index that fits: expiry, parent, state or id."""
    newest = where.newest_first
    params: rows.Params = {
        "after": after or (PAST_ALL_IDS if newest else ""),
        "limit": limit,
        "queue": where.queue,
        "type": where.type,
        "parent": where.parent,
        "expires_before": where.expires_before,
        "states": msgspec.json.encode(where.states).decode() if where.states else None,
    }

    def pick(statement: str, **more: Any) -> list[Job]:
        sql = getattr(SQL, statement + "_newest" if newest else statement)
        return [job_of(row) for row in db.execute(sql, {**params, **more})]

    if where.expires_before is not None:
        return pick("find_expired")
    if where.parent is not None:
        return pick("find_children")
    if not where.states:
        return pick("find")
    walks = [
        pick("find_active") if state is State.ACTIVE else pick("find_state", state=state.value)
        for state in dict.fromkeys(where.states)
    ]
    return list(islice(merge(*walks, key=lambda job: job.id, reverse=newest), limit))


def search(db: sqlite3.Connection, where: Where, after: str, limit: int) -> Page:
    """A page of jobs, or what the first SCAN_LIMIT jobs of an index give."""
    if where.key is not None:
        ids = msgspec.json.encode([row[0] for row in db.execute(SQL.with_key, {"key": where.key})]).decode()
        return page_of_key([job_of(row) for row in db.execute(SQL.get, {"ids": ids})], where, after, limit)
    newest = where.newest_first
    if where.parent is not None or where.expires_before is not None:
        return joined([whole_walk(find(db, where, after, limit), limit)], limit, newest_first=newest)
    params: rows.Params = {
        "after": after or (PAST_ALL_IDS if newest else ""),
        "limit": limit,
        "queue": where.queue,
        "type": where.type,
    }
    states: list[State | None] = [*dict.fromkeys(where.states)] or [None]
    scan = SCAN_LIMIT // len(states)

    def walk(state: State | None) -> Walk:
        if state is State.ACTIVE:
            return whole_walk(find(db, replace(where, states=(state,)), after, limit), limit)
        name = ("search" if state is None else "search_state") + ("_newest" if newest else "")
        # Most pages are full after a short walk.
        for most in [limit] if is_dense(where) else [min(SHORT_SCAN, scan), scan]:
            given = {**params, "state": state, "scan": most}
            found = [job_of(row) for row in db.execute(getattr(SQL, name), given)]
            if is_dense(where) or len(found) == limit:
                return whole_walk(found, limit)
        count, last = db.execute(getattr(SQL, f"{name}_end"), given).fetchone()
        return Walk(found, count, last if count == scan else None)

    return joined([walk(state) for state in states], limit, newest_first=newest)


def in_order(db: sqlite3.Connection, after: str, limit: int) -> list[Job]:
    """A page of all jobs, in the order of insertion."""
    row = db.execute(SQL.number, {"id": after}).fetchone() if after else (0,)
    if row is None:
        raise no_job_before(after)
    return [job_of(one) for one in db.execute(SQL.in_order, {"after": row[0], "limit": limit})]


def wholes(db: sqlite3.Connection, jobs: Sequence[Job]) -> list[Whole]:
    """These jobs with everything that belongs to them."""
    ids = {"ids": msgspec.json.encode([job.id for job in jobs]).decode()}
    entries = [entry_of(row) for row in db.execute(SQL.histories, ids)]
    return put_together(jobs, entries, [step_of(row) for row in db.execute(SQL.all_steps, ids)])


def steps_under(db: sqlite3.Connection, jobs: Sequence[str], prefix: str, state: StepState | None) -> list[Step]:
    """The step records of these jobs whose paths start with a prefix, and which are in this state."""
    params: rows.Params = {
        "jobs": msgspec.json.encode(jobs).decode(),
        "prefix": prefix,
        "beyond": beyond(prefix) or PAST_ALL_TEXTS,
        "state": state,
    }
    return [step_of(row) for row in db.execute(SQL.steps_under, params)]


def steps_page(db: sqlite3.Connection, job: str, after: str, limit: int) -> list[StepHead]:
    """A page of a job's steps without their results."""
    row = db.execute(SQL.place_of, {"job": job, "path": after}).fetchone() if after else (0,)
    if row is None:
        raise gone(after)
    params = {"job": job, "after": row[0], "limit": limit}
    return [step_head_of(row) for row in db.execute(SQL.steps_page, params)]


def summaries(db: sqlite3.Connection, jobs: Sequence[str]) -> dict[str, StepSummary]:
    """The step counts of these jobs: from their counters, or by counting the steps if the counters are outdated."""
    found: dict[str, list[Row]] = {}
    for id, n, is_right, *counter in db.execute(SQL.summaries, {"ids": msgspec.json.encode(jobs).decode()}):
        if is_right:
            found.setdefault(id, []).append(counter)
        else:
            found[id] = db.execute(SQL.count_steps, {"n": n, "most": STEP_NAMES}).fetchall()
    return {id: summary_of(id, counters) for id, counters in found.items()}


def beat(db: sqlite3.Connection, presence: Presence, now: Time) -> Beat:
    """Answer a heartbeat."""
    held = dict(db.execute(SQL.held, {"worker": presence.worker}).fetchall())
    gone = [running.job for running in presence.running if held.get(running.job) != running.epoch]
    heads = map(head_of, db.execute(SQL.heads, {"ids": msgspec.json.encode(gone).decode()})) if gone else ()
    cancelled = {head.id for head in heads if head.state is State.CANCELLED}
    records = {name for prefix in (PAUSE, QUIET + presence.worker) for name, *_ in _records(db, prefix)}
    return beat_answer(presence, now, held, cancelled, records)


def _records(db: sqlite3.Connection, prefix: str) -> sqlite3.Cursor:
    return db.execute(SQL.records, {"prefix": prefix})


def next_due(db: sqlite3.Connection, queues: Sequence[str], now: Time) -> Time | None:
    """When a claim of these queues has to look again: a job becomes due, or a limit may have room. Also if that was so
    recently that a claim may have missed it.
    """
    since = now - DUE_WINDOW_MS
    found = (
        db.execute(statement, {"queue": queue, "since": since}).fetchone()[0]
        for queue in queues
        for statement in (SQL.next_due, SQL.next_back, SQL.next_look)
    )
    return min((run_at for run_at in found if run_at is not None), default=None)
