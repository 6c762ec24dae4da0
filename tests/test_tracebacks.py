"""Tracebacks show the user's frames; those of libraries are folded, unless they show a bug of ours."""

import asyncio
import json
import linecache
import re
import site

import pytest

from holdfast import App, ItemsFailed, JobFailed, step
from holdfast.core.limits import TRACEBACK_CHARACTERS
from holdfast.tracebacks import HOLDFAST, STANDARD_LIBRARY, Place, format_folded, own_place, place_in
from holdfast.worker.recorded_errors import error_of

FRAME = re.compile(r'^ *File "(.*?)", line', re.MULTILINE)


def library_function(source: str, filename: str = f"{HOLDFAST}worker/pretended.py"):
    """A function that lies in a file of this name."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    found: dict = {"asyncio": asyncio, "json": json}
    exec(compile(source, filename, "exec"), found)
    return found["function"]


def raised_by(function, *args) -> Exception:
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value.with_traceback(caught.tb.tb_next)


def paint(colour: str) -> None:
    raise ValueError(f"no {colour}")


def files_in(text: str) -> set[str]:
    return set(FRAME.findall(text))


# Folding.


def test_frames_of_holdfast_around_the_users_code_are_left_out_and_between_are_counted():
    inner = library_function("def function(work):\n    return again(work)\ndef again(work):\n    return work('red')\n")
    outer = library_function("def function(work):\n    return work()\n")

    text = format_folded(raised_by(outer, lambda: inner(paint)))

    assert files_in(text) == {__file__}
    assert "… 2 frames of holdfast …" in text
    assert text.count("…") == 2, "the frame that called the user's code leaves no mark"
    assert text.endswith("ValueError: no red\n")


def test_frames_of_asyncio_are_folded():
    async def job() -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)

    text = format_folded(raised_by(asyncio.run, job()))

    assert files_in(text) == {__file__}
    assert "of asyncio …" in text


def test_what_holdfast_raises_on_purpose_is_shown_at_the_users_own_line():
    refuse = library_function("def function():\n    raise ValueError('not so')\n")

    text = format_folded(raised_by(lambda: refuse()))

    assert "raise ValueError" not in text
    assert "refuse()" in text
    assert "… 1 frame of holdfast …" in text


def test_a_bug_of_holdfast_stays_visible_without_any_frame_of_the_user():
    broken = library_function("def function():\n    return {}['key']\n")

    text = format_folded(raised_by(broken))

    assert "pretended.py" in text
    assert "{}['key']" in text


@pytest.mark.parametrize("line", ["return {}['key']", "return json.loads('{')", "assert not 1"])
def test_a_bug_of_holdfast_stays_visible_below_the_users_frames(line: str):
    broken = library_function(f"def function():\n    {line}\n")

    text = format_folded(raised_by(lambda: broken()))

    assert line in text
    assert "lambda" in text


def test_causes_and_groups_are_folded_too():
    inner = library_function("def function(work):\n    return work('red')\n")

    def job() -> None:
        try:
            inner(paint)
        except ValueError as error:
            raise ExceptionGroup("two", [error, raised_by(inner, paint)]) from raised_by(inner, paint)

    text = format_folded(raised_by(job))

    assert "pretended.py" not in text
    assert text.count("ValueError: no red") == 3, "the cause, and both of the group"


def test_an_error_that_is_its_own_cause_ends():
    error, other = ValueError("one"), ValueError("two")
    error.__cause__, other.__cause__ = other, error

    assert "one" in format_folded(error)


def test_frames_of_other_libraries_stay():
    fetch = library_function("def function():\n    return 1 / 0\n", f"{site.getsitepackages()[0]}/provider/api.py")

    assert "provider/api.py" in format_folded(raised_by(lambda: fetch()))


def test_what_is_recorded_stays_bounded():
    def deep(n: int) -> None:
        deep(n - 1) if n else paint("x" * 20_000)

    error = error_of(raised_by(deep, 200))

    assert len(error.traceback) < TRACEBACK_CHARACTERS + 100
    assert "characters left out" in error.traceback


# The place of an error.


def test_the_place_of_an_error_is_the_deepest_line_of_the_users_own_code():
    text = format_folded(raised_by(lambda: json.loads("{")))

    place = place_in(text)

    assert place is not None
    assert (place.filename, place.function) == (__file__, "<lambda>")
    assert str(place) == f"tests/test_tracebacks.py:{place.line} in <lambda>"


def test_code_that_is_installed_as_a_package_is_the_users_own_if_nothing_else_is():
    packages = site.getsitepackages()[0]
    frames = [
        Place(f"{HOLDFAST}worker/handler.py", 1, "run"),
        Place(f"{packages}/film/jobs.py", 2, "make"),
        Place(f"{packages}/film/draw.py", 3, "draw"),
        Place(f"{packages}/httpx/client.py", 4, "post"),
        Place(f"{STANDARD_LIBRARY}ssl.py", 5, "read"),
    ]

    assert own_place(frames) == frames[2]
    assert own_place(frames[:1]) is None


def test_the_place_of_a_crash_is_read_from_the_report_that_has_the_deepest_frame_first():
    text = f'Current thread 0x1 (most recent call first):\n  File "{__file__}", line 7 in draw\n'
    text += f'  File "{__file__}", line 9 in make\n'

    assert place_in(text) == Place(__file__, 7, "draw")


# As users meet them.


@step(retries=0)
async def draw(n: int) -> None:
    paint(f"colour {n}")


@step(retries=0)
def draw_blocking(n: int) -> None:
    paint(f"colour {n}")


async def in_a_step() -> None:
    await draw(1)


async def in_a_map() -> None:
    await draw.map([1, 2])


def in_a_blocking_job() -> None:
    draw_blocking(1)


def in_a_blocking_map() -> None:
    draw_blocking.map([1, 2])


async def in_a_loop_of_its_own() -> None:
    await asyncio.gather(asyncio.to_thread(paint, "red"))


@pytest.mark.parametrize("job", [in_a_step, in_a_map, in_a_blocking_job, in_a_blocking_map, in_a_loop_of_its_own])
async def test_what_is_recorded_of_a_failed_job_shows_only_the_users_files(job):
    app = App("memory:")
    run = await app.job(retries=0)(job).submit()
    async with app.worker():
        with pytest.raises(JobFailed) as caught:
            await run.result(10)
    await app.close()

    others = files_in(caught.value.traceback) - {__file__}
    assert not {one for one in others if one.startswith(HOLDFAST) or "asyncio" in one}
    assert "in paint" in caught.value.traceback
    assert f"in {job.__name__}" in caught.value.traceback
    place = place_in(caught.value.traceback, of_cause=caught.value.type.endswith(ItemsFailed.__name__))
    assert place is not None
    assert place.function == "paint"
