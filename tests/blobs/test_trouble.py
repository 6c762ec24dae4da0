"""A blob store that is away or full: nothing that was paid for is lost, and the message names where it is."""

import json
import re
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from holdfast import App, Blob, JobFailed, chain, step
from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.local import files_beside, hold_file, hold_text, read_file
from holdfast.blobs.memory import MemoryBlobs
from holdfast.core.errors import BlobsAway
from holdfast.core.model import State
from holdfast.engines.sqlite import SqliteEngine
from holdfast.jobs.flows import member_id
from tests.blobs.parts import LARGE, measure, repeated, repeated_aside, write_film
from tests.support.given import QUICK, until
from tests.support.object_store import BUCKET, environment, s3_server

paid: list[str] = []


@step
async def paid_text() -> str:
    paid.append("text")
    return "x" * LARGE


@step
async def paid_film(folder: str) -> Blob:
    paid.append("film")
    path = Path(folder) / "temporary.mp4"
    write_film(path)
    blob = await Blob.from_path(path)
    path.unlink()
    return blob


def read(path: Path) -> str:
    return path.read_text()


class Broken(MemoryBlobs):
    """A blob store that can be switched off."""

    is_away = True
    is_unreadable = False
    refused = 0

    def get(self, key):
        if self.is_unreadable:
            raise OSError(5, "Input/output error")
        return super().get(key)

    def put(self, key, chunks, marks=()):
        if self.is_away:
            self.refused += 1
            raise OSError(28, "No space left on device")
        super().put(key, chunks, marks)


@pytest.fixture
def broken(tmp_path):
    paid.clear()
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    store = Broken()
    app.engine.own_blobs = lambda: store  # type: ignore[method-assign]
    return app, store


@pytest.mark.parametrize("kind", ["text", "film"])
async def test_a_step_s_result_that_cannot_be_stored_is_held_and_settled_by_a_person(broken, home, tmp_path, kind):
    app, store = broken

    @app.job(retries=3)
    async def make() -> int:
        if kind == "text":
            return len(await paid_text())
        return (await paid_film(str(tmp_path))).size

    async with app.worker():
        run = await make.submit()
        with pytest.raises(JobFailed, match="No space left on device") as failed:
            await run.result(timeout=60)
        found = re.search(r"--step '?(\S+?)'? --result '?@(\S+\.json)", str(failed.value))
        assert found is not None, failed.value
        path, held = found[1], Path(found[2])
        assert held.is_relative_to(home)
        assert (await run.status()).state == "review"
        assert paid == [kind]

        store.is_away = False
        text = read(held)
        kept = files_beside(held, text)
        await run.resolve_step(path, json.loads(text))
        assert await run.result(timeout=60) == (LARGE if kind == "text" else 2_000_000)
        assert paid == [kind], "it was not paid for again"
        del kept


async def test_a_job_s_result_that_cannot_be_stored_is_held(broken, home):
    app, store = broken

    @app.job
    async def make() -> str:
        return "y" * LARGE

    async with app.worker():
        run = await make.submit()
        with pytest.raises(JobFailed, match=r"the job is done, but its result couldn't be stored") as failed:
            await run.result(timeout=60)
        named = re.search(r"@(\S+\.json)", str(failed.value))
        assert named is not None
        held = Path(named[1])
        store.is_away = False
        await run.resolve(json.loads(read(held)))
        assert await run.result(timeout=60) == "y" * LARGE


@pytest.mark.parametrize("kind", ["step", "job"])
async def test_a_result_that_cannot_even_be_held_is_kept_by_its_worker_until_it_can(
    broken, tmp_path, monkeypatch, kind
):
    app, store = broken
    (tmp_path / "no-folder").touch()
    monkeypatch.setattr("holdfast.blobs.local._folders", lambda: [tmp_path / "no-folder" / "unstored"])

    @app.job(retries=3)
    async def make() -> str:
        if kind == "step":
            return (await paid_text())[:1]
        paid.append("job")
        return "x" * LARGE

    async with app.worker():
        run = await make.submit()
        await until(lambda: store.refused >= 3)
        assert (await run.status()).state == "active"
        store.is_away = False
        assert set(await run.result(timeout=60)) == {"x"}
    assert paid == ["text" if kind == "step" else "job"], "it was not paid for again"


def app_with_large_results(url: str, **options) -> App:
    """A job whose step has a large result, and one whose own result is large."""
    app = App(url, **options)

    @step(name="render")
    async def render() -> str:
        paid.append("render")
        return "x" * (2 << 20)

    @app.job
    async def by_step() -> int:
        return len(await render())

    @app.job
    async def by_job() -> str:
        paid.append("job")
        return "y" * (2 << 20)

    return app


