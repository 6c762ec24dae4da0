"""`run_items`: call a function for each item of a list. You can interrupt it at any moment and start it again.

Must not be a second way to run jobs: each item is one job of an App, and the App's own worker runs it. This file has
the function that users call, and decides how items are identified; `work` runs them, `words` reports to a person.
"""

import asyncio
import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from holdfast.app.app import App
from holdfast.app.items.quiet import without_report
from holdfast.app.items.words import Counts, Reporter, name_of
from holdfast.app.items.work import Work
from holdfast.core.canonical import a_or_an
from holdfast.core.codec import canonical
from holdfast.core.durations import Duration, milliseconds
from holdfast.core.errors import BadValue, Invalid, StoreError, WrongColour
from holdfast.core.keys import check_type, digest
from holdfast.core.model import Retry
from holdfast.core.outcome import check_retry
from holdfast.jobs.requests import KEY_LIMIT
from holdfast.worker.context import loop_here
from holdfast.worker.registry import NO_GENERATOR, is_generator, place_of

I = TypeVar("I")  # noqa: E741

SUFFIX_CHARACTERS = 20
"""Characters of a key that are reserved for the number of a repeated item."""

_URL = re.compile(r"[a-z][a-z0-9+.-]+:")
_WORD = re.compile(r"(?!(?:true|false|null)$)[A-Za-z][\w .,:/@+-]*")


def run_items(
    where: str | os.PathLike[str],
    items: Iterable[I],
    function: Callable[[I], Any],
    *,
    retries: int = 3,
    at_once: int = 1,
    backoff: Duration = 1,
    key: Callable[[I], object] | None = None,
    name: str | None = None,
    quiet: bool = False,
) -> Counts:
    """Call the function once for each item and record each result in `where`. Started again, it continues there.

    `where` is a file ("book.json") or a store's URL ("sqlite:///book.db"). The function may be `def` or `async def`. A
    call has failed if it raises or returns `(False, error)`. It is then tried again up to `retries` times, after
    `backoff` seconds, twice that, and so on. After the last try the item needs review, and the other items continue.
    Any other return value is stored.

    A finished item never runs again: after Ctrl-C, a crash or a power cut, start the same call again. An item is
    identified by its value, or by what `key` returns for it. A list is identified by the function's name, or by `name`.
    """
    if loop_here():
        raise WrongColour("run_items(…) would block the event loop; in async code, call await run_items_async(…)")
    work = run_items_async(
        where, items, function, retries=retries, at_once=at_once, backoff=backoff, key=key, name=name, quiet=quiet
    )
    try:
        return asyncio.run(work)
    except KeyboardInterrupt as error:
        raise without_report(error) from None  # The user pressed Ctrl-C: CancelledError says nothing new.
    except StoreError as error:
        raise without_report(error) from None  # The message is enough; a traceback would bury it.


async def run_items_async(
    where: str | os.PathLike[str],
    items: Iterable[I],
    function: Callable[[I], Any],
    *,
    retries: int = 3,
    at_once: int = 1,
    backoff: Duration = 1,
    key: Callable[[I], object] | None = None,
    name: str | None = None,
    quiet: bool = False,
) -> Counts:
    """`run_items` for async code."""
    _check_call(items, function, at_once)
    retry = check_retry(Retry(retries=_check_whole(retries, "retries"), initial_ms=milliseconds(backoff)))
    known_as = check_type(f"item.{name}") if name is not None else _type_of(function)
    listed = _by_key(items, key)
    app = App(_url_of(where))
    reporter = Reporter(quiet)
    work = Work(app, known_as, function, listed, key is not None, retry, reporter)
    try:
        await app.open()
        return await work.run(at_once)
    except StoreError as error:
        raise error.with_traceback(None) from None
    finally:
        reporter.close()
        await app.close()


# How items are identified.


def _by_key(items: Iterable[Any], key: Callable[[Any], object] | None) -> dict[str, Any]:
    """Return the items by their keys, in order.

    Equal items are numbered by position. With `key`, equal keys are refused.
    """
    listed: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for place, item in enumerate(items, 1):
        try:
            text = key_of(item if key is None else key(item))
        except BadValue as error:
            raise Invalid(f"item {place}: {error}") from error
        seen[text] += 1
        if key is not None and seen[text] > 1:
            raise Invalid(f"item {place}: an earlier item has the same key {text}; give each item its own key")
        listed[text if seen[text] == 1 else f"{text}#{seen[text]}"] = item
    return listed


def key_of(value: object) -> str:
    """Return the key of a value's job: a plain word as it is, anything else as canonical text, a long text as its hash.

    Different values have different keys. No key looks like the numbered key of a repeated item.
    """
    text = value if isinstance(value, str) and _WORD.fullmatch(value) else canonical(value)
    return text if len(text) <= KEY_LIMIT - SUFFIX_CHARACTERS else f"*{digest(text)}"


def _type_of(function: Callable[..., Any]) -> str:
    """Return the job type of a function's items: `item.<name>`, or `item` if the function's name doesn't fit."""
    try:
        return check_type(f"item.{name_of(function).strip('_').lower()}")
    except Invalid:
        return "item"


def _url_of(where: str | os.PathLike[str]) -> str:
    """Return the URL of a file's path or of a store."""
    if not isinstance(where, str | os.PathLike):
        raise Invalid(f"where={where!r}: give a file such as 'book.json', or a store's URL")
    text = os.fspath(where)
    if isinstance(where, str) and _URL.match(where):
        return where
    if not text:
        raise Invalid("where='': give a file such as 'book.json', or a store's URL")
    return f"file:{quote(str(Path(text).absolute()))}"


def _check_call(items: object, function: object, at_once: int) -> None:
    """Refuse arguments that are certainly a mistake."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise Invalid(f"items is {a_or_an(type(items).__name__)}: give a list of items")
    if not callable(function):
        raise Invalid(f"function={function!r}: give the function to call for each item")
    if is_generator(function):
        raise Invalid(f"run_items with {place_of(function)}: {NO_GENERATOR}")
    if _check_whole(at_once, "at_once") < 1:
        raise Invalid(f"at_once={at_once}: give how many items may run at once, at least 1")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise Invalid(f"{name_of(function)} can't be called with one item; give a function of one argument") from None
    except ValueError:  # A builtin without a signature.
        pass


def _check_whole(number: object, name: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise Invalid(f"{name}={number!r}: give a whole number")
    return number
