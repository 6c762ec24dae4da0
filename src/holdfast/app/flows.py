"""`chain`, `group`, `chord` and `batch`: flows made of signatures. A flow submits nothing until you call its `submit`.

Must not know the App, only how to open its store. What a flow is as data: `core.flows`; how one runs:
`worker.flow_runs`.
"""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from msgspec import Struct

from holdfast.app.only_app import open_only_app
from holdfast.app.options import SUBMIT_OPTIONS, check_options
from holdfast.app.run import Run
from holdfast.app.signatures import AnySignature, JobSignature, call_with
from holdfast.app.submit_options import SubmitOptions
from holdfast.core.codec import Codec
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.flows import Kind
from holdfast.core.model import Options, Retry
from holdfast.jobs.flows import Layer, batch_flow, flow_call, layered_flow
from holdfast.jobs.job_calls import JobCall
from holdfast.worker.context import attempt_here, check_no_tx

R = TypeVar("R")
S = TypeVar("S")

NEVER_AGAIN = Retry(never=("holdfast.core.errors.JobFailed",))
"""A flow that failed because of its jobs isn't retried: it would find the same failures."""

CALLBACKS = ("on_success", "on_failure", "on_complete")


class Part(Struct, frozen=True, kw_only=True):
    """Signatures whose jobs start together."""

    members: tuple[AnySignature[Any], ...]
    is_list: bool = False
    need: int | None = None


