"""An engine for an attempt in its own process: it asks the worker, whose engine makes each call.

Must not know a store, and adds no rule: each write names its lease, and the worker's store checks it. Also defines the
calls that both sides know.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from holdfast.core import errors
from holdfast.core.errors import Duplicate, HoldfastError, Invalid
from holdfast.core.model import (
    Admission,
    Applied,
    Beat,
    Change,
    Conflict,
    Entry,
    Error,
    Inserted,
    Job,
    Lease,
    Presence,
    Record,
    Recorded,
    State,
    Step,
    Time,
    Usage,
    Where,
)
from holdfast.core.model import Ask as PermitAsk
from holdfast.core.moves import HeldKey
from holdfast.core.references import Reference
from holdfast.engines.contract import Clock, Engine, Guarantees
from holdfast.engines.traits import Body, Transactional
from holdfast.worker.context import Current
from holdfast.worker.isolation.import_target import Target
from holdfast.worker.isolation.messages import Answer, Ask, Leave, Refusal
from holdfast.worker.isolation.remote_blobs import RemoteBlobs
from holdfast.worker.recorded_errors import error_of


class Reply(Struct, frozen=True, omit_defaults=True):
    """One of the answers that an engine may give to a write."""

    applied: Applied | None = None
    recorded: Recorded | None = None
    admission: Admission | None = None
    record: Record | None = None
    conflict: Conflict | None = None


class Act(Struct, frozen=True):
    """A call that may be asked for: the types of its arguments and of its answer."""

    args: Any
    answer: Any
    writes: bool = False
    """Whether it runs to its end even if nobody waits for it any more."""


ACTS = {
    "now": Act(tuple[()], Time),
    "insert": Act(tuple[list[Job], Lease | None], list[Inserted], writes=True),
    "commit": Act(tuple[list[Change]], list[Reply], writes=True),
    "record": Act(tuple[list[Step]], list[Reply], writes=True),
    "admit": Act(tuple[list[PermitAsk], list[Step]], tuple[list[Reply], list[Reply]], writes=True),
    "usage": Act(tuple[str], list[Usage]),
    "get": Act(tuple[list[str]], list[Job | None]),
    "find": Act(tuple[Where, str, int], list[Job]),
    "count": Act(tuple[()], list[tuple[str, State, int]]),
    "steps": Act(tuple[str], list[Step]),
    "history": Act(tuple[str, int, int], list[Entry]),
    "missing": Act(tuple[str, str], int),
    "records": Act(tuple[str], list[Record]),
    "put_record": Act(tuple[str, str | None, int | None, list[Job]], Reply, writes=True),
    "wait": Act(tuple[list[str], float, int], int),
    "isolate": Act(tuple[str, Target, str, Current, int | None, str, float | None], str),
    "keep_blob": Act(tuple[str, str, str, bool, dict[str, str]], str, writes=True),
    "fetch_blob": Act(tuple[str], str),
    "refer_blobs": Act(tuple[list[Reference], str, dict[str, str]], None, writes=True),
    "save_blob": Act(tuple[Reference, str], None),
}


# The worker's side.


def reply(answer: Applied | Recorded | Admission | Record | Conflict) -> Reply:
    """Wrap an engine's answer, so that the other side can tell which kind it is."""
    match answer:
        case Applied():
            return Reply(applied=answer)
        case Recorded():
            return Reply(recorded=answer)
        case Admission():
            return Reply(admission=answer)
        case Record():
            return Reply(record=answer)
        case Conflict():
            return Reply(conflict=answer)


async def answered(ask: Ask, does: Callable[..., Awaitable[Any]]) -> Answer | Refusal:
    """Return the outcome of a call, ready to be sent: its answer, or what it raised."""
    try:
        args = msgspec.json.decode(ask.args, type=ACTS[ask.act].args)
        return Answer(ask.number, Raw(msgspec.json.encode(await does(*args))))
    except Exception as error:
        return Refusal(ask.number, error_of(error), error.id if isinstance(error, Duplicate) else "")


# The process's side.


