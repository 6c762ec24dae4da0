"""A pipeline with steps, children and waits, as a program for worker processes, and settings for it."""

from tests.support.history import RECORD_EFFECT

PROGRAM = (
    RECORD_EFFECT
    + """
import asyncio, logging, os
from holdfast import App, Settings, sleep, step
from holdfast.core import lifecycle
lifecycle.RECOVERY_BACKOFF_MS = 100
app = App(os.environ["TEST_URL"], settings=Settings(**eval(os.environ["TEST_SETTINGS"])))

@step
async def draw(n: int) -> int:
    effect("begin")
    await asyncio.sleep(0.03)
    effect("end")
    return n

@step
def cut(n: int) -> int:
    effect("begin")
    time.sleep(0.02)
    effect("end")
    return n

@app.job
async def clip(n: int) -> int:
    return await draw(n) + await cut.aio(n)

@app.job
async def film(n: int) -> int:
    images = await draw.map(range(4), at_once=2)
    await sleep(0.2)
    clips = await clip.map([n, n + 1])
    await asyncio.gather(*(cut.aio(100 + m) for m in range(2)))
    return sum(images) + sum(clips)

if __name__ == "__main__":
    logging.basicConfig(level="INFO", filename=f"log-{os.getpid()}")
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 4))
"""
)

LEASE_SECONDS = 3.0
SETTINGS = (
    f"dict(beat_seconds=0.8, lease_seconds={LEASE_SECONDS}, look_seconds=0.2, upkeep_seconds=0.5, poll_seconds=1.0,"
    " grace_seconds=0.5)"
)
