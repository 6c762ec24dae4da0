"""A Postgres that is restarted under workers in processes of their own, with the settings that everybody has."""

import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.core.model import Presence, State
from holdfast.engines.records import WORKER
from tests.support.given import wait_until
from tests.support.postgres_server import Server, server
from tests.support.worker_processes import Stage

PROGRAM = """
import asyncio, logging, os
from holdfast import App
app = App(os.environ["TEST_URL"])

@app.job
async def hold(n: int) -> int:
    while not os.path.exists("go"):
        await asyncio.sleep(0.05)
    return n

if __name__ == "__main__":
    logging.basicConfig(level="INFO", filename=f"log-{os.getpid()}")
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 1))
"""

WORKERS = 4
LOOKS = 3
"""How many beats of each worker after the restart: by then everybody has looked for the dead."""


@pytest.fixture
def own_server() -> Iterator[Server]:
    with server("synchronous_commit=on") as running:  # what it has acknowledged outlives a crash
        yield running


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_restart_under_four_worker_processes_declares_none_dead(
    own_server: Server, how: signal.Signals, tmp_path: Path
):
    stage = Stage(tmp_path, PROGRAM, own_server.url)
    try:
        for _ in range(WORKERS):
            stage.worker()
        runs = [stage.submit("hold", n) for n in range(WORKERS)]
        wait_until(lambda: stage.do(stage.app.engine.count()).get(("default", State.ACTIVE)) == WORKERS)
        own_server.restart(how)

        def beats() -> dict[str, int]:
            found = stage.do(stage.app.engine.records(WORKER))
            presences = [msgspec.json.decode(one.value, type=Presence) for one in found]
            return {one.worker: one.beat_at for one in presences}

        seen: dict[str, set[int]] = defaultdict(set)

        def all_have_beaten() -> bool:
            for worker, at in beats().items():
                seen[worker].add(at)
            return len(seen) == WORKERS and all(len(times) > LOOKS for times in seen.values())

        wait_until(all_have_beaten, 60)
        (tmp_path / "go").touch()
        assert [stage.do(run.result(20)) for run in runs] == list(range(WORKERS))
        stories = [[entry.event for entry in stage.history(run)] for run in runs]
        assert stories == [["submit", "claim", "complete"]] * WORKERS
        assert not [path for path in tmp_path.glob("log-*") if "is lost" in path.read_text()]
    finally:
        stage.close()
