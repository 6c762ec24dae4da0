"""A FastAPI app with Holdfast's API and dashboard under /holdfast. A worker beside it runs the jobs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from holdfast import App, step
from holdfast.mounting import server_for

app = App()  # $HOLDFAST_URL, or holdfast.db in the working directory: the same for web and worker


@step
async def clip(number: int) -> str:
    await asyncio.sleep(0.2)  # for example, a call to a model
    return f"clip {number}"


@app.job(stages=[clip])
async def make_video(clips: int) -> list[str]:
    return list(await clip.map(range(clips)))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    await app.open()  # a store that can't be opened stops the start, not the first request
    yield
    await app.close()


web = FastAPI(lifespan=lifespan)


@web.post("/videos", status_code=202)
async def order(clips: int) -> dict[str, str]:
    return {"id": (await make_video.submit(clips)).id}


web.mount("/holdfast", server_for(app))
