"""A Flask app that submits jobs and shows how they are doing. A worker beside it runs them."""

import time
from typing import Any

from flask import Flask, request

from holdfast import App, BadValue, JobCancelled, JobFailed, KeyConflict, NotFound, step

app = App()  # $HOLDFAST_URL, or holdfast.db in the working directory: the same for web and worker


@step(retries=3, timeout="10m")
def write(chapter: int) -> str:
    time.sleep(0.05)  # for example, a call to a model
    return f"Chapter {chapter}"


@app.job(stages=[write])
def make_book(title: str, chapters: int) -> list[str]:
    return [title, *write.map(range(1, chapters + 1))]


web = Flask(__name__)


@web.post("/books")
def order() -> Any:
    book = request.get_json()
    key = request.headers.get("Idempotency-Key")
    run = app.sync.submit(make_book, book["title"], book["chapters"], key=key)
    return {"id": run.id, "status": f"/books/{run.id}"}, 202


@web.get("/books/<id>")
def status(id: str) -> Any:
    one = app.sync.run(id).status()
    return {"state": one.state, "text": str(one), "done": one.done, "total": one.total}


@web.get("/books/<id>/result")
def result(id: str) -> Any:
    run = app.sync.run(id)
    try:
        return {"book": run.result(timeout=1)}
    except TimeoutError:
        return {"text": str(run.status())}, 202, {"Retry-After": "5"}


@web.errorhandler(NotFound)
@web.errorhandler(KeyConflict)
@web.errorhandler(JobCancelled)
@web.errorhandler(JobFailed)
@web.errorhandler(BadValue)
def refuse(error: Exception) -> Any:
    codes = {NotFound: 404, KeyConflict: 409, JobCancelled: 410, JobFailed: 500, BadValue: 400}
    return {"error": str(error)}, codes[type(error)]
