"""Everything stored about one job, as frozen values: its status, stages, steps, history, log and children.

Must not change anything.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import BadValue
from holdfast.core.model import Entry, Job, State, Step, StepState, Time, Wait, Where
from holdfast.core.places import places_in
from holdfast.core.references import is_kept_outside, references_in
from holdfast.core.reruns import ASIDE_PATH, Origin, code_of, origin_of
from holdfast.core.unreadable import log_lines
from holdfast.jobs.consequences import UNDO_PATH, UNDO_TYPE
from holdfast.jobs.flows import FLOW_TYPE, FlowRun, read_flow
from holdfast.jobs.questions import Refusal, refusals_of, waits_now
from holdfast.jobs.run_file import history_before_import
from holdfast.jobs.service import LOG_PATH, Jobs
from holdfast.jobs.status import Status
from holdfast.jobs.views.attempts import attempts_of
from holdfast.jobs.views.in_doubt import StepInDoubt, steps_in_doubt, steps_that_may_not_fit
from holdfast.jobs.views.remarks import count_lost_workers
from holdfast.jobs.views.shapes import (
    Shape,
    entry_shape,
    job_shape,
    refusal_shape,
    spending_shape,
    step_shape,
    time_text,
)
from holdfast.jobs.views.text import ago, one_line, plural, short_id, span
from holdfast.jobs.views.tree import Tree, tree_shape, view_tree
from holdfast.safe_text import clean

MEMBERS_SHOWN = 20
"""How many different jobs of a flow are named, in their order."""

VALUE_SHOWN = 1_000
"""How many characters of an argument or a result are shown; the JSON shape has all of it."""


class JobView(Struct, frozen=True, kw_only=True):
    """One job with everything stored about it."""

    job: Job
    status: Status
    now: Time
    steps: tuple[Step, ...]
    history: tuple[Entry, ...]
    before_import: tuple[Entry, ...]
    in_doubt: tuple[StepInDoubt, ...]
    may_not_fit: tuple[StepInDoubt, ...]
    to_undo: tuple[str, ...]
    undo: str
    """What an undo job undoes; or, for another job, what there is to undo, and which job does it."""
    refused: tuple[Refusal, ...]
    log: tuple[str, ...]
    children: tuple[Job, ...]
    tree: Tree | None
    """The steps of a flow, as a tree; None for any other job."""
    waits: tuple[Wait, ...]
    """What it waits for, even if it keeps its slot while it waits."""

    code: Mapping[str, str]
    """The fingerprint of the code that made each step, by path."""
    set_aside: tuple[Step, ...]
    """What steps had recorded before a person wanted them to run again."""
    places: Mapping[str, int]
    """The order of calls, where that isn't the order of their records."""
    origin: Origin | None
    """The run that this one was made from."""

    @property
    def whole_history(self) -> tuple[Entry, ...]:
        """Return the history, preceded by the one from another store."""
        return (*self.before_import, *self.history)

    def shape(self) -> Shape:
        """As JSON."""
        return {
            "job": job_shape(replace(self.job, waits=self.waits)),
            "history": [entry_shape(entry) for entry in self.history],
            "before_import": [entry_shape(entry) for entry in self.before_import],
            "steps": [{**step_shape(step), "code": self.code.get(step.path)} for step in self.steps],
            "set_aside": [step_shape(step) for step in self.set_aside],
            "origin": None if self.origin is None else {"job": self.origin.jobs[0], "how": self.origin.how},
            "in_doubt": [one.path for one in self.in_doubt],
            "to_undo": list(self.to_undo),
            "refused": [refusal_shape(one) for one in self.refused],
            "attempts": [one.shape() for one in attempts_of(self.history)],
            "lost_workers": count_lost_workers(self.whole_history),
            **spending_shape(self.status),
            "log": list(self.log),
            "children": [{"id": c.id, "type": c.type, "state": c.state, "group": c.group} for c in self.children],
            **({} if self.tree is None else {"tree": tree_shape(self.tree)}),
        }


async def view_job(jobs: Jobs, job: Job) -> JobView:
    """Read everything that a store has about a job."""
    records, history = await jobs.engine.steps(job.id), await jobs.history(job.id)
    steps = tuple(step for step in records if not step.path.startswith("~"))
    to_undo = tuple(step.path.removeprefix(UNDO_PATH) for step in records if step.path.startswith(UNDO_PATH))
    children = await jobs.engine.find(Where(parent=job.id))
    return JobView(
        job=job,
        status=await jobs.status(job.id),
        now=await jobs.engine.now(),
        steps=steps,
        history=tuple(history),
        before_import=tuple(history_before_import(records)),
        in_doubt=tuple(steps_in_doubt(job, records)),
        may_not_fit=tuple(steps_that_may_not_fit(job, steps, history)),
        to_undo=to_undo,
        undo=await _undo_words(jobs, job, len(to_undo), children),
        refused=tuple(refusals_of(job, records)),
        log=tuple(line for step in records if step.path == LOG_PATH for line in log_lines(step)),
        children=tuple(children),
        tree=await view_tree(jobs, job) if job.type == FLOW_TYPE else None,
        waits=waits_now(job, records),
        code=code_of(records),
        set_aside=tuple(step for step in records if step.path.startswith(ASIDE_PATH)),
        places=places_in(records),
        origin=origin_of(records),
    )


