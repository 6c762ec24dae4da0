"""What one server knows beyond its store: samples, usual times, and one reader for each watched view.

A reader runs while somebody watches, however many do. Nothing is read that nobody watches, but for the samples.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct

import holdfast
from holdfast.core.errors import HoldfastError, NotFound
from holdfast.jobs.pruned import pruned_jobs
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.pages.items import Usual
from holdfast.jobs.views.pages.job import JobPage
from holdfast.jobs.views.pages.job_page import view_job_page
from holdfast.jobs.views.pages.losses import LostWorker, find_losses, recorded_losses
from holdfast.jobs.views.pages.overview import OverviewPage, view_overview
from holdfast.jobs.views.pages.place_pages import view_navigation
from holdfast.jobs.views.pages.places import Navigation, WorkerPage, WorkersPage
from holdfast.jobs.views.pages.samples import REMEMBERED_MS, Sample, Samples
from holdfast.jobs.views.pages.usual import usual_times
from holdfast.jobs.views.pages.worker_pages import view_worker, view_workers_page
from holdfast.server.site import Site
from holdfast.server.streams import event

SAMPLE_SECONDS = 10.0
"""How often the counters of the store are sampled."""

SEND_SECONDS = 0.25
"""The shortest time between two states of a view."""

LOOK_SECONDS = 0.5
"""How often a view is read while jobs run: progress in heartbeats causes no wake-up."""

IDLE_SECONDS = 1.0
"""How often it is read otherwise: a lost worker causes no wake-up either."""

BEAT_SECONDS = 5.0
"""How often a follower hears that the view is still read, while nothing in it changes."""

AWAY_SECONDS = 1.0
"""How often to try again while the store can't be reached."""

USUAL_SECONDS = 300.0
"""How long usual times of a job type are kept."""

TYPES_KEPT = 200

BEAT = b"event: beat\ndata: {}\n\n"

Load = Callable[[], Awaitable[tuple[Struct, list[str], bool]]]
"""Reads a view: the view, the topics to wait for, and whether jobs run."""


class Trouble(Struct, frozen=True):
    """Why a view can't be read now. The stream keeps trying."""

    code: str
    detail: str


