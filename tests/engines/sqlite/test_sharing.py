"""A SQLite store that users share: its files have its permissions, and a refusal says whose they are."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.model import Presence
from holdfast.engines.live_folder import why_denied
from holdfast.engines.sqlite import SqliteEngine
from holdfast.engines.sqlite.liveness import Liveness
from holdfast.engines.sqlite.store import translate_error
from holdfast.jobs.checkup.check_store import check_store

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture(params=[0o000, 0o022, 0o077], ids="umask {:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user of this machine can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def modes(folder: Path) -> dict[str, int]:
    """The permissions of the folder, and of each kind of file in it."""
    return {"": _mode(folder)} | {one.suffix or one.name: _mode(one) for one in folder.iterdir()}


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & 0o777


def as_nobody(look: Callable[[], str]) -> str:
    """What another user of this machine gets."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, look().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize(
    ("mode", "folder", "file"), [(0o600, 0o700, 0o600), (0o660, 0o770, 0o660), (0o640, 0o750, 0o640)]
)
def test_the_files_next_to_the_database_have_its_permissions(tmp_path: Path, run, umask, mode, folder, file):
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(mode)
    engine = SqliteEngine(path)
    run(engine.open())
    run(engine.beat(Presence("w-1")))
    run(engine.wait(["a"], 0.0, 0))

    found = modes(tmp_path / "jobs.db-live")

    run(engine.close())
    assert found == {"": folder, ".worker": file, ".sock": file, "clock": file}


def test_a_store_that_becomes_shared_later_shares_its_folder_with_the_next_process(tmp_path: Path, run):
    path = tmp_path / "jobs.db"
    for mode, wanted in ((0o600, 0o700), (0o660, 0o770), (0o600, 0o700)):
        path.touch()
        path.chmod(mode)
        engine = SqliteEngine(path)
        run(engine.open())
        run(engine.beat(Presence("w-1")))
        assert _mode(tmp_path / "jobs.db-live") == wanted
        run(engine.close())


def test_doctor_accepts_a_store_that_a_group_shares(tmp_path: Path, run):
    path = tmp_path / "jobs.db"
    path.touch()

    def said(mode: int) -> tuple[str, str]:
        path.chmod(mode)
        (finding,) = [one for one in check_store(SqliteEngine(path), "here", path) if one.name == "permissions"]
        return finding.level.name, finding.text

    assert said(0o600) == ("OK", "only its owner can read and write it")
    assert said(0o660) == ("OK", "only its owner and its group can read and write it")
    assert said(0o666)[0] == said(0o640)[0] == "WARN"


@needs_root
def test_a_user_without_permission_is_told_whose_the_store_is(public: Path):
    path = public / "jobs.db"
    path.touch(0o600)

    def say() -> str:
        return str(translate_error(PermissionError(13, "Permission denied"), path))

    assert as_nobody(say).startswith(
        f"user nobody may not read and write {public}: it belongs to root and has mode 755"
    )
    public.chmod(0o777)
    assert as_nobody(say).startswith(f"user nobody may not read and write {path}: it belongs to root and has mode 600")
    path.chmod(0o666)
    assert as_nobody(lambda: why_denied(path)) == ""


@needs_root
def test_a_worker_whose_file_is_not_shared_is_not_taken_for_gone(public: Path):
    folder = public / "jobs.db-live"
    theirs = Liveness(folder, lambda _: None)
    theirs.beat(Presence("w-1"))
    folder.chmod(0o755)

    def look() -> str:
        (one,) = Liveness(folder, lambda _: None).presences()
        return f"{one.worker} {one.gone} {one.beat_at}"

    written = (folder / "w-1.worker").stat().st_mtime_ns // 1_000_000
    assert as_nobody(look) == f"w-1 False {written}"
    theirs.close()


@needs_root
def test_a_folder_that_is_not_shared_is_an_error_and_not_an_empty_list(public: Path):
    folder = public / "jobs.db-live"
    Liveness(folder, lambda _: None).beat(Presence("w-1"))

    def look() -> str:
        try:
            return str(Liveness(folder, lambda _: None).presences())
        except PermissionError:
            return "refused"

    assert as_nobody(look) == "refused"
