"""Arguments without a hint: a record answers whatever they are, a step gets tuples as tuples, and the rest is refused.

Older versions took arguments that JSON gives back as another type. What they recorded is played here by a first attempt
that gives a call what JSON makes of its arguments: the record is the same.
"""

from datetime import UTC, datetime
from decimal import Decimal

import pydantic
import pytest

from holdfast import JobFailed, current, step
from holdfast.core.model import Event, State
from tests.support.given import AT_ONCE_RETRY, entry_of, finished, in_state
from tests.worker.isolation import isolated_steps

CALLS: list[object] = []


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


class Size(pydantic.BaseModel):
    width: int


OPEN = [
    ((1, 2), [1, 2]),
    ([{"at": (1, 2)}], [{"at": [1, 2]}]),
    (b"ab", "YWI="),
    ({1: 2}, {"1": 2}),
    (Decimal("1.5"), "1.5"),
    (datetime(2026, 3, 1, tzinfo=UTC), "2026-03-01T00:00:00Z"),
    ({1}, [1]),
    (Size(width=1), {"width": 1}),
]
"""Values that JSON gives back as others, and as which."""

open_values = pytest.mark.parametrize(("value", "as_json"), OPEN, ids=[type(value).__name__ for value, _ in OPEN])
tupled = pytest.mark.parametrize("value", [(1, 2), ((1,), [2, (3,)]), {"at": (1, 2)}, [()]], ids=str)


@step
async def took(value, more=(1, 2), last=0):
    CALLS.append(value)
    return "ran"


@step
def took_plainly(value):
    CALLS.append(value)
    return "ran"


@step(key=lambda value: "one")
async def took_by_key(value):
    CALLS.append(value)
    return "ran"


@step(effect="once", key=lambda value: "one")
async def paid(value):
    CALLS.append(value)
    raise ConnectionError("is it paid?")


def is_first() -> bool:
    return current().attempt == 1


WAYS = {
    "async": lambda value: took(value),
    "by key": lambda value: took_by_key(value),
    "def": lambda value: took_plainly.aio(value),
    "map": lambda value: took.map([value]),
    "def map": lambda value: took_plainly.aio.map([value]),
}
ISOLATED = {
    "isolated": lambda value: isolated_steps.shown.aio(value),
    "isolated map": lambda value: isolated_steps.shown.aio.map([value]),
}


@open_values
@pytest.mark.parametrize("way", WAYS)
async def test_a_recorded_call_is_answered_from_its_record_whatever_its_arguments_are(app, way, value, as_json):
    async def job() -> object:
        made = await WAYS[way](as_json if is_first() else value)
        if is_first():
            raise ConnectionError("again")
        return made

    run = await app.job(retries=AT_ONCE_RETRY)(job).submit()
    await finished(app, run)

    assert await run.result() in ("ran", ["ran"])
    assert [as_json] == CALLS
    assert (await run.status()).attempt == 2


@pytest.mark.parametrize("way", ISOLATED)
async def test_so_is_that_of_an_isolated_step(app, way):
    async def job() -> list[object]:
        made = [await ISOLATED[way](pair[is_first()]) for pair in OPEN[1:]]
        if is_first():
            raise ConnectionError("again")
        return made

    run = await app.job(retries=AT_ONCE_RETRY)(job).submit()
    await finished(app, run)
    told = [repr(as_json) for _, as_json in OPEN[1:]]
    assert await run.result() == (told if way == "isolated" else [[one] for one in told])


@open_values
async def test_a_def_job_is_answered_from_the_record_too(app, value, as_json):
    def job() -> list[str]:
        given = as_json if is_first() else value
        made = [took_plainly(given), *took_plainly.map([given, given]), took.sync(given)]
        if is_first():
            raise ConnectionError("again")
        return made

    run = await app.job(retries=AT_ONCE_RETRY)(job).submit()
    await finished(app, run)

    assert await run.result() == ["ran"] * 4
    assert [as_json] * 4 == CALLS


