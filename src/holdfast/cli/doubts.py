"""Effects in doubt as a person sees them: which, and the two commands for each. Must not ask a store."""

import shlex
from collections.abc import Iterator, Sequence

from rich.text import Text

from holdfast.cli.words import clean, short
from holdfast.core.model import Job, State, Step
from holdfast.jobs.replays import doubts_left

DOUBTS_SHOWN = 5
"""How many steps in doubt a person is shown; `--json` has all of them."""


def doubts_of(job: Job, steps: Sequence[Step]) -> list[str]:
    """The steps that a person is still asked about. While a job runs, one that was begun is simply under way."""
    return doubts_left(job, steps) if job.state is State.REVIEW else []


def doubt_lines(id: str, paths: Sequence[str]) -> Iterator[Text]:
    """Each step in doubt, with what to type if it happened, and if it did not."""
    for path in paths[:DOUBTS_SHOWN]:
        command = f"holdfast resolve {short(id)} --step {shlex.quote(clean(path))}"
        yield Text(f"{clean(path)} may have happened: it was begun and not recorded", style="yellow")
        yield Text(f"  it did:      {command} --result JSON")
        yield Text(f"  it did not:  {command} --again")
    if len(paths) > DOUBTS_SHOWN:
        yield Text(f"and {len(paths) - DOUBTS_SHOWN:,} more in doubt: --json", style="dim")
    if len(paths) > 1:
        yield Text("say it of each: the job goes on after the last", style="dim")
