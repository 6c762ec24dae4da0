"""By way of a transaction pooler: no session state, no notifications, no locks that last; and everything works."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.core.codec import canonical
from holdfast.core.errors import StoreError
from holdfast.core.model import State
from holdfast.engines.postgres import PostgresEngine
from holdfast.jobs.service import JobRequest
from tests.scenarios.films import LEASE_SECONDS, PROGRAM, SETTINGS
from tests.support.history import broken_laws
from tests.support.pooler import Pooler
from tests.support.postgres_server import NOBODY, Server, as_somebody, server
from tests.support.servers import STOP_SECONDS, end_with_us, free_port
from tests.support.worker_processes import Stage

SESSIONS = 3
FILMS = 12
ATTEMPTS_SECONDS = 60.0


@pytest.fixture
def pooled() -> Iterator[tuple[Server, Pooler]]:
    with server() as running, Pooler(running.port, SESSIONS) as pooler:
        yield running, pooler


@pytest.fixture
def bounced(tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """A server, and its URL by way of a real PgBouncer in transaction mode."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("no pgbouncer here: what goes by way of it is tried with our own pooler alone")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pgbouncer-"))
    try:
        with server() as running, contextlib.ExitStack() as stack:
            port = free_port()
            config = folder / "pgbouncer.ini"
            config.write_text(CONFIG.format(server=running.port, port=port, sessions=SESSIONS))
            if os.geteuid() == 0:  # it refuses to run as root, as the server does
                shutil.chown(folder, NOBODY)
                shutil.chown(config, NOBODY)
            log = stack.enter_context((tmp_path / "pgbouncer.log").open("wb"))
            bouncer = subprocess.Popen(
                [program, config], stdout=log, stderr=log, preexec_fn=end_with_us, **as_somebody()
            )
            stack.callback(bouncer.wait, STOP_SECONDS)
            stack.callback(bouncer.terminate)
            url = running.url.replace(f":{running.port}/", f":{port}/")
            asyncio.run(answers(url))
            yield running, url
    finally:
        shutil.rmtree(folder)


CONFIG = """
[databases]
postgres = host=127.0.0.1 port={server} dbname=postgres user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 100
"""


async def answers(url: str) -> None:
    """Wait until somebody answers there."""
    async with asyncio.timeout(STOP_SECONDS):
        while True:
            try:
                await (await asyncpg.connect(url, statement_cache_size=0)).close()
                return
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.05)


def test_a_pipeline_in_three_processes_shares_three_sessions_and_survives_a_kill(
    pooled: tuple[Server, Pooler], tmp_path: Path
):
    running, pooler = pooled
    live_through_a_kill(pooler.through(running.url), tmp_path)
    assert pooler.clients > SESSIONS, "there were more connections than sessions"
    assert min(session.transactions for session in pooler.sessions) > 20, "and each session served many"
    assert asyncio.run(left(running)) == []


def test_a_pipeline_in_three_processes_survives_a_kill_by_way_of_a_real_pgbouncer(
    bounced: tuple[Server, str], tmp_path: Path
):
    running, url = bounced
    live_through_a_kill(url, tmp_path)
    assert asyncio.run(left(running)) == []


def live_through_a_kill(url: str, tmp_path: Path) -> None:
    """Three workers run a pipeline by way of a pooler, one of them is killed; nothing is lost, nothing twice."""
    stage = Stage(tmp_path, PROGRAM, f"{url}?pooler=transaction")
    try:
        workers = [stage.worker(SETTINGS) for _ in range(3)]

        async def live() -> list[str]:
            jobs = await stage.app.open()
            made = await jobs.submit([JobRequest(type="film", args=canonical([n])) for n in range(FILMS)])
            ids = [one.id for one in made]
            await settled(lambda found: sum(one.state is State.COMPLETED for one in found) >= 2, ids)
            workers[0].kill()
            began = time.monotonic()
            await settled(lambda found: all(one.state is State.COMPLETED for one in found), ids)
            print(f"all done {time.monotonic() - began:.1f} s after the kill, with a lease of {LEASE_SECONDS} s")
            return ids

        async def settled(enough: Callable, ids: list[str]) -> None:
            async with asyncio.timeout(ATTEMPTS_SECONDS):
                while not enough(await stage.app.engine.get(ids)):  # noqa: ASYNC110 (it happens in the store)
                    await asyncio.sleep(0.05)

        ids = stage.runner.run(live())
        assert stage.do(broken_laws(stage.app.engine, tmp_path / "effects")) == []
        assert stage.do(stage.app.engine.count()) == {("default", State.COMPLETED): 3 * len(ids)}
        logs = [path.read_text() for path in tmp_path.glob("log-*")]
        assert not [text for text in logs if "Traceback" in text]
    finally:
        stage.close()


async def left(running: Server) -> list[str]:
    """Locks that somebody left in a session."""
    db = await asyncpg.connect(running.url)
    locks = await db.fetch("select pid from pg_locks where locktype = 'advisory'")
    await db.close()
    return [str(lock) for lock in locks]


def test_without_the_option_the_pooler_itself_says_no_in_one_line(pooled: tuple[Server, Pooler]):
    running, pooler = pooled

    with pytest.raises(StoreError) as told:
        asyncio.run(PostgresEngine(pooler.through(running.url)).open())

    assert "\n" not in str(told.value)
    assert "unsupported startup parameter" in str(told.value)
    assert "pooler=transaction" in str(told.value)
