"""Flows as jobs: the call that submits a flow, the jobs of its steps, and the results that they pass on by reference.

Must not decide what follows from a step's end (`core.flows`), and must not wait (`worker.flow_runs`).

A step that gets a result has a reference as its first argument: `{"~result_of": ID}`, or `{"~results_of": ID, "places":
[[0, 30]]}` for a list of the results of a flow's steps. It is replaced by the results when the step starts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.core.budgets import drawing_on
from holdfast.core.canonical import sized
from holdfast.core.codec import Codec, canonical, parse
from holdfast.core.errors import BadValue, Invalid, NotFound
from holdfast.core.flows import Flow, FlowStep, Kind, Places, Takes, check_flow, in_order, layers_of, places, ranges_of
from holdfast.core.keys import derived_id
from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import NEW_JOBS_LIMIT, PAGE_LIMIT, Job, State, Time, Where
from holdfast.core.references import is_kept_outside, may_need_blobs
from holdfast.engines.contract import Engine
from holdfast.jobs.job_calls import JobCall, call_from_json
from holdfast.jobs.large_values import reading_arguments, result_of
from holdfast.jobs.requests import JobRequest, new_job

FLOW_TYPE = "holdfast.flow"
"""The type of the jobs that run flows. Every worker knows it."""

MEMBERS = "~flow"
"""The group of a flow's steps, if it waits for whole layers of them. No caller can name a group."""

LINKED = f"{MEMBERS}+"
"""The same for a flow in which the end of a step may submit the next ones (`next_members`)."""

ALONE = f"{MEMBERS}/"
"""What the group of a step begins with in any other flow; its id follows."""

RESULT_OF, RESULTS_OF, PLACES = "~result_of", "~results_of", "places"

INLINE_BYTES = 64 << 10
"""A flow's list of results is stored with the flow up to this size. A longer one stays with the steps."""
IDS_KEPT = 20_000
"""How many ids of steps are kept in memory, because a flow needs each of them several times."""


# Making a flow.


class Layer(Struct, frozen=True, kw_only=True):
    """Jobs that start together. `is_list` if what comes next gets all results as a list, even of a single one."""

    calls: tuple[JobCall, ...]
    is_list: bool = True
    need: int | None = None
    """How many must succeed; None for all."""


def layered_flow(kind: Kind, layers: Sequence[Layer], name: str = "") -> Flow:
    """Make a flow whose layers run one after the other. A call without its first argument gets what came before."""
    parts = _Parts()
    before: Places = ()
    last: Layer | None = None
    for layer in layers:
        first = len(parts.steps)
        for call in layer.calls:
            takes: Takes = ""
            if call.is_open:
                takes = "input" if last is None else "results" if last.is_list else "result"
            parts.add(call, after=before, need=None if last is None else last.need, takes=takes)
        before, last = ranges_of(range(first, len(parts.steps))), layer
    if last is None:
        raise Invalid(f"{kind}() needs at least one job")
    return check_flow(
        Flow(
            calls=tuple(parts.calls),
            kind=kind,
            name=name,
            need=last.need,
            result=before,
            single=not last.is_list,
            steps=tuple(parts.steps),
        )
    )


def batch_flow(
    calls: Sequence[JobCall],
    *,
    on_success: JobCall | None = None,
    on_failure: JobCall | None = None,
    on_complete: JobCall | None = None,
    name: str = "",
) -> Flow:
    """Make a batch: jobs, and callbacks that are submitted once all of them have ended. A callback without its first
    argument gets the list of results, with None for jobs that failed.
    """
    parts = _Parts()
    for call in calls:
        parts.add(call, takes="input" if call.is_open else "")
    members = ranges_of(range(len(parts.steps)))
    for callback, need, is_failure in ((on_success, None, False), (on_failure, None, True), (on_complete, 0, False)):
        if callback is not None:
            takes: Takes = "results" if callback.is_open else ""
            parts.add(callback, after=members, need=need, on_failure=is_failure, takes=takes)
    need = None if on_failure is None and on_complete is None else 0
    return check_flow(
        Flow(calls=tuple(parts.calls), kind="batch", name=name, need=need, result=members, steps=tuple(parts.steps))
    )


