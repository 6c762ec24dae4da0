"""What only a Postgres store can show: schemas, migrations, late commits, lost connections, a server that restarts."""

import asyncio
import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast import App, Settings
from holdfast.conformance.given import (
    DAY,
    HOUR,
    StoreClock,
    applied_to,
    change,
    claimed,
    current,
    job,
    step,
    taken_over,
)
from holdfast.conformance.given import (
    signal as signalled,
)
from holdfast.core.errors import Invalid, StoreError, StoreForeign
from holdfast.core.model import Event, Options, State
from holdfast.engines import engine_for
from holdfast.engines.postgres import PostgresEngine, claim_cursor, rows
from holdfast.engines.postgres import engine as engine_module
from holdfast.engines.postgres import write_batches as batches_module
from holdfast.engines.postgres.liveness import Liveness, short
from holdfast.engines.postgres.url import parse_url
from holdfast.engines.postgres.writes import Writes
from holdfast.engines.topics import job_topic, queue_topic
from tests.engines.postgres.given import opened
from tests.support.given import until
from tests.support.postgres_server import Server, server

CLOCK = StoreClock(settable=False)
KNOWN = ["test.job", "holdfast.undo"]
"""What the workers of these tests know."""
PATIENCE_SECONDS = 10.0


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that this test may restart."""
    with server() as running:
        yield running


# URLs.


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://h/d?schema=a;drop", "schema="),
        ("postgresql://h/d?schema=A", "schema="),
        ('postgresql://h/d?schema=a"b', "schema="),
        ("postgresql://h/d?schema=pg_temp", "schema="),
        ("postgresql://h/d?schema=" + "a" * 32, "schema="),
        ("postgresql://h/d?colour=red", "'colour'"),
        ("postgresql://h/d?pooler=session", "pooler="),
        ("postgresql://h/d?connections=0", "connections="),
        ("postgresql://h:x/d", "not a valid URL"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_before_anything_is_opened(url: str, says: str):
    with pytest.raises(Invalid, match=says):
        engine_for(url)


def test_a_password_is_never_shown():
    place = parse_url("postgresql://me:s3cret@h/d?schema=a&sslmode=require")

    assert "s3cret" not in place.shown + repr(PostgresEngine("postgresql://me:s3cret@h/d"))
    assert (place.schema, "sslmode=require" in place.dsn, "schema" in place.dsn) == ("a", True, False)


def test_a_server_that_is_not_there_is_one_line_without_the_password(run):
    with pytest.raises(StoreError) as told:
        run(PostgresEngine("postgresql://me:s3cret@127.0.0.1:1/d").open())

    assert "can't be reached" in str(told.value)
    assert "s3cret" not in str(told.value)
    assert "\n" not in str(told.value)


# Schemas.


def test_many_who_open_an_empty_schema_at_once_make_it_once(postgres_store: str, run):
    async def race() -> None:
        engines = [PostgresEngine(postgres_store) for _ in range(8)]
        await asyncio.gather(*(engine.open() for engine in engines))
        await engines[0].insert([job(CLOCK)])
        assert [sum((await engine.count()).values()) for engine in engines] == [1] * 8
        await asyncio.gather(*(engine.close() for engine in engines))

    run(race())


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("create table {s}.thing (n int)", "tables of another program"),
        ("create table {s}.store (n int)", "isn't Holdfast's"),
        ("create table {s}.store (version int, oldest int); insert into {s}.store values (99, 99)", "upgrade Holdfast"),
    ],
)
def test_a_schema_that_is_not_ours_or_newer_is_refused_and_left_alone(postgres_store: str, run, made: str, says: str):
    schema = parse_url(postgres_store).schema
    tables = "select array_agg(relname::text order by 1) from pg_class where relnamespace = $1::regnamespace"

    async def refused() -> None:
        raw = await asyncpg.connect(parse_url(postgres_store).dsn)
        await raw.execute(f"create schema {schema}; " + made.replace("{s}", schema))
        before = await raw.fetchval(tables, schema)
        with pytest.raises(StoreForeign, match=says):
            await PostgresEngine(postgres_store).open()
        assert await raw.fetchval(tables, schema) == before
        await raw.close()

    run(refused())


def test_a_newer_schema_that_older_programs_may_use_is_used(postgres_store: str, run):
    async def use() -> None:
        await (await opened(postgres_store)).close()
        raw = await asyncpg.connect(parse_url(postgres_store).dsn)
        await raw.execute(f"update {parse_url(postgres_store).schema}.store set version = 99")
        engine = await opened(postgres_store)
        await engine.insert([job(CLOCK)])
        await engine.close()
        assert await raw.fetchval(f"select version from {parse_url(postgres_store).schema}.store") == 99
        await raw.close()

    run(use())


def test_states_are_held_by_the_database_itself(postgres_store: str, run):
    async def refuse() -> None:
        engine = await opened(postgres_store)
        await engine.insert([job(CLOCK)])
        raw = await asyncpg.connect(parse_url(postgres_store).dsn)
        schema = parse_url(postgres_store).schema
        for wrong in ("state = 'sleeping'", "state = 'active'", "state = 'completed'", "worker = 'w-1'"):
            with pytest.raises(asyncpg.CheckViolationError):
                await raw.execute(f"update {schema}.job set {wrong}")
        await raw.close()
        await engine.close()

    run(refuse())


# What an act costs.


def test_a_claim_a_step_and_an_end_are_one_statement_each(postgres_store: str, run, monkeypatch: pytest.MonkeyPatch):
    asked: Counter[str] = Counter()
    fetch = asyncpg.Connection._execute  # type: ignore[attr-defined]

    async def counted(self: Any, query: str, *args: Any, **more: Any) -> Any:
        asked[query] += 1
        return await fetch(self, query, *args, **more)

    async def live() -> None:
        engine = await opened(f"{postgres_store}&pooler=transaction")  # tells nobody, so that only the acts count
        monkeypatch.setattr(asyncpg.Connection, "_execute", counted)

        async def costs(act: Any) -> Any:
            asked.clear()
            answer = await act
            assert sum(asked.values()) == 1, asked
            return answer

        await costs(engine.insert([job(CLOCK), job(CLOCK, queue="other"), job(CLOCK, queue="third")]))
        [held] = await costs(engine.claim("w-1", ["default"], 8))
        await costs(engine.record([step(held, f"s{n}") for n in range(9)]))
        _, [held] = await costs(engine.turn([change(CLOCK, held, Event.COMPLETE)], "w-1", ["other"], 8))
        _, [held] = await costs(engine.turn([change(CLOCK, held, Event.RELEASE)], "w-1", ["third"], 8))
        await costs(engine.commit([change(CLOCK, held, Event.COMPLETE)]))
        await engine.close()

    run(live())


def test_callers_who_come_together_share_a_statement(postgres_store: str, run, monkeypatch: pytest.MonkeyPatch):
    batches: list[int] = []
    record = Writes.record

    async def noted(self: Writes, steps: Any) -> Any:
        batches.append(len(steps))
        return await record(self, steps)

    async def crowd() -> None:
        engine = await opened(postgres_store)
        held = await claimed(engine, CLOCK)
        monkeypatch.setattr(Writes, "record", noted)
        answers = await asyncio.gather(*(engine.record([step(held, f"s{n}")]) for n in range(200)))
        assert all(answer[0].first for answer in answers)
        assert len(await engine.steps(held.id)) == 200
        await engine.close()

    run(crowd())
    assert len(batches) < 20, batches


def test_one_callers_bad_luck_is_not_the_others(postgres_store: str, run):
    async def crowd() -> None:
        engine = await opened(postgres_store)
        long_key = os.urandom(8_000).hex()  # more than an index holds: the database itself refuses it
        fine = [engine.insert([job(CLOCK)]) for _ in range(20)]
        answers = await asyncio.gather(
            engine.insert([job(CLOCK, key=long_key, digest="d")]), *fine, return_exceptions=True
        )
        assert isinstance(answers[0], Exception)
        assert [answer[0].new for answer in answers[1:]] == [True] * 20  # type: ignore[index]
        assert sum((await engine.count()).values()) == 20
        await engine.close()

    run(crowd())


# A long drain.


def test_what_is_committed_late_behind_the_floor_is_claimed_within_a_moment(
    postgres_store: str, run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(claim_cursor, "FRONT_SECONDS", 0.3)

    async def drain() -> None:
        engine = await opened(postgres_store)
        raw = await asyncpg.connect(parse_url(postgres_store).dsn)
        late = [job(CLOCK, run_at=CLOCK.now - 60_000) for _ in range(3)]
        transaction = raw.transaction()
        await transaction.start()
        await Writes(raw, engine._sql)._add(late)  # numbered before all others, and committed after many of them
        await engine.insert([job(CLOCK) for _ in range(600)])
        seen: list[str] = []
        for _ in range(claim_cursor.FULL_IN_A_ROW + 2):
            seen += [held.id for held in await engine.claim("w-1", ["default"], 10, KNOWN)]
        assert engine._batches._claim_cursor.ahead(["default"], KNOWN, time.monotonic()) is not claim_cursor.FRONT, (
            "the floor is in use"
        )
        await transaction.commit()
        came: list[str] = []
        end = time.monotonic() + 3
        while time.monotonic() < end and not {one.id for one in late} <= set(came):
            came += [held.id for held in await engine.claim("w-1", ["default"], 10, KNOWN)]
            await asyncio.sleep(0.02)
        assert {one.id for one in late} <= set(came)
        assert len(seen) > 50
        await raw.close()
        await engine.close()

    run(drain())


def test_a_job_of_a_higher_priority_comes_at_once_whatever_the_floor(postgres_store: str, run):
    async def drain() -> None:
        engine = await opened(postgres_store)
        await engine.insert([job(CLOCK) for _ in range(200)])
        for _ in range(claim_cursor.FULL_IN_A_ROW + 2):
            await engine.claim("w-1", ["default"], 10, KNOWN)
        assert engine._batches._claim_cursor.ahead(["default"], KNOWN, time.monotonic()) is not claim_cursor.FRONT
        urgent = job(CLOCK, priority=1)
        await engine.insert([urgent])
        assert (await engine.claim("w-1", ["default"], 10, KNOWN))[0].id == urgent.id
        await engine.close()

    run(drain())


def test_a_floor_skips_nothing_and_takes_nothing_twice(postgres_store: str, run):
    async def drain() -> None:
        engines = [await opened(postgres_store) for _ in range(3)]
        jobs = [job(CLOCK, priority=n % 2) for n in range(900)]
        await engines[0].insert(jobs)
        seen: Counter[str] = Counter()

        async def worker(nth: int) -> None:
            while came := await engines[nth].claim(f"w-{nth}", ["default"], 7, KNOWN):
                seen.update(held.id for held in came)

        await asyncio.gather(*(worker(nth) for nth in range(3)))
        assert seen == Counter(one.id for one in jobs)
        for engine in engines:
            await engine.close()

    run(drain())


@pytest.mark.parametrize("options", [{}, {"delay": "1h"}])
def test_a_bulk_comes_in_its_own_order(
    options: dict[str, Any], postgres_store: str, run, monkeypatch: pytest.MonkeyPatch
):
    """Also where the store is slow with its first part."""
    add, parts = Writes._add, 0

    async def slow_at_first(self: Writes, jobs: Any) -> Any:
        nonlocal parts
        parts += 1
        if parts == 1:
            with contextlib.suppress(AssertionError):
                await until(overtaken, 0.5)
        return await add(self, jobs)

    async def overtaken() -> bool:
        return parts > 2

    monkeypatch.setattr(Writes, "_add", slow_at_first)

    async def bulk() -> None:
        app = App(postgres_store)

        @app.job
        async def one(n: int) -> None: ...

        await one.submit_many(range(5_500), **options)
        assert await app.engine.shift_clock(2 * HOUR)
        held = []
        while came := await app.engine.claim("w-1", ["default"], 500):
            held += came
        assert [one.args for one in held] == [f"[{n}]" for n in range(5_500)]
        await app.close()

    run(bulk())


@pytest.mark.parametrize("of_a_parent", [False, True])
def test_of_a_bulk_that_is_there_in_part_the_rest_is_new(of_a_parent: bool, postgres_store: str, run):
    async def bulk() -> None:
        engine = await opened(postgres_store)
        parent = await claimed(engine, CLOCK)
        lease, kin = (parent.lease, {"parent": parent.id, "group": "g"}) if of_a_parent else (None, {})
        now = CLOCK.now
        jobs = [job(CLOCK, args="[1]", created_at=now, run_at=now, **kin) for _ in range(100)]
        assert rows.alike(jobs) is not None
        await engine.insert(jobs[40:50], lease)
        told = await engine.insert(jobs, lease)
        assert [one.new for one in told] == [not 40 <= place < 50 for place in range(100)]
        assert [one.id for one in told] == [one.id for one in jobs]
        more = [job(CLOCK, args="[1]", created_at=now, run_at=now, **kin) for _ in range(100)]
        assert all(one.new for one in await engine.insert(more, lease))
        assert (await engine.count())[("default", State.AVAILABLE)] == 200
        assert await engine.missing(parent.id, "g") == (200 if of_a_parent else 0)
        held = [one for _ in range(2) for one in await engine.claim("w-1", ["default"], 100)]
        assert held == [
            replace(one, state=State.ACTIVE, version=2, epoch=1, worker="w-1", claimed_at=held[place].claimed_at)
            for place, one in enumerate([*jobs[40:50], *jobs[:40], *jobs[50:], *more])
        ]
        await engine.close()

    run(bulk())


def test_a_completion_comes_to_the_same_alone_and_among_other_changes(postgres_store: str, run):
    """Completions alone have a statement of their own."""

    async def ends(engine: PostgresEngine, *others: Event) -> list[Any]:
        kept = Options(keep_ms=DAY)
        held = [await claimed(engine, CLOCK, options=kept) for _ in range(5)]
        await applied_to(engine, signalled(CLOCK, held[1]))
        await taken_over(engine, CLOCK, held[2])
        held[3] = await taken_over(engine, CLOCK, held[3], "w-1")
        now = CLOCK.now
        changes = [change(CLOCK, one, Event.COMPLETE, by="w-1", at=now) for one in held[:4]]
        changes.append(change(CLOCK, held[4], Event.COMPLETE, by="somebody", at=now))
        if not others:
            batches = [changes[:3], changes[3:4], changes[4:]]  # by epoch, and by who says so
            assert all(rows.completions(batch, engine._batches.numbers) for batch in batches)
            told = [answer for batch in batches for answer in await engine.commit(batch)]
        else:
            changes += [change(CLOCK, await claimed(engine, CLOCK), event) for event in others]
            assert rows.completions(changes, engine._batches.numbers) is None
            told = (await engine.commit(changes))[:5]
        seen = []
        for one, answer in zip(held, told, strict=True):
            after = await current(engine, one)
            gone = {"id": "", "args": "", "digest": "", "queue": ""}
            times = ("created_at", "run_at", "claimed_at", "finished_at", "prune_at")
            moments = {name: getattr(after, name) and 1 for name in times}
            inbox = tuple(replace(came, at=0) for came in after.inbox)
            entries = [replace(entry, job="", at=0) for entry in await engine.history(one.id)]
            answered = (type(answer).__name__, getattr(answer, "reason", ""))
            seen.append((replace(after, **gone, **moments, inbox=inbox), answered, entries))
        return seen

    async def both() -> None:
        engine = await opened(postgres_store)
        alone, among = await ends(engine), await ends(engine, Event.RELEASE)
        assert alone == among
        assert [job.state for job, _, _ in alone] == [
            State.COMPLETED,
            State.COMPLETED,
            State.ACTIVE,
            State.COMPLETED,
            State.COMPLETED,
        ]
        counted: Counter[State] = Counter()
        for (_, state), jobs in (await engine.count()).items():
            counted[state] += jobs
        assert counted == {State.COMPLETED: 8, State.ACTIVE: 2, State.AVAILABLE: 1}
        await engine.close()

    run(both())


def test_only_who_waits_for_jobs_hears_of_them(postgres_store: str, run, monkeypatch: pytest.MonkeyPatch):
    hear, payloads = Liveness._hear, list[tuple[Liveness, str]]()

    def noted(self: Liveness, db: object, pid: int, channel: str, payload: object) -> None:
        payloads.append((self, str(payload)))
        hear(self, db, pid, channel, payload)

    monkeypatch.setattr(Liveness, "_hear", noted)

    async def both() -> None:
        worker, waiter, other = [await opened(postgres_store) for _ in range(3)]
        held = await claimed(other, CLOCK)
        marks = [await worker.wait([queue_topic("late")], 0), await waiter.wait([job_topic(held.id)], 0)]
        payloads.clear()
        assert await other.commit([change(CLOCK, held, Event.COMPLETE)])
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await waiter.wait([job_topic(held.id)], 60, marks[1]) > marks[1]
            await other.insert([job(CLOCK, queue="late")])  # told after the other one
            assert await worker.wait([queue_topic("late")], 60, marks[0]) > marks[0]
        of_job = short(job_topic(held.id))
        assert [engine for engine, payload in payloads if of_job in payload and engine is not other._liveness] == [
            waiter._liveness
        ]
        for engine in (worker, waiter, other):
            await engine.close()

    run(both())


@pytest.mark.parametrize("apart", [0, 1])
def test_no_act_of_a_drain_walks_over_the_whole_table(
    apart: int, postgres_store: str, run, monkeypatch: pytest.MonkeyPatch
):
    """Whether its ends are all of one moment, for which there is a statement of its own, or not.

    Also where plans were made while the table was small, and nobody has told the planner since.
    """
    monkeypatch.setattr(batches_module, "BULK_JOBS", 1_000_000)

    async def drain() -> None:
        engine = await opened(postgres_store)
        raw = await asyncpg.connect(parse_url(postgres_store).dsn)
        counted = """select relname, seq_tup_read, n_tup_del from pg_stat_user_tables
          where schemaname = $1 and relname in ('job', 'name') order by relname"""
        for many in (4, 1_996):
            await engine.insert([job(CLOCK) for _ in range(many)])
            held = await engine.claim("w-1", ["default"], 100)
            while held:
                await engine.record([step(one) for one in held])
                now = CLOCK.now
                ends = [change(CLOCK, one, Event.COMPLETE, at=now + nth * apart) for nth, one in enumerate(held)]
                assert (rows.completions(ends, engine._batches.numbers) is None) == bool(apart)
                _, held = await engine.turn(ends, "w-1", ["default"], 100)
        await engine.close()

        async def all_counted() -> Any:
            found = [tuple(row) for row in await raw.fetch(counted, parse_url(postgres_store).schema)]
            return found if found[0][2] == 2_000 else None

        assert await until(all_counted) == [("job", 0, 2_000), ("name", 0, 0)]
        await raw.close()

    run(drain())


def test_the_planner_is_told_of_many_new_jobs(postgres_store: str, run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batches_module, "BULK_JOBS", 500)

    async def bulk() -> None:
        engine = await opened(postgres_store)
        raw = await asyncpg.connect(parse_url(postgres_store).dsn)
        await engine.insert([job(CLOCK) for _ in range(600)])
        table = f"{parse_url(postgres_store).schema}.job"
        known = lambda: raw.fetchval("select reltuples >= 600 from pg_class where oid = $1::regclass", table)  # noqa: E731
        assert await until(known)
        await raw.close()
        await engine.close()

    run(bulk())


def test_while_jobs_go_on_to_come_the_planner_is_told_less_and_less_often(
    postgres_store: str, run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batches_module, "BULK_JOBS", 10)
    told: list[int] = []

    async def bulk() -> None:
        engine = await opened(postgres_store)

        async def analyze() -> None:
            told.append(engine._batches._bulk)

        monkeypatch.setattr(engine._batches, "_analyze", analyze)
        for _ in range(16):
            await engine.insert([job(CLOCK) for _ in range(5)])
        monkeypatch.setattr(batches_module, "FRESH_SECONDS", 0.0)  # as after a pause
        await engine.insert([job(CLOCK) for _ in range(10)])
        await engine.close()

    run(bulk())
    assert told == [20, 40, 80, 20], "how many more it waits for, after it was told of 10, 30, 70 and, anew, 10"


# Counters and days.


def test_counters_that_are_summed_up_still_count(postgres_store: str, run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "FOLD_ROWS", 5)

    async def count() -> None:
        engine = await opened(postgres_store)
        raw = await asyncpg.connect(parse_url(postgres_store).dsn)
        for n in range(12):
            held = await claimed(engine, CLOCK, queue=f"q{n % 2}")
            await engine.commit([change(CLOCK, held, Event.COMPLETE)])
        before = await engine.count()
        await engine.prune()
        assert await engine.count() == before == {("q0", State.COMPLETED): 6, ("q1", State.COMPLETED): 6}
        assert await raw.fetchval(f"select count(*) from {parse_url(postgres_store).schema}.tally") == 2
        await raw.close()
        await engine.close()

    run(count())


def test_days_are_made_ahead_and_an_old_one_is_dropped_once_nothing_is_left_of_it(postgres_store: str, run):
    schema = parse_url(postgres_store).schema
    days = f"select count(*) from pg_class where relnamespace = '{schema}'::regnamespace and relname ~ '^done_[0-9]+$'"

    ahead = 1 + engine_module.DAYS_AHEAD

    async def keep() -> None:
        engine = await opened(postgres_store)
        raw = await asyncpg.connect(parse_url(postgres_store).dsn)
        held = await claimed(engine, CLOCK)
        await engine.prune()
        assert await raw.fetchval(days) == ahead
        # A day of the past, with one job on it.
        today = await raw.fetchval(f"select {schema}.now_ms() / 86400000")
        for cold in ("done", "body", "entry", "step"):
            await raw.execute(
                f"create table {schema}.{cold}_{today - 9} partition of {schema}.{cold}"
                f" for values from ({(today - 9) << 40}) to ({(today - 8) << 40})"
            )
        for table in ("name", "body", "entry", "job"):
            await raw.execute(f"update {schema}.{table} set n = ({today - 9}::bigint << 40) + 1")
        engine._batches.numbers.clear()  # nobody else ever changes one
        await engine._keep_days_now()
        assert await raw.fetchval(days) == ahead + 1, "a job that lives keeps its day"
        await engine.commit([change(CLOCK, held, Event.COMPLETE)])
        await engine._keep_days_now()
        assert await raw.fetchval(days) == ahead + 1, "a job that is kept keeps its day"
        assert [entry.event for entry in await engine.history(held.id)] == ["submit", "claim", "complete"]
        await raw.execute(f"update {schema}.done set prune_at = 1")
        assert await engine.prune() == 1
        await engine._keep_days_now()
        assert await raw.fetchval(days) == ahead
        assert await raw.fetchval(f"select count(*) from {schema}.entry") == 0
        await raw.close()
        await engine.close()

    run(keep())


def test_what_is_written_lies_in_the_tables_of_its_day_and_a_day_that_began_in_the_rest_ends_there(
    postgres_store: str, run
):
    schema = parse_url(postgres_store).schema
    cold = ("done", "body", "entry", "step")

    async def keep() -> None:
        engine = await opened(postgres_store)
        raw = await asyncpg.connect(parse_url(postgres_store).dsn)

        async def lie() -> set[str]:
            """Where the last job's rows lie, without the name of the table that they are a part of."""
            held = await claimed(engine, CLOCK)
            await engine.record([step(held)])
            await engine.commit([change(CLOCK, held, Event.COMPLETE)])
            assert len(await engine.history(held.id)) == 3
            n = await raw.fetchval(f"select max(n) from {schema}.name")
            where = f"select max(tableoid::regclass::text) from {schema}.{{}} where n = $1"
            found = [await raw.fetchval(where.format(table), n) for table in cold]
            assert len(list(filter(None, found))) >= 3, found
            return {name.rpartition("_")[2] for name in found if name}

        today = await raw.fetchval(f"select {schema}.now_ms() / 86400000")
        assert await lie() == {str(today)}
        assert await engine.shift_clock(9 * DAY)
        assert await lie() == {"rest"}, "nobody has prepared that day"
        await engine._keep_days_now()
        assert await lie() == {"rest"}, "a day is never in two places"
        assert await engine.shift_clock(DAY)
        assert await lie() == {str(today + 10)}, "and the next one is as it should be"
        await raw.close()
        await engine.close()

    run(keep())


