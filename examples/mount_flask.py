"""A Flask app with Holdfast's API and dashboard under /holdfast. A worker beside it runs the jobs."""

import time
from typing import Any

from a2wsgi import WSGIMiddleware
from flask import Flask, request
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import App, step
from holdfast.mounting import server_for

app = App()  # $HOLDFAST_URL, or holdfast.db in the working directory: the same for web and worker


@step
def clip(number: int) -> str:
    time.sleep(0.2)  # for example, a call to a model
    return f"clip {number}"


@app.job(stages=[clip])
def make_video(clips: int) -> list[str]:
    return list(clip.map(range(clips)))


flask = Flask(__name__)


@flask.post("/videos")
def order() -> Any:
    return {"id": app.sync.submit(make_video, int(request.args["clips"])).id}, 202


web = Starlette(routes=[Mount("/holdfast", server_for(app)), Mount("/", WSGIMiddleware(flask))])
