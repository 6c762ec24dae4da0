"""The check of a block: edits of single fields are honoured and named, or refused, and none goes unseen."""

import json

import pytest
from msgspec.structs import replace

from holdfast.conformance.given import HOUR, step
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import Event, Options, State, Where
from holdfast.engines.file import FileEngine
from holdfast.engines.file.schema import EDIT, shown
from tests.engines.file.given import Desk, status

# What may be edited.

FREE_EDITS = [
    pytest.param(('"queue": "here"', '"queue": "there"'), "queue", "there", id="queue"),
    pytest.param(('"priority": 3', '"priority": -100'), "priority", -100, id="priority"),
    pytest.param(('"tags": ["a"]', '"tags": ["a", "b"]'), "tags", ("a", "b"), id="tags"),
    pytest.param(('[{"chapter": 7}]', "[8]"), "args", "[8]", id="args"),
]


@pytest.mark.parametrize(("swap", "name", "value"), FREE_EDITS)
@pytest.mark.parametrize("state", [state for state in State if state not in TERMINAL])
def test_what_was_asked_may_be_edited_until_a_job_has_ended(desk, state, swap, name, value):
    job = desk.job(state, queue="here", priority=3, options=Options(tags=("a",)))

    desk.edit(swap)

    now, entries = desk.now(job), desk.run(desk.engine.history(job.id))
    assert (now.options.tags if name == "tags" else getattr(now, name)) == value
    entry = entries[job.version]
    assert (entry.event, entry.by, entry.note) == (EDIT, "hand", {"edited": [name]})
    assert entry.before == entry.after == state
    desk.edit()
    assert desk.now(job) == now


def test_an_edited_queue_is_where_the_job_is_claimed(desk):
    job = desk.job(State.AVAILABLE, queue="here")

    desk.edit(('"queue": "here"', '"queue": "there"'))

    assert desk.run(desk.engine.count()) == {("there", State.AVAILABLE): 1}
    assert desk.run(desk.engine.claim("w-1", ["here"], 9)) == []
    assert [one.id for one in desk.run(desk.engine.claim("w-1", ["there"], 9))] == [job.id]


def test_several_edits_are_one_entry(desk):
    job = desk.job(State.REVIEW, queue="here", priority=3)

    desk.edit(status("NEEDS_REVIEW", "PENDING"), ('"here"', '"there"'), ('"priority": 3', '"priority": 4'))

    assert (desk.now(job).queue, desk.now(job).priority) == ("there", 4)
    assert (desk.last(job).event, desk.last(job).note) == (Event.REPLAY, {"edited": ["queue", "priority"]})


def test_a_job_that_starts_again_may_do_so_elsewhere(desk):
    job = desk.job(State.COMPLETED, queue="here")

    desk.edit(status("DONE", "PENDING"), ('"here"', '"there"'))

    assert desk.now(job).queue == "there"
    assert desk.last(job).note["edited"] == ["queue"]


@pytest.mark.parametrize("state", [State.AVAILABLE, State.SCHEDULED, State.RETRYABLE])
def test_a_job_that_waits_for_its_time_may_get_another_one(desk, clock, state):
    job = desk.job(state, queue="here")
    old = f'"run_at": "{shown(job.run_at)}"'

    desk.edit((old, f'"run_at": "{shown(clock.now + 5 * HOUR)}"'))

    assert desk.now(job).run_at == clock.now + 4 * HOUR
    assert (desk.last(job).event, desk.last(job).note) == (EDIT, {"edited": ["run_at"]})
    assert desk.run(desk.engine.claim("w-1", ["here"], 9)) == []
    clock.advance(4 * HOUR)
    assert desk.run(desk.engine.claim("w-1", ["here"], 9))


def test_what_a_new_status_does_away_with_may_be_cleared(desk):
    review = desk.job(State.REVIEW)
    desk.edit(status("NEEDS_REVIEW", "PENDING"), ('"error": "ValueError: it didn\'t work"', '"error": null'))
    assert (desk.last(review).event, desk.last(review).note) == (Event.REPLAY, {})

    ended = desk.job(State.COMPLETED)
    desk.edit(status("DONE", "PENDING"), ('"result": {"ok": true}', '"result": null'))
    assert (desk.now(ended).state, desk.now(ended).result) == (State.AVAILABLE, None)
    assert "edited" not in desk.last(ended).note


# What may not be edited.

