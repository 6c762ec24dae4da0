"""The checkpoint file as text: what it looks like, that it says everything, and that a diff shows what happened."""

import difflib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.conformance.dump import dump
from holdfast.conformance.given import HOUR, OOPS, change, children, claimed, done, in_state, step
from holdfast.conformance.victim import work
from holdfast.core import codec
from holdfast.core.errors import BadValue
from holdfast.core.keys import digest
from holdfast.core.lifecycle import decide, deliver, submit_entry
from holdfast.core.model import (
    Entry,
    Error,
    Event,
    Job,
    Options,
    Record,
    Retry,
    Signal,
    State,
    Step,
    StepState,
    Wait,
    WaitKind,
)
from holdfast.engines.file import FileEngine
from holdfast.engines.file.checkpoint import read
from holdfast.engines.file.reopen import reopen
from holdfast.engines.file.schema import canonical, shown
from holdfast.engines.file.writer import FileText, Rows
from holdfast.engines.indexed_rows import Key

START = 1_767_225_600_000


GOLDEN = """\
{
  "version": 1,
  "jobs": [
    {
      "id": "019b76da-a800-7000-8000-000000000001",
      "type": "chapter.write",
      "status": "DONE",
      "error": null,
      "args": [{"chapter": 1, "title": "Ébauche"}],
      "result": {"pages": 12},
      "state": "completed",
      "queue": "book",
      "key": "order-42",
      "epoch": 1,
      "created_at": "2026-01-01T00:00:00.000Z",
      "run_at": "2026-01-01T00:00:00.000Z",
      "finished_at": "2026-01-01T00:00:09.000Z",
      "prune_at": "2026-01-01T01:00:09.000Z",
      "options": {"retry": {"retries": 5}, "keep_ms": 3600000, "tags": ["book"]},
      "digest": "DIGEST",
      "steps": [
        {"path": "draft#1", "name": "draft", "state": "done", "result": "…", "epoch": 1, "started_at": \
"2026-01-01T00:00:01.000Z", "finished_at": "2026-01-01T00:00:04.250Z"},
        {"path": "check#1", "name": "check", "state": "failed", "error": "TimeoutError: no answer", "epoch": 1, \
"started_at": "2026-01-01T00:00:05.000Z"}
      ],
      "history": [
        {"version": 1, "at": "2026-01-01T00:00:00.000Z", "event": "submit", "after": "available"},
        {"version": 2, "at": "2026-01-01T00:00:00.000Z", "event": "claim", "after": "active", "by": "w-1", "epoch": 1},
        {"version": 3, "at": "2026-01-01T00:00:09.000Z", "event": "complete", "after": "completed", "by": "w-1", \
"epoch": 1}
      ],
      "check": "ad088f734d3e-32cdc5-f10eb4-5feceb-6d9904-948215-d163e1-90140e-74234e-ec935a-74234e"
    },
    {
      "id": "019b76da-a800-7000-8000-000000000002",
      "type": "chapter.write",
      "status": "NEEDS_REVIEW",
      "error": "ValueError: chapter 2: too long",
      "args": [],
      "result": null,
      "state": "review",
      "queue": "book",
      "attempt": 2,
      "epoch": 1,
      "created_at": "2026-01-01T00:00:00.000Z",
      "run_at": "2026-01-01T00:00:00.000Z",
      "inbox": [
        {"version": 3, "name": "approved", "value": true, "by": "ann", "at": "2026-01-01T00:00:09.000Z"}
      ],
      "traceback": [
        "Traceback (most recent call last):",
        "  File \\"book.py\\", line 3, in write",
        "ValueError: chapter 2: too long"
      ],
      "history": [
        {"version": 1, "at": "2026-01-01T00:00:00.000Z", "event": "submit", "after": "available"},
        {"version": 2, "at": "2026-01-01T00:00:00.000Z", "event": "claim", "after": "active", "by": "w-1", "epoch": 1},
        {"version": 3, "at": "2026-01-01T00:00:09.000Z", "event": "signal", "after": "active", "by": "ann", \
"epoch": 1, "note": {"signal": "approved"}},
        {"version": 4, "at": "2026-01-01T00:00:09.000Z", "event": "exhaust", "after": "review", "by": "w-1", \
"epoch": 1}
      ],
      "check": "aa3fd8c6822e-b3283b-f10eb4-5feceb-6d9904-4f53cd-d163e1-74234e-74234e-74234e-070fa5"
    },
    {
      "id": "019b76da-a800-7000-8000-000000000003",
      "type": "chapter.write",
      "status": "PENDING",
      "error": null,
      "args": [],
      "result": null,
      "state": "scheduled",
      "parent": "019b76da-a800-7000-8000-000000000002",
      "group": "parts",
      "created_at": "2026-01-01T00:00:09.000Z",
      "run_at": "2026-01-02T00:00:00.000Z",
      "waits": [
        {"kind": "time", "until": "2026-01-02T00:00:00.000Z"}
      ],
      "history": [
        {"version": 1, "at": "2026-01-01T00:00:09.000Z", "event": "submit", "after": "scheduled", "by": \
"019b76da-a800-7000-8000-000000000002"}
      ],
      "check": "0e8d95b6ec8f-b3283b-1080a6-5feceb-34093f-4f53cd-d163e1-74234e-08e5b5-74234e-74234e"
    }
  ],
  "keys": [
    {"type": "chapter.write", "key": "order-42", "job": "019b76da-a800-7000-8000-000000000001", "digest": "DIGEST"}
  ],
  "groups": [
    {"parent": "019b76da-a800-7000-8000-000000000002", "name": "parts", "total": 1, "arrived": 0}
  ],
  "records": [
    {"name": "leader", "version": 2, "at": "2026-01-01T00:00:09.000Z"},
    {"name": "pause/book", "value": {"by": "ann"}, "version": 1, "at": "2026-01-01T00:00:09.000Z"}
  ]
}
"""


