"""A process that works on a store, prints what the store holds, and is killed: `python -m … KIND`.

Must not close its engine or exit cleanly: acknowledged work must survive anyway.
"""

import asyncio
import os
import signal
import sys

import msgspec

from holdfast.conformance.dump import Dump, dump
from holdfast.conformance.given import StoreClock, change, children, claimed, done, in_state, step
from holdfast.conformance.given import signal as signalled
from holdfast.conformance.kinds import kind_of
from holdfast.core.model import Event, State, Where
from holdfast.engines.contract import Engine


async def work(engine: Engine, clock: StoreClock, key: str = "order-42") -> Dump:
    """Write some of everything that a store keeps; return what it holds then."""
    parent = await claimed(engine, clock, key=key, digest="d1")
    first, _ = await children(engine, clock, parent, 2)
    await engine.record([step(parent, "a", tries=2), step(parent, "b", result="ä" * 10_000)])
    await done(engine, clock, first, Event.COMPLETE, steps=(step(first, "c"),))
    await engine.commit([signalled(clock, parent)])
    for state in State:
        await in_state(engine, clock, state)
    await engine.put_record("leader", "1")
    await engine.put_record("leader", "2")
    await engine.put_record("gone", "1")
    await engine.put_record("gone", None)
    held = await claimed(engine, clock)
    await engine.commit([change(clock, held, Event.FAIL), change(clock, held, Event.COMPLETE)])
    if not engine.guarantees.shared:
        await release_all(engine, clock)
    return await dump(engine)


async def release_all(engine: Engine, clock: StoreClock) -> None:
    """Release all jobs. A single-process store may break leases when it is opened: their workers are gone."""
    held = await engine.find(Where(states=(State.ACTIVE,)))
    await engine.commit([change(clock, each, Event.RELEASE) for each in held])


async def _main(text: str) -> None:
    kind = kind_of(text)
    clock = StoreClock(settable=True)
    engine = kind.at(kind.url, clock)
    await engine.open()
    sys.stdout.buffer.write(msgspec.json.encode(await work(engine, clock)))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
