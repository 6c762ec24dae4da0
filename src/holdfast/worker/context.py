"""Whose code runs here: the attempt and the step of the running task or thread, and `current()` for users.

Must not change an attempt: it only finds it.
"""

import asyncio
import contextvars
import operator
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast import forking
from holdfast.core.errors import HoldfastError, Invalid
from holdfast.core.keys import idempotency_key
from holdfast.core.limits import PROGRESS_CHARACTERS
from holdfast.worker.attempt import Attempt
from holdfast.worker.log_lines import Capturing
from holdfast.worker.recorded_errors import storable
from holdfast.worker.timers import Timers

T = TypeVar("T")


class AttemptHost(Protocol):
    """Where attempts run: a worker, or the process of an isolated job."""

    def has_attempts(self) -> bool:
        """Whether any attempt runs in it."""


class _AttemptHosts(forking.Forkable):
    """The houses of this process."""

    def __init__(self) -> None:
        self._all: weakref.WeakSet[AttemptHost] = weakref.WeakSet()
        self._lock = threading.Lock()
        forking.watch(self)

    def add(self, house: AttemptHost) -> None:
        with self._lock:
            self._all.add(house)

    def have_attempts(self) -> bool:
        with self._lock:
            return any(house.has_attempts() for house in self._all)

    def clear(self) -> None:
        self._all = weakref.WeakSet()

    def leave_behind(self) -> None:
        """See Forkable. What runs goes on in the parent; `current()` still tells for which job the child works."""
        self._lock = threading.Lock()
        self.clear()
        attempt = ATTEMPT.get()
        if attempt is not None:
            PLAIN.set(_current_in(attempt))


def register_host(house: AttemptHost) -> None:
    """Let a house be known, so that a stray thread can be told that it has lost its job. From any thread."""
    _attempt_hosts.add(house)


ATTEMPT: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)
PATH: ContextVar[str] = ContextVar("holdfast_path", default="")
TX: ContextVar[Any] = ContextVar("holdfast_tx", default=None)
"""The store's connection, in the body of a transactional step."""


def _keep_line(line: str) -> None:
    attempt = attempt_here()
    if attempt is not None:
        attempt.progress.add_log_line(line)


CAPTURING = Capturing(_keep_line)


class Current(msgspec.Struct, frozen=True, kw_only=True):
    """The job that this code runs for, and the step it is in."""

    job_id: str
    """The id of the job."""
    attempt: int
    """Which attempt this is: failures so far, plus one."""
    epoch: int
    """The number of this lease: hand it to a system that can refuse older ones."""
    deadline: float | None
    """When the job's timeout is over, as seconds since 1970; None if it has none."""
    step: str
    """The path of the step that runs, as in its record; "" between steps."""
    first: str = ""
    """The same path with the oldest names of steps that were renamed (`@step(was=…)`)."""

    @property
    def idempotency_key(self) -> str:
        """What to hand to a provider so that it drops a second call: the same over attempts, recoveries and replays,
        and over renames with `@step(was=…)`.
        """
        return idempotency_key(self.job_id, self.first or self.step)

    def bind(self, function: Callable[..., T]) -> Callable[..., T]:
        """The function, bound to this job, for an executor that doesn't carry context variables along."""
        context = contextvars.copy_context()
        return lambda *args, **kwargs: context.copy().run(function, *args, **kwargs)


class NoJob(HoldfastError, LookupError):
    """There is no job here: the code was called outside one."""


def current() -> Current:
    """The job and step that this code runs for; in a plain call, a stand-in. Raises NoJob outside both."""
    attempt, plain = attempt_here(), PLAIN.get()
    if attempt is not None:
        return _current_in(attempt)
    if plain is not None:
        return plain
    raise NoJob("current(): no job runs here; it is there inside a job, in its tasks, and in asyncio.to_thread")


def _current_in(attempt: Attempt) -> Current:
    job, limit = attempt.job, attempt.job.options.timeout_ms
    deadline = None if limit is None or job.claimed_at is None else (job.claimed_at + limit) / 1_000
    job_id, step, first = UNDONE.get() or (job.id, path := PATH.get(), attempt.journal.calls.first_path(path))
    return Current(job_id=job_id, attempt=job.attempt, epoch=job.epoch, deadline=deadline, step=step, first=first)