async def _undo_words(jobs: Jobs, job: Job, made: int, children: Sequence[Job]) -> str:
    if job.type == UNDO_TYPE:
        (undone,) = [None] if job.parent is None else await jobs.engine.get([job.parent])
        which = "which is no longer stored" if undone is None else f"{undone.type}, which is {undone.state}"
        return f"undoes what job {short_id(job.parent or '')} made: {which}"
    if not made or job.state is State.COMPLETED:
        return ""
    things = plural(made, "thing")
    undo = next((child for child in children if child.type == UNDO_TYPE), None)
    if undo is None:
        return f"{things} to undo if it is cancelled or discarded"
    if undo.state is State.COMPLETED:
        return f"{things} undone by job {short_id(undo.id)}"
    return f"{things} to undo: job {short_id(undo.id)}, which is {undo.state}"


def facts_of(job: Job, now: Time) -> dict[str, str]:
    """Return the request and the outcome of a job, by name. Empty ones are left out."""
    facts = {
        "submitted": f"{time_text(job.created_at)}",
        "priority": str(job.priority) if job.priority else "",
        "fair key": clean(job.options.fair),
        "key": clean(job.key or ""),
        "parent": job.parent or "",
        "expires": "" if job.expires_at is None else ago(job.expires_at, now),
        "tags": clean(", ".join(job.options.tags)),
        "meta": clean(", ".join(f"{name}={value}" for name, value in job.options.meta.items())),
        "signals": ", ".join(
            f"{clean(signal.name)} ({ago(signal.at, now)})" for signal in job.inbox if not signal.name.startswith("~")
        ),
        "flow": (flow := flow_words(job)),
        "arguments": "" if flow else _shorten(job.args),
        "result": "" if job.result is None else _shorten(job.result),
    }
    return {name: text for name, text in facts.items() if text}


def flow_words(job: Job) -> str:
    """Say what a flow is made of: "a chord of 31 jobs: 30 draw, join"; nothing for another job, or one kept outside."""
    if job.type != FLOW_TYPE or is_kept_outside(job.args):
        return ""
    try:
        flow = read_flow(job)
        names = [_member_name(flow, place) for place in range(len(flow.flow.steps))]
    except BadValue:
        return ""
    counts = [(name, len([*alike])) for name, alike in groupby(names)]
    parts = [clean(name) if number == 1 else f"{number:,} {clean(name)}" for name, number in counts]
    if len(parts) > MEMBERS_SHOWN:
        parts = [*parts[:MEMBERS_SHOWN], f"{len(parts) - MEMBERS_SHOWN:,} more"]
    return f"a {flow.flow.kind} of {plural(len(names), 'job')}{': ' if parts else ''}{', '.join(parts)}"


def _member_name(run: FlowRun, place: int) -> str:
    step = run.flow.steps[place]
    if step.name or run.calls[step.call].type != FLOW_TYPE:
        return run.name_of(place)
    return f"a {read_flow(replace(run.job, args=bytes(step.args).decode())).flow.kind}"


def _shorten(text: str) -> str:
    text = _named_blob(text)
    rest = len(text) - VALUE_SHOWN
    return clean(text) if rest <= 0 else f"{clean(text[:VALUE_SHOWN])}… and {plural(rest, 'character')} more"


def _named_blob(text: str) -> str:
    """Name a value that is kept in the blob store, instead of showing its reference."""
    found = references_in(text) if is_kept_outside(text) else []
    return text if not found else f"a value of {found[0].size:,} bytes (blob {found[0].sha256[:12]})"


class Stage(Struct, frozen=True):
    """One of a job's stages, and whether it is finished, current or still to come."""

    name: str
    place: Literal["passed", "current", "ahead"]


def stages_of(one: Status) -> list[Stage]:
    """Return the stages that a job declares, in their order."""
    current = one.stage_number or 0
    return [
        Stage(
            clean(name),
            "passed"
            if one.state is State.COMPLETED or number < current
            else "current"
            if number == current
            else "ahead",
        )
        for number, name in enumerate(one.stages, 1)
    ]


class StepLine(Struct, frozen=True):
    """A step, as it appears in a list."""

    name: str
    words: str
    took: str
    result: str
    state: StepState


def step_line(step: Step, name: str, *, is_in_doubt: bool) -> StepLine:
    """Return a step under its short name, with its tries, how long it took, and its result or error."""
    # What a step writes before it runs isn't a result.
    result = "" if step.state is StepState.STARTED else one_line(_named_blob(step.result or ""), 40)
    tries = f", {step.tries} tries" if step.tries > 1 else ""
    return StepLine(
        name=name,
        words="in doubt" if is_in_doubt else f"{step.state}{tries}",
        took="" if step.finished_at is None else _took(step.finished_at - step.started_at),
        result=one_line(f"{step.error.type}: {step.error.message}", 60) if step.error else result,
        state=step.state,
    )


def _took(milliseconds: int) -> str:
    """Return how long a step took; short times in milliseconds."""
    return f"{milliseconds} ms" if milliseconds < 1_000 else span(milliseconds)
