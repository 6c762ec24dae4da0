"""`map`, with one type for async and one for blocking code: items must fit the function's first parameter.

Must not run anything: a class that inherits `map` implements `_map`.
"""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar, overload

from holdfast.app.options import options_checked

I = TypeVar("I")  # noqa: E741
S = TypeVar("S")
Takes = TypeVar("Takes", contravariant=True)
Gives = TypeVar("Gives", covariant=True)

Key = Callable[..., object] | str | int | None
"""Names a call or an item: a value, or a function of the arguments."""


class TakesOne(Protocol[Takes, Gives]):
    """Anything that can be called with one item. As `self` of `map`, it ties the items' type to that parameter."""

    def __call__(self, item: Takes, /) -> Gives: ...


class AwaitsOne(Protocol[Takes, Gives]):
    """The same for a call that is awaited."""

    def __call__(self, item: Takes, /) -> Coroutine[Any, Any, Gives]: ...


class AwaitedMap:
    """`await draw.map(scenes)`: for async steps, for the async view of `def` steps, and for all jobs."""

    @overload
    async def map(
        self: AwaitsOne[I, S], items: Iterable[I], *, at_once: int | None = None, key: Key = None, need: None = None
    ) -> list[S]: ...

    @overload
    async def map(
        self: AwaitsOne[I, S], items: Iterable[I], *, at_once: int | None = None, key: Key = None, need: int
    ) -> list[S | None]: ...

    @overload
    async def map(
        self: TakesOne[I, S], items: Iterable[I], *, at_once: int | None = None, key: Key = None, need: None = None
    ) -> list[S]: ...

    @overload
    async def map(
        self: TakesOne[I, S], items: Iterable[I], *, at_once: int | None = None, key: Key = None, need: int
    ) -> list[S | None]: ...

    @options_checked("map")
    def map(
        self: Any, items: Iterable[Any], *, at_once: int | None = None, key: Key = None, need: int | None = None
    ) -> Coroutine[Any, Any, list[Any]]:
        """Run a step, or submit a job, once for each item. Wait for all and return the results in order.

        A step runs `at_once` items at a time (default: 8) inside this job, and records each item separately.

        A job is submitted for each item and runs on any worker. `at_once` limits how many jobs are submitted and not
        yet settled (default: no limit). Inside a job they are its children, and the job gives up its slot while it
        waits.

        `key` names an item by a value instead of by its arguments. Every item runs, even if others fail. If fewer than
        `need` items succeed (default: all), map raises ItemsFailed; otherwise the result of a failed item is None.
        """
        results: Coroutine[Any, Any, list[Any]] = self._map(items, at_once, key, need)
        return results


class BlockingMap:
    """`narrate.map(texts)`: for `def` steps, and for the blocking view of async steps."""

    @overload
    def map(
        self: TakesOne[I, S], items: Iterable[I], *, at_once: int | None = None, key: Key = None, need: None = None
    ) -> list[S]: ...

    @overload
    def map(
        self: TakesOne[I, S], items: Iterable[I], *, at_once: int | None = None, key: Key = None, need: int
    ) -> list[S | None]: ...

    @options_checked("map")
    def map(
        self: Any, items: Iterable[Any], *, at_once: int | None = None, key: Key = None, need: int | None = None
    ) -> list[Any]:
        """Run the step for each item in threads, `at_once` at a time (default: 8), and wait for all of them.

        Each item is recorded separately. For `key` and `need`, see `AwaitedMap.map`.
        """
        results: list[Any] = self._map(items, at_once, key, need)
        return results