async def test_results_that_are_too_large_without_a_blob_store_are_held_until_there_is_one(redis_store, tmp_path):
    paid.clear()
    app = app_with_large_results(redis_store)
    runs, said = [], []
    async with app.worker():
        for name in ("by_step", "by_job"):
            runs.append(await app.s(name).submit())
            with pytest.raises(JobFailed, match="larger than 1 MiB as JSON, and there is no blob store") as failed:
                await runs[-1].result(timeout=60)
            said.append(re.search(r"(?:--step '?(\S+?)'? )?--result '?@(\S+\.json)", str(failed.value)))
    await app.close()
    (path, held), (_, other) = (one.groups() for one in said)

    app = app_with_large_results(redis_store, blobs=str(tmp_path / "blobs"))
    async with app.worker():
        one, two = [await app.run(run.id) for run in runs]
        await one.resolve_step(path, json.loads(read(Path(held))))
        await two.resolve(json.loads(read(Path(other))))
        assert await one.result(timeout=60) == 2 << 20
        assert await two.result(timeout=60) == "y" * (2 << 20)
    assert paid == ["render", "job"], "it was not paid for again"
    await app.close()


async def test_a_file_that_a_job_made_without_a_blob_store_is_held(redis_store, home, tmp_path):
    paid.clear()
    app = App(redis_store)

    @app.job
    async def make() -> int:
        return (await paid_film(str(tmp_path))).size

    async with app.worker():
        run = await make.submit()
        with pytest.raises(JobFailed, match="there is no blob store for large values and files") as failed:
            await run.result(timeout=60)
        named = re.search(r"--result '?@(\S+\.json)", str(failed.value))
        assert named is not None, failed.value
        held = Path(named[1])
        (film,) = files_beside(held, read(held))
        assert film.path.read_bytes() == write_film(tmp_path / "again.mp4")
        assert paid == ["film"]
    await app.close()


async def test_keep_result_without_a_blob_store_keeps_small_results_with_their_jobs(redis_store):
    app = App(redis_store)

    @app.job(keep_result="1h", retries=0)
    async def small() -> str:
        return "x" * 10

    async with app.worker():
        assert await (await small.submit()).result(timeout=60) == "x" * 10
    await app.close()


@pytest.mark.parametrize("is_isolated", [False, True])
async def test_a_result_beyond_the_largest_value_is_held(app, monkeypatch, is_isolated):
    monkeypatch.setattr("holdfast.core.canonical.PAYLOAD_LIMIT", LARGE)
    monkeypatch.setattr("holdfast.worker.large_results.PAYLOAD_LIMIT", LARGE)

    @app.job
    async def make() -> int:
        return len(await (repeated_aside.aio if is_isolated else repeated)("word", LARGE))

    async with app.worker():
        run = await make.submit()
        with pytest.raises(JobFailed, match=r"is done, but its result couldn't be stored: .* larger than") as failed:
            await run.result(timeout=60)
        named = re.search(r"; (\S+\.json) holds it: put it where it can stay", str(failed.value))
        assert named is not None, failed.value
        assert json.loads(read(Path(named[1]))) == "word" * LARGE
        assert (await run.status()).state == "review"


async def test_a_submit_without_a_blob_store_that_works_stores_nothing(broken):
    app, _ = broken

    @app.job
    async def echo(text: str) -> str:
        return text

    with pytest.raises(BlobsAway, match="blob store memory: No space left on device"):
        await echo.submit("x" * LARGE)
    assert await (await app.open()).engine.count() == {}
    await app.close()


