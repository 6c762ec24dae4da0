"""Large values and files over HTTP: shown whole, streamed, checked by their hash, and refused with what to do."""

import hashlib

import pytest

from holdfast import App, Blob
from holdfast.core.references import Reference
from holdfast.jobs.tokens import create_token
from holdfast.server.api import blobs
from tests.server.api.film import served, settled

LONG = "wave " * 40_000
SEA = b"\x89PNG sea" * 30_000


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def large_app() -> App:
    app = App("memory:")

    @app.job
    async def echo(text: str) -> str:
        return text

    @app.job
    async def size(file: Blob) -> int:
        return len(await file.open().read())

    return app


async def test_large_arguments_and_results_are_read_whole():
    app = large_app()
    async with served(app) as (_, client), app.worker():
        id = await client.submit("echo", [LONG])
        assert await settled(app, id) == "completed"
        page = await client.look(f"/jobs/{id}")

        assert await client.look(f"/jobs/{id}/arguments") == [LONG]
        assert await client.look(f"/jobs/{id}/result") == LONG
    for value in (page["arguments"], page["result"]):
        assert not value["is_whole"]
        assert value["bytes"] >= len(LONG)
        assert "wave wave" in value["text"]
        assert len(value["text"]) <= 1_000


async def test_a_file_is_uploaded_by_its_hash_and_read_again():
    app = large_app()
    async with served(app) as (_, client), app.worker():
        path = f"/api/v1/blobs/{hash_of(SEA)}"
        before = [(await client.head(path)).status_code, (await client.get(path)).status_code]
        put = await client.put(path, content=SEA)
        got, head = await client.get(path), await client.head(path)
        id = await client.submit("size", [{"$blob": {"media": "image/png", "sha256": hash_of(SEA), "size": len(SEA)}}])
        assert await settled(app, id) == "completed"

        assert before == [404, 404]
        assert (put.status_code, put.json()) == (201, {"sha256": hash_of(SEA), "bytes": len(SEA)})
        assert (got.content, head.status_code, head.content) == (SEA, 200, b"")
        assert await client.look(f"/jobs/{id}/result") == len(SEA)


async def test_what_has_another_hash_or_is_too_large_is_not_stored(monkeypatch):
    app = large_app()
    async with served(app) as (_, client):
        path = f"/api/v1/blobs/{hash_of(SEA)}"
        other = await client.put(path, content=SEA[:-1])
        crooked = [await client.put(f"/api/v1/blobs/{name}", content=SEA) for name in ("x", hash_of(SEA).upper())]
        monkeypatch.setattr(blobs, "UPLOADS", 0)
        busy = await client.put(path, content=SEA)

        assert not (await app.engine.blobs.ready()).has(Reference(hash_of(SEA), 0))
    assert (other.status_code, other.json()["code"]) == (400, "bad_value")
    assert [answer.status_code for answer in crooked] == [400, 400]
    assert (busy.status_code, busy.headers["Retry-After"]) == (503, "5")


async def test_a_job_that_names_an_unknown_file_is_refused():
    async with served(large_app()) as (_, client):
        mark = {"$blob": {"media": "", "sha256": hash_of(b"nobody has it"), "size": 13}}
        answer = await client.post("/api/v1/jobs", json={"type": "size", "args": [mark]})

    assert (answer.status_code, answer.json()["code"]) == (404, "blob_gone")


@pytest.mark.parametrize(
    ("media", "type", "disposition"),
    [
        ("image/png", "image/png", "inline"),
        ("video/mp4", "video/mp4", "inline"),
        ("", "application/octet-stream", "attachment"),
        ("text/html", "application/octet-stream", "attachment"),
        ("image/svg+xml", "application/octet-stream", "attachment"),
        ("image/png\r\nX: y", "application/octet-stream", "attachment"),
    ],
)
async def test_a_browser_gets_pictures_sound_and_film_and_saves_the_rest(media, type, disposition):
    async with served(large_app()) as (_, client):
        path = f"/api/v1/blobs/{hash_of(SEA)}"
        await client.put(path, content=SEA)
        answer = await client.get(path, params={"media": media})

    assert answer.headers["Content-Type"] == type
    assert answer.headers["Content-Disposition"].startswith(disposition)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


async def test_to_read_a_file_and_to_upload_one_need_their_scopes():
    app = large_app()
    async with served(app) as (_, client):
        engine = (await app.open()).engine
        reader, _ = await create_token(engine, "reader", ["read"], by="test")
        path = f"/api/v1/blobs/{hash_of(SEA)}"
        nobody = await client.get(path)
        upload = await client.put(path, content=SEA, headers={"Authorization": f"Bearer {reader}"})
        submitter, _ = await create_token(engine, "submitter", ["submit"], by="test")
        read = await client.get(path, headers={"Authorization": f"Bearer {submitter}"})

    assert (nobody.status_code, upload.status_code, read.status_code) == (401, 403, 403)
