"""Isolation: a step in a process of its own may do what it likes; the worker and its other jobs don't notice."""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.codec import Signature
from holdfast.core.errors import HoldfastError, Invalid, StepFailed
from holdfast.core.keys import idempotency_key
from holdfast.worker.context import Current
from holdfast.worker.isolation import pool as pools
from holdfast.worker.isolation.import_target import check_importable, find_function, target_of
from holdfast.worker.isolation.messages import Logged, Progress
from holdfast.worker.isolation.pool import IsolatedCall, Pool, ProcessDied
from holdfast.worker.recorded_errors import error_of, type_name
from tests.support.given import at_pace, until
from tests.support.worker_processes import is_dead
from tests.worker.isolation import isolated_steps as steps

ROOT = Path(__file__).parents[3]
CURRENT = Current(job_id="job-1", attempt=2, epoch=3, deadline=1e9, step="draw:abc")


@asynccontextmanager
async def open_pool(at_once=4, **options):
    pool = Pool(at_once, **options)
    try:
        yield pool
    finally:
        await pool.close()


def call_of(function, *args, memory_mb=None, **kwargs):
    function = getattr(function, "__wrapped__", function)
    text = Signature(function).encode(args, kwargs)
    return IsolatedCall(step=function.__name__, function=function, args=text, current=CURRENT, memory_mb=memory_mb)


async def run(pool, function, *args, timeout=20.0, told=pools.report_here, **kwargs):
    """Run it over there; the result by the function's own signature."""
    text = await pool.run(call_of(function, *args, **kwargs), timeout=timeout, on_news=told)
    return Signature(getattr(function, "__wrapped__", function)).result.decode(text)


@pytest.fixture(autouse=True)
def others():
    """What other tests have left running is none of ours."""
    OTHERS.clear()
    OTHERS.update(children())


OTHERS: set[int] = set()


