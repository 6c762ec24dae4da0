"""The lifecycle as a picture: where each state, frame and arrow is put, and the SVG made of it.

Must not know what a state or event means: names, meanings, lease rules and edges come from `core.lifecycle`. Only the
places are known here, and a state or an edge without a place is an error, never left out.
"""

from textwrap import wrap
from typing import NamedTuple
from xml.sax.saxutils import escape

from holdfast.cli.palette import STYLE
from holdfast.core.lifecycle import EVENT_ROWS, EVENTS, STATE_ROWS, STATES, EventRow, LeaseRule
from holdfast.core.model import Event, State

WIDTH, HEIGHT = 1100, 720
NAME_SIZE, WORDS_SIZE, LABEL_SIZE, CAPTION_SIZE = 16, 11.5, 13, 11
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
        """The point in its middle."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def holds(self, other: "Box") -> bool:
        """Whether the other lies inside."""
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )

    def overlaps(self, other: "Box") -> bool:
        """Whether the two share any area."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class Words(NamedTuple):
    """A line of text around a point. Its box is estimated on the safe side: no font is known for sure."""

    text: str
    at: Point
    size: float
    kind: str
    anchor: str = "middle"

    @property
    def box(self) -> Box:
        """The room that the text may take in a wide font."""
        per_letter = {"name": 0.70, "caption": 0.78, "title": 0.66}.get(self.kind, 0.62)
        width = len(self.text) * self.size * per_letter
        x, y = self.at
        left = x - width / 2 if self.anchor == "middle" else x
        return Box(left, y - self.size * 0.7, left + width, y + self.size * 0.7)


class Way(NamedTuple):
    """Where an arrow runs, and the middle of its label."""

    points: tuple[Point, ...]
    label: Point


class Arrow(NamedTuple):
    """One edge of the table, or several of one event that leave a frame together."""

    row: EventRow
    way: Way

    @property
    def label(self) -> Words:
        """The event's name on the arrow."""
        return Words(self.row.event, self.way.label, LABEL_SIZE, f"label {self.row.lease.name.lower()}")


class Frame(NamedTuple):
    """A frame around all states that an event leaves, so that the event is drawn once."""

    box: Box
    caption: str


class Picture(NamedTuple):
    """Everything that is drawn, with its place."""

    boxes: dict[State, Box]
    frames: dict[Event, Frame]
    arrows: tuple[Arrow, ...]
    captions: tuple[Words, ...]
    legend: tuple[tuple[LeaseRule, Way, Words], ...]


S, E = State, Event

PLACES: dict[State, Box] = {
    S.AVAILABLE: Box(144, 150, 264, 480),
    S.SCHEDULED: Box(384, 278, 544, 334),
    S.PENDING: Box(384, 346, 544, 402),
    S.RETRYABLE: Box(384, 414, 544, 470),
    S.ACTIVE: Box(668, 150, 788, 570),
    S.REVIEW: Box(384, 516, 544, 640),
    S.CANCELLED: Box(912, 74, 1076, 128),
    S.COMPLETED: Box(912, 150, 1076, 600),
    S.DISCARDED: Box(912, 614, 1076, 668),
}

GROUPS: dict[str, tuple[State, ...]] = {
    "waiting": (S.SCHEDULED, S.PENDING, S.RETRYABLE),
    "ready": (S.AVAILABLE,),
    "running": (S.ACTIVE,),
    "needs a person": (S.REVIEW,),
    "ended": (S.COMPLETED, S.DISCARDED, S.CANCELLED),
}

PANEL = Box(372, 254, 556, 480)
"""The ground under the states that wait."""

FRAMES: dict[Event, Frame] = {
    E.CANCEL: Frame(Box(24, 60, 812, 676), "every state that has not ended"),
    E.EXPIRE: Frame(Box(44, 106, 568, 498), "ready or waiting"),
}


def _across(start: float, end: float, y: float, label: float) -> Way:
    """A level arrow."""
    return Way(((start, y), (end, y)), (label, y))


WAYS: dict[tuple[Event, State | None, State], Way] = {
    (E.SUBMIT, None, S.AVAILABLE): _across(108, 144, 178, 76),
    (E.SUBMIT, None, S.SCHEDULED): _across(342, 384, 294, 310),
    (E.SUBMIT, None, S.PENDING): _across(342, 384, 362, 310),
    (E.PROMOTE, S.SCHEDULED, S.AVAILABLE): _across(384, 264, 318, 324),
    (E.ACTIVATE, S.PENDING, S.AVAILABLE): _across(384, 264, 386, 324),
    (E.PROMOTE, S.RETRYABLE, S.AVAILABLE): _across(384, 264, 442, 324),
    (E.CLAIM, S.AVAILABLE, S.ACTIVE): _across(264, 668, 178, 464),
    (E.RELEASE, S.ACTIVE, S.AVAILABLE): _across(668, 264, 206, 464),
    (E.LAPSE, S.ACTIVE, S.AVAILABLE): _across(668, 264, 234, 464),
    (E.REST, S.ACTIVE, S.SCHEDULED): _across(668, 544, 306, 618),
    (E.SUSPEND, S.ACTIVE, S.PENDING): _across(668, 544, 374, 618),
    (E.FAIL, S.ACTIVE, S.RETRYABLE): _across(668, 544, 429, 618),
    (E.OVERRUN, S.ACTIVE, S.RETRYABLE): _across(668, 544, 455, 618),
    (E.EXHAUST, S.ACTIVE, S.REVIEW): _across(668, 544, 532, 612),
    (E.ABANDON, S.ACTIVE, S.REVIEW): _across(668, 544, 556, 612),
    (E.COMPLETE, S.ACTIVE, S.COMPLETED): _across(788, 912, 178, 858),
    (E.RESOLVE, S.REVIEW, S.COMPLETED): _across(544, 912, 586, 728),
    (E.DISCARD, S.REVIEW, S.DISCARDED): _across(544, 912, 628, 728),
    (E.REPLAY, S.REVIEW, S.AVAILABLE): Way(((384, 578), (204, 578), (204, 480)), (300, 578)),
    (E.EXPIRE, None, S.DISCARDED): Way(((94, 498), (94, 654), (912, 654)), (300, 654)),
    (E.CANCEL, None, S.CANCELLED): _across(812, 912, 101, 858),
}

