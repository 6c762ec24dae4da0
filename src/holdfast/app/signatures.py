"""Signatures: a job with its arguments and options, as data. `report.s("daily")` makes one, and `app.s("type", …)`.

Must not know the App, only how to open its store. Flows and schedules are made of signatures.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from msgspec.structs import replace

from holdfast.app.demands import demands_of
from holdfast.app.options import SUBMIT_OPTIONS, check_options
from holdfast.app.run import Run
from holdfast.app.submit_options import SubmitOptions, request_with
from holdfast.core.codec import canonical, parse
from holdfast.core.declared_limits import needs_argument
from holdfast.core.errors import BadValue, Duplicate, Invalid
from holdfast.core.templates import fields_of
from holdfast.core.unique import Unique, unique_name
from holdfast.jobs.job_calls import JobCall, check_call
from holdfast.jobs.requests import NO_DEMANDS, Demands
from holdfast.jobs.service import JobRequest, Jobs
from holdfast.worker.attempt import Attempt
from holdfast.worker.child_jobs import store_time, submit_children
from holdfast.worker.context import attempt_here, check_no_tx
from holdfast.worker.own_loop import await_on_loop, is_away
from holdfast.worker.registry import JobSpec

R = TypeVar("R", covariant=True)

SIGNATURE_OPTIONS = tuple(name for name in SUBMIT_OPTIONS if name != "connection")
"""The options that a signature can hold. An open transaction isn't data."""

Open = Callable[[], Awaitable[Jobs]]


class AnySignature(Generic[R]):
    """What a complete signature and one without its first argument share. Two are equal if their data is."""

    def __init__(self, open: Open, call: JobCall, spec: JobSpec | None, given: "Given | None" = None) -> None:
        self._open = open
        self._spec = spec
        self._given = given
        self.call = call

    def __repr__(self) -> str:
        words = [canonical(value) for value in parse(self.call.args)]
        words = ["…", *words] if self.call.is_open else words
        return f"<signature {self.call.type}({', '.join(words)})>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnySignature) and self.call == other.call

    def __hash__(self) -> int:
        return hash((self.call.type, self.call.args, self.call.is_open))

    def as_json(self) -> dict[str, Any]:
        """Return the signature as plain JSON values. `app.signature_from(…)` reads them."""
        return self.call.as_json()

    def follow_up(self) -> JobCall:
        """Return the call that gets a result as its first argument, before those given here; or raise BadValue."""
        if self.call.is_open:
            return self.call
        if self._spec is None or self._given is None:
            return replace(self.call, is_open=True)
        args, demands = self._given.after_one()
        return replace(self.call, is_open=True, args=args, options=demands.added_to(self.call.options))

    def result_hint(self) -> Any:
        """Return the type hint of what the job returns; Any for a job of another program."""
        return Any if self._spec is None else self._spec.signature.result.hint

    def _with(self, options: Mapping[str, Any]) -> "AnySignature[Any]":
        """Return the same signature with these options: what its arguments say may depend on them."""
        if self._spec is not None and self._given is not None:
            return make_signature(self._open, self._spec, self._given.args, self._given.kwargs, options)
        return type(self)(self._open, call_with(self.call, self._spec, options, names_args=True), self._spec)

    @property
    def home(self) -> Open:
        """How to open the store that the job belongs to."""
        return self._open


class JobSignature(AnySignature[R]):
    """A job with all its arguments: it can be submitted."""

    def submit(self) -> Coroutine[Any, Any, Run[R]]:
        """Submit the job with the signature's arguments and options. Inside a job, the submit is recorded."""
        check_no_tx("submitting a job")
        return self._submit()

    async def _submit(self, connection: Any = None) -> Run[R]:
        attempt = attempt_here()
        if attempt is None:
            jobs = await self._open()
            now = await jobs.engine.now()
            with self._naming_existing():
                (accepted,) = await jobs.submit([self.call.request(now)], now=now, connection=connection)
            return self._make_run(accepted.id)
        if is_away(attempt):
            return await await_on_loop(attempt, self._submit())
        now = await store_time(attempt)
        with self._naming_existing():
            ((id, is_ours),) = await submit_children(attempt, self.call.type, [self.call.request(now)], now, {})
        return self._make_run(id, attempt if is_ours else None)

    @contextmanager
    def _naming_existing(self) -> Iterator[None]:
        """Give a Duplicate the run of the job that exists."""
        try:
            yield
        except Duplicate as error:
            error.existing = self._make_run(error.id)
            raise

    def _make_run(self, id: str, parent: Attempt | None = None) -> Run[R]:
        return Run(self._open, id, None if self._spec is None else self._spec.signature, parent)

    def with_options(self, **options: Unpack[SubmitOptions]) -> "JobSignature[R]":
        """Return the same signature with these options of `submit`. Options given earlier are replaced as a whole."""
        made = self._with(options)
        assert isinstance(made, JobSignature)
        return made


class FollowUp(AnySignature[R]):
    """A job without its first argument, for a flow: `chain(fetch.s(url), parse.s())`. It can't be submitted alone."""

    def with_options(self, **options: Unpack[SubmitOptions]) -> "FollowUp[R]":
        """Return the same signature with these options of `submit`. Options given earlier are replaced as a whole."""
        made = self._with(options)
        assert isinstance(made, FollowUp)
        return made

    if not TYPE_CHECKING:  # a type checker says the same, more clearly

        def submit(self, **options: Any) -> None:
            """Refuse: the first argument is missing."""
            raise Invalid(
                f"{self.call.type}.s(…) has no first argument, so it can't be submitted alone; use it in a chain or a "
                "chord, which gives it a result, or pass all arguments"
            )