def children() -> dict[int, str]:
    """All processes that this test started, and their states."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = path.read_text().partition(" (")
        except OSError:
            continue
        state, parent = rest.rpartition(") ")[2].split()[:2]
        if int(parent) == os.getpid() and int(pid) not in OTHERS:
            found[int(pid)] = state
    return found


def pid_in(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0


# What crosses.


async def test_models_cross_as_canonical_text_and_come_back_by_the_functions_own_types():
    film = steps.Film(title="Storm", scenes=[steps.Scene(1, datetime(2024, 5, 1, 12, tzinfo=UTC))])
    async with open_pool() as pool:
        text = await pool.run(call_of(steps.shifted, film, hours=2))

    assert text == '{"scenes":[{"at":"2024-05-01T14:00:00Z","number":1}],"title":"STORM"}'
    assert Signature(steps.shifted.spec.function).result.decode(text).scenes[0].at.hour == 14


async def test_a_function_runs_in_another_process_whether_it_is_a_step_or_not():
    async with open_pool() as pool:
        assert await run(pool, steps.whose) != os.getpid()
        assert await run(pool, steps.plain, "abc") == "cba"
        assert await run(pool, steps.plain, 'ä"\\\n\u2028🌊' * 50_000) == ('ä"\\\n\u2028🌊' * 50_000)[::-1]


async def test_a_result_that_does_not_fit_its_type_is_refused_as_it_is_here():
    async with open_pool() as pool:
        with pytest.raises(Invalid, match="result of wrong_result"):
            await run(pool, steps.wrong_result)


async def test_the_step_knows_its_job():
    async with open_pool() as pool:
        assert await run(pool, steps.looked_at) == {
            "job": "job-1",
            "attempt": 2,
            "epoch": 3,
            "deadline": 1e9,
            "step": "draw:abc",
            "key": idempotency_key("job-1", "draw:abc"),
        }


async def test_a_step_inside_it_is_a_plain_call_of_the_same_job_and_threads_follow():
    async with open_pool() as pool:
        assert await run(pool, steps.nested, "x") == "job-1 True x"


async def test_noise_on_the_standard_streams_reaches_them_and_not_the_line(capfd):
    async with open_pool() as pool:
        assert await run(pool, steps.noisy) == "heard"
        assert await run(pool, steps.plain, "ab") == "ba"

    out, err = capfd.readouterr()
    assert out.count("x") == 100_000
    assert out.count("y") == err.count("z") == 1_000


async def test_progress_and_log_lines_are_told_while_it_runs(tmp_path):
    said: list[Any] = []
    with level_of(logging.INFO):
        async with open_pool() as pool:
            await run(pool, steps.told, 3, told=said.append)
            running = asyncio.create_task(run(pool, steps.told_in_time, str(tmp_path / "go"), told=said.append))
            await until(lambda: Progress(2, 2, "") in said)
            (tmp_path / "go").touch()
            await running

    assert Progress(3, 3, "part 3") in said
    lines = [news for news in said if isinstance(news, Logged)]
    assert [(line.logger, line.level, line.text) for line in lines] == [
        ("isolated", logging.INFO, f"line {n}") for n in (1, 2, 3)
    ]


async def test_what_is_told_there_counts_as_told_here(caplog):
    with caplog.at_level(logging.INFO):
        async with open_pool() as pool:
            await run(pool, steps.told, 2)

    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records if r.name == "isolated"] == [
        ("isolated", "INFO", "line 1"),
        ("isolated", "INFO", "line 2"),
    ]


async def test_a_flood_of_progress_and_lines_is_cut_to_what_a_worker_can_bear():
    said: list[Any] = []
    with level_of(logging.INFO):
        async with open_pool() as pool:
            began = time.monotonic()
            await run(pool, steps.floods, 20_000, told=said.append)
            seconds = time.monotonic() - began

    lines = [news.text for news in said if isinstance(news, Logged)]
    left_out = sum(int(line.split()[0]) for line in lines if "log lines dropped" in line)
    kept = [line for line in lines if "log lines dropped" not in line]
    assert left_out + len(kept) == 20_000
    assert len(kept) <= 200 * (seconds + 2)
    progressed = [news.done for news in said if isinstance(news, Progress)]
    assert progressed[-1] == 19_999
    assert len(progressed) <= seconds / 0.05 + 2


@contextmanager
def level_of(level):
    """The root logger's level for a while: processes that start then take it over."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(level)
    try:
        yield
    finally:
        root.setLevel(before)


# What dies: the step fails with a reason, the next call works.


@pytest.mark.parametrize(
    ("function", "args", "reason"),
    [
        (steps.segfaults, (), "step segfaults: its process died with SIGSEGV before the step finished: a crash in nat"),
        (steps.exits, (3,), "step exits: its process exited with code 3 before the step finished"),
        (steps.exits, (0,), "step exits: its process exited with code 0 before the step finished"),
        (steps.is_killed, (9,), "its process died with SIGKILL before the step finished; this worker did not kill it"),
        (steps.is_killed, (6,), "step is_killed: its process died with SIGABRT"),
        (steps.is_killed, (34,), "step is_killed: its process died with "),
        (
            steps.hangs_up,
            (),
            "step hangs_up: its process closed the connection to its worker before the step finished, and was killed",
        ),
        (steps.forks_and_dies, (), "step forks_and_dies: its process died with SIGKILL"),
    ],
)
async def test_a_process_that_dies_fails_its_step_with_a_reason_and_nothing_else(function, args, reason):
    async with open_pool() as pool:
        for _ in range(3):
            with pytest.raises(ProcessDied) as caught:
                await run(pool, function, *args)
            assert reason in str(caught.value)
        assert await run(pool, steps.plain, "ab") == "ba"


async def test_a_crash_tells_where_it_happened():
    async with open_pool() as pool:
        with pytest.raises(ProcessDied) as caught:
            await run(pool, steps.segfaults)

    assert re.search(r"isolated_steps.py\", line \d+ in segfaults", error_of(caught.value).traceback)


