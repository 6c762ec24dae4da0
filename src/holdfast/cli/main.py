"""The command line `holdfast`: a group of thin verbs, each imported when it is called.

Must not import a verb, a store or pydantic to start or to show its help: people stop using a slow command line.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from holdfast import __version__
from holdfast.cli.errors import VerbGroup, one_line_errors


class Verb(NamedTuple):
    """Where a verb's command is defined, and its line in the help, which is shown without importing the verb."""

    module: str
    attribute: str
    line: str


VERBS: dict[str, Verb] = {
    "demo": Verb("holdfast.cli.verbs.demo", "demo", "Watch a video pipeline survive a killed worker."),
    "worker": Verb("holdfast.cli.verbs.worker", "worker", "Run the jobs of an App."),
    "serve": Verb("holdfast.cli.verbs.serve", "serve", "Serve jobs over HTTP."),
    "dev": Verb("holdfast.cli.verbs.dev", "dev", "Serve and run jobs, and restart when the code changes."),
    "submit": Verb("holdfast.cli.verbs.submit", "submit", "Submit a job."),
    "status": Verb("holdfast.cli.verbs.status", "status", "Show what is running, or the status of one job."),
    "jobs": Verb("holdfast.cli.verbs.jobs", "jobs", "List jobs."),
    "show": Verb("holdfast.cli.verbs.show", "show", "Show everything stored about one job."),
    "cancel": Verb("holdfast.cli.verbs.cancel", "cancel", "Cancel jobs by id, or all that match."),
    "signal": Verb("holdfast.cli.verbs.signal", "signal", "Send a signal to a job."),
    "ask": Verb("holdfast.cli.verbs.ask", "ask", "List, show and answer the questions of jobs."),
    "review": Verb("holdfast.cli.verbs.review", "review", "List the jobs that need a person."),
    "replay": Verb("holdfast.cli.verbs.replay", "replay", "Run jobs in review again."),
    "resolve": Verb("holdfast.cli.verbs.replay", "resolve", "Complete a job in review, or a step in doubt."),
    "discard": Verb("holdfast.cli.verbs.replay", "discard", "Give up jobs in review permanently."),
    "rerun": Verb("holdfast.cli.verbs.rerun", "rerun", "Reject the results of steps and run them again."),
    "fork": Verb("holdfast.cli.verbs.rerun", "fork", "Make a new run from the first steps of another one."),
    "compare": Verb("holdfast.cli.verbs.rerun", "compare", "Show two runs side by side."),
    "queues": Verb("holdfast.cli.verbs.queues", "queues", "List the queues; pause or resume one."),
    "limits": Verb("holdfast.cli.verbs.limits", "limits", "List the shared limits; set, close or open one."),
    "budget": Verb("holdfast.cli.verbs.budget", "budget", "List what jobs have spent of their budgets; add to one."),
    "schedules": Verb("holdfast.cli.verbs.schedules", "schedules", "List the schedules; pause, run or put one."),
    "token": Verb("holdfast.cli.verbs.token", "token", "Make, list and revoke tokens of the HTTP API."),
    "workers": Verb("holdfast.cli.verbs.workers", "workers", "List the workers and what they run."),
    "export": Verb("holdfast.cli.verbs.export", "export_run", "Write one run to a readable file."),
    "import": Verb("holdfast.cli.verbs.export", "import_run", "Load an exported run into a store."),
    "move": Verb("holdfast.cli.verbs.move", "move", "Move all jobs to another store."),
    "archive": Verb("holdfast.cli.verbs.archive", "archive", "Keep ended jobs longer, in another store."),
    "doctor": Verb("holdfast.cli.verbs.doctor", "doctor", "Check a store for problems."),
    "lifecycle": Verb("holdfast.cli.verbs.lifecycle", "lifecycle", "Show the states and events of a job's life."),
    "completion": Verb("holdfast.cli.verbs.completion", "completion", "Print the completion script for your shell."),
}


ALIASES = {"budgets": "budget"}
"""Other names of verbs, which no list shows."""


class LazyGroup(VerbGroup):
    """A group that imports a verb when it is called. Verbs whose module is missing are hidden."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs whose module exists, in the order a newcomer needs them."""
        return [name for name, verb in VERBS.items() if find_spec(verb.module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb. Return None if there is no such verb."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in self.list_commands(ctx):
            return None
        verb = VERBS[cmd_name]
        command = getattr(import_module(verb.module), verb.attribute)
        assert isinstance(command, click.Command), f"{verb.module}:{verb.attribute} is not a click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with their help lines, without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, VERBS[name].line) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete verbs without importing them, and the options of this group."""
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [CompletionItem(name, help=VERBS[name].line) for name in names]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the call. A wrong call becomes one line and an exit code."""
        with one_line_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. Our errors and wrong calls become one line and an exit code."""
        with one_line_errors():
            return super().invoke(ctx)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="VERB [ARGS]...",
    epilog="""\b
Examples:
  holdfast demo
  holdfast lifecycle
  holdfast status --watch
  holdfast show 4f2a91bc

\b
Exit codes: 0 success, 1 the request failed, 2 wrong usage, 3 a worker's store lost work or its jobs were moved.
""",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option("--url", metavar="URL", help="The store or the server, for any verb that takes --url.")
@click.pass_context
def main(ctx: click.Context, url: str | None) -> None:
    """Durable jobs and pipelines for long-running AI work, in plain Python."""
    if url is not None and (name := ctx.invoked_subcommand) is not None:
        verb = main.get_command(ctx, name)
        if verb is not None and not isinstance(verb, click.Group) and all(one.name != "url" for one in verb.params):
            raise click.UsageError(f"{name} takes no --url")
