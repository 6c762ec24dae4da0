"""Whose code runs here: the attempt and the step of the running task or thread, and `current()` for users.

Must not change an attempt; it only finds it.
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
from holdfast.blobs import here
from holdfast.core.codec import parse
from holdfast.core.errors import HoldfastError, Invalid
from holdfast.core.keys import idempotency_key
from holdfast.core.limits import PROGRESS_CHARACTERS
from holdfast.core.spending import amounts_of
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
    """The places in this process where attempts run."""

    def __init__(self) -> None:
        self._all: weakref.WeakSet[AttemptHost] = weakref.WeakSet()
        self._lock = threading.Lock()
        forking.watch(self)

    def add(self, host: AttemptHost) -> None:
        with self._lock:
            self._all.add(host)

    def have_attempts(self) -> bool:
        with self._lock:
            return any(host.has_attempts() for host in self._all)

    def clear(self) -> None:
        self._all = weakref.WeakSet()

    def leave_behind(self) -> None:
        """See Forkable. Running jobs continue in the parent; in the child, `current()` still names its job."""
        self._lock = threading.Lock()
        self.clear()
        attempt = ATTEMPT.get()
        if attempt is not None:
            PLAIN.set(_current_in(attempt))


def register_host(host: AttemptHost) -> None:
    """Register a place where attempts run, so that a stray thread gets a clear error. From any thread."""
    _attempt_hosts.add(host)


ATTEMPT: ContextVar[Attempt | None] = ContextVar("holdfast_attempt", default=None)
PATH: ContextVar[str] = ContextVar("holdfast_path", default="")
TX: ContextVar[Any] = ContextVar("holdfast_tx", default=None)
"""The store's connection, in the body of a transactional step."""


def _keep_line(line: str) -> None:
    attempt = attempt_here()
    if attempt is not None:
        attempt.progress.add_log_line(line)


CAPTURING = Capturing(_keep_line, PATH.get)


def _find_blobs() -> here.Place | None:
    """Say to `blobs` whose code runs here."""
    attempt = attempt_here()
    return None if attempt is None else here.Place(attempt.engine.blobs, attempt.job.id)


here.find = _find_blobs


class Current(msgspec.Struct, frozen=True, kw_only=True):
    """The job that this code runs for, and the step it is in."""

    job_id: str
    """The id of the job."""
    attempt: int
    """The number of this attempt: failures so far, plus one."""
    epoch: int
    """The number of this lease. Pass it to a system that can refuse older ones."""
    deadline: float | None
    """When the job times out, in seconds since 1970; None if it has no timeout."""
    step: str
    """The path of the running step, as in its record; "" between steps."""
    first: str = ""
    """The same path with the oldest names of renamed steps (`@step(was=…)`)."""
    generation: str = ""
    """Changes when a person rejects the step's result: see `Run.rerun`."""
    feedback: str = ""
    """What the person said about the rejected result."""
    rejected: Any = None
    """The rejected result, as plain JSON data."""

    @property
    def idempotency_key(self) -> str:
        """A key to pass to a provider so that it ignores a repeated call. It stays the same over attempts, recoveries
        and replays, and over renames with `@step(was=…)`. If a person rejects the step's result, it changes.
        """
        return idempotency_key(self.job_id, self.first or self.step, self.generation)

    def bind(self, function: Callable[..., T]) -> Callable[..., T]:
        """Bind a function to this job, for an executor that doesn't copy context variables."""
        context = contextvars.copy_context()
        return lambda *args, **kwargs: context.copy().run(function, *args, **kwargs)


class NoJob(HoldfastError, LookupError):
    """The code was called outside a job."""


def current() -> Current:
    """Return the job and step that this code runs for. In a direct call it is a stand-in. Otherwise raises NoJob."""
    attempt, plain = attempt_here(), PLAIN.get()
    if attempt is not None:
        return _current_in(attempt)
    if plain is not None:
        return plain
    raise NoJob("current() was called outside a job; call it in a job's code, in its tasks, or in asyncio.to_thread")


def _current_in(attempt: Attempt) -> Current:
    return current_at(attempt, PATH.get())


def current_at(attempt: Attempt, path: str) -> Current:
    """Return what `current()` returns in the step at this path."""
    job, limit = attempt.job, attempt.job.options.timeout_ms
    deadline = None
    if limit is not None and job.claimed_at is not None:
        deadline = (job.claimed_at + limit + attempt.waited_ms()) / 1_000
    undone, records = UNDONE.get(), attempt.journal.records
    if undone is not None:
        job_id, step, first, generation = undone
    else:
        job_id, step, first = job.id, path, attempt.journal.calls.first_path(path)
        generation = records.generation(path)
    again = records.again_of(path) if generation else None
    return Current(
        job_id=job_id,
        attempt=job.attempt,
        epoch=job.epoch,
        deadline=deadline,
        step=step,
        first=first,
        generation=generation,
        feedback="" if again is None else again.feedback,
        rejected=None if again is None else parse(again.rejected),
    )