class Given:
    """The arguments that a signature was made with, and what they are as data."""

    def __init__(self, spec: JobSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: JobRequest) -> None:
        self._spec = spec
        self.args = args
        self.kwargs = kwargs
        self._request = request

    def alone(self, unique: Unique | None = None) -> tuple[str, Demands]:
        """Return the arguments as text, and what they say about the job; or raise BadValue."""
        spec = self._spec
        text = spec.signature.encode(self.args, self.kwargs)
        request = replace(self._request, unique=unique)
        return text, demands_of(spec, request, text, lambda: spec.signature.bound(self.args, self.kwargs))

    def after_one(self, unique: Unique | None = None) -> tuple[str, Demands]:
        """Return the arguments after a first one that isn't known yet; or raise BadValue."""
        spec, signature = self._spec, self._spec.signature
        text = signature.encode_after_one(self.args, self.kwargs)
        _check_first(spec, signature.names[0] if signature.names else "", unique)
        request = replace(self._request, unique=unique)
        return text, demands_of(spec, request, text, lambda: signature.bound((None, *self.args), self.kwargs))


def make_signature(
    open: Open, spec: JobSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> AnySignature[Any]:
    """Make the signature of a job. Arguments that fit neither the job nor the job after a result are refused."""
    call = JobCall(type=spec.type, queue=spec.queue, options=spec.options)
    unique = options.get("unique")
    if options:
        call = call_with(call, spec, options)
    given = Given(spec, args, kwargs, call.request(0))
    try:
        text, demands = given.alone(unique)
    except BadValue as error:
        try:
            text, demands = given.after_one(unique)
        except BadValue:
            raise error from None
        call = replace(call, args=text, is_open=True, options=demands.added_to(call.options))
        return FollowUp(open, check_call(call), spec, given)
    if demands != NO_DEMANDS:
        call = check_call(replace(call, options=demands.added_to(call.options)))
    return JobSignature(open, replace(call, args=text), spec, given)


def known_signature(open: Open, spec: JobSpec, args: tuple[Any, ...]) -> AnySignature[Any]:
    """Make the signature of a job of this program from plain JSON values: its arguments, or those after the first."""
    try:
        places, named = spec.signature.read_call(args, {})
    except BadValue as error:
        try:
            places, named = spec.signature.read_after_one(args), {}
        except BadValue:
            raise error from None
    return make_signature(open, spec, places, named, {})


def foreign_signature(open: Open, type: str, args: tuple[Any, ...]) -> JobSignature[Any]:
    """Make the signature of a job that another program runs. Its arguments are plain JSON values."""
    return JobSignature(open, check_call(JobCall(type=type, args=canonical(list(args)))), None)


def stored_signature(open: Open, call: JobCall, spec: JobSpec | None) -> AnySignature[Any]:
    """Make the signature of a stored call, and check its arguments by the job's type hints, if the job is known."""
    if spec is not None and not call.is_open:
        spec.signature.decode(call.args)
    kind: Any = FollowUp if call.is_open else JobSignature
    made: AnySignature[Any] = kind(open, call, spec)
    return made


def call_with(call: JobCall, spec: JobSpec | None, options: Mapping[str, Any], *, names_args: bool = False) -> JobCall:
    """Return the call with these options of `submit`. With `names_args`, its arguments are there for a unique name."""
    if "connection" in options:
        raise Invalid(f"{call.type}: a signature is data and can't hold a connection; leave out connection=")
    check_options(f"a signature of {call.type}", options, SIGNATURE_OPTIONS)
    queue = "default" if spec is None else spec.queue
    plain = JobRequest(type=call.type, encoded=True, queue=queue, options=call.options)
    request = request_with(plain, 0, **options)  # as if now were 0: durations stay durations
    own = request.options
    if names_args and request.unique is not None:
        own = replace(own, unique=unique_name(request.unique, request, call.args, dict))
    expires_is_moment = isinstance(options.get("expires"), datetime)
    return check_call(
        replace(
            call,
            queue=request.queue,
            priority=request.priority,
            key=request.key,
            key_for_ms=request.key_until,
            delay_ms=None if options.get("delay") is None else request.run_at,
            run_at=request.run_at if options.get("delay") is None else None,
            expires_ms=None if expires_is_moment else request.expires_at,
            expires_at=request.expires_at if expires_is_moment else None,
            options=own,
        )
    )


def _check_first(spec: JobSpec, first: str, unique: Unique | None) -> None:
    """Refuse what depends on the first argument, which isn't known before the job that gives it has ended."""
    needs = [f"limit {limit.name}" for limit in spec.limits if needs_argument(limit, first)]
    if spec.fair and first in [field.partition(".")[0] for field in fields_of(f"job {spec.type}", spec.fair)]:
        needs.append("fair=")
    if unique is not None and any(part.partition(".")[0] == "args" for part in unique.by):
        needs.append("unique=")
    if needs:
        raise Invalid(
            f"job {spec.type}: {needs[0]} needs its first argument, {first!r}, which isn't known before the job that "
            "gives it has ended; pass that argument, or leave this out"
        )
