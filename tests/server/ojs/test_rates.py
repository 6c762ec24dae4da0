"""Rate limits of the Open Job Spec: what our limits make of them, and that all of them hold."""

from typing import Any

import pytest

from holdfast.server.ojs.policies import read_rate_limits
from tests.server.ojs.given import a_client, submitted
from tests.server.ojs.test_reservations import Clock

MINUTE, DAY = 60_000, 86_400_000


def written(**given: Any) -> list[tuple[int | None, str | None, int | None]]:
    return [(one.at_once, one.rate, one.burst) for one in read_rate_limits({"key": "k", **given}, "q")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"concurrency": 3}, [(3, None, None)]),
        ({"max_per_second": 1}, [(None, "1/s", 1)]),
        ({"rate": 1, "period": "second"}, [(None, "1/s", 1)]),
        ({"rate": {"limit": 10, "period": "PT1M"}}, [(None, "10/m", 5)]),
        ({"rate": {"limit": 7, "period": "P7D"}}, [(None, "1/d", 1)]),
        ({"rate": {"limit": 14, "period": "P7D"}}, [(None, "7/d", 7)]),
        (
            {"concurrency": 2, "rate": {"limit": 10, "period": "PT1M"}, "throttle": {"limit": 2, "period": "PT1S"}},
            [(2, "10/m", 5), (None, "2/s", 1)],
        ),
        ({"max_per_second": 5, "max_per_hour": 100}, [(None, "5/s", 3), (None, "100/h", 50)]),
    ],
)
def test_a_rate_limit_is_read(given: Any, expected: Any):
    assert written(**given) == expected


@pytest.mark.parametrize("field", ["rate", "throttle"])
async def test_a_rate_that_our_limits_cannot_keep_is_refused(field: str):
    async with a_client() as client:
        options = {"rate_limit": {"key": "k", field: {"limit": 1, "period": "P7D"}}}

        answer = await client.send("POST", "/jobs", {"type": "a.b", "args": [], "options": options})

        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unsupported")


@pytest.mark.parametrize(
    ("number", "period", "milliseconds"),
    [(3, "PT10S", 10_000), (4, "PT7S", 7_000), (1, "PT40S", 40_000), (2, "PT90S", 90_000), (5, "PT1S", 1_000)],
)
async def test_no_period_sees_more_starts_than_its_rate(number: int, period: str, milliseconds: int):
    clock = Clock()
    async with a_client(clock=clock) as client:
        starts: list[int] = []
        for _ in range(4 * number):
            await submitted(client, rate_limit={"key": "k", "rate": {"limit": number, "period": period}})
        for _ in range(100):
            jobs = (await client.post("/workers/fetch", {"queues": ["default"], "count": 10}))["jobs"]
            starts += [clock.now] * len(jobs)
            for job in jobs:
                await client.post("/workers/ack", {"job_id": job["id"]})
            clock.advance(milliseconds // 10)

        assert len(starts) >= 2 * number
        assert max(sum(0 <= other - one < milliseconds for other in starts) for one in starts) <= number


async def test_a_throttle_beside_a_rate_holds():
    clock = Clock()
    async with a_client(clock=clock) as client:
        limits = {"key": "k", "rate": {"limit": 100, "period": "PT1M"}, "throttle": {"limit": 1, "period": "PT10S"}}
        for _ in range(3):
            await submitted(client, rate_limit=limits)

        async def fetch() -> int:
            return len((await client.post("/workers/fetch", {"queues": ["default"], "count": 10}))["jobs"])

        assert (await fetch(), await fetch()) == (1, 0)
        clock.advance(10_000)
        assert await fetch() == 1


async def test_the_rate_of_a_key_is_one_rate():
    async with a_client() as client:
        body = {"rate": {"limit": 1, "period": "PT1S"}, "throttle": {"limit": 1, "period": "PT1M"}}

        assert (await client.send("PUT", "/rate-limits/k", body)).status_code == 422
