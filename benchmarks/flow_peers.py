"""Flows of other libraries, run by their own interpreter: `python flow_peers.py dbos 1000 100 FOLDER`.

Prints one JSON line: seconds for a fan-out of no-op children with its join, and for a chain. DBOS on SQLite with
synchronous=FULL: a workflow that enqueues children and collects their results, and one that starts them one after the
other.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def dbos(children: int, links: int, folder: Path) -> dict[str, float]:
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
    queue = DBOS.register_queue("leaves", worker_concurrency=8, polling_interval_sec=0.01)
    DBOS.start_workflow(fan, 5).get_result()
    found = {
        "fan": seconds(lambda: DBOS.start_workflow(fan, children).get_result()),
        "chain": seconds(lambda: DBOS.start_workflow(chained, links).get_result()),
    }
    DBOS.destroy()
    return found


def seconds(work: Callable[[], object]) -> float:
    """Return how long this takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Run one library and print what it took."""
    name, children, links, folder = sys.argv[1:]
    peers = {"dbos": dbos}
    print(json.dumps(peers[name](int(children), int(links), Path(folder))))


if __name__ == "__main__":
    main()
