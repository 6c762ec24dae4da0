"""The constructors of changes: each is its event, decided with the facts that its caller named, and nothing else."""

from typing import Any

import pytest

from holdfast.core import changes
from holdfast.core.errors import NotAllowed
from holdfast.core.lifecycle import decide
from holdfast.core.model import Event, Step, StepState, Wait, WaitKind
from tests.core.second_copy import BROKEN, EDGES, JOB_ID, NOW, job_in

LATER = NOW + 5_000
WAITS = (Wait(WaitKind.SIGNAL, "go"),)
FACTS: dict[str, dict[str, Any]] = {
    "complete": {"result": "42"},
    "fail": {"error": BROKEN, "run_at": LATER},
    "exhaust": {"error": BROKEN},
    "release": {},
    "suspend": {"waits": WAITS},
    "rest": {"run_at": LATER, "waits": (Wait(WaitKind.TIME, until=LATER),)},
    "lapse": {"progressed": True, "recovery": False},
    "overrun": {"error": BROKEN, "run_at": LATER},
    "abandon": {"error": BROKEN},
    "cancel": {},
    "claim": {},
    "promote": {},
    "activate": {},
    "expire": {},
    "replay": {"args": ("[1]", "digest")},
    "resolve": {"result": "42"},
    "discard": {},
}
STEP = Step(job=JOB_ID, epoch=2, path="draw#1", name="draw", state=StepState.DONE, result="1", started_at=NOW)
CARGO: dict[str, Any] = {"note": {"why": "x"}, "steps": (STEP,), "drops": ("cut#1",), "takes": (5,)}


def test_every_event_that_changes_a_job_has_a_constructor():
    assert set(FACTS) == {*map(str, Event)} - {"submit"}


@pytest.mark.parametrize(("event", "state"), [edge for edge in EDGES if edge[0] in FACTS])
def test_a_constructor_decides_its_event_with_its_facts_and_its_cargo(event, state):
    job, construct = job_in(state), getattr(changes, event)

    bare = construct(job, NOW, by="ada", **FACTS[event])
    laden = construct(job, NOW, by="ada", **FACTS[event], **CARGO)

    assert bare == decide(job, Event(event), NOW, by="ada", **FACTS[event])
    assert laden == decide(job, Event(event), NOW, by="ada", **FACTS[event], **CARGO)
    assert (bare.event, laden.steps, laden.takes) == (event, (STEP,), (5,))


@pytest.mark.parametrize("event", FACTS)
def test_a_constructor_refuses_what_the_table_has_no_edge_for(event):
    with pytest.raises(NotAllowed):
        getattr(changes, event)(job_in("completed"), NOW, by="ada", **FACTS[event])