class FlowSignature(JobSignature[R]):
    """A flow: jobs that start after one another. It is a signature, so flows can be parts of flows."""

    def __init__(
        self,
        kind: Kind,
        parts: Sequence[Part],
        callbacks: Mapping[str, AnySignature[Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind = kind
        self.parts = tuple(parts)
        self.callbacks = dict(callbacks or {})
        self.options = dict(options or {})
        homes = [one.home for one in self.members() if one.home is not open_only_app]
        super().__init__(homes[0] if homes else open_only_app, self._make_call(is_first=True), None)

    def __repr__(self) -> str:
        return f"<{self.kind} of {', '.join(map(repr, self.members()))}>"

    def members(self) -> list[AnySignature[Any]]:
        """Return the signatures that the flow is made of, callbacks included."""
        return [one for part in self.parts for one in part.members] + list(self.callbacks.values())

    def submit(self, **options: Unpack[SubmitOptions]) -> Coroutine[Any, Any, Run[R]]:
        """Submit the flow with these options of a job's `submit`. Inside a job, the submit is recorded.

        The run is that of the whole flow: its result, its status, `cancel()`, and `tree()`, which has all its jobs.
        """
        check_no_tx("submitting a flow")
        check_options(f"{self.kind}(…).submit", options, SUBMIT_OPTIONS)
        if self.call.is_open:
            raise Invalid(
                f"the first job of this {self.kind} has no first argument, so it can't be submitted alone; pass all "
                "arguments, or put it behind another job in a chain"
            )
        rest = dict(options)
        connection = rest.pop("connection", None)
        if connection is not None and attempt_here() is not None:
            raise Invalid(f"{self.kind}(…).submit: connection= works only outside jobs; inside, submits are recorded")
        return (self.with_options(**rest) if rest else self)._submit(connection)  # type: ignore[arg-type]

    def with_options(self, **options: Unpack[SubmitOptions]) -> "FlowSignature[R]":
        """Return the same flow with these options of `submit`. Options given earlier are replaced as a whole."""
        return FlowSignature(self.kind, self.parts, self.callbacks, options)

    def follow_up(self) -> JobCall:
        """Return the call of a flow whose first jobs get the result before it as their first argument."""
        return self._make_call(is_first=False)

    def _make_run(self, id: str, parent: Any = None) -> Run[R]:
        return Run(self._open, id, None, parent, result_of=self._results().get)

    def _results(self) -> dict[str, Codec[Any]]:
        """Return how to read what the flow's jobs return, by type."""
        found: dict[str, Codec[Any]] = {}
        for one in self.members():
            if isinstance(one, FlowSignature):
                found |= one._results()
            elif one._spec is not None:
                found[one.call.type] = one._spec.signature.result
        return found

    def _make_call(self, *, is_first: bool) -> JobCall:
        if self.kind == "batch":
            (part,) = self.parts
            found = {name: one.call for name, one in self.callbacks.items()}
            on_success, on_failure, on_complete = (found.get(name) for name in CALLBACKS)
            members = _calls(part, is_first=is_first)
            flow = batch_flow(members, on_success=on_success, on_failure=on_failure, on_complete=on_complete)
        else:
            layers = [
                Layer(calls=_calls(part, is_first=is_first and not place), is_list=part.is_list, need=part.need)
                for place, part in enumerate(self.parts)
            ]
            flow = layered_flow(self.kind, layers)
        giving = self.parts[-1].members  # their results are the flow's
        call = flow_call(flow, _like(self.members(), giving))
        return call_with(call, None, {"queue": call.queue, **self.options}, names_args=True) if self.options else call


def _calls(part: Part, *, is_first: bool) -> tuple[JobCall, ...]:
    if is_first:
        return tuple(one.call for one in part.members)
    try:
        return tuple(one.follow_up() for one in part.members)
    except BadValue as error:
        raise BadValue(f"a job that comes after others gets their result as its first argument: {error}") from None


def _like(members: Sequence[AnySignature[Any]], giving: Sequence[AnySignature[Any]]) -> JobCall:
    """Return the settings of a flow's own job: the queue of its first job, the longest time to keep jobs, and, of those
    that give its result, the longest time to keep results.
    """
    keep_ms = _longest(one.call.options.keep_ms for one in members)
    keep_result_ms = _longest(one.call.options.keep_result_ms for one in giving)
    queue = members[0].call.queue if members else "default"
    options = Options(retry=NEVER_AGAIN, keep_ms=keep_ms, keep_result_ms=keep_result_ms)
    return JobCall(type="", queue=queue, options=options)


def _longest(found: Iterable[int | None]) -> int | None:
    """Return the longest time; None if one of them has none."""
    times = list(found)
    return None if None in times else max([one for one in times if one is not None], default=None)


def _signature(one: Any, where: str) -> AnySignature[Any]:
    if not isinstance(one, AnySignature):
        hint = f"; write {one.type}.s(…)" if hasattr(one, "s") and hasattr(one, "type") else ""
        raise Invalid(f"{where}: {one!r} isn't a signature{hint or '; make one with job.s(…)'}")
    return one


def _parts_of(one: AnySignature[Any]) -> tuple[Part, ...]:
    """Return what a flow contributes to a chain: its own parts, unless it has options or callbacks of its own."""
    if isinstance(one, FlowSignature) and not one.options and one.kind != "batch":
        return one.parts
    return (Part(members=(one,)),)


def _plain_group(one: "GroupSignature[Any]") -> Part:
    """Return the jobs of a group as those of a batch, which has no place for what else the group says."""
    (part,) = one.parts
    if one.options or part.need is not None:
        word = "need=" if part.need is not None else f"{next(iter(one.options))}="
        raise Invalid(f"batch: its group has {word}, which a batch can't follow; give the batch a list of jobs instead")
    return Part(members=part.members)


def _members_of(given: Sequence[Any], where: str) -> tuple[AnySignature[Any], ...]:
    """Return signatures that were given one by one, or as one iterable."""
    is_iterable = len(given) == 1 and not isinstance(given[0], AnySignature) and isinstance(given[0], Iterable)
    return tuple(_signature(one, where) for one in (given[0] if is_iterable else given))


@overload
def chain(first: AnySignature[R], /) -> FlowSignature[R]: ...


@overload
def chain(first: AnySignature[Any], second: AnySignature[R], /) -> FlowSignature[R]: ...


@overload
def chain(first: AnySignature[Any], second: AnySignature[Any], third: AnySignature[R], /) -> FlowSignature[R]: ...


@overload
def chain(*members: AnySignature[Any] | Iterable[AnySignature[Any]]) -> FlowSignature[Any]: ...


def chain(*members: Any) -> FlowSignature[Any]:
    """Run jobs one after the other: `chain(fetch.s(url), parse.s(), store.s())`.

    Each job gets the result before it as its first argument; after a group, that is the list of its results. The
    chain's result is that of the last one. If a job fails, those after it are never submitted, and the chain fails.
    """
    found = _members_of(members, "chain")
    if not found:
        raise Invalid("chain() needs at least one job; give it signatures: chain(fetch.s(url), parse.s())")
    return FlowSignature("chain", [part for one in found for part in _parts_of(one)])


@overload
def group(members: Iterable[AnySignature[R]], /, *, need: None = None) -> "GroupSignature[list[R]]": ...


@overload
def group(members: Iterable[AnySignature[R]], /, *, need: int) -> "GroupSignature[list[R | None]]": ...


@overload
def group(*members: AnySignature[R], need: None = None) -> "GroupSignature[list[R]]": ...


@overload
def group(*members: AnySignature[R], need: int) -> "GroupSignature[list[R | None]]": ...


def group(*members: Any, need: int | None = None) -> "GroupSignature[Any]":
    """Run jobs at the same time: `group(draw.s(i) for i in range(30))`. The result is the list of their results.

    All of them settle, whatever becomes of the others. If fewer than `need` succeed (default: all), the group fails.
    Otherwise failed places hold None. With `need=0` it never fails.
    """
    return GroupSignature(_members_of(members, "group"), need)


def chord(
    header: "GroupSignature[Any] | Iterable[AnySignature[Any]]", callback: AnySignature[R], /
) -> FlowSignature[R]:
    """Run a group, then one job with its results: `chord(group(draw.s(i) for i in range(30)), join.s())`.

    The callback gets the list of results as its first argument, and its result is the chord's. If too few jobs of the
    group succeed (see `group`), the callback is never submitted, and the chord fails.
    """
    first = header if isinstance(header, GroupSignature) else GroupSignature(_members_of([header], "chord"), None)
    return FlowSignature("chord", [*_parts_of(first), *_parts_of(_signature(callback, "chord"))])


def batch(
    members: "GroupSignature[Any] | Iterable[AnySignature[R]]",
    /,
    *,
    on_success: AnySignature[Any] | None = None,
    on_failure: AnySignature[Any] | None = None,
    on_complete: AnySignature[Any] | None = None,
) -> "FlowSignature[list[R | None]]":
    """Run jobs at the same time, and callbacks once all have ended.

    `on_success` is submitted if all succeeded, `on_failure` if one failed, `on_complete` in both cases, each exactly
    once. A callback that lacks its first argument, as `done.s()` for `def done(results)`, gets the list of results,
    with None for jobs that failed. That list is also the batch's result. A batch with a failed job fails itself, unless
    `on_failure` or `on_complete` is there to handle it.
    """
    part = (
        _plain_group(members) if isinstance(members, GroupSignature) else Part(members=_members_of([members], "batch"))
    )
    given = {"on_success": on_success, "on_failure": on_failure, "on_complete": on_complete}
    callbacks = {name: _signature(one, f"batch: {name}") for name, one in given.items() if one is not None}
    return FlowSignature("batch", [part], callbacks)


class GroupSignature(FlowSignature[R]):
    """Jobs that run at the same time."""

    def __init__(
        self, members: tuple[AnySignature[Any], ...], need: int | None, options: Mapping[str, Any] | None = None
    ) -> None:
        if need is not None and (type(need) is not int or not 0 <= need <= len(members)):
            raise Invalid(f"group(need={need!r}): give a number from 0 to {len(members)}, the number of its jobs")
        super().__init__("group", [Part(members=members, is_list=True, need=need)], options=options)

    def with_options(self, **options: Unpack[SubmitOptions]) -> "GroupSignature[R]":
        """Return the same group with these options of `submit`. Options given earlier are replaced as a whole."""
        (part,) = self.parts
        return GroupSignature(part.members, part.need, options)
