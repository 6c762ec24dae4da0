"""Calls are numbered in the order in which the code makes them, also when their records are in another order."""

from holdfast.core.model import Step, StepState
from holdfast.core.places import (
    PLACES_LIMIT,
    PLACES_PATH,
    in_order,
    places_in,
    places_text,
    still_used,
    unused_before,
)
from holdfast.jobs.views.step_names import call_order


def recorded_as(text: str) -> list[Step]:
    return [Step(job="", epoch=1, path=PLACES_PATH, name="", state=StepState.STARTED, result=f'"{text}"', started_at=0)]


def numbered(text: str, recorded: list[str]) -> list[str]:
    return in_order(recorded, places_in(recorded_as(text)))


def test_calls_that_were_recorded_in_order_need_no_record():
    assert places_text(["a#1", "b#1", "a#2"], ["a#1", "b#1", "a#2"]) == ""


def test_calls_that_were_recorded_in_another_order_keep_their_places():
    recorded = ["a#3", "a#1", "a#2"]

    assert numbered(places_text(["a#1", "a#2", "a#3"], recorded), recorded) == ["a#1", "a#2", "a#3"]


def test_a_record_that_no_call_uses_any_more_comes_last():
    recorded = ["a#1", "a#old", "a#new"]

    assert numbered(places_text(["a#1", "a#new"], recorded), recorded) == ["a#1", "a#new", "a#old"]


def test_an_attempt_that_was_cut_short_forgets_no_places():
    recorded = ["a#3", "a#1", "a#2", "b#2", "b#1"]
    whole = places_text(["a#1", "a#2", "a#3", "b#1", "b#2"], recorded)

    assert numbered(places_text(["a#1"], recorded, whole), recorded[:3]) == ["a#1", "a#2", "a#3"]
    assert numbered(places_text(["a#1"], recorded, whole), recorded[3:]) == ["b#1", "b#2"]


def test_steps_of_different_names_and_inside_others_are_in_the_order_of_their_calls():
    recorded = ["b#1/a#2", "b#1/a#1", "b#1", "a#2", "b#2/a#1", "b#2", "a#1"]
    called = ["a#1", "b#1", "b#1/a#1", "b#1/a#2", "a#2", "b#2", "b#2/a#1"]

    text = places_text(called, recorded)

    assert call_order(recorded, places_in(recorded_as(text))) == called


def test_what_a_rerun_has_left_unused_is_known_until_it_is_called_again():
    recorded = ["a#1", "b#old", "b#old/c#1", "b#new"]
    text = places_text(["a#1", "b#new"], recorded, unused=["b#old"])

    assert still_used(recorded, recorded_as(text)) == ["a#1", "b#new"]
    assert numbered(text, ["a#1", "b#old", "b#new"]) == ["a#1", "b#new", "b#old"]
    assert unused_before(text, {"a#1"}, recorded) == ["b#old"]
    assert unused_before(text, {"a#1", "b#old"}, recorded) == []
    assert still_used(recorded, recorded_as(places_text(["a#1"], recorded))) == recorded


def test_the_record_is_bounded():
    paths = [f"a#{number}" for number in range(PLACES_LIMIT + 10)]

    assert len(places_text(paths, paths[::-1])) == 8 * PLACES_LIMIT


def test_a_call_whose_arguments_changed_in_a_later_rerun_is_replaced_and_so_is_what_is_inside_it():
    recorded = ["a#1", "a#1*2", "a#1*10", "a#2", "a#1/b#1", "a#1*10/b#1", "c#1*3"]

    assert still_used(recorded, []) == ["a#1*10", "a#2", "a#1*10/b#1", "c#1*3"]
