"""Transferring jobs from one store to another: move, drain, archive."""
