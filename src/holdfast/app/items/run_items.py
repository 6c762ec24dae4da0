"""`run_items`: a list and a function, run so that it can be interrupted at any moment and started again.

Must not be a second way to run jobs: each item is one job of an App, and the App's own worker runs it. Here is what a
user calls, and what gives items their identity; `work` runs them, `words` tells a person how it goes.
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
from holdfast.app.items.quiet import quietly
from holdfast.app.items.words import Counts, Teller, name_of
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
"""Room in a key for the number of an equal item."""

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
    """Call the function once for each item, keep what came of it in `where`, and go on there after any interruption.

    `where` is a file ("book.json") or a store's URL ("sqlite:///book.db"). The function may be `def` or `async def`.
    It failed when it raises or returns `(False, error)`; it is then tried again up to `retries` times, after
    `backoff` seconds, twice that, and so on; after that the item needs review, and the others go on. What else it
    returns is kept. Finished items are never run again: start the same call again after Ctrl-C, a crash or a power
    cut. An item is known by its own value, or by what `key` says of it; a list is known by its function's name,
    or by `name`.
    """
    if loop_here():
        raise WrongColour("run_items(…) would block the event loop: in async code call await run_items_async(…)")
    work = run_items_async(
        where, items, function, retries=retries, at_once=at_once, backoff=backoff, key=key, name=name, quiet=quiet
    )
    try:
        return asyncio.run(work)
    except KeyboardInterrupt as error:
        raise quietly(error) from None  # What was cancelled on the way is no news to whoever pressed Ctrl-C.
    except StoreError as error:
        raise quietly(error) from None  # Its line says it all; the way it came would bury it.


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
    retry = check_retry(Retry(retries=_whole(retries, "retries"), initial_ms=milliseconds(backoff)))
    known_as = check_type(f"item.{name}") if name is not None else _type_of(function)
    listed = _listed(items, key)
    app = App(_url_of(where))
    teller = Teller(quiet)
    work = Work(app, known_as, function, listed, key is not None, retry, teller)
    try:
        await app.open()
        return await work.run(at_once)
    except StoreError as error:
        raise error.with_traceback(None) from None
    finally:
        teller.close()
        await app.close()


# Identity.


def _listed(items: Iterable[Any], key: Callable[[Any], object] | None) -> dict[str, Any]:
    """The items by their keys, in order. Equal items are numbered by place; a `key` must tell them apart itself."""
    listed: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for place, item in enumerate(items, 1):
        try:
            text = key_of(item if key is None else key(item))
        except BadValue as error:
            raise Invalid(f"item {place}: {error}") from error
        seen[text] += 1
        if key is not None and seen[text] > 1:
            raise Invalid(f"item {place}: an item before it has the same key {text}; give each a key of its own")
        listed[text if seen[text] == 1 else f"{text}#{seen[text]}"] = item
    return listed


def key_of(value: object) -> str:
    """A value as the key of a job: a plain word as it is, else its canonical text; a long one by its hash.

    No two values share one, and none ends like the number of an equal item.
    """
    text = value if isinstance(value, str) and _WORD.fullmatch(value) else canonical(value)
    return text if len(text) <= KEY_LIMIT - SUFFIX_CHARACTERS else f"*{digest(text)}"


def _type_of(function: Callable[..., Any]) -> str:
    """The job type of a function's items; a function without a fitting name has the plain one."""
    try:
        return check_type(f"item.{name_of(function).strip('_').lower()}")
    except Invalid:
        return "item"


def _url_of(where: str | os.PathLike[str]) -> str:
    """A file's path or a store's URL, as a URL."""
    if not isinstance(where, str | os.PathLike):
        raise Invalid(f"where={where!r}: give a file such as 'book.json', or a store's URL")
    text = os.fspath(where)
    if isinstance(where, str) and _URL.match(where):
        return where
    if not text:
        raise Invalid("where='': give a file such as 'book.json', or a store's URL")
    return f"file:{quote(str(Path(text).absolute()))}"


def _check_call(items: object, function: object, at_once: int) -> None:
    """Refuse a call that can't be meant."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise Invalid(f"items is {a_or_an(type(items).__name__)}: give a list of items")
    if not callable(function):
        raise Invalid(f"function={function!r}: give the function to call for each item")
    if is_generator(function):
        raise Invalid(f"run_items with {place_of(function)}: {NO_GENERATOR}")
    if _whole(at_once, "at_once") < 1:
        raise Invalid(f"at_once={at_once}: at least one item must run at once")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise Invalid(f"{name_of(function)} can't be called with one item; give a function of one argument") from None
    except ValueError:  # A builtin that doesn't tell.
        pass


def _whole(number: object, name: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise Invalid(f"{name}={number!r}: give a whole number")
    return number
