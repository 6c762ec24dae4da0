"""A film in seven stages: a script becomes a voice, 30 images, 30 clips and a film.

Start it, kill it with Ctrl-C or kill -9 whenever you like, and start it again: it continues with the next item.

    python examples/video.py                     # submits the film, runs a worker, and shows the progress
    holdfast worker examples/video.py:app        # or: more workers, in other terminals
"""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

from holdfast import App, Retry, step

app = App()  # $HOLDFAST_URL, else sqlite:///holdfast.db in this folder
flaky = Retry(retries=5, initial_ms=200)


@dataclass
class Scene:
    number: int
    words: str


@step(retries=flaky, stale_after="10m")
async def script_analysis(title: str) -> list[Scene]:
    await provider("script_analysis", title, seconds=0.5)
    return [Scene(number, f"{title}, scene {number}") for number in range(1, 31)]


@step(retries=flaky, stale_after="15m")
async def audio_generation(title: str) -> str:
    return await provider("audio_generation", title, seconds=0.5)


@step(retries=flaky, stale_after="10m")
async def transcription(audio: str) -> str:
    return await provider("transcription", audio, seconds=0.3)


@step(retries=flaky, stale_after="45m", timeout="5m")
async def storyboard(scene: Scene) -> str:
    return await provider("storyboard", scene.words, seconds=0.4)


@step(retries=flaky, stale_after="2h", timeout="10m")
async def video_generation(image: str) -> str:
    return await provider("video_generation", image, seconds=0.5)


@step(stale_after="20m")
async def assembly(audio: str, words: str, clips: list[str]) -> str:
    return await provider("assembly", f"film of {len(clips)}", seconds=0.5)


@step(retries=flaky, stale_after="10m")
async def publishing(film: str) -> str:
    return await provider("publishing", film, seconds=0.3)


@app.job(
    timeout="6h",
    stages=[script_analysis, audio_generation, transcription, storyboard, video_generation, assembly, publishing],
)
async def make_video(title: str) -> str:
    scenes = await script_analysis(title)
    audio = await audio_generation(title)
    words = await transcription(audio)
    images = await storyboard.map(scenes, at_once=4)
    clips = await video_generation.map(images, at_once=4)
    return await publishing(await assembly(audio, words, clips))


async def provider(stage: str, item: str, seconds: float) -> str:
    """A pretend provider: slow, sometimes down. Every call that it answers is written to calls.log."""
    await asyncio.sleep(seconds * random.uniform(0.7, 1.3))
    if random.random() < 0.05:
        raise ConnectionError(f"{stage} is down for a moment")
    with Path("calls.log").open("a") as log:
        log.write(f"{stage}\t{item}\n")
    return f"{stage}-{item.rpartition(' ')[2]}"


async def main() -> None:
    run = await make_video.submit("The Lighthouse", key="the-lighthouse")  # the same key: the same run
    async with app.worker():
        result = asyncio.create_task(run.result())
        while not result.done():
            print(await run.status(), flush=True)
            await asyncio.wait([result], timeout=1)
    print(await result)


if __name__ == "__main__":
    asyncio.run(main())
