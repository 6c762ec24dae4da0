"""What a person is told of a list: how far it is, and how long it will take at the pace of this run."""

import io
import re

import pytest
from rich.console import Console

from holdfast.app.items.words import Counts, Pace, Reporter


class Watch:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def test_the_pace_counts_only_what_this_run_has_settled():
    pace = Pace(settled=90, now=0.0)
    assert pace.seconds_left(10, now=30.0) is None, "nothing is known yet"

    pace.note(settled=92, now=60.0)

    assert pace.seconds_left(8, now=60.0) == pytest.approx(240), "30 s for each of the 8 that are left"


def test_between_two_items_the_estimate_counts_down_to_the_next_and_waits_there():
    pace = Pace(settled=5, now=100.0)
    pace.note(settled=6, now=110.0)

    assert pace.seconds_left(4, now=113.0) == pytest.approx(37)
    assert pace.seconds_left(4, now=119.0) == pytest.approx(31)
    assert pace.seconds_left(4, now=190.0) == pytest.approx(30)


def test_a_pace_that_is_noted_again_without_news_stays():
    pace = Pace(settled=0, now=0.0)
    pace.note(settled=1, now=10.0)
    pace.note(settled=1, now=19.0)

    assert pace.seconds_left(2, now=19.0) == pytest.approx(11)


def test_items_that_were_put_back_by_hand_leave_no_estimate_rather_than_a_wrong_one():
    pace = Pace(settled=5, now=0.0)
    pace.note(settled=4, now=10.0)

    assert pace.seconds_left(6, now=10.0) is None


def test_nothing_left_takes_no_time():
    pace = Pace(settled=0, now=0.0)
    pace.note(settled=3, now=9.0)

    assert pace.seconds_left(0, now=20.0) == 0


def drawn(reporter: Reporter, screen: io.StringIO, counts: Counts) -> str:
    """The bar as it is drawn for these counts."""
    screen.truncate(screen.seek(0))
    reporter.show(counts, ["storm"])
    reporter._bar.refresh()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).splitlines()[-1].strip()


def test_the_bar_shows_all_items_and_the_time_left_at_this_runs_pace():
    screen, watch = io.StringIO(), Watch()
    reporter = Reporter(False, Console(file=screen, force_terminal=True, width=120, highlight=False), watch)
    reporter.begin("book.json", Counts(done=80, failed=10, pending=10))
    assert "100 items in book.json, 90 of them settled in an earlier run" in screen.getvalue()

    assert re.search(r"90/100 .* storm$", drawn(reporter, screen, Counts(done=80, failed=10, pending=9, running=1)))
    assert "left" not in drawn(reporter, screen, Counts(done=80, failed=10, pending=9, running=1))

    watch.seconds += 60
    line = drawn(reporter, screen, Counts(done=81, failed=11, pending=7, running=1))
    reporter.close()

    assert re.search(r"92/100 .* about 4 min left +storm$", line), line


def test_a_pipe_gets_no_bar(capsys: pytest.CaptureFixture[str]):
    reporter = Reporter(False)
    reporter.begin("book.json", Counts(pending=2))
    reporter.show(Counts(done=1, pending=1), ["storm"])
    reporter.close()

    assert capsys.readouterr().out == "2 items in book.json\n"