UNDONE: ContextVar[tuple[str, str, str, str] | None] = ContextVar("holdfast_undone", default=None)
"""While a step is undone: its job, its path, its first path and its generation, so that `current()` has the key that
the provider knows.
"""

NO_JOB = "plain-"
"""How the job id of a call outside any job begins."""

PLAIN: ContextVar[Current | None] = ContextVar("holdfast_plain", default=None)


@contextmanager
def plain_call(step: str) -> Iterator[None]:
    """Run a call outside any job, as in a unit test. Inside it, `current()` works and has a unique key."""
    outer = PLAIN.get()
    job_id = f"{NO_JOB}{secrets.token_hex(8)}" if outer is None else outer.job_id
    path = f"{step}#{secrets.token_hex(8)}" if step else ""
    token = PLAIN.set(Current(job_id=job_id, attempt=1, epoch=0, deadline=None, step=path))
    try:
        yield
    finally:
        PLAIN.reset(token)


def progress(done: int | None = None, total: int | None = None, text: str = "") -> None:
    """Report how far the job is. Outside a job, it does nothing."""
    attempt = attempt_here()
    if attempt is not None:
        attempt.progress.report(
            _check_count("done", done), _check_count("total", total), storable(str(text), PROGRESS_CHARACTERS)
        )


def spend(*, usd: float = 0, tokens: float = 0) -> None:
    """Report what the running step has spent. It is recorded together with the step. Outside a job, it does nothing.

    Call it as soon as the money is spent: if the worker is lost, the job's history has what the last heartbeat knew.
    """
    amounts = amounts_of("spend()", {"usd": usd, "tokens": tokens})
    attempt = attempt_here()
    if attempt is not None and amounts:
        attempt.progress.spend(PATH.get(), amounts)


def settle(limit: str, units: int) -> None:
    """Correct what the running step uses of a limit, in millionths of a unit. Outside a job, it does nothing."""
    attempt = attempt_here()
    if attempt is not None:
        attempt.settle(PATH.get(), limit, units)


def _check_count(name: str, number: Any) -> int | None:
    """Check that a heartbeat can carry this number."""
    if number is None:
        return None
    try:
        whole = operator.index(number)
    except TypeError:
        raise Invalid(f"progress({name}={number!r}) isn't a whole number; give an int") from None
    if not -(1 << 63) <= whole < 1 << 63:
        raise Invalid(f"progress({name}={number!r}) is too large; give a number that fits into 64 bits")
    return whole


def tx() -> Any:
    """Return the store's connection, inside a step with `effect="transaction"`. What you write with it is stored in one
    transaction with the step's record. On SQLite it has `execute`, `executemany` and `cursor`, like `sqlite3`. On
    Postgres it has asyncpg's methods in async code, and in a `def` step those that psycopg and `sqlite3` share.
    """
    connection = TX.get()
    if connection is None:
        raise Invalid(
            "tx() was called outside a transaction; call it in a step with effect='transaction' of a submitted job"
        )
    return connection if loop_here() else getattr(connection, "sync", connection)


def check_no_tx(what: str) -> None:
    """Refuse a call that would wait for the store inside a transaction, because the store waits for it, too."""
    if TX.get() is not None:
        step = PATH.get().rpartition("/")[2]
        raise Invalid(
            f"step {step}: {what} inside a transaction would wait for itself; move it into the job, after the step"
        )


def attempt_here() -> Attempt | None:
    """Return the attempt that this code belongs to. A forked child belongs to none: its parent runs the attempt."""
    attempt = ATTEMPT.get()
    return attempt if attempt is None or attempt.is_here() else None


def job_outside() -> Current | None:
    """Return the job and step that this code runs for, if it runs outside their attempt: in the process of an isolated
    step, or in a forked child.
    """
    plain = PLAIN.get()
    is_outside = plain is not None and not plain.job_id.startswith(NO_JOB) and attempt_here() is None
    return plain if is_outside else None


def timers_here(context: contextvars.Context | None) -> Timers | None:
    """Return where to note a timer set in this context, or in the current one. A step's timers aren't noted: no step
    runs while its job suspends.
    """
    if context is None:
        attempt, path = ATTEMPT.get(), PATH.get()
    else:
        attempt, path = context.get(ATTEMPT), context.get(PATH, "")
    return None if attempt is None or path else attempt.timers


@contextmanager
def loading(module: str) -> Iterator[None]:
    """Mark that this process imports a module for an isolated step or job. Nothing may start now: check_loaded."""
    before = _loading[:]
    _loading.append(module)
    try:
        yield
    finally:
        _loading[:] = before


def check_loaded() -> None:
    """Refuse work that starts during an import: it would start again in each process that imports the module."""
    if _loading:
        raise Invalid(
            f"{_loading[-1]} starts jobs or workers when it is imported, and an isolated step's process imports it; "
            "move that code under if __name__ == '__main__':"
        )


_loading: list[str] = []


def loop_here() -> bool:
    """Whether this thread is running an event loop, so that only async calls make sense."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def attempts_anywhere() -> bool:
    """Whether any attempt runs in this process."""
    return _attempt_hosts.have_attempts()


_attempt_hosts = _AttemptHosts()
