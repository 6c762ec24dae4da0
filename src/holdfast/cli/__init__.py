"""The command line. `main` is the console script; everything else is imported from where it lives."""

import sys

try:
    from holdfast.cli.main import main
except KeyboardInterrupt:  # Ctrl-C while modules are still being imported
    sys.exit("holdfast: interrupted")

__all__ = ["main"]