class Asking:
    """The calls that an attempt has asked of its worker and that aren't answered yet. On the attempt's loop."""

    def __init__(self, send: Callable[[Ask | Leave], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, asyncio.Future[Raw]] = {}

    async def ask(self, act: str, *args: Any) -> Any:
        """Have the worker make a call, and wait for the outcome. Raises what it raised there, as `RemoteFailure`."""
        number = next(_numbers)
        answer = self._open[number] = self._loop.create_future()
        try:
            self._send(Ask(number, act, Raw(msgspec.json.encode(args))))
            text = await answer
        except asyncio.CancelledError:
            self._send(Leave(number))
            raise
        finally:
            del self._open[number]
        return msgspec.json.decode(text, type=ACTS[act].answer)

    def hear(self, word: Answer | Refusal) -> None:
        """Take the worker's answer. From any thread."""
        with suppress(RuntimeError):  # the loop has ended, so nobody waits
            self._loop.call_soon_threadsafe(self._settle, word)

    def _settle(self, word: Answer | Refusal) -> None:
        future = self._open.get(word.number)
        if future is None or future.done():
            return
        if isinstance(word, Answer):
            future.set_result(word.value)
        else:
            future.set_exception(RemoteFailure(word.error, word.existing))


_numbers = itertools.count(1)


class RemoteFailure(Exception):
    """A call raised this in the worker."""

    def __init__(self, error: Error, existing: str) -> None:
        super().__init__(f"{error.type}: {error.message}")
        self.error = error
        self.existing = existing


class RemoteEngine(Engine, Transactional):
    """The worker's store, as far as an attempt may use it."""

    guarantees = Guarantees(
        name="line",
        url="",
        use="the process of an isolated job",
        durable="what the worker's store says",
        processes="one process",
        wakes="one process",
        atomic_children=True,
        clock="the worker's store's",
        limit="what the worker's store says",
        transactions="all steps",  # it refuses them itself, with a reason
    )

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._blobs = RemoteBlobs(self._ask)

    @classmethod
    def from_url(cls, url: str, clock: Clock) -> "RemoteEngine":
        """Refuse: only a worker can provide this engine."""
        raise Invalid("the connection to a worker has no URL")

    @classmethod
    def scratch(cls, url: str, folder: Path) -> str:
        """Refuse: only a worker can provide this engine."""
        raise Invalid("the connection to a worker has no URL")

    async def open(self) -> None:
        """Do nothing: the worker has opened the store."""

    async def close(self) -> None:
        """Do nothing: the worker closes the store."""

    async def now(self) -> Time:
        """Ask for the store's time."""
        now: Time = await self._ask("now")
        return now

    def _insert(self, jobs: Sequence[Job], parent: Lease | None) -> Awaitable[list[Inserted]]:
        return self._ask("insert", jobs, parent)

    async def _claim(self, worker: str, queues: list[str], limit: int, types: list[str] | None) -> list[Job]:
        raise Invalid("a job's process can't claim; only its worker can")

    async def _beat(self, presence: Presence) -> Beat:
        raise Invalid("a job's process can't send heartbeats; only its worker can")

    async def _commit(self, changes: Sequence[Change]) -> list[Applied | Conflict]:
        replies: list[Reply] = await self._ask("commit", changes)
        return [_present(one.applied or one.conflict) for one in replies]

    async def _record(self, steps: Sequence[Step]) -> list[Recorded | Conflict]:
        replies: list[Reply] = await self._ask("record", steps)
        return [_present(one.recorded or one.conflict) for one in replies]

    async def _admit(
        self, asks: Sequence[PermitAsk], steps: Sequence[Step]
    ) -> tuple[list[Admission | Conflict], list[Recorded | Conflict]]:
        admitted, recorded = await self._ask("admit", asks, steps)
        return (
            [_present(one.admission or one.conflict) for one in admitted],
            [_present(one.recorded or one.conflict) for one in recorded],
        )

    async def _transact(self, step: Step, body: Body) -> Recorded | Conflict:
        raise Invalid(
            f"step {step.name}: a transaction can't run in the process of an isolated job; remove isolate from the "
            "job, or set it only on the steps that need it"
        )

    async def _prune(self, limit: int) -> int:
        raise Invalid("a job's process can't prune; only upkeep can")

    async def _get(self, ids: list[str]) -> Mapping[str, Job]:
        jobs: list[Job | None] = await self._ask("get", ids)
        return {job.id: job for job in jobs if job is not None}

    def _find(self, where: Where, after: str, limit: int) -> Awaitable[list[Job]]:
        return self._ask("find", where, after, limit)

    async def count(self) -> Mapping[tuple[str, State], int]:
        """Ask for the counters."""
        return {(queue, state): number for queue, state, number in await self._ask("count")}

    async def _holders(self, names: list[tuple[str, str]]) -> Mapping[tuple[str, str], HeldKey]:
        raise Invalid("a job's process can't look up the holder of a key; only its worker can")

    def _usage(self, limit: str) -> Awaitable[list[Usage]]:
        return self._ask("usage", limit)

    async def _ready_types(self, queue: str) -> list[str]:
        raise Invalid("a job's process can't watch a queue; only its worker can")

    def _steps(self, job: str) -> Awaitable[list[Step]]:
        return self._ask("steps", job)

    def _history(self, job: str, after: int, limit: int) -> Awaitable[list[Entry]]:
        return self._ask("history", job, after, limit)

    def _missing(self, parent: str, group: str) -> Awaitable[int]:
        return self._ask("missing", parent, group)

    def _records(self, prefix: str) -> Awaitable[list[Record]]:
        return self._ask("records", prefix)

    async def _put_record(
        self, name: str, value: str | None, expected: int | None, jobs: Sequence[Job]
    ) -> Record | Conflict:
        reply: Reply = await self._ask("put_record", name, value, expected, list(jobs))
        put: Record | Conflict = _present(reply.record or reply.conflict)
        return put

    def _wait(self, topics: list[str], timeout: float, after: int) -> Awaitable[int]:
        return self._ask("wait", topics, timeout, after)

    async def _ask(self, act: str, *args: Any) -> Any:
        """Call the store. Its own errors are raised here as they were there: callers know them by class."""
        try:
            return await self._asking.ask(act, *args)
        except RemoteFailure as trouble:
            error, existing = trouble.error, trouble.existing
        kind = getattr(errors, error.type.removeprefix("holdfast.core.errors."), None)
        if kind is Duplicate:
            raise Duplicate(error.message, existing)
        if isinstance(kind, type) and issubclass(kind, HoldfastError):
            raise kind(error.message)
        raise HoldfastError(f"the worker couldn't make this call to the store: {error.type}: {error.message}")


def _present(answer: Any) -> Any:
    assert answer is not None
    return answer