def graph_flow(calls: Mapping[str, JobCall], before: Mapping[str, Sequence[str]], name: str = "") -> Flow:
    """Make a flow of named steps. `before` has the names of the steps that each one comes after."""
    parts = _Parts()
    at: dict[str, int] = {}
    for step in in_order({step: before.get(step, ()) for step in calls}):
        call = calls[step]
        after = ranges_of(at[one] for one in before.get(step, ()))
        takes: Takes = "" if not call.is_open else "input" if not after else "results"
        at[step] = len(parts.steps)
        parts.add(call, after=after, takes=takes, name=step)
    every = ranges_of(at.values())
    return check_flow(Flow(calls=tuple(parts.calls), kind="graph", name=name, result=every, steps=tuple(parts.steps)))


class _Parts:
    """The steps of a flow in the making, and their different calls."""

    def __init__(self) -> None:
        self.steps: list[FlowStep] = []
        self.calls: list[Mapping[str, Any]] = []
        self._known: dict[bytes, int] = {}

    def add(self, call: JobCall, **fields: Any) -> None:
        """Add a step that submits this call."""
        if call.key is not None or call.options.unique is not None:
            word = "key=" if call.key is not None else "unique="
            raise Invalid(f"{call.type}: a job in a flow can't have {word}; give it to the flow's own submit")
        _check_own(call.args, f"{call.type}: its first argument", at=1)
        alike = replace(call, args="[]")
        number = self._known.setdefault(msgspec.json.encode(alike), len(self.calls))
        if number == len(self.calls):
            kept = {name: value for name, value in alike.as_json().items() if name != "args"}
            self.calls.append(parse(canonical(kept)))  # with its names in order, as stored text has them
        self.steps.append(FlowStep(args=Raw(call.args.encode()), call=number, **fields))


def flow_call(flow: Flow, like: JobCall) -> JobCall:
    """Return the call that submits a flow. It goes to the queue of `like` and has its options for keeping results.

    If a first step takes the flow's input, the call is open, as one of a job without its first argument is.
    """
    text = msgspec.json.encode(flow).decode()
    where = f"a {flow.kind} of {len(flow.steps):,} jobs"
    is_open = any(step.takes == "input" for step in flow.steps)
    return replace(like, type=FLOW_TYPE, args=sized(f"[{text}]", where), is_open=is_open)


# Reading one.


class FlowRun(Struct, frozen=True):
    """A flow's job, as its steps need to know it: the flow, its calls, and the reference to its input."""

    job: Job
    flow: Flow
    calls: tuple[JobCall, ...]
    layers: tuple[range, ...] | None
    input: str | None

    @property
    def group(self) -> str:
        """Return the group of its steps; "" if each step has its own."""
        if self.layers is None:
            return ""
        return LINKED if any(len(layer) == 1 for layer in self.layers[:-1]) else MEMBERS

    def id_of(self, place: int) -> str:
        """Return the id of the job of a step."""
        return member_id(self.job.id, place)

    def group_of(self, place: int) -> str:
        """Return the group of the job of a step."""
        return self.group or ALONE + self.id_of(place)

    def name_of(self, place: int) -> str:
        """Return what people call a step: its name, or the type of its job."""
        step = self.flow.steps[place]
        return step.name or self.calls[step.call].type


@lru_cache(IDS_KEPT)
def member_id(flow: str, place: int) -> str:
    """Return the id of the job of a flow's step."""
    return derived_id(flow, f"flow/{place}")


async def load_flow(engine: Engine, job: Job) -> FlowRun:
    """Read the flow of a job, whose arguments may be kept outside."""
    return read_flow(replace(job, args=await engine.blobs.fetch(job.args)))


def read_flow(job: Job) -> FlowRun:
    """Read the flow of a job of the type `holdfast.flow`, or raise BadValue."""
    try:
        *given, text = msgspec.json.decode(job.args, type=list[Raw])
        flow = check_flow(msgspec.json.decode(text, type=Flow))
        calls = tuple(call_from_json({**call, "args": []}) for call in flow.calls)
    except (ValueError, msgspec.MsgspecError) as error:
        raise BadValue(f"job {job.id}: its flow can't be read: {error}; was it edited by hand?") from error
    layers = layers_of(flow)
    own = bytes(given[0]).decode() if given else None
    return FlowRun(job, flow, calls, None if layers is None else tuple(layers), own)


def request_of(run: FlowRun, place: int, now: Time) -> JobRequest:
    """Return the request for a step of a flow, with references for the results that it gets."""
    step = run.flow.steps[place]
    request = run.calls[step.call].request(now)
    text = bytes(step.args).decode()
    if step.takes:
        text = _with_first(_reference(run, step), text)
    return replace(request, args=text)


