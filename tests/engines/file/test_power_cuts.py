"""A power cut at any moment: every disk that may be left behind holds all that was acknowledged, and opens."""

import asyncio
import errno
import random
from collections.abc import Callable
from contextlib import contextmanager

import pytest

from holdfast.conformance.given import HOUR, MINUTE, OOPS, StoreClock, change, done, in_state, job, step
from holdfast.core.errors import StoreError
from holdfast.core.model import Event, Options, State, StepState, Where
from holdfast.engines.file import FileEngine
from tests.engines.file.simdisk import PATH, SimDisk, images

LEAST_IMAGES = 3_000
"""So many disks must have been looked at, or the run was no test."""

SEEDS = 12
ACTS = 120


def engine_on(disk: SimDisk, clock: StoreClock) -> FileEngine:
    return FileEngine(PATH, clock, disk=disk, inline=True)


@contextmanager
def trouble(disk: SimDisk, call: str, number: int):
    """An act under which this call of the disk fails, and the error reaches the caller."""
    disk.trouble[call] = number
    with pytest.raises(StoreError):
        yield
    del disk.trouble[call]


async def small_life(disk: SimDisk) -> None:
    """A job from its insertion to its end, each act acknowledged."""
    clock = StoreClock(settable=True)
    engine = engine_on(disk, clock)
    await engine.open()
    await engine.insert([job(clock)])
    disk.acknowledge()
    [held] = await engine.claim("w-1", ["default"], 1)
    disk.acknowledge()
    await engine.record([step(held)])
    disk.acknowledge()
    await engine.commit([change(clock, held, Event.COMPLETE)])
    disk.acknowledge()


async def long_life(disk: SimDisk) -> None:
    """Some of everything: all states, steps, keys, records, prunes, failing disks, a crash and a restart."""
    clock = StoreClock(settable=True)
    engine = engine_on(disk, clock)
    await engine.open()
    for state in State:
        await in_state(engine, clock, state, key=f"key-{state}")
        disk.acknowledge()
    for call, number in (("create", errno.EROFS), ("write", errno.ENOSPC), ("fsync", errno.EIO), ("rename", errno.EIO)):
        with trouble(disk, call, number):
            await engine.insert([job(clock)])
        await engine.put_record("leader", call)
        disk.acknowledge()
    with trouble(disk, "fsync_dir", errno.EIO):
        await engine.insert([job(clock)])
    await engine.put_record("leader", None)
    disk.acknowledge()
    # The process dies here, with jobs under way; the next one recovers them.
    disk.release()
    clock.advance(MINUTE)
    engine = engine_on(disk, clock)
    await engine.open()
    assert engine.recovered
    disk.acknowledge()
    await engine.insert([job(clock) for _ in range(8)])
    disk.acknowledge()
    for held in await engine.claim("w-2", ["default"], 9):
        disk.acknowledge()
        for number in range(5):
            await engine.record([step(held, f"draw#{number}")])
            disk.acknowledge()
        await engine.record([step(held, "send#1", StepState.FAILED)])
        disk.acknowledge()
        review = await done(engine, clock, held, Event.EXHAUST, error=OOPS)
        disk.acknowledge()
        await done(engine, clock, review, Event.DISCARD)
        disk.acknowledge()
    clock.advance(HOUR)
    await engine.prune()
    disk.acknowledge()
    await engine.close()


async def random_life(disk: SimDisk, chance: random.Random) -> None:
    """Any act after any other, on a disk that fails now and then, with restarts in between."""
    clock = StoreClock(settable=True)
    engine = engine_on(disk, clock)
    await engine.open()
    for _ in range(ACTS):
        clock.advance(MINUTE)
        call = chance.choice(("create", "write", "fsync", "rename", "fsync_dir", *[""] * 20))
        disk.trouble = {call: chance.choice((errno.EIO, errno.ENOSPC))} if call else {}
        before = len(disk.written)
        try:
            if chance.random() < 0.05:
                disk.release()
                engine = engine_on(disk, clock)
                await engine.open()
                before = -1  # From now on reads tell of whatever the last process left there.
            else:
                await random_act(engine, clock, chance)
        except StoreError:
            disk.trouble = {}
            if not disk.locked:
                await engine.open()
                disk.acknowledge()
        else:
            if len(disk.written) > before:
                disk.acknowledge()


