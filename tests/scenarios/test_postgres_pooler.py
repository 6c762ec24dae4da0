"""By way of a transaction pooler: no session state, no notifications, no locks that last; and everything works."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.core.codec import canonical
from holdfast.core.errors import StoreError
from holdfast.core.model import State
from holdfast.engines.postgres import PostgresEngine
from holdfast.jobs import Order
from tests.history import broken_laws
from tests.pooler import Pooler
from tests.postgres_server import NoServer, Server, server
from tests.scenarios.test_recovery import Stage
from tests.scenarios.test_server_faults import LEASE_SECONDS, PROGRAM, SETTINGS

SESSIONS = 3
FILMS = 12
ATTEMPTS_SECONDS = 60.0


@pytest.fixture
def pooled() -> Iterator[tuple[Server, Pooler]]:
    try:
        with server() as running, Pooler(running.port, SESSIONS) as pooler:
            yield running, pooler
    except NoServer as error:
        pytest.skip(str(error))


def test_a_pipeline_in_three_processes_shares_three_sessions_and_survives_a_kill(
    pooled: tuple[Server, Pooler], tmp_path: Path
):
    running, pooler = pooled
    stage = Stage(tmp_path, PROGRAM, pooler.through(running.url) + "?pooler=transaction")
    try:
        workers = [stage.worker(SETTINGS) for _ in range(3)]

        async def live() -> list[str]:
            jobs = await stage.app.open()
            made = await jobs.submit([Order(type="film", args=canonical([n])) for n in range(FILMS)])
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
    assert pooler.clients > SESSIONS, "there were more connections than sessions"
    assert min(session.transactions for session in pooler.sessions) > 20, "and each session served many"
    assert asyncio.run(left(running)) == []


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