def test_a_callers_long_transaction_keeps_no_day_from_being_made_for_long_and_nobody_waits_behind_it(
    postgres_store: str, run
):
    async def wait() -> None:
        engine = await opened(postgres_store)
        raw = await asyncpg.connect(parse_url(postgres_store).dsn)
        async with raw.transaction():
            await Writes(raw, engine._sql)._add([job(CLOCK)])
            began = time.monotonic()
            await asyncio.gather(engine._keep_days_now(), *(engine.insert([job(CLOCK)]) for _ in range(20)))
            assert time.monotonic() - began < 3
            await Writes(raw, engine._sql)._add([job(CLOCK)])  # no deadlock for the caller
        assert sum((await engine.count()).values()) == 22
        await raw.close()
        await engine.close()

    run(wait())


# Wake-ups.


def test_without_notifications_everything_works_by_looking(postgres_store: str, run):
    url = f"{postgres_store}&pooler=transaction"

    async def live() -> None:
        app, other = App(url, settings=Settings(poll_seconds=60)), await opened(url)

        @app.job
        async def double(n: int) -> int:
            return 2 * n

        async with app.worker():
            assert await (await double.submit(4)).result(10) == 8
        mark = await other.wait([queue_topic("q")], 0)
        began = time.monotonic()
        await other.wait([queue_topic("q")], 30, mark)
        assert time.monotonic() - began < 3
        await other.close()
        await app.close()

    run(live())


