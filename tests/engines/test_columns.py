"""A new field of a job is added in one place per engine: each has one table of them, and all of them are in it."""

import re
from pathlib import Path

import pytest

from holdfast.core.model import Job
from holdfast.engines import rows as sql_rows
from holdfast.engines.postgres import rows as postgres_rows
from holdfast.engines.redis import columns as redis_columns
from holdfast.engines.sqlite import reads

FIELDS = set(Job.__struct_fields__)
ENGINES = Path(sql_rows.__file__).parent


def test_the_database_is_given_every_field_once():
    assert len(postgres_rows.JOB_COLUMNS) == len(FIELDS)
    assert set(postgres_rows.JOB_COLUMNS) == FIELDS
    assert set(postgres_rows.CHANGED_COLUMNS) < FIELDS


def test_sqlite_is_given_every_field():
    statements = reads.SQL.add_job + reads.SQL.add_body

    assert set(re.findall(r":(\w+)", statements)) == FIELDS | {"n"}


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
