"""How jobs are run."""
