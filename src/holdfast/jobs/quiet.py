"""Quiet workers: a record tells a worker to claim nothing more, until it is removed. Must not touch a job."""

from holdfast.core.codec import canonical
from holdfast.core.errors import Invalid, NotFound
from holdfast.core.limits import REASON_CHARACTERS
from holdfast.core.suggestions import suggest
from holdfast.engines.contract import Engine
from holdfast.engines.records import QUIET, WORKER


async def quiet_worker(engine: Engine, worker: str, *, by: str, reason: str = "") -> None:
    """Tell a worker to claim nothing more. It finishes what it runs. Raises NotFound for an unknown worker."""
    if len(reason) > REASON_CHARACTERS:
        raise Invalid(f"reason has {len(reason):,} characters, but the limit is {REASON_CHARACTERS:,}; shorten it")
    known = [record.name.removeprefix(WORKER) for record in await engine.records(WORKER)]
    if worker not in known:
        hint = suggest(worker, known) or (f"; there are {', '.join(known[:5])}" if known else "; none is running")
        raise NotFound(f"there is no worker {worker[:80]!r} in this store{hint}")
    await engine.put_record(QUIET + worker, canonical({"by": by, "reason": reason}))


async def let_claim(engine: Engine, worker: str) -> None:
    """Let a quiet worker claim jobs again, or raise NotFound if it isn't quiet."""
    quiet = [record.name.removeprefix(QUIET) for record in await engine.records(QUIET)]
    if worker not in quiet:
        raise NotFound(f"worker {worker[:80]!r} is not quiet, so there is nothing to resume")
    await engine.put_record(QUIET + worker, None)
