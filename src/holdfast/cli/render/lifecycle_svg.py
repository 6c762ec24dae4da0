"""The lifecycle as a picture: the positions of states, frames and arrows, and the SVG.

Must not know what a state or event means: names, meanings, lease rules and edges come from `core.lifecycle`. This file
knows only the positions. A state or an edge without a position is an error; it is never left out.
"""

from textwrap import wrap
from typing import NamedTuple
from xml.sax.saxutils import escape

from holdfast.cli.render.palette import STYLE
from holdfast.core.lifecycle import EVENT_ROWS, EVENTS, STATE_ROWS, STATES, EventRow, LeaseRule
from holdfast.core.model import Event, State

WIDTH, HEIGHT = 1100, 738
TITLE_SIZE, NAME_SIZE, LABEL_SIZE, LEGEND_SIZE, WORDS_SIZE, CAPTION_SIZE = 20, 16, 12.5, 12, 11.5, 11
LINE_HEIGHT = 15
HEAD = 9
"""How long an arrow's head is."""
CORNER = 12
"""The radius of an arrow's bends."""

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle by its edges."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> Point:
        """Return the centre."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def holds(self, other: "Box") -> bool:
        """Return whether the other box lies inside this one."""
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )

    def overlaps(self, other: "Box") -> bool:
        """Return whether the two boxes overlap."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class Words(NamedTuple):
    """A line of text around a point. Its box is a generous estimate, because the font is unknown."""

    text: str
    at: Point
    size: float
    kind: str
    anchor: str = "middle"

    @property
    def box(self) -> Box:
        """Return the space that the text may need in a wide font."""
        width = text_width(self.text, self.size, self.kind)
        x, y = self.at
        left = x - width / 2 if self.anchor == "middle" else x
        return Box(left, y - self.size * 0.6, left + width, y + self.size * 0.6)


class Way(NamedTuple):
    """The path of an arrow, and the centre of its label."""

    points: tuple[Point, ...]
    label: Point


class Arrow(NamedTuple):
    """One edge of the table, or several edges of one event that leave a frame together."""

    row: EventRow
    way: Way

    @property
    def label(self) -> Words:
        """Return the event's name, placed on the arrow."""
        return Words(self.row.event, self.way.label, LABEL_SIZE, f"label {self.row.lease.name.lower()}")


class Frame(NamedTuple):
    """A frame around all states that an event leaves, so that the event needs only one arrow."""

    box: Box
    caption: str


class Key(NamedTuple):
    """One entry of the legend: a short line and its meaning."""

    rule: LeaseRule
    way: Way
    words: Words
    framed: bool = False


class Picture(NamedTuple):
    """Everything that is drawn, with its position."""

    boxes: dict[State, Box]
    frames: dict[Event, Frame]
    arrows: tuple[Arrow, ...]
    captions: tuple[Words, ...]
    legend: tuple[Key, ...]


S, E = State, Event

PLACES: dict[State, Box] = {
    S.AVAILABLE: Box(140, 132, 256, 472),
    S.SCHEDULED: Box(376, 250, 560, 314),
    S.PENDING: Box(376, 324, 560, 388),
    S.RETRYABLE: Box(376, 398, 560, 462),
    S.ACTIVE: Box(684, 132, 800, 586),
    S.REVIEW: Box(376, 524, 560, 662),
    S.CANCELLED: Box(920, 64, 1080, 118),
    S.COMPLETED: Box(920, 132, 1080, 620),
    S.DISCARDED: Box(920, 634, 1080, 690),
}

GROUPS: dict[str, tuple[State, ...]] = {
    "waiting": (S.SCHEDULED, S.PENDING, S.RETRYABLE),
    "ready": (S.AVAILABLE,),
    "running": (S.ACTIVE,),
    "needs a person": (S.REVIEW,),
    "ended": (S.COMPLETED, S.DISCARDED, S.CANCELLED),
}

PANEL = Box(364, 226, 572, 472)
"""The background of the states that wait."""

