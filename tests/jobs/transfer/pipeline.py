"""A store with some of everything in it, made by a real App and a real worker: what the tests of moving begin with."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast import App, ask, step, wait_for
from holdfast.core.lifecycle import decide
from holdfast.core.model import Applied, Change, Error, Event, Job, Options, Retry, State, Step, StepState, Where
from holdfast.engines import engine_for
from holdfast.jobs.service import JobRequest, Jobs
from tests.support.given import QUICK, until

T = TypeVar("T")

HOUR = 3_600_000
SCENES = [f"scene-{n}" for n in range(1, 7)]
KEEP_NOTHING = Options(keep_ms=0)
OOPS = Error("ProviderError", "no", "Traceback …")

drawn: list[str] = []
"""The scenes that were drawn in this process, in order: the effect that must not happen twice."""

stuck: set[str] = set()
"""Scenes whose drawing takes until the test has ended."""


@step
async def draw(scene: str) -> str:
    if scene in stuck:
        await asyncio.sleep(HOUR)
    drawn.append(scene)
    return f"{scene}.png"


@step(undo=lambda result: None)
async def rent(what: str) -> str:
    return what


class Pipeline:
    """The App under test, on a store."""

    def __init__(self, url: str) -> None:
        self.app = app = App(url, settings=QUICK)

        @app.job(queue="video", keep="7d")
        async def make_video(scenes: list[str]) -> list[str]:
            return await draw.map(scenes, at_once=1)

        @app.job(queue="asking")
        async def publish(title: str) -> str:
            return f"{title}: {await ask(title, form=bool, within='2d')}"

        @app.job(queue="children")
        async def review_scene(scene: str) -> str:
            return f"{scene} {await wait_for(scene, as_=str)}" if scene == "late" else scene

        @app.job(queue="parents")
        async def review_all(scenes: list[str]) -> list[str]:
            return await review_scene.map(scenes)

        self.make_video, self.publish, self.review_all = make_video, publish, review_all


async def in_pipeline(url: str, work: Callable[[Pipeline], Awaitable[T]]) -> T:
    """Do something with the App on a store, and close it."""
    pipeline = Pipeline(url)
    await pipeline.app.open()
    try:
        return await work(pipeline)
    finally:
        await pipeline.app.close()


async def fill(pipeline: Pipeline) -> dict[str, str]:
    """Jobs in every state, and all that belongs to jobs; answers with the ids of those that a test asks for."""
    app, engine, jobs = pipeline.app, pipeline.app.engine, pipeline.app.jobs
    ids: dict[str, str] = {}
    stuck.add("scene-4")
    video = await pipeline.make_video.submit(SCENES, key="order-42")
    question = await pipeline.publish.submit("The Pier")
    parent = await pipeline.review_all.submit(["early", "late", "first"])
    ids |= {"video": video.id, "question": question.id, "parent": parent.id}

    async with app.worker(at_once=4):
        await until(lambda: drawn == SCENES[:3])
        for run in (question, parent):
            await until(lambda run=run: _is(jobs, run.id, State.PENDING))
        [late] = await until(lambda: _children_waiting(jobs, parent.id))
        ids["late"] = late.id
    stuck.clear()
    assert (await jobs.get(video.id)).state is State.AVAILABLE  # handed over when its worker stopped
    assert await engine.missing(parent.id, (await jobs.get(late.id)).group or "") == 1

    now = await engine.now()
    for place, priority in enumerate((0, 5, 0, 5, 0)):  # equal in all but the order of insertion
        await jobs.submit([JobRequest(type="line", queue="line", args=f"[{place}]", priority=priority)])
    await jobs.submit([JobRequest(type="later", queue="later", run_at=now + HOUR)])
    signalled = (await jobs.submit([JobRequest(type="later", queue="later", run_at=now + HOUR)]))[0].id
    await jobs.signal(signalled, "hurry", {"by": "Ada"})
    ids["signalled"] = signalled
    await jobs.pause("later", by="ada", reason="provider is down")
    await engine.put_record("leader/old", "1")
    await engine.put_record("leader/old", None)

    failed = await _claimed(jobs, "fails", options=Options(retry=Retry(retries=1)))
    await _commit(jobs, decide(failed, Event.FAIL, now, by="w-1", run_at=now + HOUR, error=OOPS))
    edited = await _claimed(jobs, "edited", key="order-43")
    await _commit(jobs, decide(edited, Event.EXHAUST, now, by="w-1", error=OOPS))
    await jobs.replay(edited.id, args='["other"]', by="ada")
    ids["edited"] = edited.id
    for name in ("reviewed", "discarded"):
        held = await _claimed(jobs, name)
        await engine.record([_step(held, "a", StepState.FAILED)])
        await _commit(jobs, decide(held, Event.EXHAUST, now, by="w-1", error=OOPS))
    await jobs.discard(held.id, by="ada", reason="hopeless")
    done = await _claimed(jobs, "done")
    await _commit(jobs, decide(done, Event.COMPLETE, now, by="w-1", result='"ok"', steps=(_step(done, "a"),)))

    # Cancelled while it ran, with something to undo: its undo waits for a word of its owner, who is dead.
    rented = await _claimed(jobs, "rented")
    await engine.record([_step(rented, "rent#1", StepState.STARTED)])
    await jobs.cancel(rented.id, by="ada", reason="wrong brief")

    gone = await _claimed(jobs, "gone", key="order-1", key_until=now + HOUR, options=KEEP_NOTHING)
    await _commit(jobs, decide(gone, Event.COMPLETE, now, by="w-1", result="1"))
    assert await engine.prune() == 1
    ids["gone"] = gone.id
    return ids


async def _is(jobs: Jobs, id: str, state: State) -> bool:
    return (await jobs.get(id)).state is state


async def _children_waiting(jobs: Jobs, parent: str) -> list[Job]:
    children = await jobs.engine.find(Where(parent=parent))
    waiting = [child for child in children if child.state is State.PENDING]
    return waiting if sum(child.arrived for child in children) == 2 else []


async def _claimed(jobs: Jobs, name: str, **more: Any) -> Job:
    await jobs.submit([JobRequest(type=name, queue=f"own-{name}", **more)])
    [job] = await jobs.engine.claim("w-1", [f"own-{name}"], 1)
    return job


async def _commit(jobs: Jobs, change: Change) -> None:
    [answer] = await jobs.engine.commit([change])
    assert isinstance(answer, Applied), answer


def _step(job: Job, path: str, state: StepState = StepState.DONE) -> Step:
    at = job.claimed_at or 0
    plain = Step(job=job.id, epoch=job.epoch, path=path, name="rent", state=state, started_at=at)
    if state is StepState.DONE:
        return replace(plain, result='"image"', finished_at=at + 5)
    return plain if state is StepState.STARTED else replace(plain, error=OOPS, finished_at=at + 5)


async def in_engine(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Do something with the engine of a store, and close it."""
    engine = engine_for(url)
    await engine.open()
    try:
        return await work(engine)
    finally:
        await engine.close()
