"""What a type checker must accept, and what it must know. Checked by tests/test_types.py, never run."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, assert_type

from holdfast import (
    App,
    FollowUp,
    JobEvent,
    JobSignature,
    Limit,
    Retry,
    Throttled,
    ask,
    current,
    progress,
    step,
    wait_for,
)

app = App("memory:")


@dataclass
class Scene:
    title: str


@dataclass
class Image:
    path: str


@step(retries=3, timeout="10m", stale_after=timedelta(minutes=5), key=lambda scene: scene.title)
async def draw(scene: Scene, style: str = "oil") -> Image:
    progress(1, 2, "half")
    return Image(current().idempotency_key)


@step
def narrate(text: str) -> bytes:
    return text.encode()


@step(name="assemble.all", retries=Retry(retries=2, never=("ValueError",)))
def assemble(images: list[Image], audio: bytes) -> str:
    return "film"


@app.job(name="video.make", queue="video", retries=3, timeout="6h", stages=[draw, narrate, "other"], keep="7d")
async def make_video(titles: list[str], tone: str = "calm") -> str:
    scenes = [Scene(title) for title in titles]
    assert_type(await draw(scenes[0]), Image)
    assert_type(await draw(scene=scenes[0], style="ink"), Image)
    assert_type(await draw.map(scenes, at_once=8), list[Image])
    assert_type(await draw.map(Scene(title) for title in titles), list[Image])
    assert_type(await draw.map(scenes, need=2), list[Image | None])
    assert_type(await narrate.aio("a"), bytes)
    assert_type(await narrate.aio.map(titles), list[bytes])
    assert_type(await narrate.aio.map(titles, need=1), list[bytes | None])
    return await assemble.aio(await draw.map(scenes), await narrate.aio(tone))


@app.job
def blocking(title: str) -> str:
    assert_type(narrate("a"), bytes)
    assert_type(narrate.map(["a"]), list[bytes])
    assert_type(narrate.map(["a"], need=0), list[bytes | None])
    assert_type(draw.sync(Scene(title)), Image)
    assert_type(draw.sync.map([Scene(title)]), list[Image])
    return assemble([], b"")


async def asking() -> None:
    run = await make_video.submit(["a"], key="order-42", delay="2h", priority=5, tags=["x"])
    assert_type(await run.result(timeout=60), str)
    assert_type(await (await make_video.submit(["a"], tone="calm")).result(), str)
    assert_type(await (await blocking.submit("a", connection=None)).result(), str)
    assert_type((await run.status()).done, int | None)
    assert_type(await make_video(["a"]), str)
    assert_type(blocking("a"), str)
    for one in await blocking.submit_many(["a", "b"], queue="slow"):
        assert_type(await one.result(), str)
    async with app.worker(at_once=8, queues=["video"]) as worker:
        assert_type(worker.id, str)


def asking_from_blocking_code() -> None:
    run = app.sync.submit(make_video, ["a"], key="k")
    assert_type(run.result(timeout="1m"), str)
    assert_type(app.sync.submit(blocking, "a").result(), str)
    assert_type(app.sync.submit(make_video, ["a"], tone="calm").result(), str)
    assert_type(app.sync.submit(make_video.with_options(key="k"), ["a"], tone="calm").result(), str)
    assert_type(app.sync.submit(blocking.with_options(queue="slow"), "a").result(), str)
    assert_type(app.sync.submit_many(blocking, ["a"], queue="slow")[0].result(), str)
    assert_type(app.sync.submit_many(blocking.with_options(queue="slow"), ["a"])[0].result(), str)


openai = app.limit("openai", at_once=20, rate="500/m", per="{model}", burst=50)
assert_type(openai, Limit)
tokens = app.limit("tokens", rate="200000/m")


@step(limit=openai)
async def limited(model: str, prompt: str) -> str:
    raise Throttled("429", retry_after=30, limit=openai)


@step(limit=[openai, tokens.cost(lambda prompt: 4 * len(prompt))], retries=3)
def limited_twice(model: str, prompt: str) -> int:
    raise Throttled(retry_after="2m")


@app.job(limit=app.limit("customer", at_once=2, per="{customer}"))
async def limited_job(customer: str) -> str:
    assert_type(await limited("gpt", "hi"), str)
    assert_type(await limited_twice.aio("gpt", "hi"), int)
    return "done"


async def asking_with_options() -> None:
    ready = make_video.with_options(key="k", key_for="1d", queue="video", priority=5, delay="2h", tags=["x"])
    assert_type(await (await ready.submit(["a"], tone="calm")).result(), str)
    later = blocking.with_options(expires=timedelta(days=1), meta={"by": "me"}, connection=None)
    assert_type(await (await later.submit(title="a")).result(), str)
    slow = blocking.with_options(queue="slow")
    assert_type(await (await slow.submit_many(["a", "b"]))[0].result(), str)
    assert_type(await slow.map(["a", "b"], at_once=2), list[str])
    assert_type(await slow.map(["a", "b"], need=1), list[str | None])


Choice = Literal["publish", "rewrite"]


@app.job
async def waiting_for_people() -> None:
    assert_type(await ask("a draft", form=Literal["publish", "rewrite"]), Literal["publish", "rewrite"])
    assert_type(await ask("a draft", form=Choice, within="2d"), Choice)
    assert_type(await ask("a draft", form=Scene), Scene)
    assert_type(await ask("a draft", form=Scene | Image | None), Scene | Image | None)
    assert_type(await ask("a draft", form=list[str]), list[str])
    assert_type(await ask("a draft", form=bool), bool)
    assert_type(await wait_for("paid", as_=Literal["card", "cash"]), Literal["card", "cash"])
    assert_type(await wait_for("paid", as_=Scene | None), Scene | None)
    assert_type(await wait_for("paid", as_=int), int)
    assert_type(await wait_for("paid"), Any)


@app.job
def waiting_in_blocking_code() -> None:
    assert_type(ask.sync("a draft", form=Literal["publish", "rewrite"]), Literal["publish", "rewrite"])
    assert_type(ask.sync("a draft", form=Scene), Scene)
    assert_type(wait_for.sync("paid", as_=Literal["card", "cash"]), Literal["card", "cash"])
    assert_type(wait_for.sync("paid", as_=Scene | None), Scene | None)


@app.hook("failed", "review")
def report(event: JobEvent) -> None:
    assert_type(event.job_id, str)
    assert_type(event.duration_seconds, float | None)
    if event.error is not None:
        assert_type(event.error.traceback, str)
    if event.next_at is not None:
        assert_type(event.next_at - event.at, timedelta)


@app.hook("completed")
async def count(event: JobEvent) -> int:
    return event.attempt


def hooks_stay_functions(event: JobEvent) -> None:
    assert_type(report(event), None)


async def async_hooks_stay_functions(event: JobEvent) -> None:
    assert_type(await count(event), int)


async def signatures() -> None:
    ready = make_video.s(["a"], tone="calm")
    assert_type(ready, JobSignature[str])
    assert_type(await (await ready.submit()).result(), str)
    assert_type(make_video.s(), FollowUp[str])
    assert_type(make_video.s(tone="calm"), FollowUp[str])
    assert_type(blocking.with_options(queue="slow").s("a"), JobSignature[str])
    assert_type(blocking.with_options(queue="slow").s(), FollowUp[str])
    assert_type(ready.with_options(key="k", delay="2h"), JobSignature[str])
    assert_type(app.s("resize", 640, {"format": "png"}), JobSignature[Any])
