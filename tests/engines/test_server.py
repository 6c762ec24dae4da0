"""The laws that engines on a server share: who is taken for dead, the server's clock, a beat's answer, coming back."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.core.errors import StoreClosed
from holdfast.core.model import Beat, Lease, Presence, Running
from holdfast.engines import engine_for, server
from holdfast.engines import loop_thread as hub
from holdfast.engines.liveness import (
    ALWAYS,
    SILENT_LEASES,
    beat_answer,
    beat_records,
    has_missed,
    is_excused,
    is_past,
    is_suspect,
    worker_records,
)
from holdfast.engines.records import PAUSE, QUIET
from holdfast.engines.server import CLOCK_SECONDS, CLOCK_SET_MS, ServerClock, come_back
from tests.support.proxy import Proxy

NOW = 1_000_000
BEAT, LEASE = 2_000, 15_000
LATE = BEAT + BEAT // 8
"""A beat that is no older than this is not missed."""


def silent_for(milliseconds: int, **given: Any) -> Presence:
    return Presence("w", beat_at=NOW - milliseconds, **{"beat_ms": BEAT, "lease_ms": LEASE, **given})


@pytest.mark.parametrize(
    ("silent_ms", "beat_ms", "missed"),
    [
        (0, 2_000, False),
        (2_000, 2_000, False),
        (2_250, 2_000, False),  # an eighth of the pace may be noise
        (2_251, 2_000, True),
        (300, 200, False),  # and a tenth of a second always
        (301, 200, True),
    ],
)
def test_a_beat_is_missed_when_it_is_later_than_noise_explains(silent_ms: int, beat_ms: int, missed: bool):
    assert has_missed(silent_for(silent_ms, beat_ms=beat_ms), NOW) is missed


SUSPECTS = [
    # silent for, watched for, steady for, shown: suspect, excused; why
    (LATE, ALWAYS, ALWAYS, True, False, False, "no beat is missed"),
    (LATE + 1, ALWAYS, ALWAYS, False, True, False, "no trouble is known of"),
    (LATE + 1, 0, ALWAYS, False, True, False, "that we are new is no trouble"),
    (LATE + 1, 0, LEASE, False, True, False, "the store has been steady for a lease"),
    (LATE + 1, 0, LEASE - 1, False, False, False, "a young server, and we are younger: no sign was seen here"),
    (LATE + 1, 0, LEASE - 1, True, True, False, "a young server, but it showed us its sign"),
    (LATE + 1, LATE + 1, LEASE - 1, False, False, False, "its beat was just before we watched"),
    (LATE + 1, LATE + 2, LEASE - 1, False, True, False, "it beat while we watched"),
    (LATE + 1, LATE, LATE, False, False, True, "cut off together with it"),
    (LATE + 1, LATE, LATE, True, True, True, "excused, but its sign was here since"),
    (LATE + 1, LATE + 1, LATE + 1, False, False, False, "its last beat is as old as the trouble"),
    (LEASE + 1, LEASE, LEASE, False, True, True, "a lease after the trouble nothing protects it, and it is excused"),
    (LATE + 1, LATE + 1, 0, False, False, True, "the store is away"),
]


@pytest.mark.parametrize(("silent_ms", "watched_ms", "steady_ms", "shown", "suspect", "excused", "why"), SUSPECTS)
def test_silence_is_death_only_where_a_sign_would_be_there(
    silent_ms: int, watched_ms: float, steady_ms: float, shown: bool, suspect: bool, excused: bool, why: str
):
    one = silent_for(silent_ms)

    assert is_suspect(one, NOW, watched_ms, steady_ms, shown=shown) is suspect, why
    assert is_excused(one, NOW, steady_ms) is excused, why


@pytest.mark.parametrize(
    ("one", "past"),
    [
        (silent_for(0), False),
        (silent_for(0, gone=True), True),
        (silent_for(SILENT_LEASES * LEASE), False),
        (silent_for(SILENT_LEASES * LEASE + 1), True),
    ],
)
def test_a_trace_is_kept_until_the_worker_is_gone_or_long_silent(one: Presence, past: bool):
    assert is_past(one, NOW) is past


def test_workers_are_shown_by_their_names_beginning():
    shown = worker_records([Presence("a-1", beat_at=7), Presence("b-1", beat_at=8)], "worker/b")

    assert [(one.name, one.version, one.at) for one in shown] == [("worker/b-1", 0, 8)]


# The answer to a beat.


def test_a_beat_tells_what_is_no_longer_held_what_is_held_unnamed_and_what_is_paused():
    named = (Running("kept", 1), Running("cancelled", 1), Running("outrun", 1), Running("lost", 1))
    presence = Presence("w", queues=("a", "b"), running=named)
    held = {"unnamed": 4, "outrun": 2, "kept": 1}

    assert beat_records(presence) == [PAUSE + "a", PAUSE + "b", QUIET + "w"]
    assert beat_answer(presence, NOW, held, {"cancelled", "kept"}, {PAUSE + "b"}) == Beat(
        now=NOW,
        cancelled=("cancelled",),
        lost=("outrun", "lost"),
        stray=(Lease("outrun", 2), Lease("unnamed", 4)),
        paused=("b",),
    )
    assert beat_answer(presence, NOW, held, (), {QUIET + "w"}).quiet


# The clock.


class Server:
    """A server's clock, and our own beside it."""

    def __init__(self) -> None:
        self.here, self.there, self.asked = 100.0, NOW, 0

    def pass_by(self, seconds: float) -> None:
        self.here += seconds
        self.there += int(seconds * 1_000)

    async def ask(self) -> int:
        self.asked += 1
        return self.there


