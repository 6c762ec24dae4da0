"""A secret that a person gives as a reason is kept nowhere."""

import pytest

from holdfast import redaction
from holdfast.redaction import REDACTED, register_secrets
from tests.server.api.film import make_app, served

CANARY = "sk-canary-7d2f-0042"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setattr(redaction, "_pattern", None)
    register_secrets([CANARY])
    return CANARY


async def test_a_canary_in_a_reason_is_in_no_answer(secret: str):
    async with served(make_app()) as (_, client):
        id = await client.submit("film", [{"title": "x"}], delay="1h")
        await client.act(f"/jobs/{id}/cancel", reason=f"because of {secret}")
        await client.act("/queues/default/pause", reason=secret)
        cron = {
            "name": "n",
            "expression": "@daily",
            "description": secret,
            "job_template": {"type": "film", "args": []},
        }
        assert (await client.post("/ojs/v1/cron", json=cron)).status_code == 201
        await client.act("/schedules/n/pause", reason=secret)
        paths = [
            *(f"/api/v1/jobs/{id}{more}" for more in ("", "/story", "/export", "/record")),
            *(
                "/api/v1/queues",
                "/api/v1/overview",
                "/api/v1/schedules/n",
                "/ojs/v1/cron",
                f"/ojs/v1/jobs/{id}/history",
            ),
        ]
        shown = {path: await client.get(path) for path in paths}

    for path, answer in shown.items():
        assert answer.status_code == 200, path
        assert CANARY not in answer.text, path
    assert REDACTED in shown["/api/v1/queues"].text
    assert REDACTED in shown[f"/api/v1/jobs/{id}/story"].text
