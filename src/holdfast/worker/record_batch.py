"""Batches records: everything that an attempt's steps record in one turn of the loop is one call to the store.

Without it, a map of a thousand items would make a thousand calls. Must not know what a record means.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from holdfast.core.errors import Invalid
from holdfast.core.model import Conflict, Recorded, Step

Answer = Recorded | Conflict

RECORD_BATCH_LIMIT = 200
"""How many records go to the store in one call, so that no single call gets too large."""


DONE_SECONDS = 1.0
"""How long the end of an attempt waits for its last records. A slower store won't get the end in time either."""


class RecordBatcher:
    """The records of one attempt that wait for the end of this turn. Belongs to the loop."""

    def __init__(self, write: Callable[[Sequence[Step]], Awaitable[Sequence[Answer]]]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[list[Step], asyncio.Future[Answer]]] = []
        self._under_way: set[asyncio.Task[None]] = set()

    def add(self, steps: list[Step], *, at_once: bool = False) -> "asyncio.Future[Answer]":
        """Add records that belong together; the future gets the answer to the first of them. With `at_once`, they are
        written alone: they don't wait for others, nor others for them.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        if at_once:
            self._begin([(steps, future)])
            return future
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.append((steps, future))
        return future

    async def wait_until_written(self) -> None:
        """Wait until all added records are written, even those that nobody waits for any more; but not for long."""
        self._send()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=DONE_SECONDS)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), RECORD_BATCH_LIMIT):
            self._begin(waiting[start : start + RECORD_BATCH_LIMIT])

    def _begin(self, waiting: "list[tuple[list[Step], asyncio.Future[Answer]]]") -> None:
        task = self._loop.create_task(self._write_batch(waiting))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _write_batch(self, waiting: "list[tuple[list[Step], asyncio.Future[Answer]]]") -> None:
        try:
            answers = iter(await self._write([step for steps, _ in waiting for step in steps]))
        except BaseException as error:
            if isinstance(error, Invalid) and len(waiting) > 1:  # find the invalid one; only that one fails
                for one in waiting:
                    await self._write_batch([one])
                return
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for steps, future in waiting:
            first, *_ = [next(answers) for _ in steps]
            if not future.done():  # the waiter may have been cancelled; the record is stored anyway
                future.set_result(first)
