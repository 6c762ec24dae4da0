"""The command line. `main` is the console script; everything else is imported from where it lives."""

from holdfast.cli.main import main

__all__ = ["main"]
