"""What all tests share: `--soak`, which makes the random ones run long."""

import signal

import pytest

# Where tests are started in the background, the system's Ctrl-C is ignored, and so it would be in every process that a
# test starts to try it on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="many more rounds of kills, races and random lives")


@pytest.fixture
def rounds(request: pytest.FixtureRequest):
    """How many rounds: a few, or with --soak many."""
    return lambda few, many: many if request.config.getoption("--soak") else few
