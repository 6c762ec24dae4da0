"""Effects in doubt as a person sees them: which, and the two commands for each. Must not ask a store."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from holdfast.cli.words import error_line, one_line, short
from holdfast.core.model import Entry, Job, State, Step
from holdfast.core.outcome import failures_of
from holdfast.jobs.replays import doubts_left, misfits
from holdfast.safe_text import clean

DOUBTS_SHOWN = 5
"""How many steps in doubt a person is shown; `--json` has all of them."""

RESULT_SHOWN = 60
"""How much of a result that may not fit is shown."""


def doubts_of(job: Job, records: Sequence[Step]) -> dict[str, str]:
    """The steps that a person is still asked about, by path, with what each of them raised, if that is known. While a
    job runs, one that was begun is simply under way.
    """
    failures = failures_of(records)
    paths = doubts_left(job, records) if job.state is State.REVIEW else []
    return {path: error_line(failures.get(path)) for path in paths}


def misfits_of(job: Job, steps: Sequence[Step], history: Sequence[Entry]) -> list[Step]:
    """The steps of which a person may have said something that did not fit, and may say it again."""
    return misfits(job, steps, history) if job.state is State.REVIEW else []


def misfit_lines(id: str, steps: Sequence[Step]) -> Iterator[Text]:
    """Each of them with what was said, and what to type instead."""
    for step in steps[:DOUBTS_SHOWN]:
        said = f"{clean(step.path)} happened, as a person said, with a result that may not fit: "
        yield Text(said + one_line(step.result or "null", RESULT_SHOWN), style="yellow")
        yield from _commands(id, step.path)


def doubt_lines(id: str, doubts: Mapping[str, str]) -> Iterator[Text]:
    """Each step in doubt, with what it raised, and what to type if it happened, and if it did not."""
    for path, cause in list(doubts.items())[:DOUBTS_SHOWN]:
        yield Text(f"{clean(path)} may have happened: it was begun and not recorded", style="yellow")
        if cause:
            yield Text(f"  it raised:   {cause}")
        yield from _commands(id, path)
    if len(doubts) > DOUBTS_SHOWN:
        yield Text(f"and {len(doubts) - DOUBTS_SHOWN:,} more in doubt: --json", style="dim")
    if len(doubts) > 1:
        yield Text("say it of each: the job goes on after the last", style="dim")


def _commands(id: str, path: str) -> Iterator[Text]:
    command = f"holdfast resolve {short(id)} --step {shlex.quote(clean(path))}"
    yield Text(f"  it did:      {command} --result JSON")
    yield Text(f"  it did not:  {command} --again")
