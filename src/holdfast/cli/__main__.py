"""`python -m holdfast.cli`: the same as `holdfast`. Must not hold anything else."""

from holdfast.cli import main

main(prog_name="holdfast")
