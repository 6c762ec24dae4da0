"""Unique jobs: what `Unique` means for a call, and which existing job counts. Must not touch a store.

A unique job takes a name: the hash of its type and of what `by` names. A store keeps unique names among its idempotency
keys, under the type UNIQUE. The last job that took a name holds it. Beside the job, the store keeps a `stamp`: when the
job was created, and the window and the states that its submit asked for. When the job is pruned within its window, its
last state is added to the stamp, and the name is a tombstone.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol
from unicodedata import normalize

from msgspec import Struct, json

from holdfast.core.codec import parse
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import Duplicate, Invalid
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Inserted, Job, Options, State, Time, UniqueName
from holdfast.core.suggestions import listed, suggest

UNIQUE = "~unique"
"""The type under which stores keep unique names among the keys. No job type starts with a tilde."""

RETURN, REFUSE, REPLACE = "return", "refuse", "replace"
THENS = (RETURN, REFUSE, REPLACE)

LIVE = tuple(state for state in State if state not in TERMINAL)
"""The states that count without a window: everything that may still run, a job in review included."""

_EVERY = tuple(State)
_PARTS = ("type", "queue", "args", "args.NAME", "meta.NAME")


class Unique(Struct, frozen=True, kw_only=True):
    """Submit a job only if there is none like it.

    `by` says what makes two jobs the same: "args" (all arguments), "args.customer" (one argument, or a part of it),
    "queue", "meta.tenant". The job's type always belongs to it. `states` are the states in which an existing job
    counts: by default all in which it has not ended; with `within`, all states. `within` is a time from the existing
    job's creation, after which it no longer counts. `then` says what to do about an existing job: "return" its run,
    "refuse" with Duplicate, or "replace" it: cancel it, even if it runs, and submit the new one.
    """

    by: tuple[str, ...]
    states: tuple[str, ...] | None = None
    within: Duration | None = None
    then: str = RETURN

    def __post_init__(self) -> None:
        """Check everything that can be checked without a call."""
        if isinstance(self.by, str) or not self.by:
            raise Invalid(f'Unique(by={self.by!r}): give a tuple of what makes two jobs the same, such as ("args",)')
        for part in self.by:
            _check_part(part)
        if self.then not in THENS:
            hint = suggest(str(self.then), THENS) or f"; use {listed(THENS)}"
            raise Invalid(f"Unique(then={self.then!r}) is unknown{hint}")
        if self.within is not None and milliseconds(self.within) == 0:
            raise Invalid(f"Unique(within={self.within!r}): give a time above 0, or leave it out")
        self._check_states()

    def _check_states(self) -> None:
        if self.states is None:
            return
        if isinstance(self.states, str) or not self.states:
            raise Invalid(f'Unique(states={self.states!r}): give a tuple of states, such as ("scheduled", "available")')
        for state in self.states:
            if state not in tuple(State):
                hint = suggest(str(state), tuple(State)) or f"; the states are {', '.join(State)}"
                raise Invalid(f"Unique(states=…): {state!r} isn't a state of a job{hint}")
        ended = [state for state in self.states if state in TERMINAL]
        if ended and self.then == REPLACE:
            raise Invalid(f"Unique(states=…): a job that is {ended[0]} has ended and can't be replaced; leave it out")

    def counted_states(self) -> tuple[State, ...]:
        """The states in which an existing job counts."""
        if self.states is not None:
            return tuple(State(state) for state in self.states)
        return LIVE if self.within is None or self.then == REPLACE else _EVERY


class Submits(Protocol):
    """What a name is made of, besides the arguments: a request."""

    @property
    def type(self) -> str: ...

    @property
    def queue(self) -> str: ...

    @property
    def options(self) -> Options: ...


def unique_name(unique: Unique, request: Submits, args: str, named: Callable[[], Mapping[str, Any]]) -> UniqueName:
    """Return the name that a call takes. `args` is its canonical text; `named` returns its arguments by parameter."""
    parts: dict[str, Any] = {"type": request.type}
    for part in unique.by:
        kind, _, path = part.partition(".")
        if kind == "meta":
            parts[part] = _meta(request.type, path, request.options.meta)
        elif kind == "args":
            parts[part] = _argument(request.type, path.split("."), args, named()) if path else args
        elif kind == "queue":
            parts[part] = request.queue
    text = normalize("NFC", json.encode(sorted(parts.items())).decode())
    return UniqueName(
        key=sha256(text.encode()).hexdigest(),
        states=unique.counted_states(),
        within_ms=None if unique.within is None else milliseconds(unique.within),
        then=unique.then,
    )


def _check_part(part: Any) -> None:
    if isinstance(part, str):
        kind, dot, path = part.partition(".")
        if kind in ("type", "queue", "args") and not dot:
            return
        if kind in ("args", "meta") and all(path.split(".")):
            return
    hint = suggest(str(part), _PARTS) or f"; use {listed(_PARTS)}"
    raise Invalid(f"Unique(by=…): {part!r} is unknown{hint}")


def _meta(type: str, name: str, meta: Mapping[str, str]) -> str:
    if name not in meta:
        hint = suggest(name, meta) or (f"; its meta has {', '.join(meta)}" if meta else "; it has no meta")
        raise Invalid(f"{type}: unique= names meta.{name}, which the job doesn't have{hint}")
    return meta[name]


def _argument(type: str, path: Sequence[str], args: str, named: Mapping[str, Any]) -> Any:
    """Return an argument or a part of one. A name that is no parameter may be a field of the only argument."""
    plain = parse(args)
    at: Any = named
    if path[0] not in named and len(plain) == 1 and isinstance(plain[0], dict):
        at = plain[0]
    for name in path:
        if not isinstance(at, dict) or name not in at:
            known = at if isinstance(at, dict) else {}
            hint = suggest(name, known) or (f"; there are {', '.join(known)}" if known else "")
            raise Invalid(f"{type}: unique= names args.{'.'.join(path)}, but there is no {name!r}{hint}")
        at = at[name]
    return at


# What a store compares. Engines that keep rows in Python call these; the others do the same in SQL or Lua.


def stamp(job: Job) -> str:
    """The text that a store keeps with the name of a unique job."""
    unique = job.options.unique
    assert unique is not None
    return f"{job.created_at} {unique.within_ms or 0} {','.join(unique.states)}"


def until(job: Job) -> Time | None:
    """Until when a unique job holds its name, whatever becomes of it; None without a window."""
    unique = job.options.unique
    assert unique is not None
    return None if unique.within_ms is None else job.created_at + unique.within_ms


def tombstone(text: str, last: State) -> str:
    """The stamp of a job that is pruned."""
    return f"{text} {last.value}"


def counts(text: str, until: Time | None, state: State | None, job: Job) -> bool:
    """Whether the holder of a unique name counts for a new job. `state` is the holder's; None if it was pruned.

    A holder counts no longer than its own window and the new job's, from its creation to the new job's.
    """
    unique = job.options.unique
    assert unique is not None
    if until is not None and until <= job.created_at:
        return False
    created_at, _, _, *last = text.split(" ")
    if unique.within_ms is not None and int(created_at) + unique.within_ms <= job.created_at:
        return False
    if state is not None:
        return state in unique.states
    # A program of an older version prunes a job without a word about its last state.
    return until is not None and any(one in unique.states for one in (last or TERMINAL))


def existing_for(job: Job, holder: str) -> Inserted:
    """The answer to an insert of a unique job if the holder of its name counts; raises Duplicate if it is to refuse."""
    unique = job.options.unique
    assert unique is not None
    if unique.then == REFUSE:
        raise duplicate(job, holder)
    return Inserted(holder, False)


def duplicate(job: Job, holder: str) -> Duplicate:
    """Refuse a unique job because there is one like it."""
    return Duplicate(
        f"job type {job.type}: job {holder} is the same, as unique= says, so nothing was submitted; "
        "use that job, or wait until it no longer counts",
        holder,
    )