def _reference(run: FlowRun, step: FlowStep) -> str:
    if step.takes == "input":
        if run.input is None:
            raise BadValue(f"job {run.job.id}: its flow needs an input, and it was submitted without one")
        return run.input
    if step.takes == "result":
        return f'{{"{RESULT_OF}":"{run.id_of(step.after[0][0])}"}}'
    return _many(run.job.id, step.after)


def _many(flow: str, found: Places) -> str:
    return f'{{"{PLACES}":{msgspec.json.encode(found).decode()},"{RESULTS_OF}":"{flow}"}}'


def _with_first(first: str, text: str) -> str:
    return f"[{first}{',' if text != '[]' else ''}{text[1:]}"


# Results by reference.


def has_reference(job: Job) -> bool:
    """Whether a job is a step of a flow, and its first argument is, or may be, a reference to results."""
    may_have = _is_first(job.args) or is_kept_outside(job.args)
    return may_have and is_member(job) and job.type != FLOW_TYPE


_MANY = rf'\{{"{PLACES}":\[(?:\[\d+,\d+\],?)*\],"{RESULTS_OF}":"[^"\\]+"\}}'
_REFERENCE = re.compile(rf'\{{"{RESULT_OF}":"[^"\\]+"\}}|{_MANY}')
_RESULTS = re.compile(_MANY)


def _is_first(args: str) -> bool:
    """Whether the first of these arguments is a reference to results."""
    return _REFERENCE.match(args, 1) is not None


def is_member(job: Job) -> bool:
    """Whether a job is a step of a flow."""
    return job.group is not None and job.group.startswith(MEMBERS)


async def resolved_args(engine: Engine, job: Job) -> str:
    """Return the arguments of a job, with the results that its first argument refers to."""
    if not has_reference(job):
        return job.args
    with reading_arguments():
        text = await engine.blobs.fetch(job.args)
        if not _is_first(text):
            return text
        first, *rest = msgspec.json.decode(text, type=list[Raw])
        value = await resolve_reference(engine, bytes(first).decode())
    return f"[{','.join([value, *(bytes(one).decode() for one in rest)])}]"


async def resolve_reference(engine: Engine, text: str) -> str:
    """Return the results that a reference names, as text. A step that has none gives null."""
    reference = msgspec.json.decode(text)
    if RESULT_OF in reference:
        (value,) = await _results(engine, [reference[RESULT_OF]])
        return value
    ids = [member_id(reference[RESULTS_OF], place) for place in places(reference[PLACES])]
    return f"[{','.join(await _results(engine, ids))}]"


async def _results(engine: Engine, ids: Sequence[str]) -> list[str]:
    texts: list[str] = []
    for start in range(0, len(ids), PAGE_LIMIT):
        page = ids[start : start + PAGE_LIMIT]
        for id, job in zip(page, await engine.get(page), strict=True):
            if job is None:
                raise NotFound(f"the result of job {id} is no longer in this store; it may have been pruned")
            texts.append(await result_text(engine, job))
    return texts


async def result_text(engine: Engine, job: Job) -> str:
    """Return the result of a completed job as text, null for any other. A flow's may be with its steps."""
    text = await result_of(engine, job) if job.state is State.COMPLETED else "null"
    return await flow_result(engine, text) if job.type == FLOW_TYPE else text


async def flow_result(engine: Engine, text: str) -> str:
    """Return the result of a flow as text, given what is stored with the flow itself."""
    return await resolve_reference(engine, text) if _RESULTS.fullmatch(text) else text


def misfit(text: str, error: BadValue) -> BadValue:
    """Return the error of a job that can't read its arguments. The list that a flow gave it may have None in it."""
    try:
        first = msgspec.json.decode(text, type=list[Raw])[0]
        lacks = b"null" in map(bytes, msgspec.json.decode(first, type=list[Raw]))
    except (IndexError, msgspec.MsgspecError):
        return error
    hint = "a place whose job failed is None, so the type hint must allow that, as list[int | None] does"
    return BadValue(f"{error}; {hint}") if lacks else error


class ListCodec(Codec[list[Any]]):
    """Reads a list whose places have types of their own."""

    def __init__(self, parts: Sequence[Codec[Any]], *, may_lack: bool) -> None:
        super().__init__(list[Any], "the results of the flow")
        self._parts = parts
        self._may_lack = may_lack

    def decode(self, text: str | bytes) -> list[Any]:
        """See Codec. A job that failed has no result, and gives None if the flow succeeds without it."""
        raws = msgspec.json.decode(text, type=list[Raw])
        return [
            None if self._may_lack and raw == b"null" else part.decode(raw)
            for raw, part in zip(map(bytes, raws), self._parts, strict=True)
        ]


