"""A store with a job in every state, built with the real SQLite engine: what the tests of the verbs begin with."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core.codec import canonical
from holdfast.core.lifecycle import decide
from holdfast.core.model import (
    Applied,
    Error,
    Event,
    Job,
    Options,
    Presence,
    Retry,
    Running,
    State,
    Step,
    StepState,
    Wait,
    WaitKind,
)
from holdfast.engines.sqlite import SqliteEngine
from holdfast.jobs.service import LOG_PATH, JobRequest, Jobs

T = TypeVar("T")

MINUTE = 60_000
STAGES = ("analyse", "narrate", "draw", "animate", "assemble", "check", "publish")
NASTY = "boom [bold]\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}red[/bold]\nsecond line"
"""An error's text that a terminal would obey, and that looks like markup."""


def in_store(path: Path, work: Callable[[Jobs], Awaitable[T]]) -> T:
    """Do something in a store from a test's blocking code."""

    async def within() -> T:
        engine = SqliteEngine(path)
        await engine.open()
        try:
            return await work(Jobs(engine))
        finally:
            await engine.close()

    return asyncio.run(within())


def every_state(path: Path) -> dict[State, str]:
    """Make a store with one job in each state; answer with their ids."""
    return in_store(path, fill)


async def fill(jobs: Jobs) -> dict[State, str]:
    """One job in each state, each in the queue and of the type that its test expects."""
    engine, now = jobs.engine, await jobs.engine.now()
    ids: dict[State, str] = {}
    options = Options(stages=STAGES, retry=Retry(retries=3), tags=("night",), meta={"tenant": "acme"})
    video = JobRequest(type="make_video", queue="video", args=canonical([{"title": "The Lighthouse"}]), options=options)

    async def one(state: State, **more: object) -> Job:
        (accepted,) = await jobs.submit([replace(video, **more)])
        ids[state] = accepted.id
        return await jobs.get(accepted.id)

    async def claimed(state: State, worker: str) -> Job:
        job = await one(state, queue="making")
        (mine,) = await engine.claim(worker, ["making"], 1)
        assert mine.id == job.id
        return mine

    async def commit(job: Job, event: Event, **facts: object) -> None:
        (answer,) = await engine.commit([decide(job, event, now, **facts)])  # type: ignore[arg-type]
        assert isinstance(answer, Applied), answer

    done = await claimed(State.COMPLETED, "w-1")
    await engine.record([step(done, "draw#1", '"scene-1.png"')])
    await commit(done, Event.COMPLETE, by="w-1", result='{"film":"film.mp4"}')

    failed = await claimed(State.REVIEW, "w-1")
    await engine.record([step(failed, f"draw#{n}", f'"scene-{n}.png"') for n in (1, 2, 3)])
    lines = replace(step(failed, LOG_PATH, '["drawing 1","drawing 2 \\u001b[2J"]'), state=StepState.STARTED)
    await engine.record([lines])
    error = Error("ProviderError", NASTY, 'Traceback (most recent call last):\n  File "video.py", line 7\n')
    await commit(failed, Event.EXHAUST, by="w-1", error=error, note={"error": "ProviderError: boom"})

    again = await claimed(State.RETRYABLE, "w-1")
    await commit(again, Event.FAIL, by="w-1", error=Error("Timeout", "slow"), run_at=now + 30 * MINUTE)

    given_up = await claimed(State.DISCARDED, "w-1")
    await commit(given_up, Event.EXHAUST, by="w-1", error=Error("ValueError", "no"))
    # Not `jobs.discard`, which brings along a job that undoes what was made: here is one job for each state.
    await commit(await jobs.get(given_up.id), Event.DISCARD, by="ada", note={"reason": "hopeless"})

    waiting = await claimed(State.PENDING, "w-1")
    await commit(waiting, Event.SUSPEND, by="w-1", waits=(Wait(WaitKind.SIGNAL, "approved", now + 60 * MINUTE),))

    stopped = await one(State.CANCELLED)
    await jobs.cancel(stopped.id, by="ada", reason="wrong brief")

    running = await claimed(State.ACTIVE, "w-live")
    await engine.record([step(running, f"draw#{n}", f'"scene-{n}.png"') for n in range(1, 13)])
    await one(State.SCHEDULED, run_at=now + 120 * MINUTE)
    await one(State.AVAILABLE, key="order-42")
    return ids


def step(job: Job, path: str, result: str) -> Step:
    """A step of a job that is done."""
    at = job.claimed_at or job.created_at
    return Step(
        job=job.id,
        epoch=job.epoch,
        path=path,
        name=path.split("#")[0],
        state=StepState.DONE,
        result=result,
        started_at=at,
        finished_at=at + 1_500,
    )


def presence(running: Job, worker: str = "w-live", at: int = 0) -> Presence:
    """The beat of a worker that draws scene 12 of 30 for a job."""
    doing = Running(
        job=running.id,
        epoch=running.epoch,
        stage="draw",
        done=12,
        total=30,
        made=12,
        text="scene 12",
        since=at - 4 * MINUTE,
    )
    queues = ("making", "video")
    return Presence(worker=worker, host="here", pid=42, queues=queues, slots=8, started_at=at, running=(doing,))


def suspended(
    path: Path,
    asked: dict[str, dict[str, Any]],
    waits: tuple[tuple[Wait, int | None], ...] = (),
    *,
    keeps_slot: bool = False,
) -> str:
    """A job that waits for signals, with the records that a worker leaves; and for other things. Answer with its id.

    `until` in a record, and the number beside a wait, are milliseconds from now. With `keeps_slot` it is still active.
    """

    async def work(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="make_video", queue="asking")])
        (job,) = await jobs.engine.claim("w-1", ["asking"], 1)
        now = await jobs.engine.now()
        ends = {name: None if one.get("until") is None else now + one["until"] for name, one in asked.items()}
        records = [
            replace(
                step(job, f"~wait/{name}", canonical({**one, "name": name, "until": ends[name]})),
                state=StepState.STARTED,
                started_at=now,
                finished_at=None,
            )
            for name, one in asked.items()
        ]
        if keeps_slot:
            await jobs.engine.record(records)
            return job.id
        all_waits = (
            *(Wait(WaitKind.SIGNAL, name, until) for name, until in ends.items()),
            *(replace(wait, until=None if left is None else now + left) for wait, left in waits),
        )
        for group in [wait.name for wait in all_waits if wait.kind is WaitKind.CHILDREN]:
            await jobs.submit([JobRequest(type="draw")], job.lease, groups=[group])
        at_rest = all(wait.kind is WaitKind.TIME for wait in all_waits)
        event, run_at = (Event.REST, all_waits[0].until) if at_rest else (Event.SUSPEND, None)
        change = decide(job, event, now, by="w-1", waits=all_waits, run_at=run_at, steps=tuple(records))
        (answer,) = await jobs.engine.commit([change])
        assert isinstance(answer, Applied), answer
        return job.id

    return in_store(path, work)
