"""Each record says which code made it: comments, formatting and decorators don't count, a changed body does."""

import pytest

from holdfast import App, step
from holdfast.core.reruns import code_of, made_by_other_code
from holdfast.worker.fingerprints import fingerprint, known_code

ENGINES = ["memory", "file", "sqlite", "postgres", "redis"]


def one(x: int) -> int:
    return x + 1


def two(x: int) -> int:
    return x + 2


def test_a_fingerprint_changes_with_the_code_and_with_nothing_else():
    assert fingerprint(one) == fingerprint(one)
    assert fingerprint(one) != fingerprint(two)
    assert len(fingerprint(one)) == 8
    assert fingerprint(step(retries=3, name="measure")(one).spec.function) == fingerprint(one)
    assert fingerprint(len)  # there is no source


@step
async def chisel(block: str) -> str:
    return f"{block}, chiselled"


@step
async def polish(statue: str) -> str:
    return f"{statue}, polished"


async def test_records_keep_it_and_those_of_other_code_are_found(app: App):
    @app.job
    async def statue(block: str) -> str:
        return await polish(await chisel(block))

    async with app.worker():
        run = await statue.submit("marble")
        await run.result(timeout=60)

    records = await app.engine.steps(run.id)
    code = {path.partition("#")[0]: mark for path, mark in code_of(records).items()}
    assert code == {"chisel": fingerprint(chisel.spec.function), "polish": fingerprint(polish.spec.function)}
    assert made_by_other_code(records, known_code()) == []
    (older,) = made_by_other_code(records, {**known_code(), "polish": {"00000000"}})
    assert older.startswith("polish#")


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_step_of_a_name_that_is_gone_counts_as_made_by_this_code(app: App):
    @app.job
    async def statue(block: str) -> str:
        return await polish(await chisel(block))

    async with app.worker():
        run = await statue.submit("marble")
        await run.result(timeout=60)

    assert made_by_other_code(await app.engine.steps(run.id), {}) == []