UNDONE: ContextVar[tuple[str, str, str] | None] = ContextVar("holdfast_undone", default=None)
"""While a step is undone: its job, its path and that with the oldest names, so that `current()` has the key that the
provider knows.
"""

PLAIN: ContextVar[Current | None] = ContextVar("holdfast_plain", default=None)


@contextmanager
def plain_call(step: str) -> Iterator[None]:
    """A call outside any job, as in a unit test: `current()` answers inside it, with a key that no other call has."""
    outer = PLAIN.get()
    job_id = f"plain-{secrets.token_hex(8)}" if outer is None else outer.job_id
    path = f"{step}#{secrets.token_hex(8)}" if step else ""
    token = PLAIN.set(Current(job_id=job_id, attempt=1, epoch=0, deadline=None, step=path))
    try:
        yield
    finally:
        PLAIN.reset(token)


def progress(done: int | None = None, total: int | None = None, text: str = "") -> None:
    """Tell how far the job has come. Outside a job it does nothing."""
    attempt = attempt_here()
    if attempt is not None:
        attempt.progress.report(
            _check_count("done", done), _check_count("total", total), storable(str(text)[:PROGRESS_CHARACTERS])
        )


def _check_count(name: str, number: Any) -> int | None:
    """A number that a heartbeat can carry."""
    if number is None:
        return None
    try:
        whole = operator.index(number)
    except TypeError:
        raise Invalid(f"progress({name}={number!r}): give a whole number") from None
    if not -(1 << 63) <= whole < 1 << 63:
        raise Invalid(f"progress({name}={number!r}): give a number of 64 bits")
    return whole


def tx() -> Any:
    """The store's connection, inside a step with `effect="transaction"`: what is written with it and the step's record
    are one transaction. On SQLite it has `execute`, `executemany` and `cursor`, as those of `sqlite3`. On Postgres it
    has the methods of asyncpg in async code, and in a `def` step those that psycopg and `sqlite3` share.
    """
    connection = TX.get()
    if connection is None:
        raise Invalid("tx(): no transaction runs here; call it in a step with effect='transaction' of a submitted job")
    return connection if loop_here() else getattr(connection, "sync", connection)


def check_no_tx(what: str) -> None:
    """Refuse what would wait for the store, inside a transaction for which the store waits."""
    if TX.get() is not None:
        step = PATH.get().rpartition("/")[2]
        raise Invalid(
            f"step {step}: {what} inside a transaction would wait for itself; do it in the job, after the step"
        )


def attempt_here() -> Attempt | None:
    """The attempt that this code belongs to. A forked child belongs to none: its parent runs the attempt."""
    attempt = ATTEMPT.get()
    return attempt if attempt is None or attempt.is_here() else None


def timers_here(context: contextvars.Context | None) -> Timers | None:
    """Where to note a timer that is set in this context, or in the current one. What a step sets is its own: no step
    runs while its job suspends.
    """
    if context is None:
        attempt, path = ATTEMPT.get(), PATH.get()
    else:
        attempt, path = context.get(ATTEMPT), context.get(PATH, "")
    return None if attempt is None or path else attempt.timers


@contextmanager
def loading(module: str) -> Iterator[None]:
    """This process imports a module for an isolated step or job: nothing may begin meanwhile, see check_loaded."""
    before = _loading[:]
    _loading.append(module)
    try:
        yield
    finally:
        _loading[:] = before


def check_loaded() -> None:
    """Refuse work that begins because a module is imported: it would begin again in each process that imports it."""
    if _loading:
        raise Invalid(
            f"{_loading[-1]} starts jobs or workers when it is imported, as the process of an isolated step does; "
            "put that under if __name__ == '__main__':"
        )


_loading: list[str] = []


def loop_here() -> bool:
    """Whether this thread is running an event loop just now: then only async calls make sense."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def attempts_anywhere() -> bool:
    """Whether any attempt runs in this process."""
    return _attempt_hosts.have_attempts()


_attempt_hosts = _AttemptHosts()
