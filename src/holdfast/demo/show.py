"""Plays the demo: a film in seven stages. Its worker is killed half-way, and another worker finishes the film.

Must not need any setup, network or answers. Everything it shows is real: a store, two worker processes, SIGKILL, HTTP.
The figures at the end are measured (`figures`), by the called provider and by the store.
"""

import asyncio
import shlex
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from rich.console import RenderableType
from rich.text import Text

from holdfast.core.errors import HoldfastError
from holdfast.core.lifecycle import SETTLED, TERMINAL
from holdfast.core.model import Job, State, Step, Where
from holdfast.demo.cast import START_SECONDS, WORKERS, Cast
from holdfast.demo.figures import Figures, Killed, measure, recorded
from holdfast.demo.screen import Screen, View, summary
from holdfast.demo.video import SCENES, app, make_video, storyboard, video_generation
from holdfast.engines.records import WORKER, worker_in
from holdfast.engines.urls import masked
from holdfast.jobs.views.text import short_id

TITLE = "The Lighthouse"
KILL_AFTER = 12
"""The worker is killed when this many images are recorded."""

LOOK_SECONDS = 0.1
DEMO_SECONDS = 180.0
"""A demo that takes longer than this stops with an error."""

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

ITEMS = {storyboard.name: (SCENES, "images"), video_generation.name: (SCENES, "clips")}
STAGES = [(name, *ITEMS.get(name, (1, ""))) for name in make_video.spec.options.stages]
MANY = frozenset(ITEMS)


def run_demo(db: Path | None, url: str | None, svg: Path | None) -> None:
    """Play the demo in a temporary store or in the given one. Ctrl-C stops all of its processes first."""
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder, sigterm_like_ctrl_c():
        path = (db or Path(folder) / "demo.db").absolute()
        app.use(url or f"sqlite:///{quote(str(path))}")
        kept = db is not None or url is not None
        screen = Screen(svg)
        try:
            id = asyncio.run(play(screen, kept, Path(folder)))
        except KeyboardInterrupt:
            screen.console.print("\nstopped; all processes of the demo have ended")
            raise
        hint = f" inspect the store: holdfast show {short_id(id)} --url {shlex.quote(masked(app.url))}"
        if not kept:
            hint = " the store was temporary; to inspect one afterwards, run holdfast demo --db demo.db"
        screen.console.print(Text(hint, style="dim"), soft_wrap=True)


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """Make SIGTERM act like Ctrl-C, so that everything is stopped."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def play(screen: Screen, kept: bool, folder: Path) -> str:
    """Play the whole demo. Return the job's id."""
    await app.open()
    try:
        await _sweep()
        place = app.place() if kept else "in a temporary file"
        with Cast(app.url, folder) as cast, screen:
            screen.head(
                [
                    f'holdfast demo: "{TITLE}", a film in {len(STAGES)} stages',
                    f"store {place}, {WORKERS} workers, a pretend provider on 127.0.0.1:{cast.port}",
                ]
            )
            await _workers_are_up(cast)
            show = Show(cast, screen)
            await show.run()
            screen.end(await show.summary())
            return show.id
    finally:
        await app.close()


async def _sweep() -> None:
    """Cancel what an interrupted demo left in a permanent store."""
    async for job in app.jobs.walk(Where(type=make_video.type)):
        if job.state not in TERMINAL:
            await app.jobs.cancel(job.id, by="demo", reason="left by an earlier demo")


async def _workers_are_up(cast: Cast) -> None:
    until = time.monotonic() + START_SECONDS
    while sum(cast.number(pid) is not None for pid in (await _pids()).values()) < WORKERS:
        cast.check(None)
        if time.monotonic() > until:
            raise HoldfastError(
                f"demo: the workers didn't start within {START_SECONDS:g} s; is this machine very busy?"
            )
        await asyncio.sleep(LOOK_SECONDS)


async def _pids() -> dict[str, int]:
    """Return the process id of each worker, by its name."""
    presences = [worker_in(one) for one in await app.engine.records(WORKER)]
    return {presence.worker: presence.pid for presence in presences}


