"""How fast jobs run on Redis: submits, draining, steps, a start in another process; memory; a million jobs.

    python -m tests.support.redis_server python benchmarks/redis_engine.py {url}
    python -m tests.support.redis_server python benchmarks/redis_engine.py {url} --peers PYTHON
    python -m tests.support.redis_server python benchmarks/redis_engine.py {url} --million

The peers, taskiq, SAQ, dramatiq and huey, run in an interpreter that has them, on the same server in the same round.
Rounds are interleaved and medians count, because machines are noisy; a ratio compares two figures of one round. (This
file isn't called redis.py, because that would hide the driver.)
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import redis.asyncio

from holdfast import App, step
from holdfast.conformance.given import StoreClock, job
from holdfast.conformance.given import step as record_of
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, Presence, Running, State, Where
from holdfast.engines.redis import RedisEngine
from holdfast.engines.redis.scripts import script

HERE = Path(__file__).parent
CLOCK = StoreClock(settable=False)
MILLION = 1_000_000
NOTED_US, SLOW_MS = 500, 5.0
"""From how many microseconds the server logs a call, and from how many milliseconds a call is too slow."""

NAMES = {
    script(path.stem).sha.encode(): path.stem
    for path in (HERE.parent / "src/holdfast/engines/redis/lua").glob("*.lua")
    if path.stem != "store"
}
"""The server's names of the scripts."""

PLAIN = "plain commands"

STEPS = 3_000
PEER_SECONDS = 60.0
PEERS = ("taskiq", "saq", "dramatiq", "huey")
Figures = dict[str, float]


@step(name="one")
async def one(n: int) -> int:
    """A step that does nothing."""
    return n


def app_on(url: str) -> tuple[App, Any, Any, list[float]]:
    """Return an App with the jobs to measure, and when each no-op ran."""
    app, times = App(url), list[float]()

    @app.job
    async def noop(n: int) -> None:
        times.append(time.time())

    @app.job
    async def spread(count: int) -> int:
        return len(await one.map(range(count), at_once=100))

    return app, noop, spread, times


async def raw_sets(url: str, count: int) -> float:
    """Return SETs per second of a value as large as a step's record, pipelined a hundred at a time."""
    client = redis.asyncio.Redis.from_url(url)
    value = b"d" + b"0" * 12 + b'[1,"one",1790000000000,1790000000000,null,"1"]'
    began = time.perf_counter()
    for start in range(0, count, 100):
        async with client.pipeline(transaction=False) as pipe:
            for n in range(start, start + 100):
                pipe.set(f"raw:{n % 1_000}", value)
            await pipe.execute()
    taken = time.perf_counter() - began
    await client.unlink(*(f"raw:{n}" for n in range(1_000)))
    await client.aclose()
    return count / taken


async def used(url: str) -> int:
    """Return how much memory the server's data takes."""
    client = redis.asyncio.Redis.from_url(url)
    memory = await client.info("memory")
    await client.aclose()
    return int(memory["used_memory_dataset"]) + int(memory.get("mem_overhead_db_hashtable_lut", 0))


async def ours(url: str, server: str, count: int) -> Figures:
    """Submit in bulk, drain with one worker, run steps; and measure the memory that each job leaves."""
    app, noop, spread, times = app_on(url)
    await app.open()
    before = await used(server)
    began = time.perf_counter()
    for _ in range(0, count, 1_000):
        await noop.submit_many(range(1_000))
    inserted = time.perf_counter() - began
    began = time.time()
    async with app.worker(at_once=100):
        while len(times) < count:
            await asyncio.sleep(0.01)
    drained = times[-1] - began
    size = (await used(server) - before) / count
    began = time.perf_counter()
    async with app.worker():
        run = await spread.submit(STEPS)
        await run.result(120)
        steps = time.perf_counter() - began
    await app.close()
    return {
        "inserts/s": count / inserted,
        "drain/s": count / drained,
        "steps/s": STEPS / steps,
        "bytes a finished job": size,
    }


async def worker_elsewhere(url: str) -> None:
    """Run a worker in its own process, which reports when each no-op ran."""
    app, _, _, times = app_on(url)
    async with app.worker(at_once=8):
        print("ready", flush=True)
        seen = 0
        while True:
            if len(times) > seen:
                seen += 1
                print(times[seen - 1], flush=True)
            else:
                await asyncio.sleep(0.002)


async def starts(url: str, count: int) -> Figures:
    """Return the milliseconds from a submit to the start of the job in another process, one at a time."""
    elsewhere = await asyncio.create_subprocess_exec(
        sys.executable, __file__, url, "--worker", stdout=asyncio.subprocess.PIPE
    )
    assert elsewhere.stdout is not None
    await elsewhere.stdout.readline()
    app, noop, _, _ = app_on(url)
    await app.open()
    waits = []
    for n in range(count):
        await asyncio.sleep(0.02)
        began = time.time()
        await noop.submit(n)
        waits.append((float(await elsewhere.stdout.readline()) - began) * 1_000)
    elsewhere.kill()
    await elsewhere.wait()
    await app.close()
    return {"ms from submit to start, p50": statistics.median(waits), "ms, p99": sorted(waits)[int(count * 0.99)]}


