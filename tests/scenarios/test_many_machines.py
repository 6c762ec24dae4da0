"""What the guide "From one machine to many" promises: its figures, its files, and what a deploy costs."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import App
from holdfast.core.model import State
from holdfast.engines import engine_for
from holdfast.engines.postgres import pool
from holdfast.engines.postgres.url import CONNECTIONS, parse_url
from tests.support.given import wait_until
from tests.support.postgres_server import find_programs
from tests.support.worker_processes import Stage

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PAGE = (GUIDES / "many-machines.md").read_text()

PROGRAM = """
import asyncio, os, time
from holdfast import App, Settings, step, tx
app = App(settings=Settings(beat_seconds=0.5, lease_seconds=3, grace_seconds=float(os.environ.get("GRACE", "0.5"))))

def mark(what):
    with open("marks", "a") as file:
        file.write(f"{what} {os.getpid()} {time.time()}\\n")

@step
async def draw(n: int) -> int:
    await asyncio.sleep(0.02)
    mark(f"draw:{n}")
    return n

@step(effect="transaction")
async def pay(n: int) -> int:
    await tx().execute("select pg_sleep(0.05)")
    return n

@app.job
async def film(n: int) -> int:
    return len(await draw.map(range(n), at_once=1))

@app.job
async def bill(n: int) -> int:
    return len(await pay.map(range(n)))

@app.job
async def short() -> str:
    mark("begun")
    await asyncio.sleep(1.5)
    return "finished"
"""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def asked(dsn: str, statement: str, *params: Any) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(statement, params)
        return found.fetchall() if found.description else []


class Machines(Stage):
    """Workers as the unit file starts them."""

    def start(self, *more: str, **env: str) -> "subprocess.Popen[str]":
        [command] = re.findall(r"^ExecStart=\S+/holdfast (.*)$", blocks("ini")[0], re.MULTILINE)
        words = [*command.replace("video:app", "program:app").split(), *more]
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *words],
            cwd=self.folder,
            env={**os.environ, "HOLDFAST_URL": self.url, **env},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.workers.append(process)
        assert process.stdout is not None
        for _ in range(int(words[len(words) - words[::-1].index("--processes")])):
            assert process.stdout.readline().startswith("worker "), "each is up"
        return process


@pytest.fixture
def stage(tmp_path: Path, postgres_store: str) -> Iterator[Machines]:
    stage = Machines(tmp_path, PROGRAM, postgres_store)
    yield stage
    for process in stage.workers:  # a supervisor that is killed would leave its workers behind
        if process.poll() is None:
            process.terminate()
            process.wait(20)
    stage.close()


def children(process: "subprocess.Popen[str]") -> list[int]:
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in found.read_text().split()]


# Deploys.


def test_a_deploy_costs_no_attempt_and_no_item(stage):
    old = stage.start()
    run = stage.submit("film", 150)
    wait_until(lambda: len(stage.marks("draw")) >= 10)
    began = time.monotonic()
    old.send_signal(signal.SIGTERM)
    assert old.wait(30) == 0
    [limit] = map(int, re.findall(r"TimeoutStopSec=(\d+)", PAGE))
    assert time.monotonic() - began < limit - 10 + 0.5, "the grace, and less than the 20 seconds that the page adds"
    status = stage.status(run)
    assert (status.state, status.attempt, status.recoveries) == (State.AVAILABLE, 1, 0)

    stage.start()
    assert stage.do(run.result(30)) == 150
    assert set(Counter(n for n, _, _ in stage.marks("draw")).values()) == {1}, "none lost, none twice"
    assert [entry.event for entry in stage.history(run)] == ["submit", "claim", "release", "claim", "complete"]


@pytest.mark.parametrize(("mode", "state"), [("mixed", State.COMPLETED), ("control-group", State.AVAILABLE)])
def test_the_grace_is_for_whoever_hears_the_signal_once(stage, mode, state):
    """systemd's default sends it to all processes, and the first one passes it on: each worker hears it twice."""
    first = stage.start(GRACE="10")
    run = stage.submit("short")
    wait_until(lambda: stage.marks("begun"))
    pids = children(first)
    assert len(pids) == 2
    if mode == "control-group":
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    assert stage.status(run).state is state


