"""Exports, imports and moves take large values and files along."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import App, Blob
from tests.blobs.parts import LARGE, write_film


def holdfast(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def finished(url: str, tmp_path: Path) -> str:
    """Run a job with a large result and a file; return its id."""
    app = App(url)

    @app.job
    async def echo(text: str, film: Blob) -> tuple[str, Blob]:
        return text, film

    write_film(tmp_path / "film.mp4")
    async with app.worker():
        run = await echo.submit("x" * LARGE, await Blob.from_path(tmp_path / "film.mp4"))
        await run.result(timeout=60)
    await app.close()
    return run.id


async def check_there(url: str, id: str, tmp_path: Path) -> None:
    app = App(url)

    @app.job
    async def echo(text: str, film: Blob) -> tuple[str, Blob]:
        return text, film

    text, film = await (await app.run(id)).result(timeout=60)
    assert text == "x" * LARGE
    await film.save_to(tmp_path / "copy.mp4")
    assert (tmp_path / "copy.mp4").read_bytes() == (tmp_path / "film.mp4").read_bytes()
    await app.close()


@pytest.fixture
def source(tmp_path):
    return f"sqlite:///{tmp_path}/source.db"


async def test_a_move_takes_blobs_along(source, tmp_path, postgres_store):
    id = await finished(source, tmp_path)

    holdfast("move", "--from", source, "--to", postgres_store)

    (tmp_path / "source.db.blobs").rename(tmp_path / "elsewhere")
    await check_there(postgres_store, id, tmp_path)


async def test_an_exported_run_has_its_values_and_its_files_beside_it(source, tmp_path):
    id = await finished(source, tmp_path)

    told = holdfast("export", id, "--output", str(tmp_path / "run.json"), "--url", source)
    target = f"sqlite:///{tmp_path}/target.db"
    holdfast("import", str(tmp_path / "run.json"), "--url", target)

    assert "and 1 file to" in told
    (tmp_path / "source.db.blobs").rename(tmp_path / "elsewhere")
    await check_there(target, id, tmp_path)


async def test_doctor_names_the_place_and_jobs_whose_blobs_are_gone(source, tmp_path):
    id = await finished(source, tmp_path)
    assert f"blobs: {tmp_path}/source.db.blobs" in holdfast("doctor", "--url", source)

    (tmp_path / "source.db.blobs").rename(tmp_path / "elsewhere")
    (tmp_path / "source.db.blobs" / "ab").mkdir(parents=True)
    (tmp_path / "source.db.blobs" / "ab" / "other").touch()
    assert f"blobs of {id[-8:]} are gone" in holdfast("doctor", "--url", source)
