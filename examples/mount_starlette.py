"""A Starlette app with Holdfast's API and dashboard under /holdfast. A worker beside it runs the jobs."""

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

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


async def order(request: Request) -> JSONResponse:
    run = await make_video.submit(int(request.query_params["clips"]))
    return JSONResponse({"id": run.id}, 202)


web = Starlette(routes=[Route("/videos", order, methods=["POST"]), Mount("/holdfast", server_for(app))])
