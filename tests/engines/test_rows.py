"""Values from the rows of SQL stores."""

from typing import Any

from holdfast.engines.rows import job_of


def row(options: str) -> tuple[Any, ...]:
    """A row of a whole job, as the statements name its columns."""
    asked = (1, "id", "type", "default", "[]", "", 0, None, None, None, None, 0, None, options)
    return *asked, "available", 1, 0, 0, 1, 0, None, None, None, None, None, None, None, None, False


def test_what_somebody_does_to_the_meta_of_one_job_is_not_seen_in_another():
    one, other = [job_of(row('{"meta":{"user":"7"}}')) for _ in range(2)]
    one.options.meta["user"] = "8"  # type: ignore[index]
    assert other.options.meta == {"user": "7"}
    assert job_of(row('{"meta":{"user":"7"}}')).options.meta == {"user": "7"}


def test_columns_behind_a_job_are_not_looked_at():
    assert job_of((*row("{}"), None, "more")) == job_of(row("{}"))