FIXED_EDITS = [
    pytest.param(('"type": "book.write"', '"type": "book.read"'), "its type can't be edited", id="type"),
    pytest.param(
        ('"key": "order-42",\n      "parent', '"key": "order-43",\n      "parent'), "its key can't be edited", id="key"
    ),
    pytest.param(('"parent": "p"', '"parent": "q"'), "its parent can't be edited", id="parent"),
    pytest.param(('"group": "g"', '"group": "h"'), "a field was edited that only the program", id="group"),
    pytest.param(('"epoch": 1,\n      "created', '"epoch": 0,\n      "created'), "a field was edited", id="epoch"),
    pytest.param(('"error": "ValueError: it', '"error": "TypeError: it'), "its error can't be edited", id="error"),
    pytest.param(('"result": null', '"result": 1'), "its result can't be edited", id="result"),
    pytest.param(('"keep_ms": 9', '"keep_ms": 8'), "a field was edited", id="options"),
    pytest.param(('"event": "claim"', '"event": "exhaust"'), "a field was edited", id="history"),
    pytest.param(('"id": "', '"id": "7'), "a field was edited", id="id"),
]


@pytest.mark.parametrize(("swap", "words"), FIXED_EDITS)
@pytest.mark.parametrize("state", [State.RETRYABLE, State.REVIEW, State.DISCARDED])
def test_what_only_the_program_writes_is_not_edited(desk, state, swap, words):
    desk.job(state, key="order-42", parent="p", group="g", options=Options(keep_ms=9))

    line = desk.refused(swap)

    assert words in line
    assert "; undo the edit; allowed here: " in line


def test_the_result_of_a_job_that_is_done_stays(desk):
    job = desk.job(State.COMPLETED)

    line = desk.refused(('"result": {"ok": true}', '"result": {"ok": false}'))

    assert f"line 10, column 17: job {job.id} is completed, so its result can't be edited" in line
    assert "allowed here: status only" in line


def test_a_result_needs_a_status_that_asks_for_it(desk):
    desk.job(State.REVIEW)

    assert "allowed here: a result with the status DONE" in desk.refused(('"result": null', '"result": 1'))


@pytest.mark.parametrize(("swap", "name", "value"), FREE_EDITS)
def test_what_was_asked_of_a_job_that_has_ended_stays(desk, swap, name, value):
    desk.job(State.CANCELLED, queue="here", priority=3, options=Options(tags=("a",)))

    line = desk.refused(swap)

    assert f"its {name} w" in line
    assert "edited after the job had ended (cancelled); set its status to PENDING to run it again" in line


UNFIT_EDITS = [
    pytest.param(('"queue": "here"', '"queue": "over there"'), "can't be a queue", id="queue"),
    pytest.param(('"priority": 3', '"priority": 101'), "use a number from -100 to 100", id="priority"),
    pytest.param(('"priority": 3', f'"priority": {1 << 77}'), "Expected `int` <=", id="77-bits"),
    pytest.param(('"epoch": 1,\n      "created', '"epoch": -1,\n      "created'), "Expected `int` >= 0", id="epoch"),
]


@pytest.mark.parametrize(("swap", "words"), UNFIT_EDITS)
def test_an_edit_must_be_possible(desk, swap, words):
    desk.job(State.RETRYABLE, queue="here", priority=3)

    assert words in desk.refused(swap)


def test_a_job_that_waits_for_its_time_needs_one(desk):
    job = desk.job(State.SCHEDULED)

    line = desk.refused((f'"run_at": "{shown(job.run_at)}"', '"run_at": null'))

    assert 'is scheduled and has no "run_at"' in line


@pytest.mark.parametrize("state", [State.PENDING, State.REVIEW])
def test_a_job_that_waits_for_no_time_gets_none(desk, clock, state):
    job = desk.job(state, run_at=clock.now)

    line = desk.refused((f'"run_at": "{shown(job.run_at)}"', '"run_at": "2031-01-01T00:00:00.000Z"'))

    assert "its run_at can't be edited; undo the edit; allowed here: status, args, queue, priority, tags" in line


def test_a_check_that_cannot_be_read_is_refused(desk):
    desk.job(State.AVAILABLE)

    assert "a field was edited" in desk.refused(('"check": "', '"check": "7-'))


# Blocks without a check: by hand, or by an older program.


def unsealed(desk: Desk) -> None:
    desk.run(desk.engine.close())
    said = json.loads(desk.path.read_text())
    for block in said["jobs"]:
        assert list(block)[-1] == "check"
        del block["check"]
    desk.path.write_text(json.dumps(said, indent=2))


def test_a_block_without_a_check_is_believed(desk):
    jobs = [desk.job(state, priority=3) for state in State if state is not State.ACTIVE]
    unsealed(desk)

    desk.edit(('"priority": 3', '"priority": 4'), ('"epoch": 1', '"epoch": 5'))

    assert [desk.now(job) for job in jobs] == [replace(job, priority=4, epoch=job.epoch and 5) for job in jobs]
    desk.run(desk.engine.put_record("leader", "1"))
    assert desk.path.read_text().count('"check"') == len(jobs)


