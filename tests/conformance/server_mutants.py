"""Postgres and Redis with one bug each in what the server runs, to show that the conformance suite finds it.

Try one with `--engine tests.conformance.server_mutants:PgRatesRefillTwice=URL`. Must not change a store that exists: a
mutant's bug is in the functions of the schema that it makes, or in the scripts that it sends.
"""

from importlib.resources import files

from holdfast.engines.contract import Clock, Engine
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres import store as postgres_store
from holdfast.engines.redis import RedisEngine, scripts
from holdfast.engines.sql import migrations

MUTANTS: dict[str, tuple[str, str, str]] = {}
"""The names of all mutants, each with its engine and with the law that it breaks: a file of the suite and a test in it,
because a server makes a new store for each test.
"""

_put = postgres_store.Texts._put
_read = scripts._read


def in_function(name: str, law: str, test: str, right: str, wrong: str) -> type[Engine]:
    """Postgres with one piece of its functions replaced. The piece must be there, so that no mutant rots unseen."""
    assert any(right in text for _, text in migrations("holdfast.engines.postgres")), f"no migration says {right!r}"

    class Mutant(PostgresEngine):
        @classmethod
        def from_url(cls, url: str, clock: Clock) -> PostgresEngine:
            postgres_store.Texts._put = lambda texts, text: _put(texts, text.replace(right, wrong))  # type: ignore[assignment, method-assign]
            return super().from_url(url, clock)

    MUTANTS[name] = ("postgres", law, test)
    return Mutant


def in_script(name: str, law: str, test: str, file: str, right: str, wrong: str) -> type[Engine]:
    """Redis with one piece of its scripts replaced, in all that share it."""
    assert right in files("holdfast.engines.redis").joinpath(f"lua/{file}.lua").read_text("utf-8"), f"not {right!r}"

    class Mutant(RedisEngine):
        @classmethod
        def from_url(cls, url: str, clock: Clock) -> RedisEngine:
            scripts._read = lambda name: _read(name).replace(right, wrong if name == file else right)
            scripts.script.cache_clear()
            return super().from_url(url, clock)

    MUTANTS[name] = ("redis", law, test)
    return Mutant


PgPermitsWithoutTheirEpoch = in_function(
    "PgPermitsWithoutTheirEpoch",
    "step_limits",
    "a_permit_of_an_earlier_lease_counts_for_nothing",
    "and job.epoch = permit.epoch",
    "",
)
PgNothingIsKeptForTheWoken = in_function(
    "PgNothingIsKeptForTheWoken",
    "step_limits",
    "a_permit_is_kept_for_the_job_that_was_woken",
    "'~reserved', 0, 1, now_at + 30000 from able",
    "'~reserved', 0, 1, now_at + 30000 from able where false",
)
PgReservationsStay = in_function(
    "PgReservationsStay",
    "step_limits",
    "a_permit_that_nobody_comes_for_is_passed_on",
    "'~reserved', 0, 1, now_at + 30000",
    "'~reserved', 0, 1, now_at + 30000000",
)
PgNobodyHearsOfRoom = in_function(
    "PgNobodyHearsOfRoom",
    "limits",
    "a_permit_ends_with_its_lease",
    "where {schema}.has_at_once(key)), ",
    "where false), ",
)
PgRatesRefillTwice = in_function(
    "PgRatesRefillTwice",
    "rates",
    "a_rate_lets_a_burst_start_and_then_refills",
    "::numeric * one.refill",
    "::numeric * 2 * one.refill",
)
PgClosedLimitsStayOpen = in_function(
    "PgClosedLimitsStayOpen",
    "rates",
    "a_closed_limit_lets_nobody_start_and_reopens_gently",
    "if one.closed_until > now_at then",
    "if false then",
)
PgWindowByAnotherClock = in_function(
    "PgWindowByAnotherClock",
    "unique",
    "a_job_counts_within_its_window_from_its_creation",
    "+ window_ms <= new_created_at",
    "+ window_ms <= new_created_at + 30000",
)
PgRoundsBeginAnew = in_function(
    "PgRoundsBeginAnew",
    "fairness",
    "keys_take_turns",
    "'>' || (array_agg(ended.fair order by ended.nth desc))[1]",
    "'>'",
)

RedisPermitsWithoutTheirEpoch = in_script(
    "RedisPermitsWithoutTheirEpoch",
    "step_limits",
    "a_permit_of_an_earlier_lease_counts_for_nothing",
    "permits",
    " and epoch_text(head[EPOCH]) == found[place + 1]",
    "",
)
RedisNothingIsKeptForTheWoken = in_script(
    "RedisNothingIsKeptForTheWoken",
    "step_limits",
    "a_permit_is_kept_for_the_job_that_was_woken",
    "permits",
    "put_permit(id, RESERVED, key, 'r')",
    "",
)
RedisReservationsStay = in_script(
    "RedisReservationsStay",
    "step_limits",
    "a_permit_that_nobody_comes_for_is_passed_on",
    "permits",
    "key, now + RESERVED_MS, id",
    "key, now + 1000 * RESERVED_MS, id",
)
RedisNobodyHearsOfRoom = in_script(
    "RedisNobodyHearsOfRoom",
    "limits",
    "a_permit_ends_with_its_lease",
    "permits",
    "if rules_of(key).at_once then recheck(key, now) end",
    "",
)
RedisOneLookIsEnough = in_script(
    "RedisOneLookIsEnough",
    "limits",
    "a_claim_of_few_takes_the_first_of_all",
    "claim",
    "call('ZADD', K .. 'lr:' .. queue, now - LOOKED_AT, key)",
    "call('ZREM', K .. 'lr:' .. queue, key)",
)
RedisRatesRefillTwice = in_script(
    "RedisRatesRefillTwice",
    "rates",
    "a_rate_lets_a_burst_start_and_then_refills",
    "permits",
    "rules.refill, rules.period_ms))",
    "2 * rules.refill, rules.period_ms))",
)
RedisClosedLimitsStayOpen = in_script(
    "RedisClosedLimitsStayOpen",
    "rates",
    "a_closed_limit_lets_nobody_start_and_reopens_gently",
    "permits",
    "if bucket.closed_until > now then return bucket.closed_until end",
    "",
)
RedisWindowByAnotherClock = in_script(
    "RedisWindowByAnotherClock",
    "unique",
    "a_job_counts_within_its_window_from_its_creation",
    "insert",
    "+ window <= tonumber(job[9])",
    "+ window <= tonumber(job[9]) + 30000",
)
RedisRoundsBeginAnew = in_script("RedisRoundsBeginAnew", "fairness", "keys_take_turns", "turns", "'>' .. ended", "'>'")
