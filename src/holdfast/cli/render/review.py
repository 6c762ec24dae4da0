"""The jobs that need a person, for a terminal: in groups, and one by one. Must not read a store."""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.render.in_doubt import doubt_lines, step_lines
from holdfast.cli.render.screen import Hanging
from holdfast.core.errors import EffectInDoubt
from holdfast.core.model import Time
from holdfast.jobs.views.remarks import owner_words
from holdfast.jobs.views.review import ReviewView
from holdfast.jobs.views.review_groups import ReviewGroup
from holdfast.jobs.views.text import SHORT_ID, ago, error_line, one_line, plural, short_id, span
from holdfast.safe_text import clean


def print_groups(out: Console, groups: Sequence[ReviewGroup], now: Time) -> None:
    """Print each group: how many, of which type, stopped by what, since when, and the newest one's error."""
    for group in groups:
        line = Text() + Text(clean(group.type), "bold")
        line += Text(f"  in {one_line(group.step, 60)}: ") + Text(one_line(group.error, 80), "red")
        out.print(Hanging(line, 8, Text(f"{group.count:>6,}", "bold")))
        since = f"last {ago(group.last, now)}" + (f", first {ago(group.first, now)}" if group.count > 1 else "")
        doubt = f", {plural(group.in_doubt, 'job')} with an effect in doubt" if group.in_doubt else ""
        out.print(Padding(Text(f"{since}{doubt}; newest {short_id(group.examples[0])}", "dim"), (0, 0, 0, 8)))
        out.print(Padding(Text(group.message, "dim"), (0, 0, 0, 8)))


def print_review(out: Console, view: ReviewView, now: Time) -> None:
    """Print one job in review: since when, its error, and what a person has to decide."""
    job = view.job
    before = ", ".join(owner_words(job)) or "no failed attempt"
    head = Text() + Text(job.type, style="bold") + Text(f"  for {span(max(0, now - view.since))}, {before}", "dim")
    out.print(Hanging(head, SHORT_ID + 2, Text(short_id(job.id), "cyan")))
    if not view.in_doubt or job.error is None or job.error.type != EffectInDoubt.__name__:  # it says the same
        out.print(Padding(Text(error_line(job.error) or "no error was recorded", "red"), (0, 0, 0, 10)))
    for line in (*step_lines(view.may_not_fit), *doubt_lines(view.in_doubt)):
        out.print(Text("          ") + line, soft_wrap=True)  # a command to copy stays on one line
