"""Effects in doubt, for a person: which ones, and the two commands for each. Must not read a store."""

import shlex
from collections.abc import Sequence

from msgspec import Struct

from holdfast.core.model import Entry, Job, State, Step
from holdfast.core.outcome import failures_of
from holdfast.jobs.replays import doubts_left, misfits
from holdfast.jobs.views.text import error_line, one_line, short_id
from holdfast.safe_text import clean

RESULT_SHOWN = 60
"""How many characters are shown of a result that may not fit."""


class StepInDoubt(Struct, frozen=True):
    """A step that a person has to decide: what is in doubt, its error if known, and what to type in each case."""

    path: str
    words: str
    raised: str
    if_it_happened: str
    if_it_did_not: str


def steps_in_doubt(job: Job, records: Sequence[Step]) -> list[StepInDoubt]:
    """Return the steps of a job in review that a person still has to decide.

    While a job runs, a step that has started is simply running.
    """
    if job.state is not State.REVIEW:
        return []
    failures = failures_of(records)
    return [
        _in_doubt(
            job, path, "may have happened: it started, and no result was recorded", error_line(failures.get(path))
        )
        for path in doubts_left(job, records)
    ]


def steps_that_may_not_fit(job: Job, steps: Sequence[Step], history: Sequence[Entry]) -> list[StepInDoubt]:
    """Return the steps that a person resolved with a result that may not fit, and can resolve again."""
    if job.state is not State.REVIEW:
        return []
    said = "happened, as a person said, with a result that may not fit:"
    return [
        _in_doubt(job, step.path, f"{said} {one_line(step.result or 'null', RESULT_SHOWN)}")
        for step in misfits(job, steps, history)
    ]


def _in_doubt(job: Job, path: str, words: str, raised: str = "") -> StepInDoubt:
    command = f"holdfast resolve {short_id(job.id)} --step {shlex.quote(clean(path))}"
    return StepInDoubt(path, f"{clean(path)} {words}", raised, f"{command} --result JSON", f"{command} --again")