async def small_store(path: Path) -> None:
    now = START
    engine = FileEngine(path, lambda: now)
    await engine.open()
    ids = [f"019b76da-a800-7000-8000-{n:012}" for n in (1, 2, 3)]
    type, args = "chapter.write", '[{"chapter":1,"title":"Ébauche"}]'
    plain: dict[str, Any] = {"type": type, "queue": "book", "created_at": now, "run_at": now, "state": State.AVAILABLE}
    options = Options(retry=Retry(retries=5), keep_ms=HOUR, tags=("book",))
    first = Job(id=ids[0], args=args, digest=digest(type, args), key="order-42", options=options, **plain)
    await engine.insert([first, Job(id=ids[1], **plain)])
    one, two = await engine.claim("w-1", ["book"], 2)
    draft = Step(
        job=one.id, epoch=1, path="draft#1", name="draft", state=StepState.DONE, result='"…"', started_at=now + 1000
    )
    check = Step(job=one.id, epoch=1, path="check#1", name="check", state=StepState.FAILED, started_at=now + 5000)
    await engine.record(
        [replace(draft, finished_at=now + 4250), replace(check, error=Error("TimeoutError", "no answer"))]
    )
    now += 9_000
    part: dict[str, Any] = {"type": type, "created_at": now, "state": State.SCHEDULED, "run_at": START + 24 * HOUR}
    part |= {"parent": two.id, "group": "parts", "waits": (Wait(WaitKind.TIME, until=START + 24 * HOUR),)}
    await engine.insert([Job(id=ids[2], **part)], two.lease)
    await engine.commit([deliver(two, "approved", "true", now, by="ann")])
    [two] = [job for job in await engine.get([two.id]) if job is not None]
    text = 'Traceback (most recent call last):\n  File "book.py", line 3, in write\nValueError: chapter 2: too long'
    error = Error("ValueError", "chapter 2: too long", text)
    await engine.commit(
        [
            decide(one, Event.COMPLETE, now, by="w-1", result='{"pages":12}'),
            decide(two, Event.EXHAUST, now, by="w-1", error=error),
        ]
    )
    await engine.put_record("pause/book", '{"by":"ann"}')
    await engine.put_record("leader", "1")
    await engine.put_record("leader", None)
    await engine.close()


