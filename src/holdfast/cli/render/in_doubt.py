"""Steps in doubt, with the commands to copy. Must not read a store."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from holdfast.jobs.views.in_doubt import StepInDoubt

STEPS_SHOWN = 5
"""How many steps in doubt are shown; `--json` has all of them."""


def doubt_lines(steps: Sequence[StepInDoubt]) -> Iterator[Text]:
    """Yield each step in doubt, with its error, and what to type if it happened or if it didn't."""
    yield from step_lines(steps)
    if len(steps) > STEPS_SHOWN:
        yield Text(f"and {len(steps) - STEPS_SHOWN:,} more in doubt: --json", style="dim")
    if len(steps) > 1:
        yield Text("resolve each of them: the job continues after the last", style="dim")


def step_lines(steps: Sequence[StepInDoubt]) -> Iterator[Text]:
    """The same for steps that a person has already resolved and can resolve again."""
    for step in steps[:STEPS_SHOWN]:
        yield Text(step.words, style="yellow")
        if step.raised:
            yield Text(f"  it raised:   {step.raised}")
        yield Text(f"  it did:      {step.if_it_happened}")
        yield Text(f"  it did not:  {step.if_it_did_not}")