class Show:
    """One run of the demo: watches the job, shows it, and kills its worker once."""

    def __init__(self, cast: Cast, screen: Screen) -> None:
        self._cast = cast
        self._screen = screen
        self._began = time.monotonic()
        self.id = ""
        self._owners: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._killed: Killed | None = None
        self._resumed = False

    async def run(self) -> None:
        """Submit the film and watch it until it ends."""
        self._names = {name: self._cast.number(pid) or 0 for name, pid in (await _pids()).items()}
        run = await make_video.submit(TITLE)
        self.id = run.id
        self._screen.note(self._seconds(), f"submitted job {run.id}")
        while True:
            job = await app.jobs.get(self.id)
            steps = await app.engine.steps(self.id)
            self._cast.check(None if self._killed is None else self._killed.worker)
            await self._tell(job, steps)
            if job.state in SETTLED:
                break
            if self._seconds() > DEMO_SECONDS:
                raise HoldfastError(f"demo: not finished after {DEMO_SECONDS:g} s; is this machine very busy?")
            await asyncio.sleep(LOOK_SECONDS)
        if job.state is not State.COMPLETED or self._killed is None:
            why = f"{job.error.type}: {job.error.message}" if job.error else "it ended before the kill"
            raise HoldfastError(f"demo: the film didn't complete ({job.state}): {why}")

    async def figures(self) -> Figures:
        """Return what was measured, once the job has ended."""
        calls = await asyncio.to_thread(self._cast.calls)
        return measure(calls, await app.engine.steps(self.id), self._killed, MANY)

    async def summary(self) -> RenderableType:
        """Return the summary."""
        job = await app.jobs.get(self.id)
        assert self._killed is not None
        seconds = ((job.finished_at or 0) - job.created_at) / 1_000
        return summary(await self.figures(), self._killed, seconds, job.epoch, job.attempt)

    async def _tell(self, job: Job, steps: Sequence[Step]) -> None:
        """Show the progress, and kill the worker when the time has come."""
        owner = self._names.get(job.worker or "")
        if owner is not None:
            self._owners.setdefault(job.epoch, owner)
        images = len(recorded(steps, storyboard.name))
        if self._killed is None and owner and job.state is State.ACTIVE and images >= KILL_AFTER:
            self._kill(job, owner, images)
        calls = await asyncio.to_thread(self._cast.calls)
        if self._killed is not None and not self._resumed:
            figures = measure(calls, steps, self._killed, MANY)
            if figures.lost_seconds is not None and owner is not None:
                self._resumed = True
                text = f"worker {owner} continues with the next image, {figures.lost} later"
                self._screen.note(self._seconds(), text, "bold green")
        for name, total, noun in STAGES:
            self._tell_stage(name, total, noun, len(recorded(steps, name)))
        self._screen.show(
            View(
                stages=STAGES,
                pids=[worker.pid for worker in self._cast.workers],
                steps=steps,
                calls=calls,
                owners=self._owners,
                owner=owner,
                killed=self._killed,
                over=job.state in SETTLED,
            )
        )

    def _tell_stage(self, name: str, total: int, noun: str, done: int) -> None:
        """Print a line for each finished stage, and for every sixth item."""
        every = max(1, total // 5)
        if done // every > self._told.get(name, 0):
            self._told[name] = done // every
            self._screen.step(self._seconds(), f"{name}: {done} of {total} {noun}" if total > 1 else f"{name}: done")

    def _kill(self, job: Job, owner: int, images: int) -> None:
        pid = self._cast.workers[owner - 1].pid
        self._killed = Killed(at=time.time(), worker=owner, pid=pid, epoch=job.epoch, image=images)
        self._cast.kill(owner)
        text = f"worker {owner} is killed: SIGKILL to process {pid}; {images} of {SCENES} images are recorded"
        self._screen.note(self._seconds(), text, "bold red")

    def _seconds(self) -> float:
        return time.monotonic() - self._began