def test_a_small_store_looks_like_this(tmp_path, run):
    run(small_store(tmp_path / "checkpoint.json"))

    wanted = GOLDEN.replace("DIGEST", digest("chapter.write", '[{"chapter":1,"title":"Ébauche"}]'))
    assert (tmp_path / "checkpoint.json").read_text() == wanted


def test_the_same_store_has_the_same_bytes(tmp_path, run):
    for name in ("a", "b"):
        run(small_store(tmp_path / name))
    again = FileEngine(tmp_path / "a", lambda: START)
    run(again.open())
    run(again.put_record("more", "1"))
    run(again.put_record("more", None))
    run(again.close())

    one, two = (json.loads((tmp_path / name).read_text()) for name in ("a", "b"))
    one["records"] = [record for record in one["records"] if record["name"] != "more"]
    assert one == two
    assert text_of(tmp_path / "b") == (tmp_path / "b").read_bytes()


def text_of(path: Path) -> bytes:
    """What would be written of the store in this file."""
    return FileText().data(reopen(read(path.read_bytes()), START).rows)


def test_the_text_is_tidy(engine, clock, run):
    run(work(engine, clock))
    text = Path(engine.path).read_text()

    assert text.endswith("\n}\n")
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_everything_comes_back(engine, clock, run):
    async def main():
        parent = await claimed(engine, clock, key="k", digest="d1")
        first, second = await children(engine, clock, parent, 2)
        await engine.record([step(parent, "a"), step(parent, "b", result="ä" * 10_000)])
        await done(engine, clock, first, Event.COMPLETE, steps=(step(first, "c"),))
        await done(engine, clock, second, Event.FAIL)
        await engine.commit([deliver(parent, "go", "1", clock.now, by="ann")])
        [parent] = await engine.get([parent.id])
        await done(engine, clock, parent, Event.SUSPEND)
        for state in State:
            if state is not State.ACTIVE:
                await in_state(engine, clock, state, options=Options(meta={"a": "b"}, timeout_ms=5))
        await engine.put_record("leader", "1")
        await engine.put_record("gone", "1")
        await engine.put_record("gone", None)
        before = await dump(engine)
        await engine.close()
        await engine.open()
        assert await dump(engine) == before
        renewed = await engine.put_record("gone", "2", 0)
        assert isinstance(renewed, Record)
        assert renewed.version == 3

    run(main())


def test_a_change_of_one_job_touches_only_its_own_lines(engine, clock, run):
    jobs = [run(in_state(engine, clock, State.AVAILABLE)) for _ in range(5)]
    path = Path(engine.path)
    before = path.read_text().splitlines()
    [held] = run(engine.claim("w-1", ["default"], 1))
    assert held.id == jobs[0].id
    middle = path.read_text().splitlines()
    run(engine.commit([change(clock, held, Event.EXHAUST, error=Error("ValueError", "no"))]))
    after = path.read_text().splitlines()

    checks = [line for line in diff(before, middle) if '"check": ' in line]
    assert len(checks) == 2
    assert diff(before, middle) == [
        '-      "status": "PENDING",',
        '+      "status": "RUNNING",',
        '-      "state": "available",',
        '+      "state": "active",',
        '+      "worker": "w-1",',
        '+      "epoch": 1,',
        '+      "claimed_at": "2025-10-09T08:53:20.000Z",',
        '-        {"version": 1, "at": "2025-10-09T08:53:20.000Z", "event": "submit", "after": "available"}',
        '+        {"version": 1, "at": "2025-10-09T08:53:20.000Z", "event": "submit", "after": "available"},',
        '+        {"version": 2, "at": "2025-10-09T08:53:20.000Z", "event": "claim", "after": "active", '
        '"by": "w-1", "epoch": 1}',
        *checks,
    ]
    assert diff(middle, after)[:4] == [
        '-      "status": "RUNNING",',
        '-      "error": null,',
        '+      "status": "NEEDS_REVIEW",',
        '+      "error": "ValueError: no",',
    ]
    ends = after.index("    },")
    assert after[ends:] == middle[middle.index("    },") :]


