"""What the scenarios share: a store for real processes, on SQLite, Postgres and Redis.

A memory store is one process's own and dies with it: what can be lived on it is in `test_items` and in those that use
`crash_everywhere`.
"""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store_url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of an empty store that many processes may use."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue(f"{request.param}_store"))
