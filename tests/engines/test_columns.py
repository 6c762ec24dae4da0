"""A new field of a job is added in one place per engine: each has one table of them, and all of them are in it."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.model import Job, Options, State, Use, Wait, WaitKind
from holdfast.engines import rows as sql_rows
from holdfast.engines.postgres import rows as postgres_rows
from holdfast.engines.redis import columns as redis_columns
from holdfast.engines.sqlite import reads
from holdfast.engines.sqlite import rows as sqlite_rows
from holdfast.engines.sqlite.writes import is_lone

FIELDS = set(Job.__struct_fields__)
ENGINES = Path(sql_rows.__file__).parent


def test_the_database_is_given_every_field_once():
    assert len(postgres_rows.JOB_COLUMNS) == len(FIELDS)
    assert set(postgres_rows.JOB_COLUMNS) == FIELDS
    assert set(postgres_rows.CHANGED_COLUMNS) < FIELDS


def test_sqlite_is_given_every_field():
    statements = reads.SQL.add_job + reads.SQL.add_body

    assert set(re.findall(r":(\w+)", statements)) == FIELDS | {"n", "fair"}  # the fair key is one of the options


def test_the_short_way_into_sqlite_is_for_jobs_that_lose_nothing_on_it():
    """What it doesn't carry, a new field among it, must be as in every new job: in a job without parent, too."""
    job = Job(id="j", type="t", created_at=1, state=State.AVAILABLE)
    told = set(re.findall(r":(\w+)", reads.SQL.add_lone_job + reads.SQL.add_body)) - {"n"}

    assert told == sqlite_rows.LONE_FIELDS | sqlite_rows.BODY_FIELDS == {*sqlite_rows.lone_params(job), *told}
    assert sqlite_rows.is_untouched(job)
    assert is_lone([job], None)
    assert not is_lone([replace(job, options=Options(limits=(Use("api"),)))], None)
    assert not is_lone([replace(job, waits=(Wait(WaitKind.LIMIT, "api"),))], None)
    for field, other in {"group": "g", "recoveries": 1, "worker": "w", "prune_at": 1}.items():
        assert not sqlite_rows.is_untouched(replace(job, **{field: other}))


def test_a_script_is_given_every_field():
    packed = {"id", "args", "digest", "key_until", "created_at", "options", "result", "error", "inbox"}

    assert {column.name for column in redis_columns.HEAD} == FIELDS - packed


@pytest.mark.parametrize("field", ["attempt", "epoch"])
def test_a_row_is_read_in_the_order_of_the_fields(field: str):
    """So that a view of a new column at the end needs one line in `job_of`."""
    place = 1 + Job.__struct_fields__.index(field)

    assert f"{field}=row[{place}]" in (ENGINES / "rows.py").read_text()


def test_a_field_that_no_engine_looks_into_is_named_in_one_module_of_each():
    modules = {str(path.relative_to(ENGINES)): path.read_text() for path in ENGINES.rglob("*.py")}
    told = {name for name, text in modules.items() if re.search(r"\battempt\b", text)}

    # `reopen` checks what a person may have written into the file.
    assert told == {"rows.py", "postgres/rows.py", "redis/columns.py", "file/schema.py", "file/reopen.py"}
