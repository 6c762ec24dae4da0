"""Where jobs are kept: one contract (`contract`), and stores as unlike as a JSON file and a database."""

from holdfast.engines.stores import engine_class, engine_for

__all__ = ["engine_class", "engine_for"]