async def test_sys_exit_fails_the_step_like_any_error():
    async with open_pool() as pool:
        with pytest.raises(StepFailed, match="SystemExit: 4") as caught:
            await run(pool, steps.leaves, 4)
        assert type_name(caught.value) == "SystemExit"
        assert await run(pool, steps.plain, "ab") == "ba"


async def test_too_much_memory_fails_the_step_and_what_fits_does_not():
    async with open_pool() as pool:
        with pytest.raises(MemoryError, match="it exceeded its memory limit of 200 MB"):
            await run(pool, steps.grows, 300, memory_mb=200)
        assert await run(pool, steps.grows, 100, memory_mb=200) == 100 << 20
        assert await run(pool, steps.grows, 300) == 300 << 20  # The limit was that call's.


@pytest.mark.parametrize("function", [steps.counts, steps.joins, steps.waits_for, steps.matches])
async def test_what_does_not_end_is_killed_at_its_timeout(function, tmp_path):
    args = (str(tmp_path / "entered"),) if function in (steps.waits_for, steps.matches) else ()
    if function is steps.waits_for:
        args = (str(tmp_path / "never"),)
    async with open_pool() as pool:
        await run(pool, steps.plain, "warm")
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=f"step {function.__name__} took longer than its timeout of 200 ms and"):
            await run(pool, function, *args, timeout=0.2)
        assert 0.2 <= time.monotonic() - began < at_pace(2.0)
        await until(lambda: not pool._ending, 1.0)
        assert len(children()) <= 2
        assert await run(pool, steps.plain, "ab") == "ba"


async def test_a_thread_that_never_ends_costs_its_process_and_a_daemon_does_not():
    async with open_pool() as pool:
        left = await run(pool, steps.leaves_a_thread)
        await until(lambda: is_dead(left), 2.0)
        with_daemon = await run(pool, steps.leaves_a_daemon)
        assert await run(pool, steps.whose) == with_daemon != left


async def test_the_other_calls_go_on_while_one_is_stuck_and_others_crash(tmp_path):
    async with open_pool(at_once=3) as pool:
        stuck = asyncio.create_task(run(pool, steps.matches, str(tmp_path / "entered"), timeout=None))
        calm = asyncio.create_task(run(pool, steps.handed_over, str(tmp_path / "calm"), str(tmp_path / "go")))
        await until(lambda: pid_in(tmp_path / "entered") and pid_in(tmp_path / "calm"))

        for _ in range(3):
            with pytest.raises(ProcessDied):
                await run(pool, steps.segfaults)
        assert await run(pool, steps.plain, "ab") == "ba"

        assert not stuck.done()
        (tmp_path / "go").touch()
        assert await calm == pid_in(tmp_path / "calm")
        stuck.cancel()


# Errors of the function itself.


async def test_an_error_comes_back_as_its_own_kind_with_its_own_traceback():
    async with open_pool() as pool:
        with pytest.raises(ValueError, match="the prompt is empty") as caught:
            await run(pool, steps.fails, "value")
        with pytest.raises(steps.Refused, match=re.escape("no credit (402)")):
            await run(pool, steps.fails, "own")
        with pytest.raises(Invalid, match="give a prompt"):
            await run(pool, steps.fails, "invalid")
        with pytest.raises(TimeoutError) as slow:
            await run(pool, steps.fails, "timeout")
        assert str(slow.value) == "the provider was too slow"

    recorded = error_of(caught.value)
    assert (recorded.type, recorded.message) == ("ValueError", "the prompt is empty")
    assert "isolated_steps.py" in recorded.traceback
    assert "earlier in this attempt" not in recorded.traceback


