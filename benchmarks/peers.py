"""The same work with other libraries, run by their own interpreter: `python peers.py dbos-steps 100 10 FOLDER`.

Prints one JSON line. Their stores are as durable as ours: SQLite with synchronous=FULL.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def dbos_steps(workflows: int, steps: int, folder: Path) -> dict[str, float]:
    """Run this many workflows at once, each with this many steps; return steps per second."""
    from dbos import DBOS
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    @event.listens_for(Engine, "connect")
    def durable(connection: Any, _: Any) -> None:
        connection.execute("pragma synchronous = full")

    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder}/dbos.db", "log_level": "ERROR"})

    @DBOS.step()
    def one(n: int) -> int:
        return n

    @DBOS.workflow()
    def walk(count: int) -> int:
        for n in range(count):
            one(n)
        return count

    DBOS.launch()
    DBOS.start_workflow(walk, 5).get_result()
    started = time.perf_counter()
    handles = [DBOS.start_workflow(walk, steps) for _ in range(workflows)]
    for handle in handles:
        handle.get_result()
    taken = time.perf_counter() - started
    DBOS.destroy()
    return {"steps_per_second": workflows * steps / taken}


def huey_drain(count: int, workers: int, folder: Path) -> dict[str, float]:
    """Drain this many no-op tasks with one consumer process; return tasks per second."""
    from huey import SqliteHuey
    from huey.consumer import Consumer

    huey = SqliteHuey("bench", filename=str(folder / "huey.db"), fsync=True, results=True)
    done: list[float] = []

    @huey.task()
    def noop(n: int) -> int:
        done.append(time.perf_counter())
        return n

    for n in range(count):
        noop(n)
    consumer = Consumer(huey, workers=workers, periodic=False, initial_delay=0.01, check_worker_health=False)
    consumer.start()
    while len(done) < count:
        time.sleep(0.01)
    consumer.stop(graceful=True)
    return {"jobs_per_second": (count - 1) / (done[-1] - done[0])}


def main() -> None:
    """Run what was asked for."""
    kind, *rest = sys.argv[1:]
    folder = Path(rest.pop())
    numbers = [int(word) for word in rest]
    result = {"dbos-steps": dbos_steps, "huey-drain": huey_drain}[kind](*numbers, folder)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
