"""Opens the store that a verb works on. Must not know a verb.

A verb that only reads never creates a store: a mistyped path would become an empty one. It never changes a store
either: it can read a file while a worker uses it, and leaves what a crash left there for the next run to recover. A
verb that changes something passes `write=True`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from holdfast.app.settings import blobs_url, store_url
from holdfast.blobs.opening import blob_store
from holdfast.cli.errors import echo
from holdfast.core.errors import Invalid, Refused
from holdfast.engines import engine_for
from holdfast.engines.contract import Engine
from holdfast.engines.file import FileEngine
from holdfast.engines.file.reader import FileReader
from holdfast.engines.urls import masked
from holdfast.jobs.remote import jobs_of
from holdfast.jobs.service import Jobs
from holdfast.jobs.transfer.move import mark_in

T = TypeVar("T")


class NoStore(Refused):
    """There is no store at this place. Nothing was created."""


def engine_at(url: str | None, *, write: bool = False, create: bool = False, configured: bool = True) -> Engine:
    """Return the engine of the store that a call names, not yet open. `create` implies `write`.

    `configured=False` leaves out $HOLDFAST_BLOBS: the blobs are where the store itself says.
    """
    chosen = store_url(url)
    engine = engine_for(chosen)
    place = blobs_url(None) if configured else None
    if engine.guarantees.durable == "nothing":
        raise Invalid(f"{masked(chosen)}: this store exists only inside one process; name another one with --url")
    engine = FileReader(engine.path) if isinstance(engine, FileEngine) and not (write or create) else engine
    if place is not None:
        engine.keep_blobs_in(blob_store(place))
    return engine


def refuse_server(url: str | None, verb: str) -> None:
    """Refuse the URL of a server for a verb that needs the store itself."""
    chosen = store_url(url)
    if chosen.startswith(("http://", "https://")):
        raise Invalid(
            f"{masked(chosen)} is a server, and holdfast {verb} needs the store behind it; run this where the store "
            "is, with its own URL: sqlite:///… or postgresql://…"
        )


def path_of_engine(engine: Engine) -> Path | None:
    """Return the file that holds the store, or None."""
    path = getattr(engine, "path", None)
    return path if isinstance(path, Path) else None


def place_of_store(engine: Engine, url: str | None) -> str:
    """Return where a store is, for people: a file's absolute path, or a URL without its password."""
    path = path_of_engine(engine)
    return str(path) if path is not None else masked(store_url(url))


def run_in_store(
    url: str | None, work: Callable[[Jobs], Awaitable[T]], *, write: bool = False, create: bool = False
) -> T:
    """Open the store, do the work, and close the store, from blocking code. See `engine_at` and `use_store`."""
    engine = engine_at(url, write=write, create=create)

    async def check_and_work(jobs: Jobs) -> T:
        if not write and not create:  # a write would be refused with the same sentence
            await say_moved(jobs)
        return await work(jobs)

    return asyncio.run(use_store(engine, place_of_store(engine, url), check_and_work, create=create))


async def say_moved(jobs: Jobs) -> None:
    """If the store's jobs were moved, say so on stderr, next to what the verb shows."""
    if (marked := await mark_in(jobs.engine)) and not marked[0].archive:
        echo(f"holdfast: {marked[0].words()}", err=True)


async def use_store(engine: Engine, place: str, work: Callable[[Jobs], Awaitable[T]], *, create: bool = False) -> T:
    """Open the store, do the work, and close the store. Raise NoStore if there is none, unless `create` is set."""
    if not create and not await engine.is_there():
        raise NoStore(
            f"there is no store at {place}; name one with --url or $HOLDFAST_URL "
            "(a worker or the first submitted job creates it)"
        )
    await engine.open()
    try:
        return await work(jobs_of(engine))
    finally:
        await engine.close()