async def test_an_error_of_a_kind_that_is_not_loaded_here_is_told_as_data():
    async with open_pool() as pool:
        with pytest.raises(
            StepFailed, match=r"step fails failed in its own process: elsewhere\.Strange: odd"
        ) as caught:
            await run(pool, steps.fails, "unknown")

    assert (error_of(caught.value).type, error_of(caught.value).message) == ("elsewhere.Strange", "odd")


async def test_stop_iteration_does_not_end_the_coroutine_it_is_raised_in():
    async with open_pool() as pool:
        with pytest.raises(StepFailed) as caught:
            await run(pool, steps.fails, "stop")

    assert type_name(caught.value) == "StopIteration"


# Cancelling.


@pytest.mark.parametrize("function", [steps.matches, steps.awaits, steps.starts_a_program])
async def test_a_cancel_kills_the_process_and_all_that_it_started_within_100_ms(function, tmp_path):
    entered = tmp_path / "entered"
    async with open_pool() as pool:
        running = asyncio.create_task(run(pool, function, str(entered), timeout=None))
        pid = await until(lambda: pid_in(entered))
        program = pid_in(tmp_path / "entered.program") or pid
        assert not is_dead(pid)
        assert not is_dead(program)

        running.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: is_dead(pid) and is_dead(program), 5.0)

        assert time.monotonic() - began < at_pace(0.1)
        await until(lambda: pid not in children(), 1.0)
        assert await run(pool, steps.plain, "ab") == "ba"


async def test_a_cancel_while_the_process_starts_leaves_nothing_behind():
    async with open_pool(spare=0) as pool:
        for delay in (0.0, 0.001, 0.05):
            running = asyncio.create_task(run(pool, steps.plain, "ab"))
            await asyncio.sleep(delay)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        await until(lambda: not children(), 2.0)
        assert await run(pool, steps.plain, "ab") == "ba"


# The pool.


async def test_a_warm_process_is_used_again():
    async with open_pool() as pool:
        assert len({await run(pool, steps.whose) for _ in range(20)}) == 1


async def test_a_process_is_replaced_after_so_many_calls():
    async with open_pool(max_uses=3) as pool:
        pids = [await run(pool, steps.whose) for _ in range(9)]

        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 3]
        await until(lambda: all(is_dead(pid) for pid in set(pids)), 5.0)


async def test_no_more_run_at_once_than_the_pool_allows_and_the_rest_wait_their_turn(tmp_path):
    async with open_pool(at_once=2) as pool:
        first = [
            asyncio.create_task(run(pool, steps.handed_over, str(tmp_path / f"in{n}"), str(tmp_path / "go")))
            for n in range(2)
        ]
        await until(lambda: all(pid_in(tmp_path / f"in{n}") for n in range(2)))
        third = asyncio.create_task(run(pool, steps.whose, timeout=0.5))
        await asyncio.sleep(0.6)
        assert not third.done()  # Its own time has not begun.
        assert len(children()) <= 3

        (tmp_path / "go").touch()
        assert await third in await asyncio.gather(*first)


async def test_a_spare_process_is_there_before_it_is_needed_and_has_imported_what_will_be(tmp_path, monkeypatch):
    imports = tmp_path / "imports"
    (tmp_path / "ahead_module.py").write_text(
        f"import os\nwith open({str(imports)!r}, 'a') as file: print(os.getpid(), file=file)\n"
        "def pid() -> int:\n    return os.getpid()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import ahead_module  # type: ignore[import-not-found]

    async with open_pool(max_uses=1) as pool:
        pool.warm()
        (first,) = await until(lambda: pool._idle[:])
        assert await run(pool, ahead_module.pid) == first.pid
        second = (await until(lambda: pool._idle[:]))[0]  # Perhaps started before the module was known.
        assert await run(pool, ahead_module.pid) == second.pid
        (third,) = await until(lambda: pool._idle[:])

        await until(lambda: str(third.pid) in imports.read_text().split())
        assert third.uses == 0


async def test_idle_processes_above_the_spare_ones_end_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "TEND_SECONDS", 0.05)
    async with open_pool(at_once=3, idle_seconds=0.2) as pool:
        tasks = [
            asyncio.create_task(run(pool, steps.handed_over, str(tmp_path / f"in{n}"), str(tmp_path / "go")))
            for n in range(3)
        ]
        await until(lambda: all(pid_in(tmp_path / f"in{n}") for n in range(3)))
        (tmp_path / "go").touch()
        await asyncio.gather(*tasks)
        assert len(children()) >= 3

        await until(lambda: len(children()) == 1)
        assert await run(pool, steps.plain, "ab") == "ba"