@open_values
async def test_a_step_under_an_old_name_is_found_by_such_arguments(app, value, as_json):
    @step(name="drew")
    async def drew(value):
        CALLS.append(value)
        return "drew"

    @step(name="drawn", was="drew")
    async def drawn(value):
        raise AssertionError("it is recorded under its old name")

    async def job() -> str:
        if not is_first():
            return await drawn(value)
        await drew(as_json)
        raise ConnectionError("again")

    run = await app.job(retries=AT_ONCE_RETRY)(job).submit()
    await finished(app, run)
    assert await run.result() == "drew"
    assert [as_json] == CALLS


@open_values
async def test_an_effect_in_doubt_stays_in_doubt_whatever_its_arguments_are(app, value, as_json):
    async def job() -> str:
        return await paid(as_json if current().epoch == 1 else value)

    run = await app.job(retries=AT_ONCE_RETRY)(job).submit()
    async with app.worker():
        await in_state(app, run, State.REVIEW)
        await run.resolve_step("paid#one", "it is paid")
        assert await run.result(10) == "it is paid"
    assert [as_json] == CALLS


@open_values
async def test_a_child_that_was_submitted_is_found_by_such_arguments(app, value, as_json):
    @app.job(name="child")
    async def child(value) -> str:
        CALLS.append(value)
        return "ran"

    @app.job(retries=AT_ONCE_RETRY)
    async def parent() -> list[str]:
        given = as_json if is_first() else value
        runs = [await child.submit(given), *await child.submit_many([(given,)])]
        made = [await run.result() for run in runs]
        made += await child.map([given], key=lambda _: "mapped")
        made += await child.map([given])
        if is_first():
            raise ConnectionError("again")
        return made

    run = await parent.submit()
    await finished(app, run)
    assert await run.result() == ["ran"] * 4
    assert [as_json] * 4 == CALLS


# Calls that are not recorded.


@tupled
async def test_a_step_of_either_colour_gets_a_tuple_as_a_tuple_in_each_try(app, value):
    @step(name="spoil", retries=AT_ONCE_RETRY)
    async def spoil(value, more=(1, [2]), last=0):
        CALLS.append((value, more))
        more[1].append(3)
        if len(CALLS) == 1:
            raise ConnectionError("again")

    async def job() -> None:
        await spoil(value, last=1)
        await took_plainly.aio(value)
        await took.map([value])

    more = (1, [2, 3])
    run = await app.job(job).submit()
    await finished(app, run)
    assert [value, value] == CALLS[2:]
    assert [(value, more), (value, more)] == CALLS[:2]


@pytest.mark.parametrize("value", [value for value, _ in OPEN[2:]], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("way", WAYS)
async def test_a_new_call_with_another_value_is_refused_in_one_line_that_names_the_hint(app, way, value):
    async def job() -> None:
        await WAYS[way](value)

    run = await app.job(retries=AT_ONCE_RETRY)(job).submit()
    with pytest.raises(
        JobFailed, match=r"argument 'value' of \w+: .* would come back as .*; add a type hint, such as "
    ):
        async with app.worker():
            await run.result(10)
    assert CALLS == []


@pytest.mark.parametrize("way", [*ISOLATED, "child", "child map"])
async def test_a_tuple_is_refused_where_it_comes_back_from_the_store(app, way):
    @app.job(name="child")
    async def child(value) -> str:
        return "ran"

    ways = ISOLATED | {"child": lambda value: child.submit(value), "child map": lambda value: child.map([value])}

    async def job() -> None:
        await ways[way]((1, 2))

    run = await app.job(job).submit()
    refusal = r"argument 'value' of \w+: a tuple would come back as a list; add a type hint, such as tuple\[int, int\]"
    with pytest.raises(JobFailed, match=refusal):
        async with app.worker():
            await run.result(10)


async def test_a_tuple_as_default_is_told_from_another_one_as_before(app):
    async def job() -> list[str]:
        if is_first():
            await took(1)
            raise ConnectionError("again")
        return [await took(1, (1, 2))]

    run = await app.job(retries=AT_ONCE_RETRY)(job).submit()
    await finished(app, run)
    assert CALLS == [1]
    assert "drift" not in (await entry_of(run, Event.COMPLETE)).note
