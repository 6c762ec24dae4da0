"""Maps: items in order, so many at once, all settle, failures listed, equal ones by place."""

import asyncio
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import ItemsFailed, current, step
from holdfast.core.errors import Invalid
from holdfast.core.model import State
from tests.support.given import finished, paths


class Gauge:
    """How many were inside at once. Nobody leaves before so many as are `wanted` have been, or patience is over."""

    def __init__(self, wanted=0):
        self.now = self.most = 0
        self.wanted = wanted
        self.patience = time.monotonic() + 10
        self.lock = threading.Lock()

    def __enter__(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        return self

    def is_short(self):
        return self.most < self.wanted and time.monotonic() < self.patience

    def __exit__(self, *_):
        with self.lock:
            self.now -= 1


GAUGE = Gauge()


@pytest.fixture(autouse=True)
def _fresh():
    global GAUGE
    GAUGE = Gauge()


@step
async def double(n: int) -> int:
    with GAUGE as gauge:
        await asyncio.sleep(0.005)
        while gauge.is_short():  # noqa: ASYNC110 - the others may be in threads, which can't set an asyncio.Event
            await asyncio.sleep(0.001)
    if n < 0:
        raise ValueError(f"{n} is below zero")
    return n * 2


@step
def def_double(n: int) -> int:
    with GAUGE as gauge:
        time.sleep(0.005)
        while gauge.is_short():
            time.sleep(0.001)
    if n < 0:
        raise ValueError(f"{n} is below zero")
    return n * 2


async def aio(items, **options):
    return await def_double.aio.map(items, **options)


async def plain(items, **options):
    return await double.map(items, **options)


async def threads(items, **options):
    return await asyncio.to_thread(lambda: def_double.map(items, **options))


async def sync_view(items, **options):
    return await asyncio.to_thread(lambda: double.sync.map(items, **options))


WAYS = pytest.mark.parametrize("way", [plain, aio, threads, sync_view])


async def inside(app, body):
    """Run a piece of code as a job; its value, or what it raised."""
    answer = []

    async def job() -> None:
        try:
            answer.append(await body())
        except Exception as error:
            answer.append(error)

    run = await app.job(job).submit()
    done = await finished(app, run)
    assert done.state is State.COMPLETED, done.error
    return answer[0], run


@WAYS
@pytest.mark.parametrize("where", ["in a job", "outside"])
async def test_results_come_in_the_items_order_and_so_many_run_at_once(app, way, where):
    GAUGE.wanted = 4

    async def body():
        return await way((n for n in range(20)), at_once=4)

    results = (await inside(app, body))[0] if where == "in a job" else await body()
    assert results == [n * 2 for n in range(20)]
    assert GAUGE.most == 4


@WAYS
async def test_all_items_settle_and_the_failed_ones_are_listed(app, way):
    error, run = await inside(app, lambda: way([1, -2, 3, -4, 5]))

    assert isinstance(error, ItemsFailed)
    assert error.results == [2, None, 6, None, 10]
    assert [(f.index, f.item, str(f.error)) for f in error.failures] == [
        (1, -2, "-2 is below zero"),
        (3, -4, "-4 is below zero"),
    ]
    assert "2 of 5 items failed; first failure: item 2 of 5: ValueError: -2 is below zero" in str(error)
    assert len(await paths(app, run)) == 5


@WAYS
async def test_with_enough_successes_failed_places_hold_none(app, way):
    results, _ = await inside(app, lambda: way([1, -2, 3], need=2))
    assert results == [2, None, 6]
    error, _ = await inside(app, lambda: way([1, -2, 3], need=3))
    assert isinstance(error, ItemsFailed)


async def test_equal_items_are_numbered_by_place_in_threads_too(app):
    @step(name="place")
    def place(n: int) -> str:
        time.sleep(0.001)
        return current().step

    async def body():
        return await asyncio.to_thread(lambda: place.map([7] * 12, at_once=6))

    results, _ = await inside(app, body)
    first = results[0]
    assert results == [first, *(f"{first}#{n}" for n in range(2, 13))]


@WAYS
async def test_an_item_that_does_not_fit_fails_like_any_other(app, way):
    error, _ = await inside(app, lambda: way([1, "two", 3]))
    assert isinstance(error, ItemsFailed)
    assert error.results == [2, None, 6]
    assert "argument 'n'" in str(error.failures[0].error)


@WAYS
async def test_items_that_raise_while_they_are_read_raise_as_they_are(app, way):
    def broken():
        yield 1
        raise OSError("the list ended badly")

    error, _ = await inside(app, lambda: way(broken()))
    assert isinstance(error, OSError)


@WAYS
async def test_no_items_are_no_work(app, way):
    assert (await inside(app, lambda: way([])))[0] == []


async def test_an_empty_map_that_needs_some_fails(app):
    error, _ = await inside(app, lambda: double.map([], need=1))
    assert isinstance(error, ItemsFailed)


async def test_options_that_make_no_sense_are_refused():
    with pytest.raises(Invalid, match="at least 1"):
        await double.map([1], at_once=0)
    with pytest.raises(Invalid, match="0 or more"):
        def_double.map([1], need=-1)


@pytest.mark.parametrize("given", [1.5, "2", True, 0], ids=repr)
async def test_a_number_at_once_that_is_no_whole_number_is_refused_in_every_colour(app, given):
    @app.job
    async def kid(n: int) -> int:
        return n

    words = re.escape(f"map(at_once={given!r}): give how many items may run at once")
    for start in (double.map, def_double.aio.map, kid.map):
        with pytest.raises(Invalid, match=words):
            await start([1], at_once=given)
    for blocking in (def_double.map, double.sync.map):
        with ThreadPoolExecutor(1) as beside, pytest.raises(Invalid, match=words):
            beside.submit(blocking, [1], at_once=given).result()


@pytest.mark.parametrize("given", [1.5, "2", True], ids=repr)
async def test_a_needed_number_that_is_no_whole_number_is_refused(given):
    with pytest.raises(Invalid, match=re.escape(f"map(need={given!r}): give how many items must succeed")):
        await double.map([1], need=given)


async def test_ten_thousand_items(app):
    @step(name="nothing")
    async def nothing(n: int) -> int:
        return n

    async def body():
        return sum(await nothing.map(range(10_000), at_once=100))

    total, run = await inside(app, body)
    assert total == sum(range(10_000))
    assert (await run.status()).steps == 10_000
