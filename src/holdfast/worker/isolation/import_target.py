"""Where a function is defined, so that another process can find it: its module, its file, its name.

Must not run the function.
"""

import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any

from msgspec import Struct

from holdfast.core.errors import Invalid
from holdfast.worker.context import loading
from holdfast.worker.recorded_errors import MAIN
from holdfast.worker.registry import place_of

WRAPPERS_LIMIT = 32
"""How many decorators there may be between a name in a module and the function that runs."""


class Target(Struct, frozen=True):
    """A function, as another process finds it."""

    module: str
    file: str | None
    """The module's file; None for a module without one, which is found by its name alone."""
    name: str
    """Its qualified name in the module."""
    wrappers: int
    """How often to follow `__wrapped__`: a step is an object around its function."""


def check_importable(function: Callable[..., Any]) -> None:
    """Refuse, already at decoration, a function that no other process could find. See target_of."""
    if "<" in function.__qualname__:
        raise Invalid(
            f"{place_of(function)} is defined inside a function, where no other process can find it; "
            "move it to the top level of its module, or run it without isolate='process'"
        )
    module = sys.modules.get(function.__module__)
    if function.__module__ == "__main__" and _file_of(module) is None:
        raise Invalid(
            f"{place_of(function)} was typed into an interactive session, so no other process can import it; "
            "put it into a file, or run it without isolate='process'"
        )


def target_of(function: Callable[..., Any]) -> Target:
    """Return where another process finds this function. Raises Invalid unless its module has it under its name."""
    check_importable(function)
    module = sys.modules.get(function.__module__)
    file, found = _file_of(module), _find_name(module, function.__qualname__)
    for wrappers in range(WRAPPERS_LIMIT):
        if found is function:
            name = function.__module__
            if name == "__main__":
                package = getattr(module, "__package__", None)
                name = f"{package}.{MAIN}" if package else MAIN
            return Target(name, file, function.__qualname__, wrappers)
        found = getattr(found, "__wrapped__", None)
    raise Invalid(
        f"{place_of(function)} can't be found by its name in another process, because its module has "
        "something else under that name, or nothing; define it at the top level of the module, under its own name"
    )


def find_function(target: Target) -> Callable[..., Any]:
    """Return the function of a target. Imports its module."""
    function: Any = _find_name(load(target), target.name)
    for _ in range(target.wrappers):
        function = getattr(function, "__wrapped__", None)
    if not callable(function):
        raise Invalid(
            f"{target.module} has no function {target.name!r} here; has the file changed since the worker started?"
        )
    called: Callable[..., Any] = function
    return called


def load(target: Target) -> ModuleType:
    """Return the target's module: by name if that leads to the same file, otherwise from the file."""
    there = sys.modules.get(target.module)
    if there is not None and _file_of(there) == target.file:
        return there
    with loading(target.file or target.module):
        return _load_module(target)


def _load_module(target: Target) -> ModuleType:
    if target.file is None or _is_found_by_name(target):
        return importlib.import_module(target.module)
    loader = SourceFileLoader(target.module, target.file)
    spec = importlib.util.spec_from_file_location(target.module, target.file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[target.module] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[target.module]
        raise
    return module


def _is_found_by_name(target: Target) -> bool:
    """Whether importing the name would load the target's file."""
    spec: ModuleSpec | None
    try:
        spec = importlib.util.find_spec(target.module)
    except (ImportError, ValueError):  # "video.v2" for a file video.v2.py: there is no package named video
        return False
    return spec is not None and spec.origin is not None and os.path.abspath(spec.origin) == target.file


def _file_of(module: ModuleType | None) -> str | None:
    file = getattr(module, "__file__", None)
    return os.path.abspath(file) if isinstance(file, str) and os.path.isfile(file) else None


def _find_name(module: ModuleType | None, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
