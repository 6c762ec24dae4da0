"""Empties a store, for tests that run against a real server. Must not know HTTP."""

from holdfast.core.errors import Invalid
from holdfast.engines.contract import Engine
from holdfast.engines.records import WORKER
from holdfast.engines.traits import Emptyable
from holdfast.jobs.schedules import note_changed
from holdfast.jobs.tokens import TOKEN

KEPT = (TOKEN, WORKER, "leader")
"""Records that stay: who may ask, who runs, and who leads the upkeep."""


async def empty_store(engine: Engine) -> None:
    """Remove all jobs and all records, such as pauses, schedules and limits. Tokens stay."""
    if not isinstance(engine, Emptyable):
        raise Invalid(f"a {engine.guarantees.name} store can't be emptied; use another one for tests")
    for record in await engine.records(""):
        if not record.name.startswith(KEPT):
            await engine.put_record(record.name, None)
    await engine.empty()
    await note_changed(engine, [])
