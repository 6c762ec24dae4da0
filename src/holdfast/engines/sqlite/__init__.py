"""The SQLite engine, the default: one file, many processes on one machine, no server."""

from holdfast.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
