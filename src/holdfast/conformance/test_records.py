"""Small records: compare-and-set, versions that are never used again, and names that are compared exactly."""

import pytest

from holdfast.conformance.given import StoreClock
from holdfast.core.errors import Invalid
from holdfast.core.model import OUTRUN, Conflict, Presence, Record
from holdfast.engines.contract import Engine
from holdfast.engines.records import WORKER


async def put(engine: Engine, name: str, value: str | None, expected: int | None = None) -> Record:
    """Write a record that must be accepted."""
    answer = await engine.put_record(name, value, expected)
    assert isinstance(answer, Record), answer
    return answer


async def test_a_record_is_kept_as_it_was_written(engine: Engine, clock: StoreClock) -> None:
    record = await put(engine, "leader", '{"who":"w-1"}')

    assert (record.name, record.value, record.version) == ("leader", '{"who":"w-1"}', 1)
    assert clock.is_now(record.at)
    assert await engine.records("leader") == [record]


async def test_every_write_makes_a_higher_version(engine: Engine, clock: StoreClock) -> None:
    first = await put(engine, "leader", "1")
    second = await put(engine, "leader", "1")
    third = await put(engine, "leader", "2", second.version)

    assert first.version < second.version < third.version
    assert await engine.records("") == [third]


async def test_who_expects_another_version_writes_nothing(engine: Engine, clock: StoreClock) -> None:
    first = await put(engine, "leader", "1")
    second = await put(engine, "leader", "2", first.version)

    for expected in (first.version, second.version + 1, 0):
        for value in ("3", None):
            assert await engine.put_record("leader", value, expected) == Conflict(
                "leader", OUTRUN, version=second.version
            )

    assert await engine.records("") == [second]


async def test_zero_expects_that_there_is_none(engine: Engine, clock: StoreClock) -> None:
    assert await engine.put_record("leader", "1", 7) == Conflict("leader", OUTRUN, version=0)

    record = await put(engine, "leader", "1", 0)

    assert await engine.put_record("leader", "2", 0) == Conflict("leader", OUTRUN, version=record.version)


async def test_a_version_never_comes_back_not_even_after_a_removal(engine: Engine, clock: StoreClock) -> None:
    old = await put(engine, "leader", "1")
    await put(engine, "leader", None, old.version)
    assert await engine.records("") == []
    assert await engine.put_record("leader", "2", old.version) == Conflict("leader", OUTRUN, version=0)

    new = await put(engine, "leader", "2", 0)

    assert new.version > old.version
    # A caller with the old version must not mistake the new record for its own.
    assert await engine.put_record("leader", "3", old.version) == Conflict("leader", OUTRUN, version=new.version)


async def test_removing_twice_does_no_harm(engine: Engine, clock: StoreClock) -> None:
    await put(engine, "leader", "1")
    await put(engine, "leader", None)
    await put(engine, "leader", None)

    assert await engine.records("") == []
    assert (await put(engine, "leader", "2", 0)).value == "2"


async def test_records_are_found_by_the_letters_of_their_names(engine: Engine, clock: StoreClock) -> None:
    names = ["A/x", "a", "a/x", "a/y", "a%/x", "a_/x", "ab/x", "b/ä", "b/z"]
    for name in reversed(names):
        await put(engine, name, "1")

    async def found(prefix: str) -> list[str]:
        return [record.name for record in await engine.records(prefix)]

    assert await found("") == sorted(names)
    assert await found("a/") == ["a/x", "a/y"]
    assert await found("a_") == ["a_/x"]
    assert await found("a%") == ["a%/x"]
    assert await found("A") == ["A/x"]
    assert await found("b/ä") == ["b/ä"]
    assert await found("c") == []


async def test_one_record_changes_no_other(engine: Engine, clock: StoreClock) -> None:
    left, right = await put(engine, "left", "1"), await put(engine, "right", "1")

    await put(engine, "left", "2", left.version)
    await put(engine, "left", None)

    assert await engine.records("") == [right]


async def test_a_presence_is_not_for_others_to_write(engine: Engine, clock: StoreClock) -> None:
    await engine.beat(Presence(worker="w-1"))

    for value in ("{}", None):
        with pytest.raises(Invalid):
            await engine.put_record(WORKER + "w-1", value)

    assert [record.name for record in await engine.records("")] == [WORKER + "w-1"]


async def test_an_empty_text_is_refused(engine: Engine) -> None:
    with pytest.raises(Invalid):
        await engine.put_record("leader", "")

    assert await engine.records("") == []
