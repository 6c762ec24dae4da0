"""Laws of forms: the check by a stored schema refuses what the type refuses, and nothing that the type accepts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    PlainValidator,
    RootModel,
    StrictInt,
    WrapValidator,
    model_validator,
)
from typing_extensions import TypedDict

from holdfast.core.codec import Codec, canonical, parse
from holdfast.core.errors import BadValue
from holdfast.core.forms import check_form


class Tone(StrEnum):
    WARM = "warm"
    COLD = "cold"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Shape(Enum):
    POINT = [0]
    LINE = "line"


class Guessing(Enum):
    YES = "yes"

    @classmethod
    def _missing_(cls, value: object) -> "Guessing":
        return cls.YES


class Verdict(BaseModel):
    decision: Literal["publish", "rewrite"]
    stars: int = Field(3, ge=1, le=5)
    title: str = Field("", max_length=8, pattern="^[A-Z ]")
    tone: Tone = Tone.WARM


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    share: float = Field(0.5, gt=0, lt=1)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    name: str = ""


class Aliased(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: int = Field(alias="a")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog", "hound"]
    age: str


class Branch(BaseModel):
    leaf: int = 0
    a: "list[Branch]" = []


class Trimmed(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    name: str = Field(min_length=1, max_length=2)


class Strictly(BaseModel):
    model_config = ConfigDict(strict=True)
    name: int
    a: bool = False


class Lenient(BaseModel):
    name: int

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, data: Any) -> Any:
        return {"name": 1}


class Choosy(BaseModel):
    name: int = Field(validation_alias=AliasChoices("a", "b"))


class Pair(NamedTuple):
    a: int
    b: str = ""


class Struct(msgspec.Struct):
    name: int


class Typed(TypedDict, total=False):
    name: int
    a: str


@dataclass
class Plain:
    name: int
    kind: Literal["cat"] = "cat"


SAID: list[Any] = [
    Any,
    None,
    bool,
    int,
    float,
    str,
    StrictInt,
    Strictly,
    Tone,
    Size,
    Shape,
    Literal["cat", 1],
    Literal[1],
    Literal["warm", None],
    Annotated[int, Field(ge=1, le=5)],
    Annotated[int, Field(gt=1, lt=5, multiple_of=2)],
    Annotated[int, Field(ge=1)] | None,
    Annotated[float, Field(ge=0.5, lt=2, multiple_of=0.5)],
    Annotated[Decimal, Field(ge=Decimal("0.1"), le=5)],
    Annotated[str, Field(min_length=2, max_length=4)],
    Annotated[str, Field(pattern=r"^[a-z]+$")],
    date,
    datetime,
    time,
    timedelta,
    UUID,
    IPv4Address,
    IPv6Address,
    HttpUrl | int,
    Json[int],
    list[int],
    Annotated[list[Annotated[int, Field(le=2)]], Field(min_length=1, max_length=2)],
    Sequence[bool],
    Annotated[set[int], Field(min_length=1, max_length=2)],
    frozenset[str],
    tuple[int, str],
    tuple[int, ...],
    dict[str, int],
    Annotated[dict[str, bool], Field(min_length=1, max_length=2)],
    dict[Tone, int],
    dict[Annotated[str, Field(min_length=2)], int],
    dict[Annotated[str, Field(pattern="^a")], int],
    int | str,
    int | list[int] | None,
    Verdict,
    Verdict | None,
    list[Verdict],
    dict[str, Verdict],
    Closed,
    Closed | Verdict,
    Open,
    Aliased,
    Trimmed,
    Branch,
    Plain,
    Typed,
    RootModel[list[Annotated[int, Field(ge=1)]]],
    Annotated[Cat | Dog, Field(discriminator="kind")],
    list[Annotated[Cat | Dog, Field(discriminator="kind")]],
    Cat | Dog,
]
"""Types of which the schema says all."""

HALF_SAID: list[Any] = [
    Guessing,
    Pair,
    Struct,
    Lenient,
    Choosy,
    bytes,
    complex,
    HttpUrl,
    Annotated[bytes, Field(max_length=2)],
    Annotated[Decimal, Field(max_digits=2)],
    Annotated[str, Field(pattern=re.compile("^a", re.IGNORECASE))],
    Annotated[int, BeforeValidator(lambda value: 1)],
    Annotated[int, PlainValidator(lambda value: 1)],
    Annotated[int, WrapValidator(lambda value, handler: 1)],
    Annotated[int, AfterValidator(lambda value: value + 10), Field(ge=11, le=15)],
    Annotated[str, AfterValidator(str.strip), Field(max_length=1, min_length=1)],
    list[Annotated[int, BeforeValidator(lambda value: 1), Field(ge=1)]],
    set[tuple[int, int]],
]
"""Types that have something of their own which no schema says."""

TEXTS = [
    "",
    " a ",
    "a",
    "ab",
    "abcde",
    "A B",
    "cat",
    "dog",
    "hound",
    "warm",
    "hot",
    "publish",
    "line",
    "yes",
    "1",
    "2.0",
]
TEXTS += ["0.05", "-3", "2026-03-01", "2026-03-01T12:00:00Z", "12:30", "PT5S", "10.0.0.1", "::/8", "http://a.b", "YWI="]
TEXTS += ["00000000-0000-4000-8000-000000000000", "[1]", "null"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 10),
    st.sampled_from([0.0, 0.1, 0.5, 0.7, 1.0, 1.5, 2.5, 1e20]),
    st.sampled_from(TEXTS),
)
FIELDS = ["name", "a", "b", "kind", "lives", "age", "leaf", "decision", "stars", "title", "tone", "share", "warm"]
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=6,
)
LIKELY = st.one_of(
    st.fixed_dictionaries(
        {"decision": st.sampled_from(["publish", "other"])},
        optional={"stars": SCALARS, "title": SCALARS, "tone": SCALARS},
    ),
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["cat", "dog", "cow"])}, optional={"lives": SCALARS, "age": SCALARS}
    ),
    st.fixed_dictionaries({"name": SCALARS}, optional={"share": SCALARS, "a": SCALARS, "kind": SCALARS}),
)


def accepts(hint: Any, value: Any) -> bool:
    try:
        Codec[Any](hint).decode(canonical(value))
    except BadValue:
        return False
    return True


KEPT: dict[str, dict[str, Any]] = {}


def passes(hint: Any, value: Any) -> bool:
    if repr(hint) not in KEPT:
        KEPT[repr(hint)] = parse(canonical(Codec[Any](hint).schema()))  # as it comes out of a store
    try:
        check_form(value, KEPT[repr(hint)], "the answer")
    except BadValue:
        return False
    return True


@pytest.mark.parametrize("hint", SAID)
@settings(max_examples=60, deadline=None)
@given(value=VALUES | LIKELY)
def test_a_value_passes_exactly_when_the_type_accepts_it(hint: Any, value: Any):
    assert passes(hint, value) == accepts(hint, value), value


@pytest.mark.parametrize("hint", HALF_SAID)
@settings(max_examples=60, deadline=None)
@given(value=VALUES | LIKELY)
def test_what_the_type_accepts_always_passes(hint: Any, value: Any):
    assert passes(hint, value) or not accepts(hint, value), value


@pytest.mark.parametrize(
    ("hint", "value", "why"),
    [
        (Verdict, {"decision": "publish", "stars": 9}, "stars: must be less than or equal to 5, but is 9"),
        (Verdict, {"decision": "burn"}, "decision: must be one of 'publish', 'rewrite'"),
        (Verdict, {}, "'decision' is missing; give it"),
        (Verdict, {"decision": "publish", "title": "THE LIGHTHOUSE"}, "title: string should have at most 8 characters"),
        (
            Verdict,
            {"decision": "publish", "title": "the"},
            "title: string should match pattern '^[A-Z ]', but is 'the'",
        ),
        (Verdict, [], "must be of type object, but is []"),
        (list[Verdict], [{"decision": 1}], "[0].decision: must be one of"),
        (Closed, {"name": "a", "nmae": "b"}, "'nmae' is unknown; it takes name, share"),
        (int | list[int], "x", "must be of type integer or array, but is 'x'"),
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cow"}, "input tag 'cow'"),
        (Annotated[list[int], Field(max_length=2)], [1, 2, 3], "should have at most 2 items"),
        (bool, "maybe", "must be of type boolean, but is 'maybe'"),
    ],
)
def test_the_reason_says_where_and_what(hint: Any, value: Any, why: str):
    with pytest.raises(BadValue) as caught:
        check_form(value, Codec[Any](hint).schema(), "the answer")

    assert why in str(caught.value)
    assert str(caught.value).startswith("the answer: ")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"},
        {"type": ["string", 5]},
        {"$ref": "#/$defs/Gone"},
        {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"},
        {"$defs": {"A": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/A"}]}}, "$ref": "#/$defs/A"},
        {"type": "string", "pattern": "("},
        {"anyOf": 5},
        {"properties": 5, "type": "object"},
        {"type": "integer", "minimum": "five"},
    ],
)
def test_a_schema_that_nobody_can_read_refuses_nothing(schema: dict[str, Any]):
    check_form("anything", schema, "the answer")


def test_a_schema_from_an_older_version_is_still_a_check():
    """Stores hold schemas without our marks."""
    kept = {"properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 5}}, "required": ["ok"]}

    check_form({"ok": True, "n": 5}, {**kept, "type": "object"}, "the answer")
    with pytest.raises(BadValue, match="n: must be less than or equal to 5"):
        check_form({"ok": True, "n": 6}, {**kept, "type": "object"}, "the answer")
