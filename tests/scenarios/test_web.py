"""The two web apps of the guide, served for real, with a worker beside them: the guide shows what these tests ask."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
SERVERS = {
    "web_fastapi": ["uvicorn", "web_fastapi:web", "--host", "127.0.0.1", "--port", "0", "--workers", "1"],
    "web_flask": ["gunicorn", "web_flask:web", "--bind", "127.0.0.1:0", "--workers", "2", "--preload"],
}
Start = Callable[..., Path]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `python -m …` beside the examples. The answer is the file of what it prints; it ends with the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> Path:
        log = tmp_path / f"{len(processes)}.log"
        environment = {
            **os.environ,
            "HOLDFAST_URL": f"sqlite:///{tmp_path / 'web.db'}",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), str(ROOT / "src")]),
        }
        with log.open("wb") as out:
            processes.append(
                subprocess.Popen([sys.executable, "-m", *words], cwd=tmp_path, env=environment, stdout=out, stderr=out)
            )
        return log

    yield begin
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


@pytest.fixture(params=list(SERVERS))
def site(request: pytest.FixtureRequest, start: Start) -> Iterator[tuple[httpx.Client, Start, str]]:
    log = start(*SERVERS[request.param])
    address = until(lambda: re.search(r"http://127\.0\.0\.1:[1-9]\d*", log.read_text()), log)
    with httpx.Client(base_url=address.group(), timeout=30) as client:
        yield client, start, request.param


def until(asked: Callable[[], "re.Match[str] | None"], log: Path) -> "re.Match[str]":
    end = time.monotonic() + 60
    while (found := asked()) is None:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return found


def test_an_order_is_accepted_at_once_and_its_book_is_there_when_a_worker_has_made_it(site):
    client, start, name = site

    accepted = client.post("/books", json={"title": "Kelp", "chapters": 3})
    path = accepted.json()["status"]
    early = client.get(path).json()
    too_early = client.get(f"{path}/result")
    log = start("holdfast.cli", "worker", f"{name}:app")
    end = time.monotonic() + 60
    while (answer := client.get(f"{path}/result")).status_code == 202:
        assert time.monotonic() < end, log.read_text()

    assert accepted.status_code == 202
    assert early["state"] == "available"
    assert early["text"]
    assert (too_early.status_code, too_early.headers["retry-after"]) == (202, "5")
    assert answer.status_code == 200
    assert answer.json() == {"book": ["Kelp", "Chapter 1", "Chapter 2", "Chapter 3"]}
    assert client.get(path).json()["state"] == "completed"


def test_a_repeated_order_is_one_job_and_a_different_one_under_its_key_is_refused(site):
    client, _, _ = site
    key = {"Idempotency-Key": "order-42"}
    book = {"title": "Kelp", "chapters": 3}

    first, again = (client.post("/books", json=book, headers=key) for _ in range(2))
    other = client.post("/books", json={**book, "title": "Reef"}, headers=key)

    assert first.json()["id"] == again.json()["id"]
    assert other.status_code == 409
    assert "order-42" in other.json()["error"]


@pytest.mark.parametrize("id", ["nope", "01890000-0000-7000-8000-000000000000"])
def test_an_unknown_id_is_not_found(site, id: str):
    client, _, _ = site

    assert client.get(f"/books/{id}").status_code == 404
    assert client.get(f"/books/{id}/result").status_code == 404


def test_a_value_of_the_wrong_type_is_the_client_s_error(site):
    client, _, _ = site

    assert client.post("/books", json={"title": "Kelp", "chapters": "many"}).status_code in (400, 422)


def test_a_value_that_is_too_large_is_the_client_s_error(site):
    client, _, _ = site

    answer = client.post("/books", json={"title": "x" * 2**26, "chapters": 3})

    assert answer.status_code == 400
    assert "larger than 64 MiB" in answer.json()["error"]


@pytest.mark.parametrize("name", list(SERVERS))
def test_the_guide_shows_the_example_as_it_is(name: str):
    assert (ROOT / "examples" / f"{name}.py").read_text() in (ROOT / "docs/guides/web.md").read_text()