def test_the_servers_clock_is_followed_by_our_own_and_asked_now_and_then(run: Any):
    there = Server()
    clock = ServerClock(lambda: there.here)

    async def body() -> None:
        for seconds, asked in ((0.0, 1), (1.25, 1), (CLOCK_SECONDS - 1.25, 1), (0.25, 2), (1.0, 2)):
            there.pass_by(seconds)
            assert await clock.now(there.ask) == there.there
            assert there.asked == asked

    run(body())


def test_of_several_answers_the_one_that_came_the_shortest_way_counts(run: Any):
    there = Server()
    clock = ServerClock(lambda: there.here)

    async def body() -> None:
        clock.note(NOW)
        clock.note(NOW - 100)  # was on its way for longer
        assert await clock.now(there.ask) == NOW
        clock.note(NOW + 3)  # a shorter way than the first
        assert await clock.now(there.ask) == NOW + 3
        assert not there.asked

    run(body())


def test_a_clock_that_was_set_back_is_believed(run: Any):
    there = Server()
    clock = ServerClock(lambda: there.here)

    async def body() -> None:
        clock.note(NOW)
        clock.note(NOW - CLOCK_SET_MS)
        assert await clock.now(there.ask) == NOW - CLOCK_SET_MS
        there.there = 7
        clock.forget()
        assert await clock.now(there.ask) == 7

    run(body())


# Coming back.


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RETRY_SECONDS", (0.0, 0.0))


def test_coming_back_tries_until_it_works_and_says_the_first_trouble(no_pauses: None, run: Any):
    tries, said = iter([OSError("first"), OSError("second"), OSError("third"), None]), list[Any]()

    async def connect() -> None:
        if (error := next(tries)) is not None:
            raise error

    async def body() -> bool:
        async with asyncio.timeout(10):
            return await come_back(connect, lambda: False, said.append)

    assert run(body())
    assert [str(error) for error in said] == ["first"]


def test_coming_back_ends_when_nobody_wants_it_any_more(no_pauses: None, run: Any):
    tried: list[int] = []

    async def connect() -> None:
        tried.append(1)
        raise OSError("away")

    async def body() -> bool:
        async with asyncio.timeout(10):
            return await come_back(connect, lambda: len(tried) == 3, lambda error: None)

    assert not run(body())
    assert len(tried) == 3


@pytest.mark.parametrize("store", ["postgres_store", "redis_store"])
def test_a_close_on_a_silent_network_answers_who_waits(
    store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hub, "CLOSE_SECONDS", 2.0)
    url = request.getfixturevalue(store)

    async def live() -> None:
        with Proxy(urlsplit(url).port or 0) as proxy:
            engine = engine_for(proxy.through(url))
            await engine.open()
            await asyncio.gather(*(engine.get(["nobody"]) for _ in range(5)))
            proxy.hold()
            asked = [asyncio.ensure_future(engine.get(["nobody"])) for _ in range(20)]
            await asyncio.sleep(0.05)
            await engine.close()
            async with asyncio.timeout(5):
                told = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(one) for one in told} == {StoreClosed}
            assert "was closed; writes in progress may or may not have been stored" in str(told[0])

    asyncio.run(live())
