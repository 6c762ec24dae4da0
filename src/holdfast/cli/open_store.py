"""Opening the store that a verb works on. Must not know a verb.

A verb that only looks never makes a store: a mistyped path would else become an empty one. It never changes one,
either: a file is opened so that it can be looked at while it is in use, and what a crash left there stays for the
next run to recover. A verb that changes something says so, with `write=True`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from holdfast.app.settings import store_url
from holdfast.cli.errors import echo
from holdfast.core.errors import Invalid, Refused
from holdfast.engines import engine_for
from holdfast.engines.contract import Engine
from holdfast.engines.file import FileEngine
from holdfast.engines.file.reader import FileReader
from holdfast.engines.urls import masked
from holdfast.jobs.service import Jobs
from holdfast.jobs.transfer.move import mark_in

T = TypeVar("T")


class NoStore(Refused):
    """There is no store where one was looked for. Nothing was made."""


def engine_at(url: str | None, *, write: bool = False, create: bool = False) -> Engine:
    """The engine of the store that a call names, not yet opened. To `create` one is to write."""
    chosen = store_url(url)
    engine = engine_for(chosen)
    if engine.guarantees.durable == "nothing":
        raise Invalid(f"{masked(chosen)}: lives inside one process, so there is nothing to see from here; name a store")
    return FileReader(engine.path) if isinstance(engine, FileEngine) and not (write or create) else engine


def path_of_engine(engine: Engine) -> Path | None:
    """The file that a store is kept in, if it is a file."""
    path = getattr(engine, "path", None)
    return path if isinstance(path, Path) else None


def place_of_store(engine: Engine, url: str | None) -> str:
    """Where a store is, for a person: a file's absolute path, or a URL without its password."""
    path = path_of_engine(engine)
    return str(path) if path is not None else masked(store_url(url))


def run_in_store(
    url: str | None, work: Callable[[Jobs], Awaitable[T]], *, write: bool = False, create: bool = False
) -> T:
    """Open the store, do the work, and close it again, from a verb's blocking code. See `engine_at` and `use_store`."""
    engine = engine_at(url, write=write, create=create)

    async def look_and_work(jobs: Jobs) -> T:
        if not write and not create:  # who writes is refused in the same words
            await say_moved(jobs)
        return await work(jobs)

    return asyncio.run(use_store(engine, place_of_store(engine, url), look_and_work, create=create))


async def say_moved(jobs: Jobs) -> None:
    """Say to who looks at a store that its jobs are elsewhere, beside what is shown."""
    if (marked := await mark_in(jobs.engine)) and not marked[0].archive:
        echo(f"holdfast: {marked[0].words()}", err=True)


async def use_store(engine: Engine, place: str, work: Callable[[Jobs], Awaitable[T]], *, create: bool = False) -> T:
    """Do the work in a store that is open for just as long; NoStore where there is none, unless it may be made."""
    if not create and not await engine.is_there():
        raise NoStore(
            f"there is no store at {place}; name one with --url or $HOLDFAST_URL "
            "(a worker or the first submitted job makes it)"
        )
    await engine.open()
    try:
        return await work(Jobs(engine))
    finally:
        await engine.close()