FRAMES: dict[Event, Frame] = {
    E.CANCEL: Frame(Box(20, 58, 822, 696), "every state that has not ended"),
    E.EXPIRE: Frame(Box(36, 92, 588, 490), "ready or waiting"),
}


def _across(start: float, end: float, y: float, label: float) -> Way:
    """Return a horizontal arrow."""
    return Way(((start, y), (end, y)), (label, y))


WAYS: dict[tuple[Event, State | None, State], Way] = {
    (E.SUBMIT, None, S.AVAILABLE): _across(110, 140, 158, 72),
    (E.SUBMIT, None, S.SCHEDULED): _across(338, 376, 269, 300),
    (E.SUBMIT, None, S.PENDING): _across(338, 376, 343, 300),
    (E.PROMOTE, S.SCHEDULED, S.AVAILABLE): _across(376, 256, 295, 317),
    (E.ACTIVATE, S.PENDING, S.AVAILABLE): _across(376, 256, 369, 317),
    (E.PROMOTE, S.RETRYABLE, S.AVAILABLE): _across(376, 256, 430, 317),
    (E.CLAIM, S.AVAILABLE, S.ACTIVE): _across(256, 684, 158, 468),
    (E.RELEASE, S.ACTIVE, S.AVAILABLE): _across(684, 256, 184, 468),
    (E.LAPSE, S.ACTIVE, S.AVAILABLE): _across(684, 256, 210, 468),
    (E.REST, S.ACTIVE, S.SCHEDULED): _across(684, 560, 282, 636),
    (E.SUSPEND, S.ACTIVE, S.PENDING): _across(684, 560, 356, 636),
    (E.FAIL, S.ACTIVE, S.RETRYABLE): _across(684, 560, 417, 636),
    (E.OVERRUN, S.ACTIVE, S.RETRYABLE): _across(684, 560, 443, 636),
    (E.EXHAUST, S.ACTIVE, S.REVIEW): _across(684, 560, 544, 622),
    (E.ABANDON, S.ACTIVE, S.REVIEW): _across(684, 560, 570, 622),
    (E.COMPLETE, S.ACTIVE, S.COMPLETED): _across(800, 920, 158, 866),
    (E.RESOLVE, S.REVIEW, S.COMPLETED): _across(560, 920, 604, 742),
    (E.DISCARD, S.REVIEW, S.DISCARDED): _across(560, 920, 648, 742),
    (E.REPLAY, S.REVIEW, S.AVAILABLE): Way(((376, 593), (198, 593), (198, 472)), (300, 593)),
    (E.EXPIRE, None, S.DISCARDED): Way(((88, 490), (88, 676), (920, 676)), (300, 676)),
    (E.CANCEL, None, S.CANCELLED): _across(822, 920, 91, 866),
}

LEGEND: dict[LeaseRule, str] = {
    LeaseRule.TAKES: "takes the lease",
    LeaseRule.NEEDS: "needs it: owner only",
    LeaseRule.BREAKS: "breaks it: owner not asked",
    LeaseRule.NONE: "no lease",
}
FRAME_WORDS = "from every state in the frame"
LEGEND_AT: Point = (20, 718)

LETTER_WIDTHS = {"title": 0.68, "name": 0.72, "label": 0.72, "caption": 0.74, "framed": 0.54}
"""The average width of a letter in wide fallback fonts, relative to its size. For other kinds of text: 0.58."""


