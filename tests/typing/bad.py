"""What a type checker must refuse: every line that ends in `# bad`, and no other. Never run."""

from typing import Literal

from holdfast import App, JobEvent, ask, step, wait_for

app = App("memory:")


@step
async def draw(n: int, style: str = "oil") -> str:
    return style * n


@step
def narrate(text: str) -> bytes:
    return text.encode()


@step
async def both(a: int, b: int) -> int:
    return a + b


@app.job
async def job(n: int) -> str:
    return str(n)


@app.job
def def_job(n: int) -> str:
    return str(n)


async def wrong() -> None:
    await draw("one")  # bad
    await draw(1, style=2)  # bad
    await draw()  # bad
    await draw(1, size=3)  # bad
    await narrate("a")  # bad
    await narrate.aio(1)  # bad
    await draw.map(["a"])  # bad
    await draw.map([1], at_most=3)  # bad
    await draw.map([1], need="all")  # bad
    await narrate.aio.map([1])  # bad
    await both.map([1])  # bad
    narrate.map([b"a"])  # bad
    draw.sync("one")  # bad
    draw.sync.map(["a"])  # bad
    draw.aio(1)  # bad
    narrate.sync("a")  # bad
    number: int = await draw(1)  # bad
    texts: list[int] = await draw.map([1])  # bad
    none: list[str] = await draw.map([1], need=1)  # bad
    await job("one")  # bad
    await def_job(1)  # bad
    result: int = await (await job.submit(1)).result()  # bad
    await job.submit(1, priority="high")  # bad
    await job.submit(1, delay=[2])  # bad
    await job.submit("one")  # bad
    await job.submit()  # bad
    await job.submit(1, kye="k")  # bad
    await def_job.submit(1, 2)  # bad
    await job.with_options(key="k").submit("one")  # bad
    await job.with_options(key="k").submit(1, priority=2)  # bad
    await job.with_options(key="k").submit()  # bad
    await def_job.with_options(key="k").submit("one")  # bad
    job.with_options(kye="k")  # bad
    job.with_options(priority="high")  # bad
    job.with_options(key="k", delay=[2])  # bad
    await job.with_options(queue="slow").map(["one"])  # bad
    await job.submit_many([1], key="k")  # bad
    wrong_result: int = await (await job.with_options(key="k").submit(1)).result()  # bad
    app.sync.submit(draw, 1)  # bad
    app.sync.submit(job, "one")  # bad
    app.sync.submit(job, 1, kye="k")  # bad
    app.sync.submit(job.with_options(key="k"), "one")  # bad
    app.sync.submit(job.with_options(key="k"), 1, priority=2)  # bad
    print(number, texts, none, result, wrong_result)


@step(retrys=3)  # bad
async def misspelt() -> None: ...


@step(undo="delete it")  # bad
async def no_function() -> None: ...


async def children() -> None:
    numbers: list[int] = await job.map([1])  # bad
    await job.map(["one"])  # bad
    print(numbers)


@app.job(retries="three")  # bad
async def three() -> None: ...


@app.job(stage=[draw])  # bad
async def one_stage() -> None: ...


@step(limit="openai")  # bad
async def limited_by_name() -> None: ...


app.limit("openai", at_once="20")  # bad
app.limit("openai", rate=500)  # bad
app.limit("openai", atonce=20)  # bad
app.limit("tokens", rate="500/m").cost(5)  # bad


async def answers() -> None:
    number: int = await ask("a draft", form=Literal["publish", "rewrite"])  # bad
    other: Literal["burn"] = await ask("a draft", form=Literal["publish", "rewrite"])  # bad
    text: str = await ask("a draft", form=str | None)  # bad
    paid: int = await wait_for("paid", as_=Literal["card", "cash"])  # bad
    blocking: int = ask.sync("a draft", form=Literal["publish", "rewrite"])  # bad
    print(number, other, text, paid, blocking)


@app.hook("fialed")  # bad
def misspelt_event(event: JobEvent) -> None: ...


@app.hook  # bad
def no_event(event: JobEvent) -> None: ...


@app.hook("failed")  # bad
def takes_text(event: str) -> None: ...


@app.hook("failed")  # bad
async def takes_nothing() -> None: ...


@app.hook("failed")
def reads(event: JobEvent) -> None:
    text: str = event.error  # bad
    event.attempt = 3  # bad
    print(text, event.result)  # bad


async def signatures() -> None:
    job.s("one")  # bad
    job.s(1, 2)  # bad
    job.s(m=1)  # bad
    job.with_options(queue="slow").s("one")  # bad
    job.with_options(kye="k").s(1)  # bad
    job.s(1).with_options(priority="high")  # bad
    await job.s().submit()  # bad
    number: int = await (await job.s(1).submit()).result()  # bad
    print(number)