@contextmanager
def disk_with_room_for(size: int) -> Iterator[None]:
    """Let every write of this process fail that makes a file longer than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_in_the_middle_of_a_blob_keeps_no_half_of_it(tmp_path):
    store = FolderBlobs(tmp_path / "blobs")

    with disk_with_room_for(2 << 20), pytest.raises(OSError, match="File too large"):
        store.put("ab/abc", [bytes(1 << 20)] * 3, ["ab/abc.job-1"])

    assert [one for one in (tmp_path / "blobs").rglob("*") if one.is_file()] == []


def test_a_disk_that_is_full_in_the_middle_of_a_held_result_keeps_no_half_of_it(tmp_path, home):
    with disk_with_room_for(1 << 20), pytest.raises(BlobsAway, match="either: File too large"):
        hold_text("job-1", "x" * (2 << 20))

    assert list((home / ".holdfast" / "unstored").iterdir()) == []


def test_a_file_that_is_held_on_a_full_disk_gets_a_second_name(tmp_path, home, monkeypatch):
    def full(path: Path, aside: Path) -> None:
        aside.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    content = write_film(tmp_path / "film.mp4")
    held = hold_file(read_file(tmp_path / "film.mp4"))
    (tmp_path / "film.mp4").unlink()

    assert b"".join(held.chunks()) == content
    assert list(held.path.parent.iterdir()) == [held.path]


class Flaky(BaseHTTPRequestHandler):
    """Answers 503 to the first requests, and for some time. The others it passes on to the S3 server."""

    endpoint = ""
    refusals = 0
    until = 0.0

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if Flaky.refusals > 0 or time.monotonic() < Flaky.until:
            Flaky.refusals -= 1
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        request = Request(Flaky.endpoint + self.path, data=body or None, method=self.command)
        request.add_header("Content-Type", "application/octet-stream")
        for name, value in self.headers.items():
            if name.lower() not in ("host", "content-length", "connection"):
                request.add_header(name, value)
        try:
            answer = urlopen(request, timeout=20)
        except HTTPError as error:
            answer = error
        with answer:
            content = answer.read()
            self.send_response(answer.status)
            for name in ("ETag", "Last-Modified", "Content-Type"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            length = answer.headers.get("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on

    def log_message(self, *args) -> None:
        """Say nothing."""


@pytest.mark.parametrize("kind", ["plain", "flow", "isolated"])
async def test_a_job_whose_arguments_are_away_waits_and_uses_no_attempt(tmp_path, clock, kind):
    store = Broken()
    store.is_away = False
    engine = SqliteEngine(tmp_path / "jobs.db", clock)
    engine.own_blobs = lambda: store  # type: ignore[method-assign]
    app = App(engine=engine, settings=QUICK)
    app.job(name="measure", retries=0, isolate="process" if kind == "isolated" else None)(measure)

    @app.job
    async def make() -> str:
        store.is_unreadable = True
        return "x" * LARGE

    if kind == "flow":
        flow = await chain(make.s(), app.s("measure")).submit()
        id = member_id(flow.id, 1)
    else:
        id = (await app.s("measure", "x" * LARGE).submit()).id
        store.is_unreadable = True
    async with app.worker():

        async def resting():
            (job,) = await engine.get([id])
            return job is not None and job.state is State.SCHEDULED

        await until(resting)
        run = await app.run(id)
        assert "arguments can't be read now: blob store memory: Input/output" in (await run.history())[-1].note["why"]
        store.is_unreadable = False
        clock.advance(60)
        assert await run.result(timeout=60) == LARGE
        (job,) = await engine.get([id])
        assert job.attempt == 1
    await app.close()


async def test_a_misspelled_bucket_is_named_and_costs_no_result(tmp_path, monkeypatch):
    with s3_server() as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        app = App(f"sqlite:///{tmp_path}/jobs.db", blobs=f"s3://{BUCKET}-misspelled/jobs")

        @app.job
        async def make() -> str:
            return "y" * LARGE

        @app.job
        async def echo(text: str) -> str:
            return text

        async with app.worker():
            wrong = rf"blob store s3://{BUCKET}-misspelled/jobs: there is no such bucket"
            with pytest.raises(BlobsAway, match=wrong):
                await echo.submit("x" * LARGE)
            run = await make.submit()
            with pytest.raises(JobFailed, match=wrong) as failed:
                await run.result(timeout=60)
            named = re.search(r"@(\S+\.json)", str(failed.value))
            assert named is not None
            assert json.loads(read(Path(named[1]))) == "y" * LARGE
        await app.close()


async def test_values_reach_s3_although_it_answers_503_for_a_while(tmp_path, monkeypatch, rounds):
    away = rounds(0, 60)  # seconds; with --soak a whole minute
    with s3_server() as endpoint:
        from holdfast.blobs.objects import RETRY_SECONDS

        assert RETRY_SECONDS > 60, "it may be away for a minute"
        Flaky.endpoint = endpoint
        server = ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            for name, value in environment(f"http://127.0.0.1:{server.server_port}").items():
                monkeypatch.setenv(name, value)
            app = App(f"sqlite:///{tmp_path}/jobs.db", blobs=f"s3://{BUCKET}/jobs")

            @app.job
            async def echo(text: str, film: Blob) -> tuple[str, Blob]:
                return text[::-1], film

            write_film(tmp_path / "film.mp4", times=5)  # so much that it is sent in parts
            async with app.worker():
                Flaky.refusals, Flaky.until = 3, time.monotonic() + away
                run = await echo.submit("ab" * LARGE, await Blob.from_path(tmp_path / "film.mp4"))
                Flaky.refusals, Flaky.until = 3, time.monotonic() + away
                text, film = await run.result(timeout=300)
                assert text == "ba" * LARGE
                await film.save_to(tmp_path / "copy.mp4")
            assert Flaky.refusals <= 0
            assert (tmp_path / "copy.mp4").read_bytes() == (tmp_path / "film.mp4").read_bytes()
        finally:
            server.shutdown()
            server.server_close()
            thread.join(20)
