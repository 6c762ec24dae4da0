"""What a cancel needs to know of attached provider jobs: the function that stops one, found again by its name.

Must not wait or poll (`app/attaching`). A name only leads to a function of a module that is already loaded, never to an
import.
"""

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.core.errors import Invalid, NotFound
from holdfast.jobs.consequences import ATTACHED_RESULT

ATTACH = "attach"
"""The name of the steps that start a provider's job."""


def has_ended(path: str, steps: Iterable[str]) -> bool:
    """Whether there is a result of the provider's job that was started at this path: nothing is left to cancel."""
    return any(one.startswith(f"{path}/{ATTACHED_RESULT}#") for one in steps)


def cancel_name(function: Callable[[Any], object]) -> str:
    """Return the name under which `find_cancel` finds a function, such as "video:cancel_clip"; or raise Invalid."""
    found = inspect.unwrap(function)
    module, name = getattr(found, "__module__", ""), getattr(found, "__qualname__", "")
    if not inspect.isroutine(found) or "<" in name or not module:
        raise Invalid(
            f"attach(cancel={function!r}): another worker can't find this function; give one that is defined at the "
            "top of a module"
        )
    return f"{module}:{name}"


def find_cancel(name: str) -> Callable[[Any], object]:
    """Return the function with this name, or raise NotFound."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise NotFound(f"this worker doesn't know {name}, which cancels a provider's job; is its module imported?")
    cancel: Callable[[Any], object] = found
    return cancel
