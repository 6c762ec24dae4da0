"""The file engine: a whole store in one JSON file that a person reads, edits and diffs."""

from holdfast.engines.file.engine import FileEngine

__all__ = ["FileEngine"]