# Figures.


def test_a_process_opens_as_many_connections_as_the_page_says(stage, postgres_store):
    dsn = parse_url(postgres_store).dsn
    said = "at most 7 connections, or 13 with transactional steps**: 1 for heartbeats and notifications, up to 6"
    assert said in " ".join(PAGE.split())
    assert CONNECTIONS == 6

    def open_now() -> int:
        return asked(dsn, "select count(*) from pg_stat_activity where application_name = 'holdfast'")[0][0]

    runs = [stage.submit("film", 40) for _ in range(12)]
    bills = [stage.submit("bill", 40) for _ in range(8)]
    stage.do(stage.app.close())
    wait_until(lambda: open_now() == 0)
    worker = stage.start("--processes", "1")
    seen = [0]
    end = time.monotonic() + 40
    while time.monotonic() < end and not (seen[-1] and len(stage.marks("draw")) >= 480 and len(seen) > 100):
        seen.append(open_now())
        time.sleep(0.02)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    print("connections seen", Counter(seen))
    assert CONNECTIONS + 1 <= max(seen) <= 13, "with transactional steps at work"
    assert len(runs) + len(bills) == 20


def test_a_connection_that_nobody_needs_is_closed(postgres_store, monkeypatch):
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.4)
    dsn = parse_url(postgres_store).dsn

    async def live() -> list[int]:
        engine = engine_for(postgres_store)
        await engine.open()
        await asyncio.gather(*(engine.count() for _ in range(9)))
        seen = []
        for _ in range(40):
            count = "select count(*) from pg_stat_activity where application_name = 'holdfast'"
            seen.append((await asyncio.to_thread(asked, dsn, count))[0][0])
            if len(seen) > 1 and not seen[-1]:
                break
            await asyncio.sleep(0.1)
        await engine.close()
        return seen

    seen = asyncio.run(live())
    assert (seen[0] > 0, seen[-1]) == (True, 0), seen


# Files.


def test_the_scaling_query_counts_what_needs_a_slot(postgres_store):
    [query] = re.findall(r"query: >-\n(.*?)\Z", blocks("yaml")[1], re.DOTALL)
    query = textwrap.dedent(query).replace("holdfast.", f'"{parse_url(postgres_store).schema}".')
    [slots] = re.findall(r'targetQueryValue: "(\d+)"', PAGE)
    assert f"--at-once {slots}" in PAGE

    async def live() -> None:
        app = App(postgres_store)

        @app.job(queue="video")
        async def video(n: int) -> int:
            return n

        @app.job(queue="other")
        async def other() -> None: ...

        dsn = parse_url(postgres_store).dsn

        def depth() -> Any:
            with psycopg.connect(dsn) as connection:
                found = connection.execute(query)
                [[number]] = found.fetchall()
                assert type(number) is int
                return number

        await app.open()
        assert depth() == 0
        for n in range(3):
            await video.submit(n)
        await other.submit()
        await video.submit(4, delay="1h")
        soon = await video.submit(5, delay=0.3)
        assert depth() == 3, "what is for later needs no slot"
        await asyncio.sleep(0.5)
        assert depth() == 4, "its time has come, and nobody was there to see"
        [claimed] = await app.engine.claim("w", ["video"], 1)
        assert depth() == 4, "one that runs has a slot, which must not be taken away"
        assert soon.id != claimed.id
        async with app.worker(queues=["video"]):
            await soon.result(10)
        assert depth() <= 2
        await app.close()

    asyncio.run(live())