def flow_codec(run: FlowRun, result_of: Callable[[str], Codec[Any] | None]) -> Codec[Any]:
    """Return how to read a flow's result. `result_of` finds how to read what a type of job returns."""

    def codec_at(place: int) -> Codec[Any]:
        call, step = run.calls[run.flow.steps[place].call], run.flow.steps[place]
        if call.type == FLOW_TYPE:
            return flow_codec(read_flow(replace(run.job, args=bytes(step.args).decode())), result_of)
        return result_of(call.type) or Codec[Any]()

    found = [codec_at(place) for place in places(run.flow.result)]
    return found[0] if run.flow.single else ListCodec(found, may_lack=run.flow.need is not None)


async def own_result(engine: Engine, run: FlowRun) -> str:
    """Return what to store as the result of a flow that succeeded: the result, or a reference to a long list."""
    ids = [run.id_of(place) for place in places(run.flow.result)]
    texts = await _results(engine, ids)
    if run.flow.single:
        return _check_own(texts[0], "its result")
    if sum(map(len, texts)) > INLINE_BYTES:
        return _many(run.job.id, run.flow.result)
    return f"[{','.join(texts)}]"


def _check_own(text: str, what: str, at: int = 0) -> str:
    """Refuse somebody's own value that would be read as a reference to the results of other jobs."""
    if _REFERENCE.match(text, at):
        raise BadValue(f"{what}: a dict of {RESULT_OF!r} or {RESULTS_OF!r} is reserved for Holdfast; use another key")
    return text


async def count_done(engine: Engine, job: Job) -> tuple[int, int]:
    """Return how many steps of a flow have settled, and how many it has. Reads only a few of them."""
    run = await load_flow(engine, job)
    total = len(run.flow.steps)
    if run.layers is None:
        found = await engine.find(Where(parent=job.id))
        return sum(child.state in SETTLED for child in found), total
    first = [run.id_of(layer[0]) for layer in run.layers[:PAGE_LIMIT]]
    begun = [layer for layer, one in zip(run.layers, await engine.get(first), strict=False) if one is not None]
    return max(0, sum(map(len, begun)) - await engine.missing(job.id, run.group)), total


# The end of a step may submit the next ones.


def needs_flow(job: Job) -> bool:
    """Whether something must be read before a job starts, because it is a step of a flow."""
    return job.group is not None and (job.group == LINKED or has_reference(job))


async def makes_next(engine: Engine, member: Job) -> Callable[[Time], tuple[Job, ...]] | None:
    """Return what makes the jobs that the completion of a step submits in the same act; None if there are none.

    So a chain needn't wake its flow. The flow itself would submit the same jobs, with the same ids, and does so for
    whatever is left out here.
    """
    if member.group != LINKED:
        return None
    (job,) = await engine.get([member.parent or ""])
    if job is None or job.type != FLOW_TYPE:
        return None
    run = await load_flow(engine, job)
    layers = run.layers or ()
    for (place, *others), following in pairwise(layers):
        if not others and run.id_of(place) == member.id:
            return partial(_new_members, run, following) if _may_follow(run, place, following) else None
    return None


def _may_follow(run: FlowRun, place: int, following: range) -> bool:
    """Whether these steps start whenever that one succeeds, at once."""
    steps = [run.flow.steps[one] for one in following]
    calls = [run.calls[step.call] for step in steps]
    if any(may_need_blobs(bytes(step.args).decode()) for step in steps):
        return False  # a submit keeps large arguments outside first
    is_sure = all(step.after == ((place, place + 1),) and not step.on_failure for step in steps)
    return is_sure and len(steps) <= NEW_JOBS_LIMIT and not any(call.expires_at for call in calls)


def _new_members(run: FlowRun, following: range, now: Time) -> tuple[Job, ...]:
    made = [new_job(request_of(run, place, now), run.id_of(place), now) for place in following]
    return tuple(
        replace(job, parent=run.job.id, group=run.group, options=drawing_on(run.job, job.options)) for job in made
    )


async def results_before(engine: Engine, member: Job) -> list[str]:
    """Return the results of the steps that a step of a flow comes after, as texts. For workers in other languages."""
    (job,) = await engine.get([member.parent or ""])
    if job is None or job.type != FLOW_TYPE or not is_member(member):
        return []
    run = await load_flow(engine, job)
    for place, step in enumerate(run.flow.steps):
        if run.id_of(place) == member.id:
            return await _results(engine, [run.id_of(one) for one in places(step.after)])
    return []
