"""Forks in jobs, as ordinary code makes them: pools, `preexec_fn`, `os.fork`; on every engine, and never a deadlock."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HUNG_SECONDS = 180
"""A program that takes so long hangs: it tells where each of its threads is, and ends."""

EVERY_ENGINE = ["memory", "file", "sqlite", "postgres", "redis"]

HEAD = f"""
import faulthandler
faulthandler.dump_traceback_later({HUNG_SECONDS}, exit=True)
import asyncio, concurrent.futures, multiprocessing, os, select, signal, subprocess, sys, threading, time
from holdfast import App, Settings, current, progress, step, tx
app = App(os.environ["TEST_URL"], settings=Settings(look_seconds=0.1))

def told_by_child(tell):
    '''What a forked child says within 20 s, having called `tell`.'''
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = str(tell())
        except BaseException as error:
            said = f"{{type(error).__name__}}: {{error}}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as heard:
        said = heard.read().decode() if select.select([heard], [], [], 20)[0] else "hung"
    if said == "hung":
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return said
"""


@pytest.fixture(params=EVERY_ENGINE)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, on each engine."""
    return url_of(request.param, request, tmp_path)


def url_of(engine: str, request: pytest.FixtureRequest, folder: Path) -> str:
    match engine:
        case "memory":
            return "memory:"
        case "file":
            return f"file:{folder / 'jobs.json'}"
        case "sqlite":
            return f"sqlite:///{folder / 'jobs.db'}"
    return str(request.getfixturevalue(f"{engine}_store"))


