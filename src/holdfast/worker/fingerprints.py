"""A fingerprint of a step's source, kept with its records, so that a person can see which ones older code made.

Comments, formatting and decorators don't count. Must not record anything (`journal`).
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from holdfast.core.keys import digest
from holdfast.worker.registry import STEPS

DIGITS = 8


@lru_cache(10_000)
def fingerprint(function: Callable[..., Any]) -> str:
    """Return a fingerprint of a function's source; of its bytecode, if there is no source."""
    function = inspect.unwrap(function)
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
            tree.decorator_list = []
        text = ast.dump(tree, annotate_fields=False)
    except (OSError, TypeError, SyntaxError, ValueError):
        code = getattr(function, "__code__", None)
        text = "" if code is None else f"{code.co_code.hex()} {code.co_names!r}"
    return digest(text)[:DIGITS]


def known_code() -> dict[str, set[str]]:
    """Return the fingerprints of all steps of this process, by name."""
    return {name: {fingerprint(spec.function) for spec in specs.values()} for name, specs in STEPS.items()}
