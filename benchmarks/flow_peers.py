"""Flows of other libraries, run by their own interpreter: `python flow_peers.py dbos 1000 100 FOLDER`.

Prints one JSON line: seconds for a fan-out of no-op children with its join, and for a chain. DBOS on SQLite with
synchronous=FULL, in that folder: a workflow that enqueues children and collects their results, and one that starts them
one after the other. Celery on Redis, whose URL stands in place of the folder: a chord and a chain, run by eight threads
of this process, as ours are by eight slots.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

SLOTS = 8
PATIENCE = 300


def dbos(children: int, links: int, folder: str) -> dict[str, float]:
    """Queues for the fan-out, child workflows for the chain."""
    from dbos import DBOS
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    @event.listens_for(Engine, "connect")
    def durable(connection: Any, _: Any) -> None:
        connection.execute("pragma synchronous = full")

    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder}/dbos.db", "log_level": "ERROR"})

    @DBOS.workflow()
    def leaf(number: int) -> int:
        return number

    @DBOS.workflow()
    def fan(count: int) -> int:
        handles = [queue.enqueue(leaf, number) for number in range(count)]
        return len([handle.get_result() for handle in handles])

    @DBOS.workflow()
    def chained(count: int) -> int:
        value = 0
        for _ in range(count):
            value = DBOS.start_workflow(leaf, value + 1).get_result()
        return value

    DBOS.launch()
    queue = DBOS.register_queue("leaves", worker_concurrency=SLOTS, polling_interval_sec=0.01)
    DBOS.start_workflow(fan, 5).get_result()
    found = {
        "fan": seconds(lambda: DBOS.start_workflow(fan, children).get_result()),
        "chain": seconds(lambda: DBOS.start_workflow(chained, links).get_result()),
    }
    DBOS.destroy()
    return found


def celery(children: int, links: int, url: str) -> dict[str, float]:
    """A chord, and a chain."""
    from celery import Celery, chain, chord
    from celery.contrib.testing.worker import start_worker

    logging.disable(logging.CRITICAL)
    app = Celery("bench", broker=url, backend=url)
    app.conf.task_default_queue = f"bench-{os.getpid()}"

    @app.task
    def leaf(number: int) -> int:
        return number

    @app.task
    def count(found: list[int]) -> int:
        return len(found)

    @app.task
    def link(number: int) -> int:
        return number + 1

    def fan(number: int) -> None:
        assert chord(leaf.s(one) for one in range(number))(count.s()).get(timeout=PATIENCE) == number

    def chained(number: int) -> None:
        run = chain(link.s(0), *[link.s() for _ in range(number - 1)]).delay()
        assert run.get(timeout=PATIENCE, interval=0.01) == number

    with start_worker(app, pool="threads", concurrency=SLOTS, perform_ping_check=False, loglevel="CRITICAL"):
        fan(5)
        return {"fan": seconds(lambda: fan(children)), "chain": seconds(lambda: chained(links))}


def seconds(work: Callable[[], object]) -> float:
    """Return how long this takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Run one library and print what it took."""
    name, children, links, place = sys.argv[1:]
    peers = {"dbos": dbos, "celery": celery}
    print(json.dumps(peers[name](int(children), int(links), place)), flush=True)


if __name__ == "__main__":
    main()
