"""Plays the demo: a film in seven stages. Its worker is killed half-way, and another worker finishes the film.

Must not need any setup, network or answers. Everything it shows is real: a store, two worker processes, SIGKILL, HTTP.
The figures at the end are measured (`figures`), by the called provider and by the store.
"""

import asyncio
import shlex
import signal
import tempfile
import time
import webbrowser
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
from holdfast.demo.provider import RETRY_AFTER_SECONDS
from holdfast.demo.screen import Screen, View, summary
from holdfast.demo.video import SCENES, app, make_video, provider, storyboard, video_generation
from holdfast.engines.records import WORKER, worker_in
from holdfast.engines.urls import masked
from holdfast.jobs.views.text import short_id

TITLE = "The Lighthouse"
KILL_AFTER = 12
"""The worker is killed when this many images are recorded."""

REJECTED, FEEDBACK = 13, "the hand has six fingers"
"""The image that is rejected once the film is done, and why."""

LOOK_SECONDS = 0.1
DEMO_SECONDS = 180.0
"""A demo that takes longer than this stops with an error."""

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

ITEMS = {storyboard.name: (SCENES, "images"), video_generation.name: (SCENES, "clips")}
STAGES = [(name, *ITEMS.get(name, (1, ""))) for name in make_video.spec.options.stages]
MANY = frozenset(ITEMS)


def run_demo(db: Path | None, url: str | None, svg: Path | None, *, opens: bool = False) -> None:
    """Play the demo in a temporary store or in the given one. Ctrl-C stops all of its processes first.

    With `opens`, a browser shows the dashboard, which stays until Ctrl-C.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder, sigterm_like_ctrl_c():
        path = (db or Path(folder) / "demo.db").absolute()
        app.use(url or f"sqlite:///{quote(str(path))}")
        kept = db is not None or url is not None
        screen = Screen(svg)
        try:
            id = asyncio.run(play(screen, kept, Path(folder), opens))
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


async def play(screen: Screen, kept: bool, folder: Path, opens: bool = False) -> str:
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
            dashboard = await asyncio.to_thread(cast.serve) if opens else ""
            show = Show(cast, screen, dashboard)
            await show.run()
            summarized = await show.summary()
            await show.reject_one()
            screen.end(summarized)
            if opens:
                screen.console.print(f"\n the dashboard is at {dashboard}; press Ctrl-C to end")
                await asyncio.Event().wait()
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

    def __init__(self, cast: Cast, screen: Screen, dashboard: str = "") -> None:
        self._cast = cast
        self._screen = screen
        self._dashboard = dashboard
        self._began = time.monotonic()
        self.id = ""
        self._owners: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._killed: Killed | None = None
        self._resumed = False
        self._closed_until = 0

    async def run(self) -> None:
        """Submit the film and watch it until it ends."""
        self._names = {name: self._cast.number(pid) or 0 for name, pid in (await _pids()).items()}
        run = await make_video.submit(TITLE)
        self.id = run.id
        self._screen.note(self._seconds(), f"submitted job {run.id}")
        if self._dashboard:
            self._screen.note(self._seconds(), f"watch it at {self._dashboard}/jobs/{run.id}")
            await asyncio.to_thread(webbrowser.open, f"{self._dashboard}/jobs/{run.id}")
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

    async def reject_one(self) -> None:
        """Reject one image of the film: what is made again is that image, its clip, and the film."""
        before = len(await asyncio.to_thread(self._cast.calls))
        self._screen.note(self._seconds(), f'image {REJECTED} is rejected: "{FEEDBACK}"', "yellow")
        run = await app.run(self.id)
        again = await run.rerun(f"{storyboard.name}#{REJECTED}", feedback=FEEDBACK)
        await again.result(timeout=DEMO_SECONDS)
        calls = len(await asyncio.to_thread(self._cast.calls)) - before
        kept = len([step for step in await app.engine.steps(self.id) if not step.path.startswith("~")]) - 3
        text = f"the image, its clip and the film are made again: {calls} calls, and {kept} recorded steps are kept"
        self._screen.note(self._seconds(), text, "bold green")

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
        await self._tell_closed()
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

    async def _tell_closed(self) -> None:
        """Say when the provider has asked to slow down."""
        until = max((one.closed_until for one in await app.engine.usage(provider.name)), default=0)
        if until > self._closed_until:
            self._closed_until = until
            text = f"the provider is busy (429): no worker calls it for {RETRY_AFTER_SECONDS} s; this costs no try"
            self._screen.note(self._seconds(), text, "yellow")

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
