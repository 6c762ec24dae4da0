"""Checks a flow that somebody else has built: a remote app, for example. Must not know who.

What `app.flows` makes passes. A flow can't reach beyond itself: its jobs are none of Holdfast's own, and they get the
results of no other jobs.
"""

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.errors import BadValue, NotAllowed
from holdfast.core.model import Job, State
from holdfast.jobs.flows import FLOW_TYPE, RESULT_OF, RESULTS_OF, read_flow
from holdfast.jobs.job_calls import JobCall, check_call

DEPTH = 20
"""How deep flows may be nested."""


_NEW = Job(id="(new)", type=FLOW_TYPE, queue="default", args="[]", digest="", created_at=0, state=State.AVAILABLE)


def check_given_flow(args: str, *, has_input: bool = False, depth: int = 1) -> None:
    """Raise BadValue, Invalid or NotAllowed unless these arguments of a job are a flow that holds together."""
    if depth > DEPTH:
        raise BadValue(f"the flow has more than {DEPTH} flows inside one another; make it flatter")
    run = read_flow(replace(_NEW, args=args))
    if run.input is not None or (not has_input and any(step.takes == "input" for step in run.flow.steps)):
        raise BadValue("the flow needs an input that nothing gives it; give its first jobs their arguments")
    for call in run.calls:
        check_type(call.type)
        _check_call(call)
    for step in run.flow.steps:
        text, call = bytes(step.args).decode(), run.calls[step.call]
        if call.type == FLOW_TYPE:
            check_given_flow(text, has_input=bool(step.takes), depth=depth + 1)
        else:
            _check_arguments(text, call)


def check_type(type: str) -> None:
    """Refuse jobs that only Holdfast makes. A flow is none of them."""
    if type.startswith("holdfast.") and type != FLOW_TYPE:
        raise NotAllowed(f"jobs of type {type[:60]} are made by Holdfast itself; use its own calls for them")


def _check_call(call: JobCall) -> None:
    if call.key is not None or call.options.unique is not None or call.options.budget_root:
        raise BadValue(f"{call.type}: a job in a flow can't have a key, a unique name or somebody else's budget")
    check_call(replace(call, args="[]"))


def _check_arguments(text: str, call: JobCall) -> None:
    try:
        given = msgspec.json.decode(text, type=list[Raw])
        first = msgspec.json.decode(given[0]) if given else None
    except msgspec.MsgspecError as error:
        raise BadValue(f"{call.type}: {text[:80]} is not a list of arguments: {error}") from None
    if isinstance(first, dict) and (RESULT_OF in first or RESULTS_OF in first):
        raise BadValue(f"{call.type}: {RESULT_OF} and {RESULTS_OF} are reserved for Holdfast; use another key")
