"""Makes the stores that upgrades are tried on: one for each engine, made by some version, with jobs in every state.

    python -m tests.engines.upgrades.make FOLDER [--code CHECKOUT]

CHECKOUT is a checkout of the version whose stores are wanted (this one, if it is left out), FOLDER where they go, named
after what they are: `format-1` are stores as commit 488f82d made them. Two processes live with each store, one after
the other, and both are killed: the first leaves active jobs, which the second one rescues and holds until it is killed.
`HOLDFAST_TEST_POSTGRES=system` makes the Postgres store with the system's server: the older it is, the more servers can
load it.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from holdfast import App
from holdfast.core.model import State
from holdfast.jobs.service import JobRequest
from tests.engines.upgrades import stores
from tests.engines.upgrades.jobs import LATER, MAKING, OPEN, build

ROOT = Path(__file__).parents[3]
LIFE_SECONDS = 120.0
WAIT_SECONDS = 60.0

FIRST = {
    "completed": State.COMPLETED,
    "listener": State.PENDING,
    "sleeper": State.SCHEDULED,
    "parent": State.PENDING,
    "painter": State.PENDING,
    "taker": State.PENDING,
    "plain_taker": State.PENDING,
    "giver": State.PENDING,
    "flaky": State.RETRYABLE,
    "stepped": State.ACTIVE,
    "buyer": State.ACTIVE,
    "broken-1": State.REVIEW,
    "broken-2": State.REVIEW,
    "broken-3": State.REVIEW,
}
"""How far the jobs come in the first life."""


async def until(what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something, with a bound."""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await is_so():  # noqa: ASYNC110 (it happens in the store)
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise SystemExit(f"waited too long until {what}") from None


async def reach(app: App, names: dict[str, str], states: dict[str, State]) -> None:
    """Wait until these jobs are in these states."""
    for name, state in states.items():

        async def there(id: str = names[name], state: State = state) -> bool:
            return (await app.jobs.get(id)).state is state

        await until(f"{name} is {state}", there)


async def first_life(url: str, told: Path) -> None:
    """Submit all jobs, and let a worker bring them as far as they come."""
    app, jobs = build(url)
    await app.open()
    names: dict[str, str] = {}

    async def submit(name: str, job: str, *args: object, **options: object) -> None:
        names[name] = (await jobs[job].submit(*args, **options)).id

    await submit("completed", "plain", 1, key="k-1")
    await submit("scheduled", "plain", 2, delay="1h", queue=LATER)
    await submit("available", "plain", 3, queue=LATER, priority=3)
    await submit("first", "plain", 4, queue=LATER, priority=4, key="k-2")
    for name in ("stepped", "parent"):
        await submit(name, name, 3)
    for name in ("listener", "sleeper", "flaky", "buyer", "painter", "taker", "plain_taker", "apart", "giver"):
        await submit(name, name)
    for n, value in enumerate(OPEN):
        await submit(f"open-{n}", "shown", value, queue=LATER)
    for n in (1, 2, 3):
        await submit(f"broken-{n}", "broken", n)
    (staged,) = await app.jobs.submit([JobRequest(type="upgrades.plain", args="[5]", queue=LATER, pending=True)])
    names["staged"] = staged.id
    told.write_text(json.dumps(names, indent=1))  # noqa: ASYNC240 (a small file)
    async with app.worker(at_once=20, queues=["default"], name="w-first"):
        await reach(app, names, FIRST)

        async def recorded() -> bool:
            steps = [step.state for name in ("stepped", "buyer") for step in await app.engine.steps(names[name])]
            apart = [step.state for step in await app.engine.steps(names["apart"]) if step.name == "took_apart"]
            return sorted(steps) == ["done", "done", "started"] and apart == ["done"] * (len(OPEN) + 1)

        await until("the steps are recorded", recorded)
        os.kill(os.getpid(), signal.SIGKILL)


async def second_life(url: str, told: Path) -> None:
    """Rescue what the first life left; then people and callers have their say, and nothing more is claimed."""
    app, _ = build(url)
    await app.open()
    names = json.loads(told.read_text())  # noqa: ASYNC240 (a small file)
    async with app.worker(at_once=20, queues=["default"], name="w-second"):

        async def held() -> bool:
            job = await app.jobs.get(names["stepped"])
            return job.state is State.ACTIVE and job.epoch == 2

        await reach(app, names, {"buyer": State.REVIEW, "apart": State.PENDING})  # its effect is in doubt
        await until("the rescued job is held again", held)
        await app.jobs.pause("default", by="making")
        await app.engine.put_record("note/kept", "kept")
        await app.engine.put_record("note/gone", "gone")
        await app.engine.put_record("note/gone", None)
        await app.jobs.signal(names["listener"], "other", 7)
        await app.jobs.discard(names["broken-3"], by="making", reason="too broken")
        await app.jobs.cancel(names["painter"], by="making")
        os.kill(os.getpid(), signal.SIGKILL)


LIVES = {"first": first_life, "second": second_life}


def make(name: str, folder: Path, code: Path) -> None:
    """Make one engine's store, and put what it holds into the folder."""
    with tempfile.TemporaryDirectory() as place, stores.STORES[name].place(Path(place)) as url:  # type: ignore[attr-defined]
        told, copy = Path(place) / "names.json", Path(place) / "code"
        # Errors keep the places of the code in them: not those of somebody's own files.
        shutil.copytree(code / "src" / "holdfast", copy / "holdfast")
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=lambda folder, names: {"format-1", "__pycache__"})
        for life in LIVES:
            env = os.environ | {"PYTHONPATH": str(copy), MAKING: "1"}
            command = [sys.executable, "-m", "tests.engines.upgrades.make", life, url, str(told)]
            done = subprocess.run(command, env=env, timeout=LIFE_SECONDS, check=False, cwd=copy)
            if done.returncode != -signal.SIGKILL:
                raise SystemExit(f"{name}: the {life} life did not come to its end")
        stores.STORES[name].save(url, folder)  # type: ignore[attr-defined]
        (folder / f"{name}-names.json").write_text(told.read_text() + "\n")


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] in LIVES:
        asyncio.run(LIVES[sys.argv[1]](sys.argv[2], Path(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--code", type=Path, default=ROOT)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in stores.STORES:
        make(name, given.folder, given.code)
        print(name)


if __name__ == "__main__":
    main()
