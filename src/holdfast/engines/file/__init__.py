"""The file engine: a whole store in one JSON file that a person can read, edit and diff."""

from holdfast.engines.file.engine import FileEngine

__all__ = ["FileEngine"]
