"""`holdfast demo`: one job's life on SQLite, shown as it happens. Must not need a server, a network or a question."""

import asyncio
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.core.codec import canonical
from holdfast.core.durations import in_words
from holdfast.core.lifecycle import decide, lost_event
from holdfast.core.model import Applied, Conflict, Entry, Event, Job, State, Step, StepState
from holdfast.engines.contract import Engine
from holdfast.engines.sqlite import SqliteEngine
from holdfast.jobs import Jobs, Order

SCENES = 5
LOST_AFTER = 3
COLOURS = {
    State.AVAILABLE: "cyan",
    State.ACTIVE: "magenta",
    State.COMPLETED: "green",
    State.CANCELLED: "red",
    State.REVIEW: "red",
}


@click.command()
@click.option("--db", type=click.Path(path_type=Path), help="Keep the store in this file, to look at it afterwards.")
def demo(db: Path | None) -> None:
    """Walk one job through its life on SQLite: a worker is lost half-way, another goes on."""
    console = Console(highlight=False)
    if db is not None:
        asyncio.run(_walk(console, db))
        console.print(f"\nThe store is kept in {db}; with a SQLite shell, look at its views jobs and history.")
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        asyncio.run(_walk(console, Path(folder) / "demo.db"))


async def _walk(console: Console, path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    try:
        await _life(console, engine)
    finally:
        await engine.close()


async def _life(console: Console, engine: Engine) -> None:
    jobs = Jobs(engine)
    order = Order(type="video.draw", args=canonical([{"film": "The Lighthouse", "scenes": SCENES}]), queue="demo")
    (accepted,) = await jobs.submit([order])
    _say(console, "caller", f"submitted job {accepted.id}: draw {SCENES} scenes")

    (mine,) = await engine.claim("worker-a", ["demo"], 1)
    _say(console, "worker-a", f"claimed it, epoch {mine.epoch}")
    for scene in range(1, LOST_AFTER + 1):
        await engine.record([_drawn(mine, scene, await engine.now())])
        _say(console, "worker-a", f"drew scene {scene} of {SCENES}; recorded")
    console.print(Text("  worker-a is lost: killed, unplugged, or asleep for too long", style="bold red"))

    kept = await engine.steps(mine.id)
    note = {"lost": "worker-a", "survived": f"{len(kept)} of {SCENES} scenes"}
    rescue = decide(
        mine, lost_event(mine, progressed=True), await engine.now(), by="upkeep", progressed=True, note=note
    )
    await engine.commit([rescue])
    _say(console, "upkeep", f"put it back in its queue; {len(kept)} of {SCENES} scenes survive")

    (again,) = await engine.claim("worker-b", ["demo"], 1)
    _say(console, "worker-b", f"claimed it, epoch {again.epoch}; goes on at scene {len(kept) + 1}")
    for scene in range(len(kept) + 1, SCENES + 1):
        await engine.record([_drawn(again, scene, await engine.now())])
        _say(console, "worker-b", f"drew scene {scene} of {SCENES}; recorded")

    (stale,) = await engine.commit([decide(mine, Event.COMPLETE, await engine.now(), by="worker-a", result="[]")])
    assert isinstance(stale, Conflict)
    console.print(Text(f"  worker-a wakes up and wants to finish: refused, {stale.reason}", style="yellow"))

    pictures = [step.result for step in await engine.steps(again.id)]
    result = "[" + ",".join(picture or "null" for picture in pictures) + "]"
    done = decide(again, Event.COMPLETE, await engine.now(), by="worker-b", result=result)
    (answer,) = await engine.commit([done])
    assert isinstance(answer, Applied)
    _say(console, "worker-b", "completed it")

    job = await jobs.get(again.id)
    console.print()
    console.print(_story(await jobs.history(job.id)))
    console.print(
        f"\n[bold green]{job.state}[/] after {in_words((job.finished_at or 0) - job.created_at)}: "
        f"{SCENES} scenes drawn, 0 drawn twice, {job.epoch} claims, attempt {job.attempt}, "
        f"{job.recoveries} worker lost.\nSee all states and events: holdfast lifecycle"
    )


def _drawn(job: Job, scene: int, now: int) -> Step:
    return Step(
        job=job.id,
        epoch=job.epoch,
        path=f"draw#{scene}",
        name="draw",
        state=StepState.DONE,
        result=canonical(f"scene-{scene}.png"),
        started_at=now,
        finished_at=now,
    )


def _say(console: Console, who: str, what: str) -> None:
    console.print(f"  [dim]{who:9}[/]{what}")


def _story(entries: list[Entry]) -> Table:
    """The history as the store tells it."""
    table = Table(title="What the store has kept of it", title_justify="left", title_style="bold", box=None)
    for heading in ("version", "event", "state", "by", "epoch", "note"):
        table.add_column(heading, header_style="dim", justify="right" if heading in ("version", "epoch") else "left")
    for entry in entries:
        note = ", ".join(f"{name}: {value}" for name, value in entry.note.items())
        state = f"{entry.before} → {entry.after}" if entry.before else f"{entry.after}"
        styled = Text(state, style=COLOURS.get(entry.after, "default"))
        table.add_row(str(entry.version), entry.event, styled, entry.by or "caller", str(entry.epoch), note)
    return table
