"""Every act of the Postgres engine with a request or its reply lost at every round trip: safe to repeat.

A trap is set at the first round trip of an act, then at the second, and so on, until the act gets by without springing
it; each time the act is repeated as its caller would, and what the store holds is compared with what it must hold.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from holdfast.conformance.given import (
    HOUR,
    WAITS_FOR_GO,
    StoreClock,
    change,
    children,
    claimed,
    current,
    job,
    signal,
    step,
)
from holdfast.core.errors import StoreError
from holdfast.core.model import (
    Applied,
    Conflict,
    Event,
    Inserted,
    Lease,
    Options,
    Presence,
    Record,
    Recorded,
    Running,
    State,
    Where,
)
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.topics import job_topic, queue_topic
from tests.support.proxy import Proxy

CLOCK = StoreClock(settable=False)
ROUND_TRIPS = 40
"""No act takes so many."""

Act = Callable[[], Awaitable[Any]]


@pytest.fixture(scope="module")
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(urlsplit(postgres_url).port or 5432) as proxy:
        yield proxy


@pytest.fixture(params=["plain", "pooled"])
def url(request: pytest.FixtureRequest, postgres_store: str, proxy: Proxy) -> str:
    """A store by way of the proxy: with notifications and prepared statements, and without."""
    return proxy.through(postgres_store) + ("&pooler=transaction" if request.param == "pooled" else "")


@pytest.fixture(params=["reply", "request"])
def lost(request: pytest.FixtureRequest) -> str:
    """What is lost."""
    return str(request.param)


class Trial:
    """An engine behind a proxy, and traps on its way."""

    def __init__(self, engine: PostgresEngine, proxy: Proxy, lost: str) -> None:
        self.engine, self._proxy, self._lost = engine, proxy, lost
        self.told: set[str] = set()
        """What callers were told of the doubt, once the reason in brackets is taken away."""

    async def repeated(self, nth: int, act: Act) -> tuple[list[Any], bool]:
        """Do an act whose nth round trip is cut, and repeat it until it is answered: all answers, and was it cut."""
        getattr(self._proxy, f"lose_{self._lost}")(nth)
        for _ in range(3):
            try:
                answer = await asyncio.wait_for(act(), 10)
            except StoreError as error:
                self.told.add(str(error).partition(" (")[2].rpartition(")")[2])
                continue
            return answer, self._proxy.disarm()
        raise AssertionError("was not answered in three tries")

    async def everywhere(self, life: Callable[[int], Awaitable[bool]]) -> int:
        """Live a small life with the trap at each place; how many were cut."""
        for nth in range(1, ROUND_TRIPS):
            if not await life(nth):
                assert nth > 1, "nothing was ever cut"
                return nth - 1
        raise AssertionError("the trap was sprung every time")


@pytest.fixture
def trial(url: str, proxy: Proxy, lost: str, run: Any) -> Iterator[Trial]:
    engine = PostgresEngine(url)
    run(engine.open())
    trial = Trial(engine, proxy, lost)
    yield trial
    proxy.disarm()
    run(engine.close())
    assert trial.told <= {"; writes in progress may or may not have been stored"}


async def versions(engine: PostgresEngine, id: str) -> list[str]:
    """The events of a job, whose history has no gap."""
    entries = await engine.history(id)
    assert [entry.version for entry in entries] == list(range(1, len(entries) + 1))
    [found] = await engine.get([id])
    assert found is not None
    assert (found.version, found.state) == (entries[-1].version, entries[-1].after)
    return [entry.event for entry in entries]


async def recounted(engine: PostgresEngine) -> None:
    """What is counted is what is there."""
    found: dict[tuple[str, State], int] = {}
    after = ""
    while page := await engine.find(Where(), after):
        for one in page:
            found[one.queue, one.state] = found.get((one.queue, one.state), 0) + 1
        after = page[-1].id
    assert await engine.count() == found


def test_an_insert(trial: Trial, run: Any):
    engine = trial.engine

    async def life(nth: int) -> bool:
        new = [job(CLOCK, key=f"k{nth}"), job(CLOCK)]
        answer, cut = await trial.repeated(nth, lambda: engine.insert(new))
        assert [one.id for one in answer] == [one.id for one in new]
        assert [await versions(engine, one.id) for one in new] == [["submit"]] * 2
        [again] = await engine.insert([job(CLOCK, key=f"k{nth}", args=new[0].args, digest=new[0].digest)])
        assert again == Inserted(new[0].id, False), "the key stands for the one job"
        return cut

    run(trial.everywhere(life))
    run(recounted(engine))


def test_an_insert_of_children(trial: Trial, run: Any):
    engine = trial.engine

    async def life(nth: int) -> bool:
        parent = await claimed(engine, CLOCK)
        new = [job(CLOCK, parent=parent.id, group="g", key=f"{nth}-{n}") for n in range(3)]
        answer, cut = await trial.repeated(nth, lambda: engine.insert(new, parent.lease))
        assert [one.id for one in answer] == [one.id for one in new]
        assert await engine.missing(parent.id, "g") == 3
        assert len(await engine.find(Where(parent=parent.id))) == 3
        return cut

    run(trial.everywhere(life))
    run(recounted(engine))


def test_a_claim(trial: Trial, run: Any):
    """What a claim took whose answer was lost is told with the next beat, so its worker can give it back."""
    engine = trial.engine

    async def life(nth: int) -> bool:
        queue, worker = f"q{nth}", f"w-{nth}"
        new = [job(CLOCK, queue=queue) for _ in range(6)]
        await engine.insert(new)
        held, cut = await trial.repeated(nth, lambda: engine.claim(worker, [queue], 3))
        running = tuple(Running(one.id, one.epoch) for one in held)
        told = await engine.beat(Presence(worker=worker, running=running))
        taken = {(one.id, one.epoch) for one in held} | {(lease.job, lease.epoch) for lease in told.stray}
        found = {(one.id, one.epoch) for one in await engine.find(Where(queue=queue, states=(State.ACTIVE,)))}
        assert taken == found
        assert len(held) + len(told.stray) == len(taken), "nobody is in both"
        assert {epoch for _, epoch in taken} == {1}
        for one in await engine.get([lease.job for lease in told.stray]):
            [gone] = await engine.commit([change(CLOCK, one, Event.RELEASE)])  # type: ignore[arg-type]
            assert isinstance(gone, Applied)
        rest = await engine.claim(worker, [queue], 6)
        assert {one.id for one in rest} | {one.id for one in held} == {one.id for one in new}
        return cut

    run(trial.everywhere(life))
    run(recounted(engine))


@pytest.mark.parametrize("apart", [0, 1])
def test_a_turn(trial: Trial, run: Any, apart: int):
    """Ends and a claim are one act: when its answer is lost, both were done or neither; a beat tells what it took."""
    engine = trial.engine

    async def life(nth: int) -> bool:
        queue, worker, now = f"q{nth}", f"w-{nth}", CLOCK.now
        held = [await claimed(engine, CLOCK, worker) for _ in range(2)]
        await engine.insert([job(CLOCK, queue=queue) for _ in range(6)])
        made = [change(CLOCK, one, Event.COMPLETE, by=worker, at=now + place * apart) for place, one in enumerate(held)]
        (answers, got), cut = await trial.repeated(nth, lambda: engine.turn(made, worker, [queue], 3))
        assert all(isinstance(one, Applied) or (cut and one.version == 3) for one in answers)
        assert [await versions(engine, one.id) for one in held] == [["submit", "claim", "complete"]] * 2
        told = await engine.beat(Presence(worker=worker, running=tuple(Running(one.id, one.epoch) for one in got)))
        taken = [*(one.lease for one in got), *told.stray]
        found = await engine.find(Where(queue=queue, states=(State.ACTIVE,)))
        assert {one.lease for one in found} == set(taken)
        assert len(found) == len(taken)
        return cut

    run(trial.everywhere(life))
    run(recounted(engine))


@pytest.mark.parametrize("cargo", ["light", "steps", "signal", "child", "undo", "suspend"])
def test_a_commit(trial: Trial, run: Any, cargo: str):
    """Repeated, it is refused as what has been done already, or does it; once in any case."""
    engine = trial.engine

    async def life(nth: int) -> bool:
        parent = await claimed(engine, CLOCK)
        [held] = await children(engine, CLOCK, parent, 1)
        match cargo:
            case "light":
                held = parent
                made = change(CLOCK, held, Event.COMPLETE)
            case "steps":
                held = parent
                made = change(CLOCK, held, Event.COMPLETE, steps=(step(held, "a"), step(held, "b")))
            case "signal":
                held = parent
                made = signal(CLOCK, held)
            case "child":
                made = change(CLOCK, held, Event.COMPLETE)
            case "undo":
                held = parent
                made = change(CLOCK, held, Event.CANCEL, inserts=(job(CLOCK, parent=held.id, group="undo"),))
            case _:
                held = parent
                made = change(CLOCK, held, Event.SUSPEND, waits=WAITS_FOR_GO)
        [answer], cut = await trial.repeated(nth, lambda: engine.commit([made]))
        if isinstance(answer, Conflict):
            assert cut, "nobody else has touched it"
            assert answer.version == held.version + 1
        else:
            assert answer.version == held.version + 1
        assert await versions(engine, held.id) == ["submit", "claim", made.event]
        after = await current(engine, held)
        assert after.state is made.job.state
        match cargo:
            case "steps":
                assert [one.path for one in await engine.steps(held.id)] == ["a", "b"]
            case "signal":
                assert [one.name for one in after.inbox] == ["go"]
            case "child":
                assert await engine.missing(parent.id, "g") == 0
                assert after.arrived
            case "undo":
                assert await engine.missing(held.id, "undo") == 1
        return cut

    run(trial.everywhere(life))
    run(recounted(engine))


def test_a_record(trial: Trial, run: Any):
    engine = trial.engine

    async def life(nth: int) -> bool:
        held = await claimed(engine, CLOCK)
        steps = [step(held, "a"), step(held, "b"), step(held, "a")]
        answer, cut = await trial.repeated(nth, lambda: engine.record(steps))
        assert answer == [Recorded(one, True) for one in steps], "ours stand, whoever asks again"
        assert await engine.steps(held.id) == steps[:2]
        [other] = await engine.record([step(held, "a", result='"another"')])
        assert other == Recorded(steps[0], False)
        return cut

    run(trial.everywhere(life))


def test_a_record_document(trial: Trial, run: Any):
    """A conflict is told only when somebody else was faster, or we ourselves were before: the version says which."""
    engine = trial.engine

    async def life(nth: int) -> bool:
        name, tries = f"r{nth}", []

        async def put() -> Any:
            tries.append(nth)
            return await engine.put_record(name, "ours", 0)

        answer, cut = await trial.repeated(nth, put)
        [kept] = await engine.records(name)
        assert (kept.value, kept.version) == ("ours", 1)
        if isinstance(answer, Conflict):
            assert len(tries) > 1, "who was told nothing of a doubt is told the truth"
            assert answer.version == 1
        else:
            assert answer == kept  # type: ignore[comparison-overlap]
        removed, _ = await trial.repeated(nth, lambda: engine.put_record(name, None, 1))
        assert isinstance(removed, Record | Conflict)
        assert await engine.records(name) == []
        return cut

    run(trial.everywhere(life))


def test_a_beat(trial: Trial, run: Any):
    engine = trial.engine

    async def life(nth: int) -> bool:
        worker = f"w-{nth}"
        held = await claimed(engine, CLOCK, worker)
        named = Presence(worker=worker, running=(Running(held.id, held.epoch), Running("gone", 1)))
        told, cut = await trial.repeated(nth, lambda: engine.beat(named))
        assert (told.lost, told.stray, told.cancelled) == (("gone",), (), ())  # type: ignore[attr-defined]
        left, cut_too = await trial.repeated(nth, lambda: engine.beat(Presence(worker=worker, leaving=True)))
        assert left.stray == (Lease(held.id, held.epoch),)  # type: ignore[attr-defined]
        assert await engine.records(f"worker/{worker}") == []
        return cut or cut_too

    run(trial.everywhere(life))


def test_a_prune(trial: Trial, run: Any):
    engine = trial.engine
    kept: list[str] = []

    async def life(nth: int) -> bool:
        old = await claimed(engine, CLOCK, options=Options(keep_ms=0))
        young = await claimed(engine, CLOCK, options=Options(keep_ms=HOUR))
        kept.append(young.id)
        await engine.commit([change(CLOCK, one, Event.COMPLETE) for one in (old, young)])
        await asyncio.sleep(0.002)
        engine._days_at = -1e9  # so that days are looked after each time
        number, cut = await trial.repeated(nth, lambda: engine.prune())
        assert number in (0, 1)  # type: ignore[comparison-overlap]
        assert await engine.get([old.id]) == [None]
        assert all(await engine.get(kept))
        return cut

    run(trial.everywhere(life))
    run(recounted(engine))


def test_a_look(trial: Trial, run: Any):
    """Reads are repeated by the engine itself: one lost reply is nobody's trouble."""
    engine = trial.engine

    async def looks() -> None:
        held = await claimed(engine, CLOCK)
        await engine.record([step(held, "a")])
        await engine.put_record("r", "1")
        asked: dict[str, Act] = {
            "get": lambda: engine.get([held.id]),
            "find": lambda: engine.find(Where(states=(State.ACTIVE,))),
            "count": engine.count,
            "steps": lambda: engine.steps(held.id),
            "history": lambda: engine.history(held.id),
            "missing": lambda: engine.missing(held.id, "g"),
            "records": lambda: engine.records("r"),
        }
        for name, look in asked.items():
            said = await look()
            for nth in range(1, 4):
                getattr(trial._proxy, f"lose_{trial._lost}")(nth)
                assert await asyncio.wait_for(look(), 10) == said, name
                trial._proxy.disarm()

    run(looks())


