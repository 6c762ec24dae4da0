"""Schedules among real processes: leaders are killed with kill -9, and every tick fires exactly once."""

from functools import partial
from pathlib import Path

from holdfast.core.model import Job, Where
from holdfast.core.schedules import SCHEDULE, iso, schedule_in
from tests.support.given import wait_until
from tests.support.worker_processes import SMALL, Stage

KILLS, EVERY_MS = 3, 1_000

PROGRAM = """
import asyncio, os
from holdfast import App, Settings
app = App(os.environ["TEST_URL"], settings=Settings(**eval(os.environ["TEST_SETTINGS"])))

@app.job
async def report(kind: str) -> str:
    return kind

app.schedule(every="1s", job=report.s("each"), name="second", missed="skip")

if __name__ == "__main__":
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 8))
"""


def ticks_of(stage: Stage) -> list[str]:
    async def find() -> list[Job]:
        return await (await stage.app.open()).engine.find(Where(type="report"))

    return [job.options.meta["tick"] for job in stage.do(find())]


def has_fired(stage: Stage, least: int) -> bool:
    return len(ticks_of(stage)) >= least


def killed_leaders(stage: Stage) -> None:
    """Three workers; the leader is killed while ticks keep coming, and another one starts."""
    workers = [stage.worker(SMALL) for _ in range(3)]
    wait_until(lambda: len(ticks_of(stage)) >= 2, 30)
    for _ in range(KILLS):
        leader = wait_until(lambda: next((one for one in workers if one.poll() is None and stage.leads(one)), None), 30)
        leader.kill()
        leader.wait(30)
        workers.append(stage.worker(SMALL))
        seen = len(ticks_of(stage))
        wait_until(partial(has_fired, stage, seen + 2), 60)
    [record] = stage.do(stage.app.engine.records(SCHEDULE))
    one = schedule_in(record)
    assert one is not None
    assert one.tick is not None
    fired = ticks_of(stage)
    expected = {iso(tick) for tick in range(one.start + EVERY_MS, one.tick + 1, EVERY_MS)}
    assert len(set(fired)) == len(fired), "no tick fires twice"
    assert expected <= set(fired), "a worker lived through each of them"


def test_every_tick_fires_exactly_once_while_leaders_are_killed(tmp_path: Path, store_url: str) -> None:
    stage = Stage(tmp_path, PROGRAM, store_url)
    try:
        killed_leaders(stage)
    finally:
        stage.close()
