"""The events of one job: its history entry by entry, and its progress. One reader for each followed job.

The id of an event is the entry's version: who comes back with Last-Event-ID gets each entry once. Progress has no id;
only the latest counts.
"""

import asyncio
from collections.abc import AsyncGenerator

from msgspec import Struct

from holdfast.core.errors import HoldfastError, Invalid, NotFound
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Entry, State, Time
from holdfast.engines.topics import job_topic
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.pages.job import StoryEntry
from holdfast.jobs.views.pages.lines import sentence_of
from holdfast.jobs.views.pages.story import story_entries
from holdfast.jobs.views.shapes import Shape, entry_shape, status_shape
from holdfast.server.api.watch import AWAY_SECONDS, LOOK_SECONDS, Trouble
from holdfast.server.site import Site
from holdfast.server.streams import event

WAIT_SECONDS = 5.0
"""How long to wait for a wake-up while the job doesn't run."""

ENTRIES_KEPT = 256
"""How many of the newest entries a reader keeps. A follower that is further behind reads the store itself."""


class JobEvent(Struct, frozen=True, kw_only=True):
    """One entry of a job's history, as it is stored and as a sentence."""

    entry: Shape
    story: StoryEntry


class ProgressEvent(Struct, frozen=True, kw_only=True):
    """How far a job is: its status, and the same as a sentence."""

    sentence: str
    status: Shape


class Feed:
    """The newest events of one job, for all who follow it. Owned by one event loop."""

    def __init__(self, jobs: Jobs, id: str) -> None:
        self._jobs, self._id = jobs, id
        self.followers = 0
        self.version = 0
        self._kept: list[tuple[int, bytes]] = []
        self._progress = (0, b"")
        self._trouble = b""
        self._end: bytes | None = None
        self._newer = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """Yield every entry after a version, in order, and the latest progress; until the job has ended."""
        self.followers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._read())
        at, shown, troubled = after, 0, b""
        try:
            while True:
                newer = self._newer
                if at < self.version and self._kept and self._kept[0][0] > at + 1:
                    older = await self._older(at)
                    for version, chunk in older or ():
                        yield chunk
                        at = version
                    if older is None:
                        await asyncio.sleep(AWAY_SECONDS)
                    if older or older is None:
                        continue  # without an older one, the job is gone: what is kept is all there is
                for version, chunk in [one for one in self._kept if one[0] > at]:
                    yield chunk
                    at = version
                if self._trouble != troubled:
                    troubled = self._trouble
                    if troubled:
                        yield troubled
                if self._progress[0] > shown:
                    shown = self._progress[0]
                    yield self._progress[1]
                if self._end is not None and at >= self.version:
                    yield self._end
                    return
                if self._task.done():
                    return  # the reader failed; who comes back starts another one
                if newer is self._newer:
                    await newer.wait()
        finally:
            self.followers -= 1
            if not self.followers:
                self._task.cancel()

    @property
    def is_left(self) -> bool:
        """Whether somebody followed it and nobody does any more."""
        return self._task is not None and not self.followers

    async def _older(self, after: int) -> list[tuple[int, bytes]] | None:
        """Read entries that are no longer kept here; None while the store can't be reached."""
        try:
            now = await self._jobs.engine.now()
            return [(one.version, _entry_event(one, now)) for one in await self._jobs.engine.history(self._id, after)]
        except (HoldfastError, OSError):
            return None

    def _tell(self) -> None:
        self._newer.set()
        self._newer = asyncio.Event()

    async def _read(self) -> None:
        mark, shown = 0, None
        while True:
            try:
                job = await self._jobs.get(self._id)
                if not self.version:
                    self.version = max(0, job.version - ENTRIES_KEPT)
                while page := await self._jobs.engine.history(self._id, self.version):
                    self._keep(page, await self._jobs.engine.now())
                self._trouble = b""
                status = await self._jobs.status(self._id)
                if status.progress() != shown:
                    shown = status.progress()
                    value = ProgressEvent(sentence=sentence_of(status), status=status_shape(status))
                    self._progress = (self._progress[0] + 1, event(value, name="progress"))
                if status.state in TERMINAL and status.version <= self.version:
                    self._end = event({"state": status.state}, name="end")
                    return
                self._tell()
                busy = status.state is State.ACTIVE
                mark = await self._jobs.engine.wait([job_topic(self._id)], LOOK_SECONDS if busy else WAIT_SECONDS, mark)
            except NotFound as error:
                self._end = event(Trouble("not_found", str(error)), name="gone")
                return
            except (HoldfastError, OSError) as error:
                detail = str(error) if isinstance(error, HoldfastError) else "the store can't be reached"
                self._trouble = event(Trouble("store_unavailable", detail), name="trouble")
                self._tell()
                await asyncio.sleep(AWAY_SECONDS)
            finally:
                self._tell()

    def _keep(self, page: list[Entry], now: Time) -> None:
        self._kept = [*self._kept, *((one.version, _entry_event(one, now)) for one in page)][-ENTRIES_KEPT:]
        self.version = page[-1].version


def _entry_event(one: Entry, now: Time) -> bytes:
    [story] = story_entries([one], now)
    return event(JobEvent(entry=entry_shape(one), story=story), name="entry", id=one.version)


class Feeds:
    """The jobs that are followed at a server, each with its one reader."""

    def __init__(self, site: Site) -> None:
        self._feeds: dict[str, Feed] = {}

    def follow(self, jobs: Jobs, id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Follow the events of a job after a version of its history."""
        self._feeds = {one: feed for one, feed in self._feeds.items() if not feed.is_left}
        return self._feeds.setdefault(id, Feed(jobs, id)).follow(after)


def version_in(text: str | None) -> int:
    """Return the version that a Last-Event-ID names; 0 without one. Raises Invalid."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise Invalid(f"Last-Event-ID {text[:40]!r}: give the id of an event, a whole number")
    return int(text)
