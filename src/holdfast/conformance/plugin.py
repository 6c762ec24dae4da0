"""The options of the conformance suite. Loaded by every pytest run where Holdfast is installed.

So it must import nothing but pytest, add no fixtures, and leave other tests alone: everything else is in `conftest`,
which pytest loads only when the suite itself is collected.
"""

import pytest

ENGINES = "holdfast_engines"
EXAMPLES = "holdfast_examples"
EXAMPLES_DEFAULT = 60
"""How many random lives to compare: enough to try every pair of acts, in seconds even on a store with fsync."""

HOW_TO_CALL = "name a store: pytest --pyargs holdfast.conformance --engine URL, for example --engine memory:"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--engine` and `--examples`."""
    group = parser.getgroup("holdfast", "the laws of the Holdfast engine contract")
    group.addoption(
        "--engine",
        action="append",
        default=[],
        dest=ENGINES,
        metavar="URL",
        help="a store to run holdfast.conformance on, or package.module:Class[=URL]; may be given several times",
    )
    group.addoption(
        "--examples",
        type=int,
        default=EXAMPLES_DEFAULT,
        dest=EXAMPLES,
        metavar="N",
        help=f"how many random lives holdfast.conformance compares (default {EXAMPLES_DEFAULT})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a URL that names no store, before anything runs."""
    texts = config.getoption(ENGINES)
    if texts:
        from holdfast.conformance.kinds import kind_of
        from holdfast.core.errors import Invalid

        try:
            for text in texts:
                kind_of(text)
        except Invalid as error:
            raise pytest.UsageError(f"--engine {error}") from None
