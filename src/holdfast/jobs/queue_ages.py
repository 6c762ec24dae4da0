"""How long a queue's waiting jobs could have started: for alerts and metrics. Must not change anything."""

from holdfast.core.model import State, Time, Where
from holdfast.engines.contract import Engine

OLDEST_LOOKED_AT = 100
"""Of how many of a queue's waiting jobs, in the order of their submits, the one that waits longest counts."""


async def oldest_due_ms(engine: Engine, queue: str, now: Time) -> int:
    """Return how long the job that waits longest could have started; 0 if none waits."""
    page = await engine.find(Where(states=(State.AVAILABLE,), queue=queue), limit=OLDEST_LOOKED_AT)
    return max((now - job.run_at for job in page if job.run_at is not None), default=0)