class View:
    """One watched view: the latest state, and the streams that wait for a newer one. Owned by one event loop."""

    def __init__(self, jobs: Jobs, load: Load) -> None:
        self._jobs, self._load = jobs, load
        self.followers = 0
        self.number = 0
        self.latest = b""
        self.is_over = False
        self._shown = b""
        self._looked_at = 0.0
        self._newer = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Yield the latest state, and then each newer one; a slow follower misses those in between.

        While nothing changes, a beat says that the view is still read. A reader that hangs sends none.
        """
        self.followers += 1
        if self._task is None or self._task.done():
            self.is_over = False
            self._task = asyncio.create_task(self._read())
        seen = 0
        try:
            while True:
                if self.number > seen:
                    seen = self.number
                    yield self.latest
                elif self.is_over:
                    return
                else:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._newer.wait(), BEAT_SECONDS)
                        continue
                    if time.monotonic() - self._looked_at < BEAT_SECONDS:
                        yield BEAT
        finally:
            self.followers -= 1
            if not self.followers:
                self._task.cancel()

    @property
    def is_left(self) -> bool:
        """Whether somebody followed it and nobody does any more."""
        return self._task is not None and not self.followers

    def _show(self, name: str, value: Struct) -> None:
        """Make a state the latest one, if it differs in more than its time."""
        shown = msgspec.json.encode(msgspec.structs.replace(value, now="") if hasattr(value, "now") else value)
        if shown == self._shown:
            return
        self._shown = shown
        self.number += 1
        self.latest = event(value, name=name, id=self.number)
        self._newer.set()
        self._newer = asyncio.Event()

    async def _read(self) -> None:
        mark = 0
        try:
            while True:
                began = time.monotonic()
                try:
                    value, topics, busy = await self._load()
                    self._looked_at = time.monotonic()
                    self._show("view", value)
                    mark = await self._jobs.engine.wait(topics, LOOK_SECONDS if busy else IDLE_SECONDS, mark)
                except NotFound as error:
                    self._show("gone", Trouble("not_found", str(error)))
                    return
                except (HoldfastError, OSError) as error:
                    self._looked_at = time.monotonic()
                    self._show("trouble", Trouble("store_unavailable", _line(error)))
                    await asyncio.sleep(AWAY_SECONDS)
                await asyncio.sleep(max(0.0, began + SEND_SECONDS - time.monotonic()))
        finally:
            self.is_over = True
            self._newer.set()


def _line(error: BaseException) -> str:
    return str(error) if isinstance(error, HoldfastError) else "the store can't be reached"


class Watch:
    """What one server knows beyond its store."""

    def __init__(self, server: Site) -> None:
        self._server = server
        self.samples = Samples()
        self._views: dict[tuple[object, ...], View] = {}
        self._usual: dict[str, tuple[float, Mapping[str, Usual]]] = {}
        self._sampling: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()

    @property
    def views(self) -> int:
        """How many views are read right now."""
        return sum(one.followers > 0 for one in self._views.values())

    def follow(self, key: tuple[object, ...], jobs: Jobs, load: Load) -> AsyncGenerator[bytes, None]:
        """Follow a view; all who follow the same key share one reader."""
        self._views = {one: view for one, view in self._views.items() if not view.is_left}
        view = self._views.setdefault(key, View(jobs, load))
        return view.follow()

    def start(self, jobs: Jobs) -> None:
        """Begin to sample the store, unless that has begun."""
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.create_task(self._sample(jobs))

    async def _sample(self, jobs: Jobs) -> None:
        while not self._server.stopping.is_set():
            with suppress(HoldfastError):
                await self._sample_once(jobs)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._server.stopping.wait(), SAMPLE_SECONDS)

    async def _sample_once(self, jobs: Jobs) -> None:
        engine = jobs.engine
        now, pruned = await engine.now(), await pruned_jobs(engine)
        workers = tuple(await jobs.workers())
        self.samples.take(Sample(now=now, counts=await engine.count(), workers=workers, pruned=pruned))
        await self.lost(jobs)
        async with self._looking:
            found, read = await recorded_losses(engine, self.samples.looked_at, workers, now - REMEMBERED_MS)
            self.samples.meet(await jobs.workers(), found, now)
            self.samples.look_at(read)

    # Pages that need more than the store.

    def place(self, jobs: Jobs) -> str:
        """Return how the store is called: its URL without secrets."""
        return place_of(jobs)

    async def overview(self, jobs: Jobs) -> OverviewPage:
        """Read the overview."""
        self.start(jobs)
        if not self.samples.has_begun:
            await self._sample_once(jobs)
        lost, now = await self.lost(jobs), await jobs.engine.now()
        return await view_overview(jobs, self.place(jobs), self.samples.finished(now), self.samples.money(), lost)

    async def workers(self, jobs: Jobs) -> WorkersPage:
        """Read all workers."""
        return await view_workers_page(jobs, await self.lost(jobs))

    async def worker(self, jobs: Jobs, id: str) -> WorkerPage:
        """Read one worker, or raise NotFound."""
        return await view_worker(jobs, id, await self.lost(jobs))

    async def lost(self, jobs: Jobs) -> list[LostWorker]:
        """Return the workers that were lost in the last hour, as far as this server has looked."""
        async with self._looking:
            now, workers = await jobs.engine.now(), await jobs.workers()
            self.samples.meet(workers, await find_losses(jobs.engine, self.samples.known, workers, now), now)
        return self.samples.lost(now)

    async def navigation(self, jobs: Jobs) -> Navigation:
        """Read the frame around the pages."""
        is_typed = self._server.typed is not None
        return await view_navigation(jobs, self.place(jobs), holdfast.__version__, is_typed)

    async def job(self, jobs: Jobs, id: str) -> JobPage:
        """Read one job as a page."""
        found = await jobs.get(id)
        signature = self._server.signatures(found.type)
        names = () if signature is None else signature.names
        return await view_job_page(jobs, id, await self.usual(jobs, found.type), names)

    async def usual(self, jobs: Jobs, type: str) -> Mapping[str, Usual]:
        """Return how long the stages of a job type usually take. It is read again after USUAL_SECONDS."""
        read_at, found = self._usual.get(type, (0.0, {}))
        if not read_at or time.monotonic() - read_at > USUAL_SECONDS:
            found = await usual_times(jobs, type)
            while len(self._usual) >= TYPES_KEPT:
                del self._usual[next(iter(self._usual))]
            self._usual[type] = (time.monotonic(), found)
        return found


def place_of(jobs: Jobs) -> str:
    """Return how a store is called: the path of its file, or the kind of its server."""
    path = getattr(jobs.engine, "path", None)
    return str(path) if path is not None else jobs.engine.guarantees.name
