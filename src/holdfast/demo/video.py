"""The demo's pipeline, as a user would write it: a film in seven stages. The demo's workers load its `app`.

Must not know that it is a demo, except for the address of its provider.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection

from holdfast import App, Retry, current, step

PROVIDER = "HOLDFAST_DEMO_PROVIDER"
"""The environment variable with the provider's port on this machine."""

PARENT = "HOLDFAST_DEMO_PARENT"
"""The environment variable with the demo's process id: its workers end with it."""

SCENES = 30
REDRAWN = "b"
"""What the provider's name of an image that was drawn again ends with."""
AT_ONCE = 4
CALL_SECONDS = 30.0

app = App()
provider = app.limit("provider", at_once=2 * AT_ONCE)
flaky = Retry(retries=6, initial_ms=100, cap_ms=2_000)


@dataclass(frozen=True)
class Scene:
    """One scene of the film."""

    number: int
    words: str


@step(limit=provider, retries=flaky, timeout="1m", stale_after="10m")
async def script_analysis(title: str) -> list[Scene]:
    """Split the script into scenes."""
    await ask("script_analysis", "script")
    return [Scene(number, f"{title}, scene {number}") for number in range(1, SCENES + 1)]


@step(limit=provider, retries=flaky, timeout="1m", stale_after="15m")
async def audio_generation(title: str) -> str:
    """Record the script as audio."""
    return await ask("audio_generation", "voice")


@step(limit=provider, retries=flaky, timeout="1m", stale_after="10m")
async def transcription(audio: str) -> str:
    """Find out when each word is spoken."""
    return await ask("transcription", "words")


@step(limit=provider, retries=flaky, timeout="1m", stale_after="45m", key=lambda scene: scene.number)
async def storyboard(scene: Scene) -> str:
    """Draw one image; a better one, if a person has rejected it."""
    return await ask("storyboard", f"{scene.number}{REDRAWN if current().feedback else ''}")


@step(limit=provider, retries=flaky, timeout="1m", stale_after="2h", key=lambda image: image.rpartition("-")[2])
async def video_generation(image: str) -> str:
    """Turn one image into a clip."""
    return await ask("video_generation", image.rpartition("-")[2])


@step(limit=provider, retries=flaky, timeout="1m", stale_after="20m")
async def assembly(audio: str, words: str, clips: list[str]) -> str:
    """Put the film together."""
    return await ask("assembly", "film")


@step(limit=provider, retries=flaky, timeout="1m", stale_after="10m")
async def publishing(film: str) -> str:
    """Publish the film."""
    return await ask("publishing", "film")


STAGES = [script_analysis, audio_generation, transcription, storyboard, video_generation, assembly, publishing]


@app.job(name="demo.video", queue="demo", retries=1, timeout="10m", stages=STAGES)
async def make_video(title: str) -> str:
    """Make a film from a title."""
    scenes = await script_analysis(title)
    audio = await audio_generation(title)
    words = await transcription(audio)
    images = await storyboard.map(scenes, at_once=AT_ONCE)
    clips = await video_generation.map(images, at_once=AT_ONCE)
    return await publishing(await assembly(audio, words, clips))


class ProviderTrouble(Exception):
    """The provider refused a call or failed. Its status and headers say when to come back, as those of a client do."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"the provider answered {status} {reason}")
        self.status = status
        self.headers = headers


async def ask(stage: str, item: str) -> str:
    """Call the provider once. If it answers 429, its Retry-After closes the limit for all workers."""
    return await asyncio.to_thread(_post, {"stage": stage, "item": item, "caller": os.getpid()})


def _post(order: dict[str, object]) -> str:
    connection = HTTPConnection("127.0.0.1", int(os.environ[PROVIDER]), timeout=CALL_SECONDS)
    try:
        connection.request("POST", "/", json.dumps(order))
        answer = connection.getresponse()
        if answer.status != 200:
            raise ProviderTrouble(answer.status, answer.reason, dict(answer.headers))
        return str(json.load(answer)["made"])
    finally:
        connection.close()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if PARENT in os.environ:
    threading.Thread(target=_end_with, args=(int(os.environ[PARENT]),), daemon=True).start()