def test_without_a_check_edited_arguments_are_known_by_their_digest(desk):
    job, other = desk.job(State.AVAILABLE), desk.job(State.AVAILABLE, digest="")
    unsealed(desk)

    desk.edit(('"chapter": 7', '"chapter": 8'))

    assert desk.last(job).note == {"edited": ["args"]}
    assert (desk.now(other).args, desk.now(other).version) == ('[{"chapter":8}]', 1)


IMPOSSIBLE = [
    pytest.param(('"type": "book.write"', '"type": "A B!"'), "can't be a job type", id="type"),
    pytest.param(('"queue": "here"', '"queue": "over there"'), "can't be a queue", id="queue"),
    pytest.param(('"priority": 3', '"priority": 101'), "use a number from -100 to 100", id="priority"),
    pytest.param(('"epoch": 1,', '"epoch": 0,'), "epoch 0 is too low; its history has reached epoch 1", id="epoch"),
    pytest.param(('"attempt": 2', '"attempt": 0'), "attempt 0 is invalid; the first attempt is 1", id="attempt"),
]


@pytest.mark.parametrize(("swap", "words"), IMPOSSIBLE)
def test_without_a_check_what_no_caller_could_have_given_is_refused(desk, swap, words):
    desk.job(State.REVIEW, queue="here", priority=3, digest="")
    unsealed(desk)

    assert words in desk.refused(swap)


# The number of tries, which earlier versions did not write.

BEFORE_TRIES = r"""
{
  "version": 1,
  "jobs": [
    {
      "id": "01a1ec21-d05f-71ab-b201-36a2fb3aaf44",
      "type": "film",
      "status": "PENDING",
      "error": null,
      "args": [],
      "result": null,
      "state": "pending",
      "epoch": 1,
      "created_at": "2026-11-18T00:50:01.439Z",
      "options": {"keep_ms": 2592000000},
      "digest": "a9f573b0af4722e3bb502c9d4957200a",
      "waits": [
        {"kind": "signal", "name": "go"}
      ],
      "steps": [
        {"path": "draw#e7d1541d707808ba", "name": "draw", "state": "done", "result": "1.png", "epoch": 1,
          "started_at": "2026-11-18T00:50:01.470Z", "finished_at": "2026-11-18T00:50:01.471Z"},
        {"path": "~wait/go", "name": "~wait", "state": "started", "result": {"name": "go", "schema": {},
          "until": null}, "epoch": 1, "started_at": "2026-11-18T00:50:01.525Z"}
      ],
      "history": [
        {"version": 1, "at": "2026-11-18T00:50:01.439Z", "event": "submit", "after": "available"},
        {"version": 2, "at": "2026-11-18T00:50:01.465Z", "event": "claim", "after": "active",
          "by": "w-vm-10055-e36989", "epoch": 1},
        {"version": 3, "at": "2026-11-18T00:50:01.525Z", "event": "suspend", "after": "pending",
          "by": "w-vm-10055-e36989", "epoch": 1, "note": {"waits": ["signal go"]}}
      ],
      "check": "31a6dd909462-b3283b-1080a6-5feceb-74234e-4f53cd-df55fa-74234e-74234e-74234e-74234e"
    }
  ],
  "records": [
    {"name": "leader", "version": 2, "at": "2026-11-18T00:50:01.591Z"}
  ]
}
"""


def test_a_file_from_before_tries_were_written_does_not_look_edited(tmp_path, clock, run):
    path = tmp_path / "checkpoint.json"
    path.write_text(BEFORE_TRIES.lstrip())
    engine = FileEngine(path, clock)

    run(engine.open())

    [job] = run(engine.find(Where()))
    assert [entry.event for entry in run(engine.history(job.id))] == ["submit", "claim", "suspend"]
    assert [one.tries for one in run(engine.steps(job.id))] == [1, 1]
    run(engine.close())


def test_tries_are_written_where_there_was_more_than_one_and_are_not_edited(desk):
    job = desk.job(State.ACTIVE)
    desk.run(desk.engine.record([step(job, "draw#1", tries=4), step(job, "draw#2")]))
    desk.edit()

    assert [one.tries for one in desk.run(desk.engine.steps(job.id))] == [4, 1]
    assert desk.path.read_text().count('"tries"') == 1
    assert "a field was edited" in desk.refused(('"tries": 4', '"tries": 3'))


def test_a_number_of_tries_that_can_not_be_is_refused(desk):
    job = desk.job(State.ACTIVE)
    desk.run(desk.engine.record([step(job, "draw#1", tries=4)]))

    assert "tries" in desk.refused(('"tries": 4', '"tries": 0'))
