"""`holdfast completion`: print the script that completes verbs, options and job ids. Must not install it."""

import click
from click.shell_completion import get_completion_class

VARIABLE = "_HOLDFAST_COMPLETE"
"""The environment variable through which the script asks for completions."""


@click.command(
    epilog="""\b
Examples:
  holdfast completion bash >> ~/.bashrc
  holdfast completion zsh >> ~/.zshrc
  holdfast completion fish > ~/.config/fish/completions/holdfast.fish

\b
Job ids come from the store that --url or $HOLDFAST_URL names, or else from the one in the
working directory.
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    kind = get_completion_class(shell)
    assert kind is not None, "click supports these three shells"
    # Not `source()`: for bash, it would start the shell to find out its version.
    made = kind(ctx.find_root().command, {}, "holdfast", VARIABLE)
    click.echo(made.source_template % made.source_vars())
