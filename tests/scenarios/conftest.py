"""What the scenarios share: a store for real processes, on SQLite and on Postgres."""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of an empty store that many processes may use."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"
