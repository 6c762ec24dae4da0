"""A console that shows only safe text, whatever users wrote. Must not know what it shows."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holdfast.safe_text import MARK, UNSAFE


class SafeConsole(Console):
    """Replaces everything a terminal would obey, in every piece of text, after styles were applied; ignores markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, see Console.render."""
        for segment in super().render(renderable, options):
            is_safe = segment.control or UNSAFE.search(segment.text) is None
            yield segment if is_safe else Segment(UNSAFE.sub(MARK, segment.text), segment.style)