async def test_an_idle_process_that_is_killed_is_replaced_and_buried(monkeypatch):
    monkeypatch.setattr(pools, "TEND_SECONDS", 0.05)
    async with open_pool() as pool:
        pid = await run(pool, steps.whose)
        os.kill(pid, signal.SIGKILL)
        assert await run(pool, steps.whose) != pid

        await until(lambda: pid not in children(), 2.0)
        for victim in children():
            os.kill(victim, signal.SIGKILL)
        await until(lambda: "Z" not in children().values() and len(children()) == 1, 5.0)


async def test_a_closed_pool_leaves_nothing_and_runs_nothing(tmp_path):
    async with open_pool() as pool:
        running = asyncio.create_task(run(pool, steps.awaits, str(tmp_path / "entered"), timeout=None))
        await until(lambda: pid_in(tmp_path / "entered"))
        await pool.close()
        assert children() == {}
        with pytest.raises(ProcessDied, match="because the worker stopped"):
            await running
        with pytest.raises(HoldfastError, match="their worker has stopped"):
            await run(pool, steps.plain, "ab")
        await pool.close()


async def test_neither_processes_nor_descriptors_are_left_whatever_happened(tmp_path):
    async def everything():
        async with open_pool(max_uses=2) as pool:
            for function, args in [(steps.segfaults, ()), (steps.exits, (1,)), (steps.fails, ("own",))]:
                with pytest.raises((ProcessDied, steps.Refused)):
                    await run(pool, function, *args)
            with pytest.raises(TimeoutError):
                await run(pool, steps.counts, timeout=0.05)
            entered = tmp_path / "entered"
            entered.unlink(missing_ok=True)
            running = asyncio.create_task(run(pool, steps.matches, str(entered), timeout=None))
            await until(lambda: pid_in(entered))
            running.cancel()
            await asyncio.gather(*[run(pool, steps.whose) for _ in range(6)])

    await everything()
    before = set(os.listdir("/proc/self/fd"))
    await everything()
    assert len(set(os.listdir("/proc/self/fd"))) == len(before)
    assert children() == {}


async def test_a_process_that_can_not_start_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = len(os.listdir("/proc/self/fd"))
    async with open_pool() as pool:
        with pytest.raises(ProcessDied, match="step plain: no process could be started"):
            await run(pool, steps.plain, "ab")
    assert len(os.listdir("/proc/self/fd")) == before

    monkeypatch.setattr(sys, "executable", "/bin/false")
    async with open_pool() as pool:
        with pytest.raises(ProcessDied, match="step plain: its process exited with code 1 before the step started"):
            await run(pool, steps.plain, "ab")


async def test_signals_for_the_worker_do_not_end_the_step(tmp_path):
    async with open_pool() as pool:
        running = asyncio.create_task(
            run(pool, steps.handed_over, str(tmp_path / "entered"), str(tmp_path / "go"), timeout=10)
        )
        pid = await until(lambda: pid_in(tmp_path / "entered"))
        assert os.getsid(pid) == os.getpgid(pid) == pid != os.getsid(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        (tmp_path / "go").touch()
        assert await running == pid


# Which functions.


def test_a_function_that_no_other_process_could_find_is_refused():
    hidden = steps.inner()
    for refuse in (check_importable, target_of):
        with pytest.raises(Invalid, match="hidden .* is defined inside a function"):
            refuse(hidden)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="is defined inside a function"):
            refuse(lambda: None)
    with pytest.raises(Invalid, match="plain_again .* can't be found by its name"):
        target_of(steps.shadowed)


