"""The laws of the picture: everything has a place, nothing lies on anything else, no arrow is ambiguous."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from holdfast.cli.render import lifecycle_svg as drawing
from holdfast.cli.render.lifecycle_svg import (
    FRAMES,
    GROUPS,
    HEIGHT,
    PLACES,
    WAYS,
    WIDTH,
    Box,
    Point,
    Words,
    as_svg,
    edges_of,
    picture,
)
from holdfast.core.lifecycle import EVENT_ROWS, EVENTS, STATE_ROWS, STATES
from holdfast.core.model import Event, State

PICTURE = picture()
LABELS = [arrow.label for arrow in PICTURE.arrows]
FREE_WORDS = [*LABELS, *PICTURE.captions, *(key.words for key in PICTURE.legend)]


def thin(start: Point, end: Point) -> Box:
    """The room that a piece of a line takes."""
    (x1, y1), (x2, y2) = start, end
    return Box(min(x1, x2) - 1, min(y1, y2) - 1, max(x1, x2) + 1, max(y1, y2) + 1)


def pieces(arrow: drawing.Arrow) -> list[Box]:
    return [thin(*piece) for piece in pairwise(arrow.way.points)]


def on_border(point: Point, box: Box) -> bool:
    x, y = point
    level = box.left < x < box.right and y in (box.top, box.bottom)
    upright = box.top < y < box.bottom and x in (box.left, box.right)
    return level or upright


def test_every_state_has_a_place_and_a_group() -> None:
    assert set(PLACES) == set(State)
    assert sorted(state for states in GROUPS.values() for state in states) == sorted(State)


def test_every_edge_of_the_table_has_a_way_and_no_way_is_left_over() -> None:
    assert set(WAYS) == {edge for row in EVENTS for edge in edges_of(row)}


def test_a_state_without_a_place_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(PLACES, State.REVIEW)

    with pytest.raises(AssertionError, match="no position for the state review"):
        as_svg()


def test_an_edge_without_a_way_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(EVENT_ROWS[Event.REPLAY], targets=(State.SCHEDULED,))
    monkeypatch.setattr(drawing, "EVENTS", (*EVENTS, row))

    with pytest.raises(AssertionError, match="no path for replay from review to scheduled"):
        as_svg()


def test_a_frame_that_holds_other_states_than_its_event_leaves_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(EVENT_ROWS[Event.EXPIRE], sources=(State.SCHEDULED,))
    monkeypatch.setattr(drawing, "EVENT_ROWS", {**EVENT_ROWS, Event.EXPIRE: row})

    with pytest.raises(AssertionError, match="frame of expire"):
        as_svg()


def test_each_frame_holds_exactly_the_states_that_its_event_leaves() -> None:
    for event, frame in FRAMES.items():
        inside = {state for state, box in PLACES.items() if frame.box.holds(box)}
        touched = {state for state, box in PLACES.items() if frame.box.overlaps(box)}
        assert inside == touched == set(EVENT_ROWS[event].sources)


def test_no_two_states_overlap_and_all_lie_on_the_paper() -> None:
    paper = Box(0, 0, WIDTH, HEIGHT)

    assert not [pair for pair in combinations(PLACES, 2) if PLACES[pair[0]].overlaps(PLACES[pair[1]])]
    assert all(paper.holds(box) for box in [*PLACES.values(), *(words.box for words in FREE_WORDS)])


def test_no_label_lies_on_a_state_or_another_label() -> None:
    on_states = [(w.text, s) for w in FREE_WORDS for s, box in PLACES.items() if w.box.overlaps(box)]
    on_each_other = [(a.text, b.text) for a, b in combinations(FREE_WORDS, 2) if a.box.overlaps(b.box)]

    assert (on_states, on_each_other) == ([], [])


def test_no_label_lies_on_another_arrow_or_on_the_side_of_a_frame() -> None:
    def sides(box: Box) -> Iterator[Box]:
        corners = [(box.left, box.top), (box.right, box.top), (box.right, box.bottom), (box.left, box.bottom)]
        for start, end in pairwise([*corners, corners[0]]):
            yield thin(start, end)

    for words in [*LABELS, *PICTURE.captions]:
        others = [arrow for arrow in PICTURE.arrows if arrow.label != words]
        assert not [arrow.row.event for arrow in others for piece in pieces(arrow) if piece.overlaps(words.box)], words
        if words.kind != "framed":
            assert not [f.caption for f in FRAMES.values() for side in sides(f.box) if side.overlaps(words.box)], words


def test_every_arrow_leads_from_the_border_of_its_source_to_the_border_of_its_target() -> None:
    for (event, source, target), way in WAYS.items():
        start = FRAMES[event].box if event in FRAMES else PLACES[source] if source else None
        assert start is None or on_border(way.points[0], start), event
        assert on_border(way.points[-1], PLACES[target]), event


def test_no_arrow_runs_over_a_state_or_crosses_another_arrow() -> None:
    for (event, source, target), way in WAYS.items():
        arrow = drawing.Arrow(EVENT_ROWS[event], way)
        others = [box for state, box in PLACES.items() if state not in (source, target)]
        assert not [box for box in others for piece in pieces(arrow) if piece.overlaps(box)], event
    crossing = [
        (one.row.event, other.row.event)
        for one, other in combinations(PICTURE.arrows, 2)
        for piece in pieces(one)
        for other_piece in pieces(other)
        if piece.overlaps(other_piece)
    ]
    assert crossing == []


def test_the_words_in_a_box_stay_in_it_whatever_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(state: State) -> list[Words]:
        words = drawing.box_words(state, PLACES[state])
        assert all(PLACES[state].holds(line.box) for line in words), state
        assert not [1 for a, b in combinations(words, 2) if a.box.overlaps(b.box)], state
        return words

    for state in State:
        assert told(state)[0].text == state
    wordy = {
        state: replace(row, meaning="a good deal more to say than before " * 20) for state, row in STATE_ROWS.items()
    }
    monkeypatch.setattr(drawing, "STATE_ROWS", wordy)
    for state in State:
        assert told(state)[-1].text.endswith("…")


def test_a_changed_meaning_is_in_the_picture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(STATE_ROWS[State.COMPLETED], meaning="finished <well> & truly")
    monkeypatch.setattr(drawing, "STATE_ROWS", {**STATE_ROWS, State.COMPLETED: row})

    texts = [text for element in ElementTree.fromstring(as_svg()).iter() if (text := element.text)]

    assert "completed: finished <well> & truly" in texts


def test_the_svg_writes_each_state_once_and_each_arrow_with_its_event() -> None:
    texts = [element.text for element in ElementTree.fromstring(as_svg()).iter("{http://www.w3.org/2000/svg}text")]

    for row in STATES:
        assert texts.count(row.state) == 1
    for event_row in EVENTS:
        assert texts.count(event_row.event) == len(edges_of(event_row))
