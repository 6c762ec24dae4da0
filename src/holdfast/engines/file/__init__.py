"""The file engine: a whole store in one JSON file that a person reads, edits and diffs."""

from holdfast.engines.file.engine import FileEngine
from holdfast.engines.file.reader import FileReader

__all__ = ["FileEngine", "FileReader"]