def run(folder: Path, program: str, url: str, *args: str, first: str = "") -> str:
    """What a program prints. It ends in peace, and with warnings as errors."""
    (folder / "program.py").write_text(first + HEAD + textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning", "program.py", *args],
        cwd=folder,
        env={**os.environ, "TEST_URL": url},
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS + 30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done.stdout


STRESS = """
def double(n):
    return 2 * n

FORK = multiprocessing.get_context("fork")

def by_fork(n):
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def by_preexec(n):
    return subprocess.run(["sh", "-c", "exit 7"], preexec_fn=os.setsid).returncode

def by_process(n):
    process = FORK.Process(target=sys.exit, args=(7,))
    process.start()
    process.join()
    while process.exitcode is None:  # a `start` in another thread has reaped it, and is about to note how it ended
        time.sleep(0.001)
    return process.exitcode

def by_executor(n):
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=FORK) as pool:
        return sum(pool.map(double, [1, 2])) + 1

def by_pool(n):
    with FORK.Pool(3) as pool:
        return sum(pool.map(double, [1, 2])) + 1

WAYS = (by_fork, by_preexec, by_process, by_executor, by_pool)

@step
def fork(n: int) -> int:
    return WAYS[n % len(WAYS)](n)

@step
def elsewhere(kind: str) -> int:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(kind)) as pool:
        return sum(pool.map(double, [1, 2])) + 1

@step
async def fork_on_the_loop(n: int) -> int:
    return by_fork(n)

@step
async def tick(n: int) -> int:
    return n

@app.job(retries=0)
async def storm() -> list[int]:
    return await fork.aio.map(range(100), at_once=8)

@app.job(retries=0)
async def others() -> list[int]:
    return await elsewhere.aio.map(["spawn", "forkserver"], at_once=2)

@app.job(retries=0)
async def on_the_loop() -> list[int]:
    return await fork_on_the_loop.map(range(25), at_once=4)

@app.job(retries=0)
async def busy() -> int:
    return len(await tick.map(range(500), at_once=10))

async def main():
    async with app.worker():
        runs = [await job.submit() for job in (storm, others, on_the_loop, busy)]
        results = [await run.result() for run in runs]
        # By the ways of WAYS, 20 times each: 1 + 1 + 1 + 3 + 3 forks, and 25 more on the loop.
        assert results == [[7] * 100, [7, 7], [7] * 25, 500], results
        histories = [[entry.event for entry in await run.history()] for run in runs]
        assert histories == [["submit", "claim", "complete"]] * len(runs), histories
    await app.close()

if __name__ == "__main__":
    asyncio.run(main())
    print("fine")
"""


def test_any_number_of_threads_may_fork_at_once(tmp_path, url):
    """200 forks and more, from eight threads and the event loop, beside a job that keeps the store busy."""
    assert run(tmp_path, STRESS, url) == "fine\n"


CHILD = """
@app.job
async def child_job(n: int) -> int:
    return n

def submit(n):
    return app.sync.submit(child_job, n, key=f"from-{n}").id

def submit_async(n):
    async def call():
        return (await child_job.submit(n, key=f"from-{n}")).id
    return asyncio.run(call())

@step
def in_a_thread(n: int) -> str:
    return told_by_child(lambda: submit(n))

@step
async def on_the_loop(n: int) -> str:
    return told_by_child(lambda: submit_async(n))

@app.job(retries=0)
async def with_steps() -> list[str]:
    return [await in_a_thread.aio(1), await on_the_loop(2)]

@app.job(retries=0)
def blocking() -> list[str]:
    return [told_by_child(lambda: submit(3)), in_a_thread(4)]

async def main():
    async with app.worker():
        said = []
        for job in (with_steps, blocking):
            said += await (await job.submit()).result(60)
        for line in said:
            if ": " in line or line == "hung":
                print(line)
            else:
                print(await (await app.run(line)).result(20))
    await app.close()

if __name__ == "__main__":
    asyncio.run(main())
"""

REFUSALS = {"memory": "StoreClosed: memory: ", "file": "StoreBusy: "}
"""Stores for one process: what a forked child hears at once."""


def test_a_child_that_is_forked_inside_a_job_submits_or_hears_one_clear_error_at_once(tmp_path, url):
    said = run(tmp_path, CHILD, url).splitlines()

    engine = url.partition(":")[0]
    if engine in REFUSALS:
        assert len(said) == 4
        assert all(line.startswith(REFUSALS[engine]) for line in said), said
    else:
        assert said == ["1", "2", "3", "4"]


POOLED = """
@app.job
async def film(n: int) -> int:
    return n

def submit(n):
    app.sync.submit(film, n)

@app.job(queue="quiet")
async def waits() -> None: ...

async def main():
    start = sys.argv[1]
    await waits.submit()  # opens the store
    async with app.worker(queues=["default"]):
        slowest = 0.0
        for n in range(5):
            process = multiprocessing.get_context(start).Process(target=submit, args=(n,))
            process.start()
            await asyncio.to_thread(process.join)
            assert process.exitcode == 0
            [id] = [job.id async for job in app.jobs.walk(Where(type="film")) if job.args == f"[{n}]"]
            ended = time.monotonic()
            await (await app.run(id)).result(60)
            slowest = max(slowest, time.monotonic() - ended)
    await app.close()
    print("in time" if slowest < 5 else f"after {slowest:.1f} s")

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
def test_the_worker_hears_of_a_job_that_a_process_of_multiprocessing_submits_last(tmp_path, engine, start, request):
    url = url_of(engine, request, tmp_path)
    said = run(tmp_path, POOLED, url, start, first="from holdfast.core.model import Where\n")
    assert said.splitlines() == ["in time"]


ISOLATED = """
@app.job
async def child_job(n: int) -> int:
    return n

def submit(n):
    progress(1, 2)
    return app.sync.submit(child_job, n, key=f"from-{n}").id

@step(isolate="process")
def in_a_process(n: int) -> str:
    return told_by_child(lambda: submit(n))

@app.job(retries=0)
async def with_step() -> str:
    return await in_a_process.aio(1)

@app.job(retries=0, isolate="process")
def blocking() -> str:
    return told_by_child(lambda: submit(2))

@app.job(retries=0, isolate="process")
async def on_the_loop() -> str:
    return told_by_child(lambda: submit(3))

@app.job(retries=0, isolate="process")
async def returns() -> str:
    pid = os.fork()
    if pid == 0:
        return "3"
    return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

async def main():
    async with app.worker():
        for job in (with_step, blocking, on_the_loop):
            print(await (await app.run(await (await job.submit()).result(60))).result(20))
        print(await (await returns.submit()).result(60))
    await app.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
def test_a_child_that_is_forked_inside_an_isolated_job_or_step_may_submit(tmp_path, engine, request):
    assert run(tmp_path, ISOLATED, url_of(engine, request, tmp_path)).splitlines() == ["1", "2", "3", "70"]


def test_a_forked_child_is_outside_the_job_but_knows_which_it_was(tmp_path, url):
    said = run(
        tmp_path,
        """
        @step
        def inner() -> str:
            return current().step

        def look():
            progress(1, 2, "is told to nobody")
            here = current()
            return [here.job_id, here.step.partition("#")[0], inner().partition("#")[0], inner() != inner()]

        @step
        def outer() -> str:
            return told_by_child(look)

        @app.job(retries=0)
        async def job() -> str:
            return await outer.aio()

        async def main():
            async with app.worker():
                run = await job.submit()
                print((await run.result(60)).replace(run.id, "ID"))
                print([step.name for step in await app.engine.steps(run.id) if step.path[0] != "~"])
            await app.close()

        asyncio.run(main())
        """,
        url,
    ).splitlines()
    assert said == ["['ID', 'outer', 'inner', True]", "['outer']"]


RETURNS = """
@step
def in_a_thread() -> str:
    return left(os.fork())

@step
async def on_the_loop() -> str:
    return left(os.fork())

def left(pid):
    if pid == 0:
        return "a copy"
    _, status = os.waitpid(pid, 0)
    return f"its copy ended with {os.waitstatus_to_exitcode(status)}"

@app.job(retries=0)
async def with_steps() -> list[str]:
    return [await in_a_thread.aio(), await on_the_loop()]

@app.job(retries=0)
def blocking() -> list[str]:
    return [in_a_thread()]

async def main():
    async with app.worker():
        for job in (with_steps, blocking):
            run = await job.submit()
            print(await run.result(60), [step.name for step in await app.engine.steps(run.id) if step.path[0] != "~"])
    await app.close()

asyncio.run(main())
"""


def test_a_forked_copy_that_returns_into_its_job_is_ended(tmp_path, url):
    """It would go on as a second worker without a heartbeat, on the sockets of the first."""
    ended = "its copy ended with 70"
    assert run(tmp_path, RETURNS, url).splitlines() == [
        f"{[ended, ended]} ['in_a_thread', 'on_the_loop']",
        f"{[ended]} ['in_a_thread']",
    ]


TRANSACTION = """
TABLE = f"t{os.getpid()}"
@step(effect="transaction")
def write(how: str) -> str:
    db = tx()
    db.execute(f"create table if not exists {TABLE} (x integer)")
    db.execute(f"insert into {TABLE} values (1)")
    if how == "fork":
        said = told_by_child(lambda: tx().execute(f"insert into {TABLE} values (2)"))
    elif how == "preexec":
        subprocess.run(["true"], preexec_fn=os.setsid)
        said = "run"
    else:
        time.sleep(0.5)
        said = "slept"
    db.execute(f"insert into {TABLE} values (3)")
    return said

@step(effect="transaction")
def rows() -> list[int]:
    return [row[0] for row in tx().execute(f"select x from {TABLE} order by x").fetchall()]

@step
async def fork_on_the_loop(n: int) -> None:
    await asyncio.sleep(0.1)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

@step
def fork_in_a_thread(n: int) -> None:
    time.sleep(0.1)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

@app.job(retries=0)
async def inside(how: str) -> str:
    return await write.aio(how)

@app.job(retries=0)
async def beside() -> list[int]:
    await asyncio.gather(write.aio("sleep"), fork_in_a_thread.aio(1), fork_in_a_thread.aio(2), fork_on_the_loop(3))
    return await rows.aio()

async def main():
    async with app.worker():
        began = time.monotonic()
        try:
            print(await (await globals()[sys.argv[1]].submit(*sys.argv[2:])).result(30))
        except Exception as error:
            print(error)
        took = time.monotonic() - began
        assert took < 4, took
    await app.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["fork", "preexec"])
def test_a_fork_inside_a_transaction_of_sqlite_is_one_clear_error_at_once(tmp_path, how):
    said = run(tmp_path, TRANSACTION, f"sqlite:///{tmp_path / 'jobs.db'}", "inside", how)
    assert "Invalid: step write forked inside its transaction, which was rolled back" in said


def test_a_fork_inside_a_transaction_of_postgres_leaves_it_to_the_parent(tmp_path, postgres_store):
    said = run(tmp_path, TRANSACTION, postgres_store, "inside", "fork")
    assert said == "Invalid: tx(): this process was forked inside the step; the transaction belongs to its parent\n"


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_fork_beside_a_transaction_takes_nothing_from_it(tmp_path, engine, request):
    """On SQLite one on the event loop, for which the transaction waits, makes it begin anew."""
    assert run(tmp_path, TRANSACTION, url_of(engine, request, tmp_path), "beside") == "[1, 3]\n"


RECORDED = """
import sys, threading
made = []

def recorded(make):
    def made_by(*args):
        lock = make(*args)
        if sys._getframe(1).f_globals.get("__name__", "").startswith("holdfast"):
            made.append(lock)
        return lock
    return made_by

# Our modules look the names up in `threading` each time.
threading.Lock, threading.RLock = recorded(threading.Lock), recorded(threading.RLock)
"""

LOCKS = """
import gc
from holdfast import forking
from holdfast.engines.wakeups import Wakeups
from holdfast.engines.batch_thread import BatchThread
from holdfast.engines.sqlite.liveness import Liveness

@app.job
async def job(n: int) -> int:
    return n

async def work():
    '''All that a child may want: submit, work, wait, ask.'''
    async with app.worker():
        return await (await job.submit(2)).result(15)

def waited_for():
    '''The locks that a fork itself waits for.'''
    yield from (forking._turn, forking._opening)
    objects = gc.get_objects()
    for one in objects:
        if isinstance(one, BatchThread):
            yield one.gate
        elif isinstance(one, Liveness):
            yield one.lock
    if any(isinstance(one, BatchThread) for one in objects):  # a lane rings its bell while it holds its gate
        yield from (one._lock for one in objects if isinstance(one, Wakeups))

async def main():
    async with app.worker():
        await (await job.submit(1)).result(15)
        await asyncio.to_thread(app.sync.submit, job, 1)
        go, held, done = threading.Event(), [], threading.Event()
        excused = {id(lock) for lock in waited_for()}

        def hold():
            for lock in made:
                if id(lock) not in excused and lock.acquire(timeout=0.5):
                    held.append(lock)
            go.set()
            done.wait()
            for lock in held:
                lock.release()

        threading.Thread(target=hold).start()
        while not go.is_set():  # not on the loop, which may need one of them
            time.sleep(0.01)
        said = told_by_child(lambda: asyncio.run(work()))
        done.set()
        assert len(held) > 5, len(held)
    await app.close()
    print(said)

asyncio.run(main())
"""


def test_no_lock_that_another_thread_holds_at_a_fork_keeps_the_child(tmp_path, url):
    """Held are all locks that our code has made, but those that a fork waits for."""
    said = run(tmp_path, LOCKS, url, first=RECORDED)

    engine = url.partition(":")[0]
    if engine in REFUSALS:
        assert said.startswith(REFUSALS[engine])
    else:
        assert said == "2\n"
