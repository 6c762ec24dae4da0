"""Effects in doubt as a person sees them: which, and the two commands for each. Must not ask a store."""

import shlex
from collections.abc import Iterator, Sequence

from rich.text import Text

from holdfast.cli.words import one_line, short
from holdfast.core.model import Entry, Job, State, Step
from holdfast.jobs.replays import doubts_left, misfits
from holdfast.safe import clean

DOUBTS_SHOWN = 5
"""How many steps in doubt a person is shown; `--json` has all of them."""

RESULT_SHOWN = 60
"""How much of a result that may not fit is shown."""


def doubts_of(job: Job, steps: Sequence[Step]) -> list[str]:
    """The steps that a person is still asked about. While a job runs, one that was begun is simply under way."""
    return doubts_left(job, steps) if job.state is State.REVIEW else []


def misfits_of(job: Job, steps: Sequence[Step], history: Sequence[Entry]) -> list[Step]:
    """The steps of which a person may have said something that did not fit, and may say it again."""
    return misfits(job, steps, history) if job.state is State.REVIEW else []


def misfit_lines(id: str, steps: Sequence[Step]) -> Iterator[Text]:
    """Each of them with what was said, and what to type instead."""
    for step in steps[:DOUBTS_SHOWN]:
        said = f"{clean(step.path)} happened, as a person said, with a result that may not fit: "
        yield Text(said + one_line(step.result or "null", RESULT_SHOWN), style="yellow")
        yield from _commands(id, step.path)


def doubt_lines(id: str, paths: Sequence[str]) -> Iterator[Text]:
    """Each step in doubt, with what to type if it happened, and if it did not."""
    for path in paths[:DOUBTS_SHOWN]:
        yield Text(f"{clean(path)} may have happened: it was begun and not recorded", style="yellow")
        yield from _commands(id, path)
    if len(paths) > DOUBTS_SHOWN:
        yield Text(f"and {len(paths) - DOUBTS_SHOWN:,} more in doubt: --json", style="dim")
    if len(paths) > 1:
        yield Text("say it of each: the job goes on after the last", style="dim")


def _commands(id: str, path: str) -> Iterator[Text]:
    command = f"holdfast resolve {short(id)} --step {shlex.quote(clean(path))}"
    yield Text(f"  it did:      {command} --result JSON")
    yield Text(f"  it did not:  {command} --again")