def test_a_crowd_of_news_is_told_in_few_notifications(postgres_store: str, run):
    async def crowd() -> None:
        one, two = await opened(postgres_store), await opened(postgres_store)
        heard: list[Any] = []
        await two.wait([queue_topic("default")], 0)
        ring = two._liveness._heard

        def hear(topics: Any) -> None:
            heard.append(topics)
            ring(topics)

        two._liveness._heard = hear
        jobs = [job(CLOCK) for _ in range(300)]
        await asyncio.gather(*(one.insert([new]) for new in jobs))
        mark = await two.wait([job_topic(jobs[-1].id)], 0)
        held = await one.claim("w-1", ["default"], 1)
        await two.wait([job_topic(held[0].id)], 5, mark)
        assert 1 <= len(heard) < 30, len(heard)
        await one.close()
        await two.close()

    run(crowd())


# Lost connections.


async def cut_off(raw: Any) -> int:
    """End every session of ours."""
    return await raw.fetchval(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'holdfast'"
    )


def test_terminated_connections_come_back_and_nothing_is_lost_or_twice(own_server: Server, run):
    async def live() -> None:
        app = App(own_server.url, settings=Settings(beat_seconds=0.2, lease_seconds=2))
        ran: Counter[int] = Counter()

        @app.job
        async def noted(n: int) -> int:
            ran[n] += 1
            await asyncio.sleep(0.01)
            return n

        raw = await asyncpg.connect(own_server.url)
        runs = await noted.submit_many([(n,) for n in range(150)])
        async with app.worker(at_once=8):
            for _ in range(6):
                await asyncio.sleep(0.15)
                async with asyncio.timeout(20):
                    while not await cut_off(raw):  # noqa: ASYNC110 (it has no session again yet)
                        await asyncio.sleep(0.05)
            for n, one in enumerate(runs):
                while True:
                    try:
                        assert await one.result(20) == n
                        break
                    except StoreError:
                        await asyncio.sleep(0.05)
        for one in runs:
            events = [entry.event for entry in await one.history()]
            assert events.count("complete") == 1, events
        counts = await app.engine.count()
        assert counts == {("default", State.COMPLETED): 150}
        await raw.close()
        await app.close()

    run(live())


# An idle worker.


def test_an_idle_worker_asks_at_most_two_statements_a_second(run):
    def asked(running: Server) -> int:
        """How many statements came from us, whatever their kind."""
        return len(re.findall(r"^holdfast LOG:  (?:execute|statement)\b", running.log(), re.MULTILINE))

    async def live(running: Server) -> float:
        app = App(running.url)

        @app.job
        async def nothing() -> None: ...

        async with app.worker(at_once=8):
            await (await nothing.submit()).result(PATIENCE_SECONDS)
            await asyncio.sleep(2)
            before, began = asked(running), time.monotonic()
            await asyncio.sleep(10)
            rate = (asked(running) - before) / (time.monotonic() - began)
        await app.close()
        return rate

    with server("log_statement=all", "log_line_prefix=%a ") as running:
        assert 0 < run(live(running)) <= 2.0
