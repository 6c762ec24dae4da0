"""A FastAPI app that submits jobs and shows how they are doing. A worker beside it runs them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from holdfast import App, BadValue, JobCancelled, JobFailed, KeyConflict, NotFound, step

app = App()  # $HOLDFAST_URL, or holdfast.db in the working directory: the same for web and worker


@step(retries=3, timeout="10m")
async def write(chapter: int) -> str:
    await asyncio.sleep(0.05)  # for example, a call to a model
    return f"Chapter {chapter}"


@app.job(stages=[write])
async def make_book(title: str, chapters: int) -> list[str]:
    return [title, *await write.map(range(1, chapters + 1))]


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    await app.open()  # a store that can't be opened stops the start, not the first request
    yield
    await app.close()


web = FastAPI(lifespan=lifespan)


class Order(BaseModel):
    title: str
    chapters: int = Field(ge=1, le=100)


@web.post("/books", status_code=202)
async def order(book: Order, idempotency_key: Annotated[str | None, Header()] = None) -> dict[str, str]:
    run = await make_book.submit(book.title, book.chapters, key=idempotency_key)
    return {"id": run.id, "status": f"/books/{run.id}"}


@web.get("/books/{id}")
async def status(id: str) -> dict[str, Any]:
    one = await (await app.run(id)).status()
    return {"state": one.state, "text": str(one), "done": one.done, "total": one.total}


@web.get("/books/{id}/result")
async def result(id: str, response: Response) -> Any:
    run = await app.run(id)
    try:
        return {"book": await run.result(timeout=1)}
    except TimeoutError:
        response.status_code, response.headers["Retry-After"] = 202, "5"
        return {"text": str(await run.status())}


@web.exception_handler(NotFound)
@web.exception_handler(KeyConflict)
@web.exception_handler(JobCancelled)
@web.exception_handler(JobFailed)
@web.exception_handler(BadValue)
async def refuse(_: Request, error: Exception) -> JSONResponse:
    codes = {NotFound: 404, KeyConflict: 409, JobCancelled: 410, JobFailed: 500, BadValue: 400}
    return JSONResponse({"error": str(error)}, codes[type(error)])
