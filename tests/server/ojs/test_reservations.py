"""When a worker over HTTP counts as lost, and what becomes of its job."""

from typing import Any

import pytest

from holdfast.core.model import Job
from holdfast.core.reservations import RESERVATION_MS
from holdfast.engines import engine_for
from holdfast.upkeep.keeper import SOON_SECONDS, Keeper
from holdfast.upkeep.rescue import Rescue
from tests.server.ojs.given import Client, a_client, fetched, submitted


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds


class Upkeep:
    """The leader's upkeep, which has been watching for a while."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._rescue = Rescue(client.engine, lease_seconds=15)
        self._clock = clock

    @property
    def ends_in_ms(self) -> int | None:
        return self._rescue.ends_in_ms

    async def look(self) -> list[Job]:
        return await self._rescue.end_reservations("keeper", await self._rescue.snapshots.take())

    async def advance(self, milliseconds: int) -> list[Job]:
        """Let time pass, looking often, as the upkeep does."""
        found: list[Job] = []
        for _ in range(milliseconds // 1_000):
            self._clock.advance(1_000)
            found += await self.look()
        return found


@pytest.mark.parametrize(
    ("asked", "options", "lasts_ms"),
    [
        ({}, {}, RESERVATION_MS),
        ({"visibility_timeout_ms": 5_000}, {}, 5_000),
        ({}, {"visibility_timeout_ms": 7_000}, 7_000),
        ({"visibility_timeout_ms": 5_000}, {"visibility_timeout_ms": 7_000}, 5_000),
        ({"worker_id": "w", "heartbeat_interval_ms": 2_000}, {}, 6_000),
        ({"worker_id": "w", "heartbeat_interval": 2}, {"visibility_timeout_ms": 60_000}, 6_000),
    ],
)
async def test_a_job_comes_back_when_its_reservation_is_over(asked: Any, options: Any, lasts_ms: int):
    clock = Clock()
    async with a_client(clock=clock) as client:
        upkeep = Upkeep(client, clock)
        await upkeep.look()
        id = await submitted(client, queue="q", **options)
        await fetched(client, "q", **asked)

        assert await upkeep.advance(lasts_ms - 1_000) == []
        assert [job.id for job in await upkeep.advance(2_000)] == [id]

        job = (await client.get(f"/jobs/{id}"))["job"]
        assert (job["state"], job["attempt"], job["error"]["type"]) == ("available", 1, "visibility_timeout")
        assert (await fetched(client, "q"))["attempt"] == 2


@pytest.mark.parametrize("sign", ["heartbeat", "step", "checkpoint", "progress"])
async def test_every_sign_of_life_starts_the_reservation_anew(sign: str):
    clock = Clock()
    async with a_client(clock=clock) as client:
        upkeep = Upkeep(client, clock)
        await upkeep.look()
        id = await submitted(client, queue="q")
        await fetched(client, "q", worker="w", visibility_timeout_ms=5_000)

        for number in range(3):
            assert await upkeep.advance(4_000) == []
            match sign:
                case "heartbeat":
                    await client.post("/workers/heartbeat", {"worker_id": "w", "active_jobs": [id]})
                case "step":
                    await client.post(f"/jobs/{id}/steps", {"name": "draw", "key": str(number)})
                case "checkpoint":
                    await client.put(f"/jobs/{id}/checkpoint", {"state": number})
                case "progress":
                    await client.put(f"/jobs/{id}/progress", {"progress": number / 10})

        assert [job.id for job in await upkeep.advance(6_000)] == [id]


async def test_a_lost_worker_counts_as_an_attempt_unless_it_recorded_a_step():
    clock = Clock()
    async with a_client(clock=clock) as client:
        upkeep = Upkeep(client, clock)
        await upkeep.look()
        id = await submitted(client, queue="q", retry={"max_attempts": 2})
        for number in range(3):  # each attempt records a step, so none of them counts
            await fetched(client, "q", visibility_timeout_ms=2_000)
            await client.post(f"/jobs/{id}/steps", {"name": "draw", "key": str(number)})
            await upkeep.advance(4_000)
        assert (await client.get(f"/jobs/{id}"))["job"]["state"] == "available"

        await fetched(client, "q", visibility_timeout_ms=2_000)
        await upkeep.advance(4_000)

        job = (await client.get(f"/jobs/{id}"))["job"]
        assert job["state"] == "discarded"
        assert [one["id"] for one in (await client.get("/dead-letter"))["jobs"]] == [id]


async def test_while_nobody_looked_a_worker_has_time_to_report_again():
    clock = Clock()
    async with a_client(clock=clock) as client:
        id = await submitted(client, queue="q")
        await fetched(client, "q", worker="w", visibility_timeout_ms=5_000)
        clock.advance(600_000)  # all servers were away

        upkeep = Upkeep(client, clock)
        assert await upkeep.advance(10_000) == []
        await client.post("/workers/heartbeat", {"worker_id": "w", "active_jobs": [id]})
        assert await upkeep.advance(4_000) == []

        assert (await client.get(f"/jobs/{id}"))["job"]["state"] == "active"


async def test_a_job_beyond_its_timeout_fails_at_once():
    clock = Clock()
    async with a_client(clock=clock) as client:
        upkeep = Upkeep(client, clock)
        await upkeep.look()
        id = await submitted(client, queue="q", timeout_ms=3_000)
        await fetched(client, "q")

        await upkeep.advance(4_000)

        job = (await client.get(f"/jobs/{id}"))["job"]
        assert (job["state"], job["attempt"], job["error"]["type"]) == ("retryable", 1, "timeout")


@pytest.mark.parametrize("beat", [{"heartbeat_interval_ms": 2_000}, {"heartbeat_interval": 2}])
@pytest.mark.parametrize("then", ["nothing", "step", "checkpoint"])
async def test_a_worker_that_promises_heartbeats_in_a_heartbeat_is_lost_after_three_intervals(beat: Any, then: str):
    clock = Clock()
    async with a_client(clock=clock) as client:
        upkeep = Upkeep(client, clock)
        await upkeep.look()
        id = await submitted(client, queue="q")
        await fetched(client, "q", worker="w")
        await client.post("/workers/heartbeat", {"worker_id": "w", "active_jobs": [id], **beat})
        if then == "step":
            await client.post(f"/jobs/{id}/steps", {"name": "draw"})
        elif then == "checkpoint":
            await client.put(f"/jobs/{id}/checkpoint", {"state": 1})

        assert await upkeep.advance(5_000) == []
        assert [job.id for job in await upkeep.advance(2_000)] == [id]


async def test_a_promise_ends_with_a_heartbeat_that_promises_nothing():
    clock = Clock()
    async with a_client(clock=clock) as client:
        upkeep = Upkeep(client, clock)
        await upkeep.look()
        id = await submitted(client, queue="q")
        await fetched(client, "q", worker="w")
        beat = {"worker_id": "w", "active_jobs": [id]}
        await client.post("/workers/heartbeat", {**beat, "heartbeat_interval_ms": 2_000})
        await client.post("/workers/heartbeat", beat)

        assert await upkeep.advance(RESERVATION_MS - 1_000) == []
        assert [job.id for job in await upkeep.advance(2_000)] == [id]


async def test_the_upkeep_knows_when_the_next_reservation_or_timeout_may_be_over():
    clock = Clock()
    async with a_client(clock=clock) as client:
        upkeep = Upkeep(client, clock)
        await upkeep.look()
        assert upkeep.ends_in_ms is None
        await submitted(client, queue="q", visibility_timeout_ms=7_000)
        await submitted(client, queue="q", visibility_timeout_ms=9_000, timeout_ms=4_000)
        await fetched(client, "q")
        await upkeep.look()
        assert upkeep.ends_in_ms == 7_000
        clock.advance(2_000)
        await fetched(client, "q")
        await upkeep.look()
        assert upkeep.ends_in_ms == 4_000

        clock.advance(5_001)

        assert len(await upkeep.look()) == 1
        await upkeep.look()
        assert upkeep.ends_in_ms is None


@pytest.mark.parametrize(("ends_in_ms", "seconds"), [(None, 1.4), (5_000, 1.4), (899, 0.9), (0, SOON_SECONDS)], ids=str)
def test_the_upkeep_looks_again_when_a_reservation_ends(ends_in_ms: int | None, seconds: float):
    keeper = Keeper(engine_for("memory:"), "w", lease_seconds=15, look_seconds=1.4, upkeep_seconds=5)

    assert keeper._pause(ends_in_ms) == seconds
