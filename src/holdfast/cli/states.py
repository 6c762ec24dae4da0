"""A state as `--state` takes it, and what people call the states elsewhere. Must not know what a state means."""

from typing import Any

import click

from holdfast.cli.errors import meant
from holdfast.core.model import State

MEANT: dict[str, tuple[State, ...]] = {
    **dict.fromkeys(("running", "started", "processing", "working", "executing"), (State.ACTIVE,)),
    **dict.fromkeys(("failed", "failure", "failing", "error", "errored"), (State.REVIEW, State.RETRYABLE)),
    **dict.fromkeys(("retry", "retrying"), (State.RETRYABLE,)),
    **dict.fromkeys(("dead", "stuck", "needs_review", "needs-review"), (State.REVIEW,)),
    **dict.fromkeys(("done", "success", "successful", "succeeded", "finished", "complete", "ok"), (State.COMPLETED,)),
    **dict.fromkeys(("queued", "enqueued", "ready", "new", "open"), (State.AVAILABLE,)),
    **dict.fromkeys(("waiting",), (State.AVAILABLE, State.PENDING, State.SCHEDULED)),
    **dict.fromkeys(("blocked", "suspended"), (State.PENDING,)),
    **dict.fromkeys(("delayed", "deferred", "sleeping", "planned"), (State.SCHEDULED,)),
    **dict.fromkeys(("canceled", "stopped", "aborted", "revoked", "killed"), (State.CANCELLED,)),
    **dict.fromkeys(("dropped", "expired", "deleted"), (State.DISCARDED,)),
}
"""What a person may say, and the states that it may mean, the likeliest first."""


class StateChoice(click.Choice):  # type: ignore[type-arg]  # click before 8.2 has no Choice[str]
    """Some of the states. Another word is answered with the state that it means."""

    def __init__(self, *states: State) -> None:
        super().__init__([state.value for state in states], case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The state's name; see click.Choice."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(self._answer(str(value)), param, ctx)

    def _answer(self, word: str) -> str:
        found = MEANT.get(word.lower(), ())
        fit = [state for state in found if state in self.choices]
        if fit:
            *most, last = fit
            return f"{word!r} is called {', '.join(most) + ' or ' if most else ''}{last} here"
        known = ", ".join(self.choices)
        if found:
            return f"{word!r} is called {found[0]} here, and it is none of {known}"
        return f"there is no state {word!r}{meant(word, self.choices) or f'; there are {known}'}"