def test_the_unit_file_is_one(tmp_path):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd here")
    [unit] = blocks("ini")
    there = re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", unit)
    there = there.replace("User=video", "User=root").replace("/srv/video", str(tmp_path))
    file = tmp_path / "video-worker.service"
    file.write_text(there)
    out = subprocess.run([program, "verify", file], capture_output=True, text=True, timeout=60)
    ours = [line for line in out.stderr.splitlines() if "video-worker" in line]
    assert (out.returncode, ours) == (0, []), out.stderr


def test_the_kubernetes_files_are_some(tmp_path):
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("no kubectl here")
    deployment, scaled = blocks("yaml")
    (tmp_path / "deployment.yaml").write_text(deployment)
    (tmp_path / "scaled.yaml").write_text(scaled)
    (tmp_path / "kustomization.yaml").write_text("resources: [deployment.yaml, scaled.yaml]\n")
    out = subprocess.run([program, "kustomize", tmp_path], capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    assert "terminationGracePeriodSeconds: 30" in out.stdout


# Backups.


def test_a_dump_of_the_schema_is_a_whole_backup(stage, postgres_store, tmp_path):
    place = parse_url(postgres_store)
    programs = find_programs()
    dump, psql = programs / "pg_dump", programs / "psql"
    if not (dump.exists() and psql.exists()):
        pytest.skip("no pg_dump here")
    old = stage.start()
    run = stage.submit("film", 60)
    wait_until(lambda: len(stage.marks("draw")) >= 10)
    old.send_signal(signal.SIGTERM)
    assert old.wait(30) == 0
    made = len(stage.marks("draw"))
    kept = tmp_path / "backup.sql"
    subprocess.run([dump, f"--schema={place.schema}", "--file", kept, place.dsn], check=True, timeout=60)
    stage.do(stage.app.close())
    asked(place.dsn, f'drop schema "{place.schema}" cascade')
    load = [psql, "-q", "-v", "ON_ERROR_STOP=1", "-o", tmp_path / "out", "-f", kept, place.dsn]
    subprocess.run(load, check=True, timeout=60)

    assert stage.status(run).state is State.AVAILABLE
    stage.start()
    assert stage.do(run.result(30)) == 60
    assert 0 < made < 60
    assert set(Counter(n for n, _, _ in stage.marks("draw")).values()) == {1}


# The examples of the guide to Postgres, which need a server.


def test_the_examples_of_rows_of_one_s_own_run(postgres_store, tmp_path, monkeypatch):
    page = (GUIDES / "postgres.md").read_text()
    found = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    [example] = [block for block in found if "give_back" in block]
    [compiled] = [block for block in found if "def plain" in block]
    (tmp_path / "shop.py").write_text(example.replace('"postgresql://user:password@host/database"', "") + compiled)
    monkeypatch.setenv("HOLDFAST_URL", postgres_store)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)  # that of another test
    import shop  # type: ignore[import-not-found]
    from sqlalchemy import Column, Integer, MetaData, Table, Text, func, insert, select

    from holdfast import step, tx

    credit = Table("credit", MetaData(), Column("customer", Text), Column("credits", Integer), Column("job", Text))

    @step(name="by_sqlalchemy", effect="transaction")
    async def by_sqlalchemy() -> int:
        sql, values = shop.plain(insert(credit).values(customer="ada", credits=5))
        await tx().execute(sql, *values)
        sql, values = shop.plain(select(func.sum(credit.c.credits)).where(credit.c.customer == "ada"))
        return int(await tx().fetchval(sql, *values))

    @shop.app.job
    async def more() -> int:
        return await by_sqlalchemy()

    dsn = parse_url(postgres_store).dsn
    asked(dsn, "create table credit (customer text, credits integer, job text)")

    async def live() -> None:
        async with shop.app.worker():
            run = await shop.refill.submit("ada")
            assert await run.result(20) == [100, 99]
            assert asked(dsn, "select credits, job from credit") == [(100, run.id), (-1, run.id)]
            assert await (await more.submit()).result(20) == 104
        await shop.app.close()

    try:
        asyncio.run(live())
    finally:
        asked(dsn, "drop table credit")
        sys.modules.pop("shop", None)
