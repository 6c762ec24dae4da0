"""Unique names: what they are made of, and which holder counts."""

import pytest

from holdfast.core.errors import Duplicate, Invalid
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Inserted, Job, Options, State, UniqueName
from holdfast.core.unique import LIVE, Unique, counts, existing_for, stamp, tombstone, unique_name, until
from holdfast.jobs.requests import JobRequest

NOW, HOUR = 1_760_000_000_000, 3_600_000


def name(by: tuple[str, ...], args: str = "[1]", **fields: object) -> str:
    request = JobRequest(**{"type": "report", "queue": "default"} | fields)  # type: ignore[arg-type]
    return unique_name(Unique(by=by), request, args, lambda: {"customer": "acme", "brief": {"title": "May"}}).key


def unique_job(at: int = NOW, **fields: object) -> Job:
    options = Options(unique=UniqueName(key="f" * 64, **fields))  # type: ignore[arg-type]
    return Job(id="new", type="report", created_at=at, state=State.AVAILABLE, options=options)


def test_a_name_is_made_of_the_type_and_the_parts_in_any_order():
    meta = Options(meta={"tenant": "a"})

    assert name(("args",)) == name(("args", "type")) != name(("args",), "[2]")
    assert name(("queue", "meta.tenant"), options=meta) == name(("meta.tenant", "queue"), "[2]", options=meta)
    assert name(("args",)) != name(("args",), type="other")
    assert name(("args",)) == name(("args",), queue="other") != name(("args", "queue"))
    assert name(("type",)) == name(("type",), "[2]")


def test_a_part_of_the_arguments_is_a_parameter_or_a_field_of_the_only_argument():
    assert name(("args.customer",)) == name(("args.customer",), "[2]")
    assert name(("args.brief.title",)) != name(("args.customer",))
    assert name(("args.color",), '[{"color":"red"}]') == name(("args.color",), '[{"color":"red","size":1}]')


def test_texts_that_look_the_same_are_the_same():
    assert name(("args",), '["é"]') == name(("args",), '["e\u0301"]')


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"by": ()}, "Unique(by=()): give a tuple of what makes two jobs the same"),
        ({"by": "args"}, "Unique(by='args'): give a tuple"),
        ({"by": ("arguments",)}, "'arguments' is unknown; use type, queue, args, args.NAME or meta.NAME"),
        ({"by": ("qeue",)}, "'qeue' is unknown; did you mean queue?"),
        ({"by": ("meta",)}, "'meta' is unknown; did you mean meta.NAME?"),
        ({"by": ("args.",)}, "'args.' is unknown"),
        ({"by": (5,)}, "5 is unknown"),
        ({"by": ("args",), "then": "retrun"}, "Unique(then='retrun') is unknown; did you mean return?"),
        ({"by": ("args",), "states": ()}, "Unique(states=()): give a tuple of states"),
        ({"by": ("args",), "states": "active"}, "Unique(states='active'): give a tuple of states"),
        ({"by": ("args",), "states": ("availble",)}, "'availble' isn't a state of a job; did you mean available?"),
        ({"by": ("args",), "states": ("completed",), "then": "replace"}, "has ended and can't be replaced"),
        ({"by": ("args",), "within": 0}, "Unique(within=0): give a time above 0"),
        ({"by": ("args",), "within": "soon"}, "'soon'"),
    ],
)
def test_a_wrong_declaration_is_refused_in_one_line(given, line):
    with pytest.raises(Invalid) as refusal:
        Unique(**given)

    assert line in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("by", "line"),
    [
        (("args.custmer",), "unique= names args.custmer, but there is no 'custmer'; did you mean customer?"),
        (("args.brief.titel",), "but there is no 'titel'; did you mean title?"),
        (("args.customer.name",), "but there is no 'name'"),
        (("meta.tenant",), "unique= names meta.tenant, which the job doesn't have; it has no meta"),
    ],
)
def test_a_part_that_a_call_lacks_is_refused(by, line):
    with pytest.raises(Invalid, match="report: unique= names") as refusal:
        name(by)

    assert line in str(refusal.value)


def test_by_default_a_job_counts_until_it_ends_and_in_its_window_in_any_state():
    assert Unique(by=("args",)).counted_states() == LIVE == UniqueName(key="").states
    assert set(LIVE) | TERMINAL == set(State)
    assert Unique(by=("args",), within="1h").counted_states() == tuple(State)
    assert Unique(by=("args",), within="1h", then="replace").counted_states() == LIVE
    assert Unique(by=("args",), states=("active",)).counted_states() == (State.ACTIVE,)


def test_a_holder_counts_in_its_states_and_windows():
    holder, new = unique_job(within_ms=HOUR), unique_job(NOW + 10)

    assert counts(stamp(holder), until(holder), State.ACTIVE, new)
    assert not counts(stamp(holder), until(holder), State.COMPLETED, new)
    assert not counts(stamp(holder), until(holder), State.ACTIVE, unique_job(NOW + HOUR))
    assert not counts(stamp(holder), until(holder), State.ACTIVE, unique_job(NOW + 10, within_ms=10))


def test_a_tombstone_counts_with_its_last_state():
    holder, new = unique_job(within_ms=HOUR), unique_job(NOW + 10, states=(State.COMPLETED,))

    assert counts(tombstone(stamp(holder), State.COMPLETED), until(holder), None, new)
    assert not counts(tombstone(stamp(holder), State.CANCELLED), until(holder), None, new)
    assert counts(stamp(holder), until(holder), None, new), "an older program pruned it"
    assert not counts(stamp(unique_job()), None, None, new)


def test_the_answer_is_the_holder_or_a_refusal():
    assert existing_for(unique_job(), "old") == Inserted("old", False)
    with pytest.raises(Duplicate, match="job type report: job old is the same") as refused:
        existing_for(unique_job(then="refuse"), "old")
    assert refused.value.id == refused.value.existing == "old"


def test_a_window_ends_after_the_creation_of_its_job():
    name = UniqueName(key="k", within_ms=60_000)

    assert until(Job(id="", type="t", created_at=5, state=State.AVAILABLE, options=Options(unique=name))) == 60_005
