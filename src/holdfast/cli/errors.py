"""How the command line reports errors: one line on stderr, and an exit code. Must not know a verb.

For a wrong call, the line suggests what was probably meant and where to find help.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from holdfast.core.errors import HoldfastError, Invalid
from holdfast.core.suggestions import listed, suggest
from holdfast.safe_text import clean

FAILED = 1
"""The exit code if what was asked for failed."""

CALLED_WRONGLY = 2
"""The exit code if the call was wrong."""

STORE_LOST = 3
"""The exit code of a worker whose store lost acknowledged writes. A person must decide before it starts again."""

FEW_VERBS = 5
"""A group with at most this many verbs lists them all when a verb is mistyped."""

# Newer versions of click raise the help for a call without a verb. It must still be shown as help.
_HELP = tuple(kind for kind in [getattr(click.exceptions, "NoArgsIsHelpError", None)] if kind is not None)


class OneLine(click.ClickException):
    """An error that is shown as one line, with an exit code."""

    exit_code = FAILED

    def __init__(self, line: str) -> None:
        super().__init__(clean(" ".join(line.split())))

    def show(self, file: Any = None) -> None:
        """Print the line to stderr, or to the given file."""
        click.echo(f"holdfast: {self.message}", file=file, err=file is None)


class WrongCall(OneLine):
    """The same for a call with wrong arguments."""

    exit_code = CALLED_WRONGLY


class LostStore(OneLine):
    """The same for a store that was emptied or restored to an older state while a worker used it."""

    exit_code = STORE_LOST


def echo(text: str, *, err: bool = False) -> None:
    """Print a line that may contain text written by users."""
    click.echo(clean(text), err=err)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn our errors and wrong calls inside the block into one line and an exit code."""
    try:
        yield
    except _HELP:
        raise
    except click.UsageError as error:
        raise WrongCall(usage_line(error)) from error
    except Invalid as error:
        raise WrongCall(str(error) or type(error).__name__) from error
    except HoldfastError as error:
        raise OneLine(str(error) or type(error).__name__) from error


class VerbGroup(click.Group):
    """A group that answers a mistyped verb with a suggestion."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; see click.Group."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            raise NoSuchVerb(name, self.list_commands(ctx), ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. Some of click's errors don't say which verb they are about; this adds it."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            command = None if name is None else self.get_command(ctx, name)
            if error.ctx is None and command is not None:
                error.ctx = click.Context(command, ctx, info_name=name)
            raise


class NoSuchVerb(click.UsageError):
    """There is no such verb."""

    def __init__(self, name: str, verbs: list[str], ctx: click.Context) -> None:
        whole = " ".join([*_verb_of(ctx), name])
        few = f"; there are {', '.join(verbs)}" if len(verbs) <= FEW_VERBS else ""
        super().__init__(f"there is no verb {whole!r}{suggest(name, verbs) or few}", ctx)


def usage_line(error: click.UsageError) -> str:
    """Return a wrong call as one line: what is wrong, with which option, and where to find help."""
    if error.ctx is None:
        return error.format_message()
    what = _what(error, " ".join(_verb_of(error.ctx)), error.ctx)
    return f"{what}{'' if what.endswith('?') else ';'} see {error.ctx.command_path} --help"


def _what(error: click.UsageError, verb: str, ctx: click.Context) -> str:
    message = error.message.rstrip(". ")
    if isinstance(error, NoSuchVerb):
        return message
    if isinstance(error, click.NoSuchOption):
        close = suggest(error.option_name, error.possibilities or ())
        return f"{verb or ctx.command_path} has no option {error.option_name}{close}"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{verb or ctx.command_path} needs {_wanted(error.param)}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        message = message.replace("is not a valid integer range", "is not a whole number")
        return f"{verb} {_named(error.param)}: {message}".lstrip()
    return f"{verb}: {message[:1].lower()}{message[1:]}".removeprefix(": ")


def _verb_of(ctx: click.Context) -> list[str]:
    """Return the words of a call after the program's name."""
    return ctx.command_path.split()[1:]


def _named(param: click.Parameter) -> str:
    """Return a parameter as a person types it, or as the help calls it."""
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name.strip("[].")


def _wanted(param: click.Parameter) -> str:
    name = _named(param)
    if isinstance(param.type, click.Choice):
        return f"{name}: {listed(str(choice) for choice in param.type.choices)}"
    return f"{name} {param.metavar or 'VALUE'}" if isinstance(param, click.Option) else name