LEGEND: dict[LeaseRule, str] = {
    LeaseRule.TAKES: "takes the lease",
    LeaseRule.NEEDS: "needs the lease: owner only",
    LeaseRule.BREAKS: "breaks the lease, unasked",
    LeaseRule.NONE: "no lease involved",
}


def as_svg() -> str:
    """The whole picture as one SVG file that needs nothing else."""
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
        *(line for rule, way, words in drawn.legend for line in (*_line(rule, way), _text(words))),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def picture() -> Picture:
    """Put every row of the tables in its place."""
    boxes = {row.state: place(row.state) for row in STATES}
    for event, frame in FRAMES.items():
        inside = {state for state, box in boxes.items() if frame.box.holds(box)}
        if inside != set(EVENT_ROWS[event].sources):
            raise AssertionError(f"the frame of {event} must hold exactly the states that it leaves")
    return Picture(
        boxes=boxes,
        frames=FRAMES,
        arrows=tuple(Arrow(row, way_of(edge)) for row in EVENTS for edge in edges_of(row)),
        captions=(Words("The life of a job", (24, 32), 20, "title", "start"), *_captions()),
        legend=tuple(_legend()),
    )


def place(state: State) -> Box:
    """Where a state is drawn."""
    if state not in PLACES:
        raise AssertionError(f"the picture has no place for the state {state}: give it one in PLACES")
    return PLACES[state]


def edges_of(row: EventRow) -> list[tuple[Event, State | None, State]]:
    """The arrows of an event: one for each edge, or one for all that leave its frame."""
    sources: tuple[State | None, ...] = (None,) if row.event in FRAMES or not row.sources else row.sources
    return [(row.event, source, target) for source in sources for target in row.targets]


def way_of(edge: tuple[Event, State | None, State]) -> Way:
    """Where an edge runs."""
    if edge not in WAYS:
        event, source, target = edge
        raise AssertionError(f"the picture has no way for {event} from {source} to {target}: give it one in WAYS")
    return WAYS[edge]


def box_words(state: State, box: Box) -> list[Words]:
    """A state's name and as much of its meaning as there is room for: all, its first part, or its first words."""
    meaning = STATE_ROWS[state].meaning
    letters = int((box.right - box.left - 12) / (WORDS_SIZE * 0.6))
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
    """The names of groups and frames, each above what it names."""
    captions = [
        Words(frame.caption, (frame.box.left + 20, frame.box.top), CAPTION_SIZE, "framed", "start")
        for frame in FRAMES.values()
    ]
    for group, states in GROUPS.items():
        top = min((PLACES[state] for state in states), key=lambda box: box.top)
        captions.append(Words(group, (top.middle[0], top.top - 12), CAPTION_SIZE, "caption"))
    return captions


def _legend() -> list[tuple[LeaseRule, Way, Words]]:
    """A short line and what it stands for, for each lease rule, in one row below the picture."""
    legend = []
    x = 24.0
    for rule, text in LEGEND.items():
        words = Words(text, (x + 48, 698), WORDS_SIZE + 0.5, "words", "start")
        legend.append((rule, Way(((x, 698), (x + 40, 698)), (0, 0)), words))
        x = words.box.right + 24
    return legend


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
        lines.append(f'<circle class="head {row.lease.name.lower()}" cx="{x:g}" cy="{y:g}" r="4"/>')
    return [*lines, *_on_paper(arrow.label), "</g>"]


def _line(rule: LeaseRule, way: Way) -> list[str]:
    """A line with round bends and a head at its end."""
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
    """The point a bend's radius away from `start`, on the way to `end`. All ways are level or upright."""
    dx, dy = (end[0] > start[0]) - (end[0] < start[0]), (end[1] > start[1]) - (end[1] < start[1])
    return start[0] + dx * CORNER, start[1] + dy * CORNER


def _rect(kind: str, box: Box, radius: float) -> str:
    width, height = box.right - box.left, box.bottom - box.top
    return (
        f'<rect class="{kind}" x="{box.left:g}" y="{box.top:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"/>'
    )


def _on_paper(words: Words) -> list[str]:
    """Text with the paper's colour behind it, so that a line may run under it."""
    if words.kind in ("title", "caption"):
        return [_text(words)]
    box = words.box
    return [_rect("behind", Box(box.left - 3, box.top, box.right + 3, box.bottom), 4), _text(words)]


def _text(words: Words) -> str:
    # The baseline is put by hand: not every renderer knows dominant-baseline.
    x, y = words.at
    anchor = "" if words.anchor == "start" else ' text-anchor="middle"'
    return (
        f'<text class="{words.kind}" x="{x:g}" y="{y + words.size * 0.35:g}" font-size="{words.size:g}"{anchor}>'
        f"{escape(words.text)}</text>"
    )
