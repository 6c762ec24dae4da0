"""Events through `kill -9`: each scene that a job drew has emitted its event once, however often its workers die."""

import asyncio
import random
from collections import Counter
from pathlib import Path

from holdfast import App, Settings
from holdfast.core.codec import parse
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import State, Where
from tests.scenarios.test_flows_crash import PATIENCE, kill, start
from tests.support.given import until

PROGRAM = """
import asyncio, random, sys
from holdfast import App, Settings, step
app = App(sys.argv[1], settings=Settings(beat_seconds=0.2, lease_seconds=1.0, look_seconds=0.1, upkeep_seconds=0.2))

@app.on("scene.done")
@app.job
async def note(n: int) -> None: ...

@app.on("scene.done")
@app.job
async def book(n: int) -> None: ...

@step
async def draw(n: int) -> int:
    await asyncio.sleep(random.uniform(0, 0.3))
    await app.emit("scene.done", n)
    await asyncio.sleep(random.uniform(0, 0.1))
    return n

@app.job(retries=0)
async def film(scenes: int) -> list[int]:
    return await draw.map(range(scenes), at_once=4)

async def main():
    async with app.worker(at_once=4):
        print("ready", flush=True)
        await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""
SCENES = 24
KILLS = 3


def test_a_film_whose_workers_are_killed_has_emitted_each_event_once(tmp_path: Path, store_url: str, rounds):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    app = App(store_url, settings=Settings())
    chance = random.Random(store_url.partition(":")[0])

    async def life() -> None:
        run = await app.s("film", SCENES).submit()
        for _ in range(rounds(KILLS, 50)):
            worker = start(program, store_url)
            await asyncio.sleep(chance.uniform(0.2, 0.6))
            kill(worker)
        worker = start(program, store_url)
        try:
            assert await run.result(timeout=PATIENCE) == list(range(SCENES))
            await until(all_have_ended, PATIENCE)
        finally:
            kill(worker)

    async def all_have_ended() -> bool:
        return {job.state for job in await app.engine.find(Where())} <= TERMINAL

    async def whole() -> None:
        await life()
        jobs = [job for job in await app.engine.find(Where()) if job.type != "film"]
        assert {job.state for job in jobs} == {State.COMPLETED}
        assert Counter((job.type, parse(job.args)[0]) for job in jobs) == {
            (type, n): 1 for type in ("note", "book") for n in range(SCENES)
        }
        await app.close()

    asyncio.run(whole())
