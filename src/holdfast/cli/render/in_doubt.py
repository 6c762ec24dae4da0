"""Steps that a person is asked about, with the commands to copy. Must not ask a store."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from holdfast.jobs.views.in_doubt import StepInDoubt

STEPS_SHOWN = 5
"""How many steps in doubt a person is shown; `--json` has all of them."""


def doubt_lines(steps: Sequence[StepInDoubt]) -> Iterator[Text]:
    """Each step in doubt, with what it raised, and what to type if it happened, and if it did not."""
    yield from step_lines(steps)
    if len(steps) > STEPS_SHOWN:
        yield Text(f"and {len(steps) - STEPS_SHOWN:,} more in doubt: --json", style="dim")
    if len(steps) > 1:
        yield Text("resolve each of them: the job continues after the last", style="dim")


def step_lines(steps: Sequence[StepInDoubt]) -> Iterator[Text]:
    """The same for steps of which something was said already, and can be said again."""
    for step in steps[:STEPS_SHOWN]:
        yield Text(step.words, style="yellow")
        if step.raised:
            yield Text(f"  it raised:   {step.raised}")
        yield Text(f"  it did:      {step.if_it_happened}")
        yield Text(f"  it did not:  {step.if_it_did_not}")
