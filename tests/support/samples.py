"""Jobs to store in tests."""

import secrets
from typing import Any

from holdfast.core.keys import new_id
from holdfast.core.model import Job, State

NOW = 1_800_000_000_000


def job(now: int = NOW, **fields: Any) -> Job:
    """A new job, available at once."""
    made = {"id": new_id(now, secrets.randbits(74)), "type": "test.job", "created_at": now, "run_at": now}
    return Job(**{**made, "state": State.AVAILABLE, **fields})
