"""Jobs for the dashboard's tests: a pipeline in stages, a question, an effect in doubt, a failure."""

import asyncio
import logging
import os
from typing import Literal

from pydantic import BaseModel, Field

from holdfast import App, ask, progress, spend, step, wait_for

SECONDS = float(os.environ.get("SAMPLE_SECONDS", "0.15"))

log = logging.getLogger("sample")

app = App()


@step
async def script(title: str) -> int:
    """Cut the text into scenes."""
    spend(usd=0.04)
    return len(title)


@step
async def image(number: int) -> str:
    """Draw one scene."""
    spend(usd=0.08)
    await asyncio.sleep(SECONDS)
    log.info("scene %s is drawn", number)
    return f"images/{number:02}.png"


@step
async def film(images: list[str]) -> str:
    """Put it together."""
    await asyncio.sleep(SECONDS)
    return "film.mp4"


@app.job(queue="video", stages=[script, image, film])
async def make_video(title: str, scenes: int = 12) -> str:
    """Make a film in three stages."""
    await script(title)
    return await film(await image.map(range(1, scenes + 1), at_once=3))


class Cover(BaseModel):
    """What a person decides."""

    cover: Literal["A", "B", "C"] = Field(description="Which of the three drafts?")
    copies: int = Field(10, ge=1, le=50)
    note: str | None = Field(None, max_length=500)


@app.job(queue="books")
async def write_book(title: str) -> str:
    """Ask for a cover."""
    answer = await ask("Which cover shall the book have?", form=Cover, within="2d")
    return f"{title}, cover {answer.cover}, {answer.copies} copies"


@app.job(queue="books")
async def wait_for_approval(title: str) -> str:
    """Wait for a signal."""
    return str(await wait_for("approved", as_=str, within="2d"))


@step(effect="once", key=lambda order: order)
async def send_invoice(order: int) -> str:
    """Send it, slowly."""
    await asyncio.sleep(60)
    return "sent"


@app.job(queue="mail", retries=0)
async def bill(order: int) -> str:
    """Send an invoice once."""
    return await send_invoice(order)


class ContentRefused(Exception):
    """The provider doesn't want to."""


@app.job(queue="film", retries=0)
async def publish(title: str, rating: int) -> str:
    """Fail unless the rating is low."""
    if rating > 12:
        raise ContentRefused(f"{title} is refused: {rating}")
    return f"{title} is public"


@app.job(queue="plain", retries=0)
async def echo(value: str) -> str:
    """Return what it gets."""
    return value


quoting = app.limit("quoting", at_once=4, per="{customer}")


@app.job(queue="quotes", limit=quoting, budget={"usd": 5})
async def quote(customer: str) -> str:
    """Spend a part of its budget, and wait."""
    log.warning("asking the printer for %s", customer)
    await price(customer)
    return str(await wait_for("accepted", as_=str, within="2d"))


@step
async def price(customer: str) -> int:
    """Ask what it costs."""
    spend(usd=2)
    return len(customer)


app.schedule("0 9 1 1 *", job=quote.s("everybody"), name="new year", tz="Europe/Berlin")


@app.job(queue="plain", retries=0)
async def hostile(text: str) -> str:
    """Say this text wherever code can say something, ask with it, and fail with it."""
    log.error(text)
    progress(1, 3, text=text)
    await echoed(text)
    await ask(text, form=str, within="2d")
    raise ContentRefused(text)


@step(key=lambda text: text)
async def echoed(text: str) -> str:
    """Record it."""
    return text


class Size(BaseModel):
    """How large the cover is."""

    width: int = Field(ge=1, description="In millimetres.")
    height: int = Field(ge=1)


class Print(BaseModel):
    """What a printer needs: a nested model that must be there."""

    size: Size
    pages: list[int] = []
    colours: dict[str, int] = {}


@app.job(queue="books")
async def print_book(title: str) -> str:
    """Ask how to print it."""
    answer = await ask("How shall it be printed?", form=Print, within="2d")
    return f"{title}, {answer.size.width} by {answer.size.height}"
