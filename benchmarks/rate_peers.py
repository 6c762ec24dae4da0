"""A rate limit of other libraries, run by their own interpreter: `python rate_peers.py dbos 100 20 FOLDER`.

Prints one JSON line: how many jobs started in the worst second, and how many a second did in all. DBOS: a queue with a
`limiter`, then a partitioned one with a partition for each of two customers. Celery: a task's `rate_limit`, in one
worker, because it isn't shared between workers.
"""

import json
import logging
import sys
import time
from pathlib import Path

PERIOD = 1.0


def told(starts: list[float]) -> dict[str, float]:
    """What the starts of one key say."""
    worst = max(sum(at <= other < at + PERIOD for other in starts) for at in starts)
    return {"worst": worst, "rate": (len(starts) - 1) / (max(starts) - min(starts))}


def dbos(count: int, rate: int, folder: Path) -> dict[str, float]:
    """One queue with a limiter."""
    return told(_dbos(count, rate, folder, [""]))


def dbos_partitioned(count: int, rate: int, folder: Path) -> dict[str, float]:
    """A partitioned queue: its limiter counts for each partition, as ours counts for each value."""
    return told(_dbos(count, rate, folder, ["a", "b"])[::2])


def _dbos(count: int, rate: int, folder: Path, partitions: list[str]) -> list[float]:
    from dbos import DBOS, Queue, SetEnqueueOptions

    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder}/dbos.db", "log_level": "ERROR"})
    is_partitioned = len(partitions) > 1
    limiter = {"limit": rate, "period": PERIOD}
    queue = Queue("calls", **{"partition_limiter" if is_partitioned else "limiter": limiter})

    @DBOS.workflow()
    def call(number: int) -> float:
        return time.time()

    DBOS.launch()
    handles = []
    for number in range(count):
        for partition in partitions:
            if is_partitioned:
                with SetEnqueueOptions(queue_partition_key=partition):
                    handles.append(queue.enqueue(call, number))
            else:
                handles.append(queue.enqueue(call, number))
    starts = [handle.get_result() for handle in handles]
    DBOS.destroy()
    return starts


def celery(count: int, rate: int, folder: Path) -> dict[str, float]:
    """A task with a rate limit."""
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    logging.disable(logging.CRITICAL)
    app = Celery("bench", broker="memory://", backend="cache+memory://")
    app.conf.broker_transport_options = {"polling_interval": 0.01}
    starts: list[float] = []

    @app.task(rate_limit=f"{rate}/s")
    def call(number: int) -> None:
        starts.append(time.time())

    for number in range(count):
        call.delay(number)
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="CRITICAL"):
        while len(starts) < count:
            time.sleep(0.01)
    return told(starts)


def main() -> None:
    """Run what was asked for."""
    kind, count, rate, folder = sys.argv[1:]
    kinds = {"dbos": dbos, "dbos-partitioned": dbos_partitioned, "celery": celery}
    print(json.dumps(kinds[kind](int(count), int(rate), Path(folder))), flush=True)


if __name__ == "__main__":
    main()
