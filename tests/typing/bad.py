"""What a type checker must refuse: every line that ends in `# bad`, and no other. Never run."""

from holdfast import App, step

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
    app.sync.submit(draw, 1)  # bad
    print(number, texts, none, result)


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
