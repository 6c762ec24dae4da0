"""How many jobs were ever pruned, so that a count of ended jobs doesn't lose them. It may be too low: a hint."""

from contextlib import suppress

from holdfast.core.errors import HoldfastError
from holdfast.engines.contract import Engine

PRUNED = "count/pruned"
"""The record with the number."""


async def pruned_jobs(engine: Engine) -> int:
    """Return how many jobs were pruned since this is counted."""
    found = [record.value for record in await engine.records(PRUNED) if record.name == PRUNED]
    return int(found[0]) if found and found[0].isdigit() else 0


async def note_pruned(engine: Engine, number: int) -> None:
    """Count pruned jobs. If others count at the same moment, or the store is away, this number is lost."""
    if not number:
        return
    with suppress(HoldfastError):
        records = [record for record in await engine.records(PRUNED) if record.name == PRUNED]
        before = int(records[0].value) if records and records[0].value.isdigit() else 0
        await engine.put_record(PRUNED, str(before + number), records[0].version if records else 0)