def test_a_new_step_is_one_new_line(engine, clock, run):
    held = run(claimed(engine, clock))
    run(engine.record([step(held, "a")]))
    before = Path(engine.path).read_text().splitlines()
    run(engine.record([step(held, "b")]))

    changed = [line for line in diff(before, Path(engine.path).read_text().splitlines()) if '"path": "b"' in line]
    assert len(changed) == 1
    # And the comma after the one before, and the check.
    assert len(diff(before, Path(engine.path).read_text().splitlines())) == 5


def diff(before: list[str], after: list[str]) -> list[str]:
    lines = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


# Values, errors and times.

VALUES = [
    "1.0",
    "-0.0",
    "1e+22",
    "1e-07",
    "5e-324",
    "1.7976931348623157e+308",
    str(2**63 - 1),
    str(-(2**63)),
    str(10**4_000),
    "null",
    "true",
    '""',
    '"ä\\"\\\\\\n\\u0000\u2028\x7f😀"',
    '{"b":[1,{"a":null}],"ä":{}}',
    "[" * 200 + "]" * 200,
    # Not canonical, or no JSON at all: it comes back all the same.
    "1E5",
    "1.00",
    "[1, 2]",
    '{"b":1,"a":2}',
    '{"a":1,"a":2}',
    '"\\u00e4"',
    "NaN",
    "[Infinity]",
    "1" * 5_000,
    "[" * 100_000,
    "no JSON",
    "",
    "\ud800",
    '"\ud800"',
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: ascii(value)[:20])
def test_a_value_comes_back_byte_for_byte(value):
    signal = Signal(1, "s", value, "", 0)
    job = a_job(args=value, state=State.COMPLETED, result=value, inbox=(signal,) if value else ())

    [back] = back_again(job, [a_step(result=value)])

    assert (back.job.args, back.job.result, back.job.inbox) == (value, value, job.inbox)
    assert back.steps[0].result == value


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(PLAIN)
def test_any_value_comes_back_and_is_what_the_codec_would_write(value):
    text = canonical(value)

    [back] = back_again(a_job(args=text), [])

    assert back.job.args == text
    try:
        written = codec.canonical(value)
    except BadValue:
        return
    assert "-0.0" in text or text == written


@pytest.mark.parametrize("result", [None, "null", "0"])
@pytest.mark.parametrize("state", [State.COMPLETED, State.AVAILABLE])
def test_no_result_is_not_a_result_of_nothing(state, result):
    [back] = back_again(a_job(state=state, result=result), [a_step(result=result)])

    assert back.job.result == result
    assert back.steps[0].result == result


@pytest.mark.parametrize(
    "error",
    [
        OOPS,
        Error("ValueError", ""),
        Error("", ""),
        Error("", "x"),
        Error("a: b", ""),
        Error("a: b", "c"),
        Error("a:", " b: c"),
        Error("ValueError", ": x"),
        Error("ValueError", "two\nlines", "a\n\nb\n"),
        Error("ValueError", "caf\udce9"),
        Error("module.Class", "x: y", "\n"),
    ],
    ids=repr,
)
def test_an_error_comes_back_as_it_was(error):
    [back] = back_again(a_job(error=error), [a_step(error=error)])

    assert back.job.error == error
    assert back.steps[0].error == error


