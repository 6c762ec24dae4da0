"""`holdfast completion`: the script that lets a shell complete verbs, options and job ids. Must not install it."""

import click
from click.shell_completion import get_completion_class

VARIABLE = "_HOLDFAST_COMPLETE"
"""The variable by which the script asks us what fits."""


@click.command(
    epilog="""\b
Examples:
  holdfast completion bash >> ~/.bashrc
  holdfast completion zsh >> ~/.zshrc
  holdfast completion fish > ~/.config/fish/completions/holdfast.fish

\b
Job ids are completed from the store that --url or $HOLDFAST_URL names, or from the working
directory's.
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three"
    # Not `source()`, which for bash would run the shell to look at its version.
    made = kind(ctx.find_root().command, {}, "holdfast", VARIABLE)
    click.echo(made.source_template % made.source_vars())
