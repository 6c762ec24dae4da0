"""Flows as data: which steps may start, which never will, and which failures make a flow fail."""

import random
from typing import Any

import pytest

from holdfast.core.codec import canonical, parse
from holdfast.core.errors import Invalid
from holdfast.core.flows import Flow, FlowStep, advance, check_flow, in_order, layers_of, places, ranges_of
from holdfast.jobs.flows import Layer, batch_flow, flow_call, graph_flow, layered_flow, read_flow, request_of
from holdfast.jobs.job_calls import JobCall
from holdfast.jobs.requests import new_job

ID = "0192f3a4-5b6c-7d8e-9f01-23456789abcd"
CALL, OPEN = JobCall(type="work"), JobCall(type="work", is_open=True)


def flow(*after: tuple[tuple[int, int], ...], **fields: object) -> Flow:
    steps = tuple(FlowStep(after=one) for one in after)
    return check_flow(Flow(calls=({"type": "work"},), kind="graph", steps=steps, **fields))  # type: ignore[arg-type]


def chord(members: int, need: int | None = None) -> Flow:
    return layered_flow("chord", [Layer(calls=(CALL,) * members, need=need), Layer(calls=(OPEN,), is_list=False)])


def run_to_end(given: Flow, fails: set[int]) -> tuple[list[set[int]], tuple[int, ...]]:
    """Run a flow in rounds: everything that may start ends. What each round started, and what failed unhandled."""
    ended: dict[int, bool] = {}
    rounds: list[set[int]] = []
    while starts := set(advance(given, ended).started) - ended.keys():
        rounds.append(starts)
        ended |= {place: place not in fails for place in starts}
    return rounds, advance(given, ended).unhandled


def test_a_step_starts_when_all_before_it_have_ended():
    given = flow((), (), ((0, 2),), ((0, 1),))

    assert advance(given, {}).started == (0, 1)
    assert advance(given, {0: True}).started == (0, 1, 3)
    assert advance(given, {0: True, 1: True}).started == (0, 1, 2, 3)


def test_a_failure_stops_what_comes_after_it_and_the_flow():
    rounds, unhandled = run_to_end(flow((), ((0, 1),), ((1, 2),), ()), {0})

    assert rounds == [{0, 3}]
    assert unhandled == (0,)


@pytest.mark.parametrize(("failed", "runs"), [(0, True), (1, True), (2, False)])
def test_with_need_a_callback_starts_if_so_many_succeeded(failed: int, runs: bool):
    rounds, unhandled = run_to_end(chord(3, need=2), set(range(failed)))

    assert (len(rounds) == 2) is runs
    assert bool(unhandled) is not runs


def test_a_failed_callback_fails_its_flow():
    assert run_to_end(chord(3, need=0), {0, 3}) == ([{0, 1, 2}, {3}], (3,))


@pytest.mark.parametrize(
    ("names", "fails", "called", "unhandled"),
    [
        (("on_success", "on_failure", "on_complete"), set(), {"on_success", "on_complete"}, ()),
        (("on_success", "on_failure", "on_complete"), {1}, {"on_failure", "on_complete"}, ()),
        (("on_success",), {1}, set(), (1,)),
        (("on_failure",), {1}, {"on_failure"}, ()),
        (("on_complete",), {0, 1}, {"on_complete"}, ()),
        ((), {0}, set(), (0,)),
        (("on_failure",), set(), set(), ()),
    ],
)
def test_the_callbacks_of_a_batch(
    names: tuple[str, ...], fails: set[int], called: set[str], unhandled: tuple[int, ...]
):
    callbacks: Any = {name: JobCall(type=name) for name in names}
    given = batch_flow([CALL, CALL], **callbacks)

    rounds, left = run_to_end(given, fails)

    started = {place for starts in rounds for place in starts if place >= 2}
    assert {str(given.calls[given.steps[place].call]["type"]) for place in started} == called
    assert left == unhandled


def test_a_flow_of_nothing_is_over_at_once():
    rounds, unhandled = run_to_end(layered_flow("group", [Layer(calls=())]), set())

    assert (rounds, unhandled) == ([], ())
    assert run_to_end(chord(0), set()) == ([{0}], ())


