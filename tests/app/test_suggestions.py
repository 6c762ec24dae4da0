"""A mistyped option or argument is refused with the one that was meant."""

# mypy: disable-error-code="call-arg,call-overload"

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App, Settings, UnknownOption, step
from holdfast.core.errors import Invalid
from holdfast.core.suggestions import suggest

app = App("memory:")


@app.job
async def film(title: str, *, scenes: int = 3) -> str:
    return title


@app.job
async def open_ended(**more: int) -> int:
    return len(more)


@step
async def draw(scene: int) -> int:
    return scene


@step
def narrate(scene: int) -> int:
    return scene


def decorate_job(**options: Any) -> Any:
    return app.job(**options)


def decorate_step(**options: Any) -> Any:
    return step(**options)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: decorate_job(retires=3), "@app.job takes no 'retires'; did you mean retries?"),
        (lambda: decorate_step(time_out=3), "@step takes no 'time_out'; did you mean timeout?"),
        (lambda: film.submit("Sea", prioritty=3), "film.submit takes no 'prioritty'; did you mean priority?"),
        (lambda: film.submit("Sea", kye="x"), "film.submit takes no 'kye'; did you mean key?"),
        (lambda: film.submit("Sea", scene=3), "film.submit takes no 'scene'; did you mean scenes?"),
        (lambda: app.worker(at_onec=3), "app.worker takes no 'at_onec'; did you mean at_once?"),
        (lambda: film.map(["Sea"], at_one=3), "map takes no 'at_one'; did you mean at_once?"),
        (lambda: draw.map([1], needs=3), "map takes no 'needs'; did you mean need?"),
        (lambda: narrate.map([1], keys=3), "map takes no 'keys'; did you mean key?"),
        (lambda: app.worker(colour=3), "app.worker takes no 'colour'; it takes at_once, queues, name, has"),
    ],
)
def test_a_mistyped_option_is_refused_with_the_one_that_was_meant(call: Callable[[], Any], line: str):
    with pytest.raises(UnknownOption) as refusal:
        call()

    assert str(refusal.value) == line
    assert isinstance(refusal.value, Invalid)
    assert isinstance(refusal.value, TypeError)


async def test_submit_many_is_checked_as_well():
    with pytest.raises(UnknownOption, match="film.submit_many takes no 'quue'; did you mean queue\\?"):
        await film.submit_many(["Sea"], quue="x")


async def test_an_argument_that_resembles_nothing_is_refused_with_what_the_job_takes():
    with pytest.raises(UnknownOption) as refusal:
        await film.submit("Sea", colour="blue")

    assert str(refusal.value) == "film.submit takes no 'colour'; film takes title, scenes"


async def test_a_job_that_takes_any_name_gets_any_name():
    run = await open_ended.submit(prioritty=3)

    assert (await app.open()).engine is not None
    assert run.id


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("stauts", ["status", "jobs"], "; did you mean status?"),
        ("comp", ["completion", "jobs"], "; did you mean completion?"),
        ("--sate", ["--state", "--help"], "; did you mean --state?"),
        ("dra", ["draw", "drape"], "; did you mean draw or drape?"),
        ("zebra", ["status", "jobs"], ""),
        ("", ["status"], ""),
        ("x", [], ""),
    ],
)
def test_only_what_begins_alike_or_resembles_a_word_is_suggested(word: str, known: list[str], hint: str):
    assert suggest(word, known) == hint


def test_a_mistyped_setting_names_the_one_that_was_meant():
    with pytest.raises(Invalid, match=r"there is no setting lease_second; did you mean lease_seconds\?"):
        Settings(lease_second=3)
    with pytest.raises(Invalid, match=r"there is no setting colour; the settings are beat_seconds, .*keep_days"):
        Settings(colour="red")


@pytest.mark.parametrize("value", ["2", "15s", None, [1], float("nan"), -1])
def test_a_setting_that_is_no_number_above_zero_is_refused_in_one_line(value: Any):
    with pytest.raises(Invalid) as refusal:
        Settings(keep_days=value)

    assert str(refusal.value) == f"setting keep_days={value!r}: give a number above 0"


async def test_a_worker_warns_of_queues_and_stages_that_are_probably_misspelled(caplog: pytest.LogCaptureFixture):
    typos = App("memory:")

    @typos.job(queue="video", stages=["drwa", "a word of ours"])
    async def clip() -> None: ...

    async with typos.worker(queues=["vidoe", "video", "elsewhere"]):
        pass

    assert [one.getMessage() for one in caplog.records if one.name == "holdfast.app"] == [
        "queue vidoe: no job of this app uses it; did you mean video?",
        "job clip: stage drwa isn't a step in its module; did you mean draw?",
    ]
