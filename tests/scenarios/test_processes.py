"""Apps and workers in processes as people really run them: forks, preloading web servers, exits in the middle."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast import App, Settings
from holdfast.core.codec import canonical
from holdfast.jobs.service import JobRequest
from holdfast.upkeep.keeper import LEADER
from tests.support.given import at_pace, wait_until


def run(folder: Path, program: str, url: str, seconds: float = 120.0) -> "subprocess.CompletedProcess[str]":
    """Run a program in a folder, with warnings as errors, and with a bound."""
    (folder / "program.py").write_text(textwrap.dedent(program))
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning", "program.py"],
        cwd=folder,
        env={**os.environ, "TEST_URL": url, "TEST_PACE": str(at_pace(1.0))},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def test_an_app_used_before_a_fork_works_in_the_child_and_in_the_parent(tmp_path, store_url):
    done = run(
        tmp_path,
        """
        import asyncio, os, sys
        from holdfast import App, Settings
        app = App(os.environ["TEST_URL"], settings=Settings(look_seconds=0.1))

        @app.job
        async def job(n: int) -> int:
            return n

        before = app.sync.submit(job, 1)
        before.status()
        pid = os.fork()
        mine = app.sync.submit(job, 2 if pid else 3)
        async def work():
            async with app.worker():
                return await (await app.run(mine.id)).result(10)
        assert asyncio.run(work()) == (2 if pid else 3)
        if pid == 0:
            app.sync.submit(job, 4)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        async def count():
            async with app.worker():
                await (await app.run(before.id)).result(10)
                while sum(n for (_, s), n in (await app.engine.count()).items() if s == "completed") < 4:
                    await asyncio.sleep(0.01)
            return sum((await app.engine.count()).values())
        assert asyncio.run(count()) == 4
        print("fine")
        """,
        store_url,
    )
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


def test_a_fork_under_a_running_worker_keeps_no_lock_of_its_parent(tmp_path, store_url):
    """A child that lives on must not make its dead parent look alive."""
    done = run(
        tmp_path,
        """
        import asyncio, os, signal, subprocess, sys, time
        from holdfast import App, Settings
        app = App(os.environ["TEST_URL"], settings=Settings(look_seconds=0.1))

        @app.job
        async def job() -> int:
            if os.path.exists("child"):
                return 2
            if os.fork() == 0:
                open("child", "w").write(str(os.getpid()))
                time.sleep(8)
                os._exit(0)
            while not os.path.exists("child"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

        async def work():
            async with app.worker():
                await asyncio.sleep(10)

        if sys.argv[1:]:
            asyncio.run(work())
        run = app.sync.submit(job)
        victim = subprocess.Popen([sys.executable, "program.py", "work"])
        assert victim.wait(10) == -signal.SIGKILL
        began = time.monotonic()
        async def rescue():
            async with app.worker():
                return await (await app.run(run.id)).result(10)
        assert asyncio.run(rescue()) == 2
        took = time.monotonic() - began
        os.kill(int(open("child").read()), signal.SIGKILL)
        assert took < float(os.environ["TEST_PACE"]) * (3 if os.environ["TEST_URL"].startswith("sqlite") else 6), took
        print("fine")
        """,
        store_url,
    )
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


@pytest.mark.parametrize("way", ["submitted", "worker left running", "def map under way"])
def test_an_unclosed_app_never_blocks_exit(tmp_path, way, store_url):
    done = run(
        tmp_path,
        f"""
        import asyncio, os, threading, time
        from holdfast import App, step
        app = App(os.environ["TEST_URL"])
        way = {way!r}

        @step
        def slow(n: int) -> None:
            entered.set()
            time.sleep(60)

        @app.job
        def job() -> None:
            slow.map([1, 2])

        entered = threading.Event()
        run = app.sync.submit(job)
        if way != "submitted":
            async def work():
                manager = app.worker()
                await manager.__aenter__()
                await asyncio.Event().wait()
            threading.Thread(target=lambda: asyncio.run(work()), daemon=True).start()
            if way == "def map under way":
                entered.wait(10)
            else:
                time.sleep(0.3)
        print(time.monotonic())
        """,
        store_url,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - float(done.stdout) < at_pace(10)


def test_sys_exit_and_interrupts_inside_jobs_do_not_end_the_worker(tmp_path, store_url):
    done = run(
        tmp_path,
        """
        import asyncio, os, sys
        from holdfast import App, JobFailed, step
        app = App(os.environ["TEST_URL"])

        @step
        async def leave(n: int) -> None:
            sys.exit(n)

        @app.job(retries=0)
        async def mapped() -> None:
            await leave.map([1, 2])

        @app.job(retries=0)
        async def gathered() -> None:
            await asyncio.gather(leave(3), leave(4))

        @app.job(retries=0)
        def threaded() -> None:
            raise KeyboardInterrupt

        async def main():
            async with app.worker():
                for job in (mapped, gathered, threaded):
                    try:
                        await (await job.submit()).result(10)
                    except JobFailed as error:
                        print(error.type.rpartition(".")[2])
        asyncio.run(main())
        """,
        store_url,
    )
    assert done.stdout.split() == ["ItemsFailed", "SystemExit", "KeyboardInterrupt"], done.stderr


# A web server that preloads the App, forks four web workers, and embeds a worker in each of them.

WEB = """
import asyncio, os, threading, time
from holdfast import App, step

app = App(os.environ["TEST_URL"])

@step
async def draw(n: int) -> int:
    with open("marks", "a") as file:
        file.write(f"{n} {os.getpid()} {time.time()}\\n")
    await asyncio.sleep(0.02)
    return n

@app.job
async def film(start: int, n: int) -> int:
    return len(await draw.map(range(start, start + n), at_once=2))

warm = app.sync.call(app.open())  # used before the fork, as a preloaded web application does

def embed():
    async def work():
        async with app.worker(at_once=2):
            await asyncio.Event().wait()
    threading.Thread(target=lambda: asyncio.run(work()), daemon=True).start()

def web(environ, start_response):
    run = app.sync.submit(film, int(environ["QUERY_STRING"]), 10)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [run.id.encode()]
"""

LEASE_SECONDS = Settings().lease_seconds
"""Death must be noticed sooner than this, or nothing but the lease would have told."""

FORKING = """
import os, sys, time
import program
children = []
for _ in range(4):
    if os.fork() == 0:
        program.embed()
        while True:
            time.sleep(1)
while True:
    time.sleep(1)
"""


@pytest.fixture(params=["forks", "gunicorn"])
def four_web_workers(request, tmp_path, store_url):
    """Four processes that embed a worker each."""
    (tmp_path / "program.py").write_text(WEB)
    if request.param == "gunicorn":
        if find_spec("gunicorn") is None:
            pytest.skip("gunicorn is not installed: pip install -e '.[dev]'")
        (tmp_path / "conf.py").write_text(
            "workers = 4\npreload_app = True\nbind = 'unix:web.sock'\n"
            "def post_worker_init(worker):\n    import program\n    program.embed()\n"
        )
        command = [sys.executable, "-m", "gunicorn", "-c", "conf.py", "program:web"]
    else:
        (tmp_path / "forking.py").write_text(FORKING)
        command = [sys.executable, "forking.py"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "TEST_URL": store_url},
            start_new_session=True,
            stdout=log,
            stderr=log,
        )
    yield tmp_path, store_url
    os.killpg(server.pid, signal.SIGKILL)
    server.wait(30)


def test_four_web_workers_have_one_leader_run_nothing_twice_and_its_death_delays_nothing(four_web_workers):
    folder, url = four_web_workers
    app, on_file = App(url), url.startswith("sqlite")

    def leader() -> int | None:
        records = app.sync.call(app.engine.records(LEADER))
        return int(records[0].value.split("-")[-2]) if records else None

    def workers() -> int:
        return len(app.sync.call(app.engine.records("worker/")))

    until = partial(wait_until, log=folder / "log")
    if on_file:  # not opened by us before by them
        until(lambda: len(list(folder.glob("jobs.db-live/*.worker"))) == 4)
    app.sync.call(app.open())
    until(lambda: workers() == 4 and leader())

    orders = [JobRequest(type="film", args=canonical([number * 10, 10])) for number in range(20)]
    accepted = app.sync.call(app.jobs.submit(orders))
    until(lambda: (folder / "marks").exists())
    first = until(leader)  # who leads now: a busy machine may have moved the lead since
    os.kill(first, signal.SIGKILL)
    at = time.time()
    for one in accepted:
        assert app.sync.run(one.id).result(30) == 10

    rows = [line.split() for line in (folder / "marks").read_text().splitlines()]
    made = Counter(n for n, _, _ in rows)
    assert set(made) == {str(n) for n in range(200)}
    twice = [n for n, times in made.items() if times > 1]
    assert len(twice) <= 4, "only what the killed one had under way: two jobs, two items each"
    after = sorted(float(when) for _, pid, when in rows if float(when) > at and int(pid) != first)
    assert after[0] - at < LEASE_SECONDS / 3, "the others wait for nobody"
    until(lambda: leader() not in (None, first), LEASE_SECONDS)
    app.sync.call(app.close())