def as_svg() -> str:
    """Return the picture as one self-contained SVG file."""
    drawn = picture()
    title = f"The life of a job: {len(STATES)} states, {len(EVENTS)} events"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="14"/>',
        *(_rect("frame", frame.box, 16) for frame in drawn.frames.values()),
        _rect("panel", PANEL, 12),
        *(line for arrow in drawn.arrows for line in _arrow_lines(arrow)),
        *(line for state, box in drawn.boxes.items() for line in _state_lines(state, box)),
        *(line for caption in drawn.captions for line in _on_paper(caption)),
        *(line for key in drawn.legend for line in _key_lines(key)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def picture() -> Picture:
    """Return every row of the tables with its position."""
    boxes = {row.state: place(row.state) for row in STATES}
    for event, frame in FRAMES.items():
        inside = {state for state, box in boxes.items() if frame.box.holds(box)}
        if inside != set(EVENT_ROWS[event].sources):
            raise AssertionError(f"the frame of {event} must hold exactly the states that it leaves")
    return Picture(
        boxes=boxes,
        frames=FRAMES,
        arrows=tuple(Arrow(row, way_of(edge)) for row in EVENTS for edge in edges_of(row)),
        captions=(Words("The life of a job", (20, 30), TITLE_SIZE, "title", "start"), *_captions()),
        legend=tuple(_legend()),
    )


def place(state: State) -> Box:
    """Return where a state is drawn."""
    if state not in PLACES:
        raise AssertionError(f"the picture has no position for the state {state}; add one to PLACES")
    return PLACES[state]


def edges_of(row: EventRow) -> list[tuple[Event, State | None, State]]:
    """Return the arrows of an event: one for each edge, or one for all edges that leave its frame."""
    sources: tuple[State | None, ...] = (None,) if row.event in FRAMES or not row.sources else row.sources
    return [(row.event, source, target) for source in sources for target in row.targets]


def way_of(edge: tuple[Event, State | None, State]) -> Way:
    """Return the path of an edge."""
    if edge not in WAYS:
        event, source, target = edge
        raise AssertionError(f"the picture has no path for {event} from {source} to {target}; add one to WAYS")
    return WAYS[edge]


def text_width(text: str, size: float, kind: str) -> float:
    """Return an upper estimate of the width of a line of text."""
    return len(text) * size * LETTER_WIDTHS.get(kind.split()[0], 0.58)


def box_words(state: State, box: Box) -> list[Words]:
    """Return a state's name and as much of its meaning as fits: all, its first part, or its first words."""
    meaning = STATE_ROWS[state].meaning
    letters = int((box.right - box.left - 14) / text_width("m", WORDS_SIZE, "words"))
    room = int((box.bottom - box.top - NAME_SIZE - 14) / LINE_HEIGHT)
    first_part = meaning.split(":")[0].split(";")[0]
    lines = next((lines for text in (meaning, first_part) if len(lines := wrap(text, letters)) <= room), None)
    if lines is None:
        lines = wrap(first_part, letters, max_lines=room, placeholder=" …")
    x, y = box.middle
    y -= LINE_HEIGHT * len(lines) / 2
    words = [Words(line, (x, y + 3 + LINE_HEIGHT * (i + 1)), WORDS_SIZE, "words") for i, line in enumerate(lines)]
    return [Words(state, (x, y), NAME_SIZE, "name"), *words]


def _captions() -> list[Words]:
    """Return the captions of groups and frames, each above its group or frame."""
    captions = [
        Words(frame.caption, (frame.box.left + 20, frame.box.top), CAPTION_SIZE, "framed", "start")
        for frame in FRAMES.values()
    ]
    for group, states in GROUPS.items():
        top = min((PLACES[state] for state in states), key=lambda box: box.top)
        captions.append(Words(group, (top.middle[0], top.top - 12), CAPTION_SIZE, "caption"))
    return captions


def _legend() -> list[Key]:
    """Return one row below the picture: a line for each lease rule, and one for arrows that leave a frame."""
    keys: list[Key] = []
    x, y = LEGEND_AT
    for rule, text in (*LEGEND.items(), (LeaseRule.NONE, FRAME_WORDS)):
        words = Words(text, (x + 48, y), LEGEND_SIZE, "words", "start")
        keys.append(Key(rule, Way(((x, y), (x + 40, y)), (x, y)), words, framed=text == FRAME_WORDS))
        x = words.box.right + 24
    return keys


# The SVG, piece by piece.


def _state_lines(state: State, box: Box) -> list[str]:
    row = STATE_ROWS[state]
    group = next(name for name, states in GROUPS.items() if state in states)
    kind = f"state {group.split()[0]} {state}"
    lines = [f'<g id="state-{state}"><title>{escape(f"{state}: {row.meaning}")}</title>', _rect(kind, box, 10)]
    if row.terminal:
        lines.append(_rect(f"ring {state}", Box(box.left + 4, box.top + 4, box.right - 4, box.bottom - 4), 7))
    return [*lines, *(_text(words) for words in box_words(state, box)), "</g>"]


def _arrow_lines(arrow: Arrow) -> list[str]:
    row = arrow.row
    x, y = arrow.way.points[0]
    lines = [f'<g class="event-{row.event}"><title>{escape(f"{row.event}: {row.meaning}")}</title>']
    lines += _line(row.lease, arrow.way)
    if not row.sources:
        lines.append(f'<circle class="start" cx="{x:g}" cy="{y:g}" r="5.5"/>')
    elif row.event in FRAMES:
        lines.append(_dot(row.lease, (x, y)))
    return [*lines, *_on_paper(arrow.label), "</g>"]


def _key_lines(key: Key) -> list[str]:
    lines = [*_line(key.rule, key.way), _text(key.words)]
    if key.framed:
        x, y = key.way.points[0]
        lines += [f'<path class="frame" d="M{x:g} {y - 10:g}V{y + 10:g}"/>', _dot(key.rule, (x, y))]
    return lines


def _dot(rule: LeaseRule, at: Point) -> str:
    """Return the dot where an arrow leaves a frame."""
    return f'<circle class="head {rule.name.lower()}" cx="{at[0]:g}" cy="{at[1]:g}" r="4"/>'


def _line(rule: LeaseRule, way: Way) -> list[str]:
    """Return a line with round bends and an arrowhead at its end."""
    *before, (x, y) = way.points
    from_x, from_y = before[-1]
    dx, dy = (x > from_x) - (x < from_x), (y > from_y) - (y < from_y)
    points = [*before, (x - dx * (HEAD - 1), y - dy * (HEAD - 1))]
    path = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for last, bend, following in zip(points, points[1:], points[2:], strict=False):
        (in_x, in_y), (out_x, out_y) = _towards(bend, last), _towards(bend, following)
        path.append(f"L{in_x:g} {in_y:g}Q{bend[0]:g} {bend[1]:g} {out_x:g} {out_y:g}")
    path.append(f"L{points[-1][0]:g} {points[-1][1]:g}")
    back_x, back_y, side = x - dx * HEAD, y - dy * HEAD, HEAD * 0.5
    head = f"{x:g},{y:g} {back_x + dy * side:g},{back_y + dx * side:g} {back_x - dy * side:g},{back_y - dx * side:g}"
    name = rule.name.lower()
    return [f'<path class="line {name}" d="{"".join(path)}"/>', f'<polygon class="head {name}" points="{head}"/>']


def _towards(start: Point, end: Point) -> Point:
    """Return the point at a bend's radius from `start` towards `end`. All lines are horizontal or vertical."""
    dx, dy = (end[0] > start[0]) - (end[0] < start[0]), (end[1] > start[1]) - (end[1] < start[1])
    return start[0] + dx * CORNER, start[1] + dy * CORNER


def _rect(kind: str, box: Box, radius: float) -> str:
    width, height = box.right - box.left, box.bottom - box.top
    return (
        f'<rect class="{kind}" x="{box.left:g}" y="{box.top:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"/>'
    )


def _on_paper(words: Words) -> list[str]:
    """Return text with the background colour behind it, so that a line can pass under it."""
    if words.kind in ("title", "caption"):
        return [_text(words)]
    box = words.box
    return [_rect("behind", Box(box.left - 3, box.top, box.right + 3, box.bottom), 4), _text(words)]


def _text(words: Words) -> str:
    # The baseline is computed here: not every renderer supports dominant-baseline.
    x, y = words.at
    anchor = "" if words.anchor == "start" else ' text-anchor="middle"'
    return (
        f'<text class="{words.kind}" x="{x:g}" y="{y + words.size * 0.35:g}" font-size="{words.size:g}"{anchor}>'
        f"{escape(words.text)}</text>"
    )
