"""The same work with other libraries that keep jobs in Redis, run by their own interpreter.

`python redis_peers.py saq 5000 URL` prints one JSON line: how many no-op jobs per second one process drains, with acks
and results as each library has them by default.
"""

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any

AT_ONCE = 100


def tell(count: int, seconds: float) -> None:
    """Print the figure, and exit: some of these libraries take long to stop, or don't."""
    print(json.dumps({"jobs_per_second": count / seconds}), flush=True)
    os._exit(0)


def taskiq(count: int, url: str) -> None:
    """Streams with acks, a hundred at once, in this process."""
    asyncio.run(_taskiq(count, url))


async def _taskiq(count: int, url: str) -> None:
    from taskiq.api import run_receiver_task
    from taskiq_redis import RedisStreamBroker

    broker = RedisStreamBroker(url=url, queue_name="bench-taskiq", xread_count=AT_ONCE)
    times: list[float] = []

    @broker.task(task_name="noop")
    async def noop(n: int) -> None:
        times.append(time.perf_counter())

    await broker.startup()
    for n in range(count):
        await noop.kiq(n)
    broker.is_worker_process = True
    began = time.perf_counter()
    receiver = asyncio.create_task(run_receiver_task(broker, max_async_tasks=AT_ONCE))  # noqa: RUF006, F841 (the same)
    while len(times) < count:
        await asyncio.sleep(0.01)
    taken = times[-1] - began
    tell(count, taken)


def saq(count: int, url: str) -> None:
    """One worker, a hundred at once."""
    asyncio.run(_saq(count, url))


async def _saq(count: int, url: str) -> None:
    import redis.asyncio
    from saq import Worker
    from saq.queue.redis import RedisQueue

    queue: Any = RedisQueue(redis.asyncio.Redis.from_url(url, max_connections=500), name="bench-saq")
    await queue.connect()
    times: list[float] = []

    async def noop(ctx: Any, *, n: int) -> None:
        times.append(time.perf_counter())

    for start in range(0, count, AT_ONCE):
        await asyncio.gather(*(queue.enqueue("noop", n=n) for n in range(start, start + AT_ONCE)))
    worker: Any = Worker(queue, [("noop", noop)], concurrency=AT_ONCE)
    began = time.perf_counter()
    running = asyncio.create_task(worker.start())  # noqa: RUF006, F841 (ended with the process)
    while len(times) < count:
        await asyncio.sleep(0.01)
    taken = times[-1] - began
    tell(count, taken)


def dramatiq(count: int, url: str) -> None:
    """One process with its default of eight threads."""
    import dramatiq as library
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url, namespace="bench-dramatiq")
    library.set_broker(broker)
    times: list[float] = []

    @library.actor
    def noop(n: int) -> None:
        times.append(time.perf_counter())

    for n in range(count):
        noop.send(n)
    worker = library.Worker(broker, worker_threads=8)
    began = time.perf_counter()
    worker.start()
    while len(times) < count:
        time.sleep(0.01)
    taken = times[-1] - began
    tell(count, taken)


def huey(count: int, url: str) -> None:
    """One consumer with eight threads. No acks: a job that runs when its process dies is lost."""
    from huey import RedisHuey

    bench = RedisHuey("bench-huey", url=url)
    times: list[float] = []

    @bench.task()
    def noop(n: int) -> None:
        times.append(time.perf_counter())

    bench.storage.flush_all()
    for n in range(count):
        noop(n)
    consumer: Any = bench.create_consumer(workers=8, periodic=False)
    consumer._set_signal_handlers = lambda: None
    began = time.perf_counter()
    threading.Thread(target=consumer.run, daemon=True).start()
    while len(times) < count:
        time.sleep(0.01)
    taken = times[-1] - began
    tell(count, taken)


def main() -> None:
    """Run what was asked for."""
    kind, count, url = sys.argv[1:]
    kinds = {"taskiq": taskiq, "saq": saq, "dramatiq": dramatiq, "huey": huey}
    kinds[kind](int(count), url)


if __name__ == "__main__":
    main()