async def engine_drain(url: str, count: int) -> float:
    """Claim and complete a hundred at a time, with the engine alone."""
    engine = RedisEngine(url)
    await engine.open()
    for _ in range(0, count, 1_000):
        await engine.insert([job(CLOCK) for _ in range(1_000)])
    began = time.perf_counter()
    done = 0
    while claimed := await engine.claim("w", ["default"], 100):
        now = await engine.now()
        await engine.commit([decide(one, Event.COMPLETE, now, by="w", result="1") for one in claimed])
        done += len(claimed)
    taken = time.perf_counter() - began
    assert done == count, (done, count)
    await engine.close()
    return count / taken


def peer(python: str, kind: str, count: int, url: str) -> Figures:
    """Run a peer in its own interpreter."""
    words = [python, str(HERE / "redis_peers.py"), kind, str(count), url]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PEER_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{kind} took longer than {PEER_SECONDS:g} s for {count} jobs", file=sys.stderr)
        return {}
    if done.returncode:
        print(f"{kind} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


async def one_round(url: str, python: str | None, count: int) -> Figures:
    """Everything once."""
    figures: Figures = {"pipelined sets/s": await raw_sets(url, 20_000)}
    store = RedisEngine.scratch(url, Path())
    for name, figure in (await ours(store, url, count)).items():
        figures[f"holdfast {name}"] = figure
    figures |= await starts(store, 100)
    await RedisEngine.scrap(store)
    store = RedisEngine.scratch(url, Path())
    figures["engine drain/s"] = await engine_drain(store, count)
    await RedisEngine.scrap(store)
    if python is not None:
        for kind in PEERS:
            for name, figure in (await asyncio.to_thread(peer, python, kind, count, url)).items():
                figures[f"{kind} {name.removesuffix('_per_second')}/s"] = figure
    return figures


async def million(url: str) -> None:
    """Do every kind of act on a store with a million jobs, and report how long the slowest script took."""
    store = RedisEngine.scratch(url, Path())
    engine = RedisEngine(store)
    await engine.open()
    client = redis.asyncio.Redis.from_url(url)
    part = engine.insert_at_once
    for n in range(MILLION // part):
        late = n % 10 == 0
        more: dict[str, Any] = {"state": State.SCHEDULED, "run_at": CLOCK.now - 1_000} if late else {}
        await engine.insert([job(CLOCK, queue=f"q-{n % 5}", **more) for _ in range(part)])
    await client.config_set("slowlog-log-slower-than", NOTED_US)
    await client.config_set("slowlog-max-len", 100_000)
    await client.slowlog_reset()
    for n in range(40):
        held = await engine.claim("w-1", [f"q-{n % 5}"], 100)
        now = await engine.now()
        await engine.beat(
            Presence(
                worker="w-1", queues=("default",), running=tuple(Running(job=one.id, epoch=one.epoch) for one in held)
            )
        )
        await engine.record([record_of(one, "one") for one in held])
        await engine.commit([decide(one, Event.COMPLETE, now, by="w-1", result="1") for one in held[:50]])
        await engine.commit([decide(one, Event.CANCEL, now, by="me") for one in held[50:]])
        await engine.insert([job(CLOCK) for _ in range(part)])
        await engine.get([one.id for one in held])
    await engine.find(Where(newest_first=True))
    await engine.find(Where(states=(State.AVAILABLE,), queue="q-3"))
    await engine.history(held[0].id)
    await engine.count()
    await engine.prune()
    await engine.records("")
    taken: defaultdict[str, list[float]] = defaultdict(list)
    for entry in await client.slowlog_get(100_000):
        words: list[bytes] = entry["command"].split(maxsplit=2)
        name = NAMES.get(words[1], "a new script") if words[0] in (b"EVALSHA", b"EVAL") else PLAIN
        taken[name].append(entry["duration"] / 1_000)
    for name, some in sorted(taken.items()):
        slow = sum(one > SLOW_MS for one in some)
        print(
            f"a million jobs: {name}: {len(some)} calls noted, median {statistics.median(some):.2f} ms, slowest "
            f"{max(some):.1f} ms, {slow} above {SLOW_MS:g} ms{'  MISSED' if slow and name != PLAIN else ''}"
        )
    await client.aclose()
    await engine.close()
    await RedisEngine.scrap(store)


RATIOS = (
    ("holdfast steps/s", "pipelined sets/s", 0.25),
    *(("holdfast drain/s", f"{kind} jobs/s", 1.5) for kind in PEERS),
)
AT_MOST = (("holdfast bytes a finished job", 1_200.0), ("ms from submit to start, p50", 3.0))


async def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--worker", action="store_true")
    given = parser.parse_args()
    if given.worker:
        await worker_elsewhere(given.url)
    if given.million:
        await million(given.url)
        return
    figures: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(given.rounds):
        for name, figure in (await one_round(given.url, given.peers, given.jobs)).items():
            figures[name].append(figure)
    for name, some in figures.items():
        print(f"{name:45} {statistics.median(some):12,.1f}   ({min(some):,.1f} to {max(some):,.1f})")
    for ours_, theirs, wanted in RATIOS:
        pairs = list(zip(figures.get(ours_, []), figures.get(theirs, []), strict=False))
        if pairs:
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"{ours_} : {theirs} = {ratio:.2f}, wanted {wanted:g}{'' if ratio >= wanted else '  MISSED'}")
    for name, most in AT_MOST:
        figure = statistics.median(figures[name])
        print(f"{name}: {figure:.1f}, at most {most:g}{'' if figure <= most else '  MISSED'}")


if __name__ == "__main__":
    asyncio.run(main())