def test_layers_are_found_and_graphs_have_none():
    parts = [Layer(calls=(CALL,), is_list=False), Layer(calls=(OPEN,) * 3), Layer(calls=(OPEN,), is_list=False)]

    assert layers_of(layered_flow("chain", parts)) == [range(1), range(1, 4), range(4, 5)]
    assert layers_of(chord(0)) == [range(1)]
    assert layers_of(flow((), (), ((0, 1),))) is None
    assert layers_of(flow((), ((0, 1),), ())) is None


def test_any_graph_ends_and_starts_each_step_after_those_before_it(rounds):
    for number in range(rounds(200, 5_000)):
        chance = random.Random(number)
        after = [
            ranges_of(chance.sample(range(place), chance.randint(0, min(3, place))))
            for place in range(chance.randint(1, 12))
        ]
        steps = tuple(
            FlowStep(after=one, need=chance.choice([None, None, 0]), on_failure=chance.random() < 0.1) for one in after
        )
        given = check_flow(Flow(calls=({"type": "work"},), kind="graph", steps=steps))
        fails = {place for place in range(len(steps)) if chance.random() < 0.2}

        started, _ = run_to_end(given, fails)

        all_started = [place for starts in started for place in sorted(starts)]
        assert len(set(all_started)) == len(all_started)
        order = {place: n for n, starts in enumerate(started) for place in starts}
        skipped = set(range(len(steps))) - order.keys()
        for place in order:
            assert all(one in skipped or order[one] < order[place] for one in places(steps[place].after))
        for place in skipped:  # only for a reason
            before = places(steps[place].after)
            won = sum(one in order and one not in fails for one in before)
            needs = len(before) if steps[place].need is None else steps[place].need
            assert won == len(before) if steps[place].on_failure else won < (needs or 0)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"steps": (FlowStep(after=((0, 1),)),)}, "step 0 of a graph must come after earlier steps only"),
        ({"steps": (FlowStep(call=1),)}, "step 0 of a graph names call 1, but the flow has 1"),
        ({"steps": (FlowStep(), FlowStep(after=((0, 1),), need=2))}, "step 1 of a graph: need=2, but there are only 1"),
        ({"steps": (FlowStep(takes="result"),)}, "takes one result, so it must come after exactly one step"),
        ({"result": ((0, 1),)}, "names steps that it doesn't have"),
    ],
)
def test_a_flow_that_does_not_hold_together_is_refused(fields: dict[str, object], line: str):
    with pytest.raises(Invalid, match=line):
        check_flow(Flow(calls=({"type": "work"},), kind="graph", **fields))  # type: ignore[arg-type]


def test_named_steps_run_in_the_order_of_their_dependencies_and_a_circle_is_refused():
    given = graph_flow({"c": CALL, "a": CALL, "b": CALL}, {"c": ["b"], "b": ["a"]})

    assert [step.name for step in given.steps] == ["a", "b", "c"]
    with pytest.raises(Invalid, match="wait for each other, so none could start: "):
        in_order({"a": ["b"], "b": ["a"]})
    with pytest.raises(Invalid, match="depends on 'x', but the flow has no step"):
        in_order({"a": ["x"]})


def test_a_flow_is_stored_as_canonical_json_and_equal_calls_once():
    call = JobCall(type="drew", args='["sée",{"a":1.5}]', queue="video")
    given = graph_flow({"é": call, "b": call}, {"b": ["é"]}, name="naïve")

    stored = flow_call(given, CALL)

    assert stored.args == canonical(parse(stored.args))
    assert len(given.calls) == 1
    run = read_flow(new_job(stored.request(0), ID, 0))
    assert run.flow == given
    assert run.calls[0].queue == "video"


def test_a_callback_names_ten_thousand_results_in_a_few_words():
    given = layered_flow("chord", [Layer(calls=(CALL,) * 10_000), Layer(calls=(OPEN,), is_list=False)])
    call = flow_call(given, CALL)

    run = read_flow(new_job(call.request(0), ID, 0))

    assert len(call.args) < 10_000 * 16
    assert len(request_of(run, 10_000, 0).args) < 100


def test_a_step_has_no_key_of_its_own():
    call = JobCall(type="work", key="a")

    with pytest.raises(Invalid, match="work: a job in a flow can't have key="):
        layered_flow("group", [Layer(calls=(call,))])
