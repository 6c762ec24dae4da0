"""Options and arguments that several verbs share, and their shell completion. Must not know a verb."""

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from holdfast.cli.open_store import engine_at, place_of_store, use_store
from holdfast.core.errors import HoldfastError
from holdfast.core.model import Job, State, Where
from holdfast.core.suggestions import suggest
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.text import short_id

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_PORT = 8700
"""Where `holdfast serve` and `holdfast dev` listen."""

SERVER_MODULES = ("uvicorn", "starlette")

COMPLETIONS = 50
"""How many ids shell completion offers."""


def can_serve() -> bool:
    """Return whether the extra `server` is installed."""
    return all(find_spec(module) is not None for module in SERVER_MODULES)


def url_option(command: F) -> F:
    """Add `--url` to a verb that opens a store."""
    line = "The store. Default: $HOLDFAST_URL, else sqlite:///holdfast.db in the working directory."
    return click.option("--url", metavar="URL", help=line, callback=inherited_url)(command)


def inherited_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the `--url` of a call: the verb's own, or the nearest one before it."""
    above = ctx.parent
    while value is None and above is not None:
        value, above = above.params.get("url"), above.parent
    return value


def json_option(command: F) -> F:
    """Add `--json` to a verb that shows something: one JSON document, without colours."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document with stable keys.")(command)


def reason_option(command: F) -> F:
    """Add `--reason` to a verb that changes a job or a queue."""
    return click.option("--reason", default="", metavar="TEXT", help="Why you do this; kept in the history.")(command)


def app_option(command: F) -> F:
    """Add `--app` to a verb that takes a value for a job."""
    line = "Check the value against the type hints of this App, and use its store unless --url is given."
    return click.option("--app", "target", metavar="MODULE:APP", help=line)(command)


# States, and the words that other systems use for them.

STATE_SYNONYMS: dict[str, tuple[State, ...]] = {
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
"""What a person may type, and the states it may mean, the likeliest first."""


class StateChoice(click.Choice):  # type: ignore[type-arg]  # click before 8.2 has no Choice[str]
    """A choice of states. For another word, the error names the state it means."""

    def __init__(self, *states: State) -> None:
        super().__init__([state.value for state in states], case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the state's name; see click.Choice."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(self._answer(str(value)), param, ctx)

    def _answer(self, word: str) -> str:
        found = STATE_SYNONYMS.get(word.lower(), ())
        fit = [state for state in found if state in self.choices]
        if fit:
            *most, last = fit
            return f"{word!r} is called {', '.join(most) + ' or ' if most else ''}{last} here"
        known = ", ".join(self.choices)
        if found:
            return f"{word!r} is called {found[0]} here, which is not one of {known}"
        return f"there is no state {word!r}{suggest(word, self.choices) or f'; there are {known}'}"


# Shell completion of job ids.

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def job_ids(*states: State) -> Complete:
    """Complete a job id: offer the newest jobs in these states, by the last characters of their ids."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        async def find_newest(jobs: Jobs) -> list[Job]:
            return await jobs.engine.find(Where(states=states, newest_first=True))

        try:
            engine = engine_at(url := ctx.params.get("url"))
            newest = asyncio.run(use_store(engine, place_of_store(engine, url), find_newest))
        except HoldfastError:
            return []
        typed = incomplete.lower()
        named = [(short_id(job.id) if short_id(job.id).startswith(typed) else job.id, job) for job in newest]
        fit = [(name, job) for name, job in named if name.startswith(typed)]
        return [CompletionItem(name, help=f"{job.type}, {job.state}") for name, job in fit[:COMPLETIONS]]

    return complete