def test_a_function_is_found_by_its_name_through_what_lies_around_it():
    for function in (steps.plain, steps.whose.spec.function, steps.shifted.spec.function):
        assert find_function(target_of(function)) is function


def test_a_function_that_was_typed_in_is_refused():
    code = (
        "from holdfast.worker.isolation.import_target import check_importable\n"
        "def typed(): ...\n"
        "try: check_importable(typed)\n"
        "except Exception as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout
    assert "was typed into an interactive session, so no other process can import it" in said


SCRIPT = """
import asyncio, os, sys
from dataclasses import dataclass
from holdfast import step
from holdfast.core.codec import Signature
from holdfast.worker.context import Current
from holdfast.worker.isolation.pool import IsolatedCall, Pool

@dataclass
class Scene:
    number: int

class Odd(Exception): ...

@step
async def draw(scene: Scene) -> Scene:
    if scene.number < 0:
        raise Odd("below zero")
    return Scene(scene.number + 1)

@step
def stuck(path: str) -> None:
    import re, subprocess
    program = subprocess.Popen(["sleep", "60"])
    with open(path + ".new", "w") as file:
        file.write(f"{os.getpid()} {program.pid}")
    os.rename(path + ".new", path)
    re.match(r"(a+)+$", "a" * 64 + "b")

def call(step, *args):
    current = Current(job_id="j", attempt=1, epoch=1, deadline=None, step="s")
    function = step.spec.function
    return IsolatedCall(step=step.name, function=function, args=Signature(function).encode(args, {}), current=current)

async def main():
    pool = Pool(2)
    print(await pool.run(call(draw, Scene(1))))
    try:
        await pool.run(call(draw, Scene(-1)))
    except Odd as error:
        print("Odd:", error)
    if len(sys.argv) > 1:
        await pool.run(call(stuck, sys.argv[1]))
    await pool.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("name", ["video.py", "json.py", "video.v2.py", "video", "-m films.video"])
def test_steps_of_the_script_itself_are_found_from_its_file(name, tmp_path):
    if name.startswith("-m"):
        (tmp_path / "films").mkdir()
        (tmp_path / "films/__init__.py").touch()
        (tmp_path / "films/near.py").write_text("x = 1")
        (tmp_path / "films/video.py").write_text("from .near import x\n" + SCRIPT)
        command = [sys.executable, "-m", "films.video"]
    else:
        (tmp_path / name).write_text(SCRIPT)
        # A script's folder is on its path: a file json.py there would be everybody's json.
        command = [sys.executable, *(["-P"] if name == "json.py" else []), str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=30)
    assert done.stdout == '{"number":2}\nOdd: below zero\n', done.stderr


async def test_steps_of_an_app_that_was_loaded_from_a_file_are_found_from_it(tmp_path, monkeypatch):
    from holdfast.cli.load_app import load_app

    (tmp_path / "film.reel.py").write_text(
        "from holdfast import App, step\napp = App('memory:')\n@step\ndef cut(n: int) -> int:\n    return n * 2\n"
    )
    monkeypatch.setattr(sys, "path", sys.path[:])
    load_app(f"{tmp_path}/film.reel.py:app")
    module = sys.modules.pop("film.reel")
    monkeypatch.setitem(sys.modules, "film.reel", module)
    async with open_pool() as pool:
        assert await run(pool, module.cut, 21) == 42


async def test_a_slow_import_does_not_count_against_the_timeout(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(0.6)\ndef quick() -> int:\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import slow_module  # type: ignore[import-not-found]

    async with open_pool() as pool:
        assert await run(pool, slow_module.quick, timeout=0.3) == 1


async def test_a_module_that_can_not_be_imported_there_fails_its_own_steps_only(tmp_path, monkeypatch):
    (tmp_path / "picky_module.py").write_text(
        "import os\nif os.environ.get('PICKY') == 'error': raise RuntimeError('not here')\n"
        "if os.environ.get('PICKY') == 'crash': os.abort()\n"
        "def picky() -> int:\n    return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import picky_module  # type: ignore[import-not-found]

    async with open_pool(max_uses=1) as pool:
        assert await run(pool, picky_module.picky) == 1  # From now on it is imported ahead.
        monkeypatch.setenv("PICKY", "crash")
        await until(lambda: pool._idle)
        for process in pool._idle:
            process.kill()
        with pytest.raises(ProcessDied, match="step picky: its process died with SIGABRT.*before the step started"):
            await run(pool, picky_module.picky)
        assert await run(pool, steps.plain, "ab") == "ba"
        monkeypatch.setenv("PICKY", "error")
        await until(lambda: pool._idle)
        for process in pool._idle:
            process.kill()
        with pytest.raises(RuntimeError, match="not here"):
            await run(pool, picky_module.picky)


# The worker's own death.


def test_when_the_worker_is_killed_its_processes_and_what_they_started_end_too(tmp_path):
    (tmp_path / "video.py").write_text(SCRIPT)
    entered = tmp_path / "entered"
    worker = subprocess.Popen([sys.executable, tmp_path / "video.py", entered], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while not entered.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        stuck = [int(pid) for pid in entered.read_text().split()]
        all_of_them = {*stuck, *started_by(worker.pid)}
        assert len(all_of_them) >= 3  # What is stuck, its program, and a spare process.
        assert not any(is_dead(pid) for pid in all_of_them)
    finally:
        worker.kill()
        worker.wait(30)

    end = time.monotonic() + 2
    while not all(is_dead(pid) for pid in all_of_them):
        assert time.monotonic() < end, "they live on"
        time.sleep(0.01)


def started_by(parent: int) -> list[int]:
    lines = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, timeout=30
    ).stdout
    return [int(pid) for pid in lines.split()]


async def test_a_forked_copy_of_the_worker_does_not_keep_them_alive(tmp_path):
    """The lifeline is closed in the copy: here the worker's end is closed, and the copy lives on."""
    async with open_pool(spare=0) as pool:
        running = asyncio.create_task(run(pool, steps.matches, str(tmp_path / "entered"), timeout=None))
        pid = await until(lambda: pid_in(tmp_path / "entered"))
        copy = forked_copy()
        try:
            (process,) = pool._busy
            os.dup2(0, process._lifeline)
            await until(lambda: is_dead(pid), 2.0)
        finally:
            os.kill(copy, signal.SIGKILL)
            await until(lambda: os.waitpid(copy, os.WNOHANG) != (0, 0))
        with pytest.raises(ProcessDied):
            await running


def forked_copy() -> int:
    """A copy of this process that does nothing, for long."""
    copy = os.fork()
    if copy == 0:
        time.sleep(30)
        os._exit(0)
    return copy


def test_a_script_that_starts_its_work_when_it_is_imported_is_told_so_and_does_not_multiply(tmp_path):
    (tmp_path / "film.py").write_text(
        "import asyncio, pathlib\n"
        "from holdfast import App, step\n"
        "with open('starts', 'a') as file: file.write('.')\n"
        "app = App('memory:')\n"
        "@step(isolate='process')\n"
        "def draw() -> int: return 1\n"
        "@app.job(retries=0)\n"
        "def film() -> int: return draw()\n"
        "async def main():\n"
        "    run = await film.submit()\n"
        "    async with app.worker(): print(await run.result(timeout=20))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "film.py"], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert "move that code under if __name__ == '__main__':" in done.stderr
    assert done.returncode == 1
    assert 2 <= len((tmp_path / "starts").read_text()) <= 6, "the script, and the processes of its one step"
