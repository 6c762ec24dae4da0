"""What all tests share: `--soak`, which makes the random ones run long."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="many more rounds of kills, races and random lives")


@pytest.fixture
def rounds(request: pytest.FixtureRequest):
    """How many rounds: a few, or with --soak many."""
    return lambda few, many: many if request.config.getoption("--soak") else few
