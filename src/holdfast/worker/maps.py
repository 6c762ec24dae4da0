"""Maps: a step for each item of a list, several at a time, until all have settled. Must not know what a step is."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence, Sized
from typing import Any, Generic, TypeVar

from holdfast.core.errors import ItemFailure, ItemsFailed
from holdfast.core.model import Error
from holdfast.jobs.failures import cause_text
from holdfast.worker.attempt import Attempt
from holdfast.worker.cancellation import Watch
from holdfast.worker.recorded_errors import contain, text_of, type_name
from holdfast.worker.tries import Stopped

T = TypeVar("T")

BATCH_SECONDS = 0.01
"""How long settled jobs of a map are collected, until half have settled, so that one call submits the next ones."""

LOOK_FIRST = 50
"""How many of the oldest jobs of a map are read first. Jobs mostly settle in the order of submission."""


class Taken(Generic[T]):
    """One item: its index, and what to call for it. Created in the items' order, so equal items keep their order."""

    def __init__(self, index: int, item: Any, prepare: Callable[[Any], Callable[[], T]]) -> None:
        self.index = index
        self.item = item
        self._trouble: Exception | None = None
        try:
            self._call = prepare(item)
        except Stopped:
            raise
        except BaseException as error:
            self._trouble = contain(error)

    def run(self) -> T:
        """Call it. An item that doesn't fit the step's types fails here, like any other."""
        if self._trouble is not None:
            raise self._trouble
        return self._call()


class Tally(Generic[T]):
    """The items of one map: read once, with their results in order and their failures. Safe from any thread."""

    def __init__(
        self,
        attempt: Attempt | None,
        name: str,
        items: Iterable[Any],
        need: int | None,
        prepare: Callable[[Any], Callable[[], T]],
    ) -> None:
        self.total = len(items) if isinstance(items, Sized) else None
        self._attempt = attempt
        self._name = name
        self._need = need
        self._prepare = prepare
        self._items = iter(items)
        self._results: list[Any] = []
        self._failures: list[ItemFailure] = []
        self._done = 0
        self._broken: BaseException | None = None
        self._lock = threading.Lock()
        if attempt is not None:
            attempt.progress.count_items(name, 0, self.total)

    def at_once(self, limit: int) -> int:
        """Return how many items to run at the same time."""
        return limit if self.total is None else max(1, min(limit, self.total))

    def take(self) -> Taken[T] | None:
        """Return the next item; None at the end, or if reading the items failed."""
        with self._lock:
            if self._broken is not None:
                return None
            try:
                item = next(self._items)
                taken = Taken(len(self._results), item, self._prepare)
            except StopIteration:
                return None
            except BaseException as error:
                self._broken = error if isinstance(error, Stopped) else contain(error)
                return None
            self._results.append(None)
            return taken

    def adopt(self, walker: "asyncio.Task[None]") -> None:
        """Add a task that works through the items, so that it is cancelled with its attempt."""
        if self._attempt is not None:
            self._attempt.tasks.add(walker)
            walker.add_done_callback(self._attempt.tasks.discard)

    def succeed(self, taken: Taken[T], value: Any) -> None:
        """Note that one item succeeded."""
        self._results[taken.index] = value
        self._count()

    def fail(self, taken: Taken[T], error: BaseException) -> None:
        """Note that one item failed."""
        self._failures.append(ItemFailure(taken.index, taken.item, error))
        self._count()

    def stop(self, error: BaseException) -> None:
        """Start no more items. The map raises this error."""
        with self._lock:
            self._broken = self._broken or error

    def _count(self) -> None:
        with self._lock:
            self._done += 1
            done = self._done
        if self._attempt is not None:
            self._attempt.progress.count_items(self._name, done, self.total)

    def outcome(self) -> list[Any]:
        """Return the results, or raise ItemsFailed or the error of the items' iterator."""
        if self._broken is not None:
            raise self._broken
        wanted = len(self._results) if self._need is None else self._need
        succeeded = len(self._results) - len(self._failures)
        if succeeded >= wanted:
            return self._results
        self._failures.sort(key=lambda failure: failure.index)
        line = f"{self._name}: {_failed_items_text(len(self._results), self._failures, self._need)}"
        first = self._failures[0].error if self._failures else None
        raise ItemsFailed(line, self._results, self._failures) from first


def _failed_items_text(items: int, failures: Sequence[ItemFailure], need: int | None) -> str:
    """Say how many items of a map failed, and why the first one did."""
    if not failures:
        return f"all {items} items succeeded, but need={need}"
    first = failures[0]
    cause = cause_text(Error(type_name(first.error), text_of(first.error)))
    needed = "" if need is None else f", and {need} must succeed"
    return f"{len(failures)} of {items} items failed{needed}; first failure: item {first.index + 1} of {items}: {cause}"


async def map_window(
    tally: Tally[Any],
    at_once: int,
    unsettled: Sized,
    submit: Callable[[list[Taken[Any]]], Awaitable[None]],
    settle: Callable[[], Awaitable[None]],
    *,
    refill_at: int | None = None,
) -> list[Any]:
    """Keep up to `at_once` items submitted and unsettled until all have settled; then return the outcome.

    `submit` starts items and adds them to `unsettled`, or settles them at once. `settle` waits until at least one item
    has settled, and removes it. New items are submitted whenever there is room; with `refill_at`, only when at most
    that many are unsettled.
    """
    is_left = True
    while True:
        if is_left and (refill_at is None or len(unsettled) <= refill_at):
            items: list[Taken[Any]] = []
            while len(unsettled) + len(items) < at_once and (taken := tally.take()) is not None:
                items.append(taken)
            is_left = len(unsettled) + len(items) >= at_once
            if items:
                await submit(items)
                continue
        if not len(unsettled):
            return tally.outcome()
        await settle()


async def map_async(tally: Tally[Awaitable[Any]], at_once: int, caller: Watch) -> list[Any]:
    """Run all items on the loop, several at a time, until all have settled; then return the outcome. `caller` watches
    the map's own task: only stopping that one stops an item.
    """

    async def walk() -> None:
        watch = Watch(None, asyncio.current_task(), caller)
        while (taken := tally.take()) is not None:
            try:
                tally.succeed(taken, await taken.run())
            except BaseException as raised:
                try:
                    tally.fail(taken, watch.error(raised))
                except BaseException as stop:
                    tally.stop(stop)  # a task group would ignore a cancelled worker task
                    raise

    async with asyncio.TaskGroup() as group:
        for _ in range(tally.at_once(at_once)):
            tally.adopt(group.create_task(walk()))
    return tally.outcome()


def map_sync(tally: Tally[Any], at_once: int, watch: Watch) -> list[Any]:
    """The same in threads, which never keep the process alive."""

    def walk() -> None:
        while (taken := tally.take()) is not None:
            try:
                with watch:
                    tally.succeed(taken, taken.run())
            except Exception as error:
                tally.fail(taken, error)
            except BaseException as error:
                tally.stop(error)

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(walk,), name="holdfast-map", daemon=True)
        for _ in range(tally.at_once(at_once))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally.outcome()