def test_a_wait_whose_connection_is_cut_ends_by_itself_or_with_the_news(url: str, proxy: Proxy, run: Any):
    async def wait() -> None:
        one, two = PostgresEngine(url), PostgresEngine(url)
        await one.open()
        await two.open()
        topics = [queue_topic("default")]
        mark = await one.wait(topics, 0)
        waits = asyncio.ensure_future(one.wait(topics, 20, mark))
        await asyncio.sleep(0.2)
        assert proxy.cut()
        while True:
            try:
                await two.insert([job(CLOCK)])
                break
            except StoreError:
                continue
        await asyncio.wait_for(waits, 5)
        assert len(await one.claim("w-1", ["default"], 5)) == 1
        await one.close()
        await two.close()

    run(wait())


def test_a_server_that_hangs_is_given_up_by_the_beat_within_its_bound(
    url: str, proxy: Proxy, run: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("holdfast.engines.postgres.liveness.BEAT_SECONDS", 0.5)

    async def beats() -> None:
        engine = PostgresEngine(url)
        await engine.open()
        await engine.beat(Presence(worker="w-1"))
        proxy.hold()
        try:
            with pytest.raises(StoreError, match="timed out"):
                await asyncio.wait_for(engine.beat(Presence(worker="w-1")), 5)
        finally:
            proxy.release()
        told = await asyncio.wait_for(engine.beat(Presence(worker="w-1")), 5)
        assert msgspec.json.encode(told)
        await engine.close()

    run(beats())


def test_a_late_listen_on_a_server_that_hangs_keeps_beats_waiting_no_longer_than_a_beat(
    postgres_store: str, proxy: Proxy, run: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("holdfast.engines.postgres.liveness.BEAT_SECONDS", 0.5)

    async def listens() -> None:
        engine = PostgresEngine(proxy.through(postgres_store))
        await engine.open()
        held = await claimed(engine, CLOCK)
        await engine.wait([queue_topic("default")], 0)
        await engine.beat(Presence(worker="w-1"))
        proxy.hold()
        try:
            await asyncio.wait_for(engine.wait([job_topic(held.id)], 0.1), 5)  # told as "nothing yet", not as an error
        finally:
            proxy.release()
        await asyncio.wait_for(engine.beat(Presence(worker="w-1")), 5)
        await engine.close()

    run(listens())