async def random_act(engine: FileEngine, clock: StoreClock, chance: random.Random) -> None:
    jobs = await engine.find(Where())
    active = [one for one in jobs if one.state is State.ACTIVE]
    act = chance.choice(("insert", "claim", "record", "end", "end", "record", "put", "prune"))
    if act == "claim":
        await engine.claim("w-1", ["default"], 2)
    elif act == "record" and active:
        await engine.record([step(chance.choice(active), f"draw#{chance.randrange(9)}")])
    elif act == "end" and active:
        ends = (Event.COMPLETE, Event.FAIL, Event.EXHAUST, Event.RELEASE, Event.REST, Event.CANCEL)
        await engine.commit([change(clock, one, chance.choice(ends)) for one in active])
    elif act == "put":
        await engine.put_record("leader", chance.choice(("1", None)))
    elif act == "prune":
        await engine.prune()
    else:
        options = Options(keep_ms=chance.choice((None, HOUR)))
        await engine.insert([job(clock, options=options, key=chance.choice((None, "a", "b")), digest="d")])


def losses(disk: SimDisk, after: str = "") -> tuple[int, str | None]:
    """Look at every image of a run: how many there were, and the first that lost or invented something."""
    looked = 0
    opened: dict[tuple[bytes | None, int], str | None] = {}
    for moment in disk.moments:
        if not moment.after.endswith(after):
            continue
        allowed: set[bytes | None] = set(disk.written[max(moment.acknowledged - 1, 0) :])
        if not moment.acknowledged:
            allowed.add(None)
        for image in images(moment):
            looked += 1
            found = image.get(PATH)
            if found not in allowed:
                what = "nothing" if found is None else f"{len(found)} bytes that were never there"
                return looked, f"after {moment.after}, {moment.acknowledged} acts acknowledged: {what}"
            same = (found, len(image))
            if same not in opened:
                opened[same] = asyncio.run(opens(image))
            if opened[same] is not None:
                return looked, opened[same]
    return looked, None


async def opens(image: dict[str, bytes]) -> str | None:
    """Why an image can't be used as a store; None if it can."""
    disk = SimDisk(image)
    engine = engine_on(disk, StoreClock(settable=True))
    await engine.open()
    jobs = await engine.find(Where())
    said = image.get(PATH, b"")
    if [one.id for one in jobs if one.id.encode() not in said] or len(jobs) != said.count(b'"status":'):
        return "not all jobs of the file are in the store"
    if [name for name in disk.files if name != PATH]:
        return "something was left behind"
    return None


def test_no_power_cut_loses_what_was_acknowledged():
    disk = SimDisk()
    asyncio.run(long_life(disk))

    looked, lost = losses(disk)

    print(f"\n{looked} disk images after a power cut at {len(disk.moments)} moments, {len(disk.written)} versions")
    assert lost is None
    assert looked > LEAST_IMAGES


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_power_cut_loses_anything_in_any_order_of_acts(seed: int):
    disk = SimDisk()
    asyncio.run(random_life(disk, random.Random(seed)))

    looked, lost = losses(disk)

    print(f"\n{looked} disk images at {len(disk.moments)} moments, {len(disk.written)} versions")
    assert lost is None
    assert looked > 1_000


def test_a_power_cut_may_hit_a_file_that_was_there_before():
    before = SimDisk()
    asyncio.run(small_life(before))
    disk = SimDisk({PATH: before.written[1], f"{PATH[:-15]}.checkpoint.json.77-1.tmp": b"{"})
    disk.written.append(before.written[1])
    disk.acknowledge()
    asyncio.run(small_life(disk))

    looked, lost = losses(disk)

    assert looked > 100
    assert lost is None


class WithoutFsync(SimDisk):
    """What a program sees that renames before it syncs."""

    def fsync(self, fd: int) -> None:
        pass


class WithoutDirFsync(SimDisk):
    """What a program sees that doesn't sync the folder after it renames."""

    def fsync_dir(self, folder: str) -> None:
        pass


class FsyncTwice(SimDisk):
    """What a program sees that tries a failed fsync once more and believes it."""

    def fsync(self, fd: int) -> None:
        self.trouble["fsync"] = errno.EIO
        try:
            super().fsync(fd)
        except OSError:
            del self.trouble["fsync"]
            super().fsync(fd)


@pytest.mark.parametrize(
    "careless", [WithoutFsync, WithoutDirFsync, FsyncTwice], ids=["no-fsync", "no-dir-fsync", "fsync-again"]
)
def test_the_images_find_a_careless_writer(careless: Callable[[], SimDisk]):
    disk = careless()
    asyncio.run(small_life(disk))

    # Right after an answer nothing is under way: whatever is missing then was acknowledged.
    _, lost = losses(disk, after="the answer")

    assert lost is not None
    print(f"\n{careless.__name__}: {lost}")


def test_a_careful_writer_passes_the_same_run():
    disk = SimDisk()
    asyncio.run(small_life(disk))

    assert losses(disk)[1] is None