TIMES = [0, 1, -1, START, -62_135_596_800_000, 253_402_300_799_999, -62_135_596_800_001, 253_402_300_800_000, 2**63 - 1]


@pytest.mark.parametrize("time", [*TIMES, -(2**63)])
def test_a_time_comes_back_to_the_millisecond(time):
    job = a_job(run_at=time, waits=(Wait(WaitKind.TIME, "", time),), inbox=(Signal(1, "s", "1", "", time),))

    [back] = back_again(job, [a_step(started_at=time, finished_at=time)])

    assert (back.job.run_at, back.job.waits, back.job.inbox) == (time, job.waits, job.inbox)
    assert (back.steps[0].started_at, back.steps[0].finished_at) == (time, time)


def test_a_time_reads_as_a_date_where_there_is_one():
    assert shown(START + 7) == "2026-01-01T00:00:00.007Z"
    assert shown(253_402_300_800_000) == 253_402_300_800_000


def test_a_person_may_write_a_time_in_another_way():
    said = text_with(a_job(run_at=START)).replace(
        b'"run_at": "2026-01-01T00:00:00.000Z"', b'"run_at": "2026-01-01T02:00+02:00"'
    )

    [row] = read(said).rows.values()

    assert row.job.run_at == START


@settings(max_examples=200, deadline=None)
@given(st.text(), st.text(), st.text())
@example("\ud800", "\x00", "\x85\u2028")
def test_any_name_comes_back(one, two, three):
    job = a_job(type=one, queue=two, key=three, parent=one, group=two, worker=three, digest=two)
    rows = filled(job, [a_step(path=one, name=two)])
    rows.keys[one, two] = Key(three, one, None)
    rows.records[three] = Record(three, '"x"', 1, 0)

    said = read(FileText().data(rows))

    assert not any(row.edits for row in said.rows.values())
    if any("\ud800" <= letter <= "\udfff" for letter in one + two + three):
        return  # A pair of lone surrogates becomes the letter that they stand for.
    assert [row.job for row in said.rows.values()] == [job]
    assert said.keys == rows.keys
    assert said.records == rows.records


def test_a_number_that_comes_back_as_another_kind_is_no_edit():
    options = Options(retry=Retry(retries=7, factor=3), meta={"b": "1", "a": "2"})
    rows = filled(a_job(options=options), [])
    rows.entries["j"][0] = replace(rows.entries["j"][0], note={10: (1, 2), 9: {"b": 1, "a": State.REVIEW}})

    [row] = read(FileText().data(rows)).rows.values()

    assert row.edits == ()
    assert row.job.options == options


def test_an_entry_that_does_not_follow_from_the_last_one_comes_back():
    odd = Entry(job="j", version=2, at=0, event="e", before=State.REVIEW, after=State.AVAILABLE, by="x", epoch=7)
    rows = filled(a_job(version=2), [])
    rows.entries["j"].append(odd)

    assert read(FileText().data(rows)).rows["j"].entries == rows.entries["j"]


def a_job(**fields) -> Job:
    plain: dict[str, Any] = {"id": "j", "type": "t", "created_at": 0, "run_at": 0, "state": State.AVAILABLE}
    return Job(**plain | fields)


def a_step(**fields) -> Step:
    plain: dict[str, Any] = {"job": "j", "epoch": 1, "path": "p", "name": "n", "state": StepState.DONE, "started_at": 0}
    return Step(**plain | fields)


def filled(job: Job, steps: list[Step]) -> Rows:
    rows = Rows()
    rows.restore(job, steps, [submit_entry(job)])
    return rows


def text_with(job: Job) -> bytes:
    return FileText().data(filled(job, []))


def back_again(job: Job, steps: list[Step]):
    data = FileText().data(filled(job, steps))
    json.loads(data)
    rows = read(data).rows.values()
    assert [row.edits for row in rows] == [()]
    return rows
