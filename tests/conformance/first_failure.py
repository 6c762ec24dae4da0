"""A pytest plugin for trials of many engines at once: each runs to its first failure, and is named with it.

Must not be loaded where all that fails is to be seen.
"""

from collections.abc import Iterator

import pytest

from holdfast.conformance.kinds import Kind

CAUGHT = "caught: "
SPOILT = "spoilt: "

_found: dict[str, str] = {}


def _engine(item: pytest.Item) -> str:
    """The place of the engine's class, or nothing for a test that has no engine."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    kind = params.get("kind")
    return kind.place if isinstance(kind, Kind) else ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is left for an engine that has failed."""
    if _engine(item) in _found:
        pytest.skip("its engine has failed before")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note who fails. Only a test that ran to its failure has caught something."""
    report = yield
    if report.failed:  # type: ignore[attr-defined]
        _found.setdefault(_engine(item), CAUGHT if report.when == "call" else SPOILT)  # type: ignore[attr-defined]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name them, one on each line."""
    for engine, how in _found.items():
        terminalreporter.write_line(f"{how}{engine}")
