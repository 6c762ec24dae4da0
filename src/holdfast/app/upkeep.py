"""The upkeep of a store: beside a worker, or alone beside a server. Must not run jobs."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.app.hooks import AppHooks
from holdfast.app.settings import Settings
from holdfast.engines.contract import Engine
from holdfast.jobs.built_in import OWN_QUEUE
from holdfast.upkeep.alerts import Alerts
from holdfast.upkeep.keeper import Keeper
from holdfast.upkeep.scheduling import Scheduling
from holdfast.worker.registry import Registry
from holdfast.worker.worker import Worker, worker_id

LOOK_PART = 0.2
"""The longest wait between two checks for dead workers, as a part of a lease.

A worker counts as dead only for an observer that has checked several times within the lease.
"""


def keeper_for(
    engine: Engine,
    registry: Registry,
    hooks: AppHooks,
    settings: Settings,
    worker: str,
    *,
    beside_server: bool = False,
) -> Keeper:
    """Return the keeper that acts for a worker."""
    seldom = min(engine.look_seconds, settings.lease_seconds * LOOK_PART)
    return Keeper(
        engine,
        worker,
        lease_seconds=settings.lease_seconds,
        look_seconds=max(settings.look_seconds, seldom),
        upkeep_seconds=max(settings.upkeep_seconds, 5 * seldom),
        alerts=Alerts(engine, tuple(registry.alerts), hooks.tell),
        scheduling=Scheduling(engine, worker, registry.misfit),
        beside_server=beside_server,
    )


@asynccontextmanager
async def upkeep_only(engine: Engine, hooks: AppHooks, settings: Settings) -> AsyncIterator[Worker]:
    """Do the upkeep and run the built-in jobs that workers over HTTP need, but no jobs of users.

    The heartbeats say that schedules of all job types may fire, because workers over HTTP run any type.
    """
    worker = Worker(
        engine,
        Registry(),
        queues=(OWN_QUEUE,),
        beat_seconds=settings.beat_seconds,
        lease_seconds=settings.lease_seconds,
        poll_seconds=settings.poll_seconds,
        name=f"s{worker_id(socket.gethostname())[1:]}",
        for_any_type=True,
    )
    keeper = keeper_for(engine, Registry(), hooks, settings, worker.id, beside_server=True)
    await worker.start()
    keeper.start()
    try:
        yield worker
    finally:
        try:
            await worker.stop(settings.grace_seconds)
        finally:
            await keeper.stop()
