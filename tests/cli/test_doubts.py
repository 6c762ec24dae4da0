"""Effects in doubt, waits and undo, as `show`, `review` and `resolve --step` tell them and take an answer."""

import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.errors import BadValue
from holdfast.core.lifecycle import decide
from holdfast.core.model import Error, Event, State, StepState, Wait, WaitKind
from holdfast.core.outcome import ONCE
from holdfast.jobs.service import JobRequest, Jobs
from holdfast.worker.recorded_errors import type_name
from tests.cli.conftest import Cli
from tests.cli.stores import MINUTE, in_store, step, suspended

SEND = "send#order-42"


def doubtful(cli: Cli, *paths: str, runs: bool = False, raised: Error | None = None) -> str:
    """A job in review whose steps of these paths were begun and not recorded; or one that still runs."""

    async def work(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="ship", queue="orders")])
        (job,) = await jobs.engine.claim("w-1", ["orders"], 1)
        begun = [replace(step(job, path, ONCE), state=StepState.STARTED, finished_at=None) for path in paths]
        await jobs.engine.record([step(job, "pack#1", '"box"'), *begun])
        if raised is not None:
            told = '{"attempt":1}'
            failed = [replace(one, path=f"~failed/{one.path}", result=told, error=raised) for one in begun]
            await jobs.engine.record(failed)
        if runs:
            return job.id
        error = Error("EffectInDoubt", "send may have happened")
        await jobs.engine.commit([decide(job, Event.EXHAUST, await jobs.engine.now(), by="w-1", error=error)])
        return job.id

    return in_store(cli.path, work)


@pytest.fixture
def id(cli: Cli) -> str:
    return doubtful(cli, SEND)


# Doubts.


def test_a_job_with_an_effect_in_doubt_is_replayed_only_on_purpose(cli: Cli, id: str):
    result = cli("replay", id)

    assert (result.exit_code, result.stderr) == (
        1,
        f"holdfast: job {id}: {SEND} is in doubt, so a replay would stop before it; say whether it happened with "
        f"holdfast resolve {id} --step {shlex.quote(SEND)}, or pass --yes\n",
    )
    assert cli.json("replay", id, "--yes")["state"] == "available"


@pytest.mark.parametrize("verb", ["show", "review"])
def test_a_step_in_doubt_is_named_with_both_commands(verb: str, cli: Cli, id: str):
    shown = cli.ok(verb, *([id] if verb == "show" else []))

    command = f"holdfast resolve {id[-8:]} --step '{SEND}'"
    assert f"{SEND} may have happened: it started, and no result was recorded\n" in shown
    assert f"it did:      {command} --result JSON\n" in shown
    assert f"it did not:  {command} --again\n" in shown


@pytest.mark.parametrize("verb", ["show", "review"])
def test_a_person_sees_what_the_step_in_doubt_raised(verb: str, cli: Cli):
    id = doubtful(cli, SEND, raised=Error("builtins.ConnectionError", "line broke"))

    shown = cli.ok(verb, *([id] if verb == "show" else []))
    assert "it raised:   builtins.ConnectionError: line broke\n" in shown


def test_show_marks_the_step_and_shows_no_result_of_it(cli: Cli, id: str):
    shown = cli.ok("show", id)

    assert "send order-42  in doubt" in shown
    assert "effect" not in shown.split("Error")[0]
    assert "holdfast replay" not in shown  # it would only come back


def test_an_effect_that_is_under_way_is_not_in_doubt(cli: Cli):
    id = doubtful(cli, SEND, runs=True)

    assert "doubt" not in cli.ok("show", id)
    assert cli.json("show", id)["in_doubt"] == []
    result = cli("resolve", id, "--step", SEND, "--again")
    assert result.exit_code == 1
    assert "is active, so" in result.stderr


def test_json_names_the_steps_in_doubt(cli: Cli, id: str, ids: dict[State, str]):
    assert cli.json("show", id)["in_doubt"] == [SEND]
    assert {job["id"]: job["in_doubt"] for job in cli.json("review")["jobs"]} == {id: [SEND], ids[State.REVIEW]: []}


def test_of_many_in_doubt_some_are_shown(cli: Cli):
    id = doubtful(cli, *(f"send#{n}" for n in range(9)))

    shown = cli.ok("show", id)

    assert shown.count("--again") == 5
    assert "and 4 more in doubt: --json" in shown
    assert "resolve each of them: the job continues after the last" in shown


def test_a_step_that_happened_is_recorded_with_its_result(cli: Cli, id: str):
    said = cli.ok("resolve", id, "--step", SEND, "--result", '"sent"', "--reason", "seen in the outbox")

    assert said == f"resolved {SEND} of {id[-8:]}; it waits for a worker\n"
    told = cli.json("show", id)
    assert {one["path"]: (one["state"], one["result"]) for one in told["steps"]}[SEND] == ("done", "sent")
    assert told["history"][-1]["note"] == {"reason": "seen in the outbox", "step": SEND, "said": "it happened"}


def test_a_step_that_did_not_happen_is_done_again(cli: Cli, id: str):
    told = cli.json("resolve", id, "--step", SEND, "--again")

    assert (told["id"], told["state"]) == (id, "available")
    shown = cli.json("show", id)
    assert [one["path"] for one in shown["steps"]] == ["pack#1"]
    assert shown["history"][-1]["note"]["said"] == "do it again"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--again"], "--again is for a step in doubt: name it with --step"),
        (
            ["--step", SEND, "--again", "--result", "1"],
            "--again means that the step didn't happen, --result that it did; give one of them",
        ),
        (["--step", SEND], "add --result JSON if the step happened, or --again if it didn't"),
    ],
)
def test_a_contradiction_is_told_in_one_line(words: list[str], line: str, cli: Cli, id: str):
    result = cli("resolve", id, *words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"holdfast: resolve: {line}; see holdfast resolve --help\n"
    assert cli.json("show", id)["in_doubt"] == [SEND]


@pytest.mark.parametrize("wrong", ["pack#1", "x", ""])
def test_a_step_that_is_not_in_doubt_is_refused(wrong: str, cli: Cli, id: str):
    result = cli("resolve", id, "--step", wrong, "--again")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"holdfast: job {id}: step {wrong!r} is not in doubt; steps in doubt: {SEND}\n"


@pytest.mark.parametrize("wrong", ["send", "sned#order-42", "send#order42"])
@pytest.mark.parametrize("app", [(), ("--app", "shop_of_steps.py:app")])
def test_a_mistyped_step_is_answered_with_the_one_in_doubt(
    wrong: str, app: tuple[str, ...], cli: Cli, id: str, tmp_path: Path
):
    (tmp_path / "shop_of_steps.py").write_text(SHOP)

    result = cli("resolve", id, "--step", wrong, "--result", '"sent"', *app)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"holdfast: job {id}: step {wrong!r} is not in doubt; did you mean {SEND}?\n"
    assert cli.json("show", id)["in_doubt"] == [SEND]


SHOP = """
from holdfast import App, step
app = App()

@step(effect="once", key="order-42", name="send")
async def post() -> str:
    return "sent"

@app.job
async def ship() -> str:
    return await post()
"""


def test_with_an_app_a_result_that_does_not_fit_the_step_is_not_taken(cli: Cli, tmp_path: Path, id: str):
    (tmp_path / "shop_of_steps.py").write_text(SHOP)
    call = ("resolve", id, "--step", SEND, "--app", "shop_of_steps.py:app")

    result = cli(*call, "--result", "[1]")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("holdfast: result of post: ")
    assert result.stderr.count("\n") == 1
    assert cli.json("show", id)["in_doubt"] == [SEND]
    assert cli.ok(*call, "--result", '"sent"') == f"resolved {SEND} of {id[-8:]}; it waits for a worker\n"


@pytest.mark.parametrize("answer", [["--result", "1"], ["--again"]])
def test_an_app_that_does_not_know_the_step_can_not_check_it(answer: list[str], cli: Cli, tmp_path: Path):
    id = doubtful(cli, "post_by_pigeon#1")
    (tmp_path / "shop_of_steps.py").write_text(SHOP)

    result = cli("resolve", id, "--step", "post_by_pigeon#1", *answer, "--app", "shop_of_steps.py:app")

    if answer == ["--again"]:
        assert result.exit_code == 0  # there is nothing to check
    else:
        assert result.exit_code == 2
        line = "shop_of_steps.py:app has no step 'post_by_pigeon'; to give the value without a check, leave out --app"
        assert line in result.stderr


def failed_again(cli: Cli, id: str, error: Error) -> None:
    async def work(jobs: Jobs) -> None:
        (job,) = await jobs.engine.claim("w-1", ["orders"], 1)
        await jobs.engine.commit([decide(job, Event.EXHAUST, await jobs.engine.now(), by="w-1", error=error)])

    in_store(cli.path, work)


@pytest.mark.parametrize("verb", ["show", "review"])
def test_a_result_that_did_not_fit_can_be_said_again_and_is_shown_with_both_commands(verb: str, cli: Cli, id: str):
    cli.ok("resolve", id, "--step", SEND, "--result", "[1]")
    failed_again(cli, id, Error(type_name(BadValue("")), "result of post: Input should be a valid string"))

    shown = cli.ok(verb, *([id] if verb == "show" else []))

    command = f"holdfast resolve {id[-8:]} --step '{SEND}'"
    assert f"{SEND} happened, as a person said, with a result that may not fit: [1]\n" in shown
    assert f"it did:      {command} --result JSON\n" in shown
    assert f"it did not:  {command} --again\n" in shown
    cli.ok("resolve", id, "--step", SEND, "--result", '"sent"')


@pytest.mark.parametrize("verb", ["show", "review"])
def test_a_failure_of_another_kind_asks_for_no_correction(verb: str, cli: Cli, id: str):
    cli.ok("resolve", id, "--step", SEND, "--result", "[1]")
    failed_again(cli, id, Error("ValueError", "no paper"))

    assert "--step" not in cli.ok(verb, *([id] if verb == "show" else []))


# Waits.


def test_show_tells_each_kind_of_wait(cli: Cli):
    def shown(*waits: tuple[Wait, int | None]) -> str:
        return cli.ok("show", suspended(cli.path, {}, waits))

    assert "  pending: waiting for signal approved, 1 d left\n" in shown(
        (Wait(WaitKind.SIGNAL, "approved"), 1441 * MINUTE)
    )
    assert "  pending: waiting for children\n" in shown((Wait(WaitKind.CHILDREN, "0a1b2c"), None))
    asleep = shown((Wait(WaitKind.TIME), 120 * MINUTE + 5_000))
    assert "  scheduled, sleeping until 20" in asleep
    assert " UTC, 2 h left\n" in asleep
    assert "  due " not in asleep
    both = shown((Wait(WaitKind.SIGNAL, "stop"), None), (Wait(WaitKind.TIME), -MINUTE))
    assert ": waiting for signal stop, sleeping until 20" in both
    assert " UTC, timed out " in " ".join(both.split())


def test_a_list_of_jobs_says_what_a_pending_job_waits_for(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "140")
    words = {
        suspended(cli.path, {"ask:1a2b3c4d": {"question": '"Which?"', "schema": {}}}): "waiting for a person's answer",
        suspended(cli.path, {}, ((Wait(WaitKind.CHILDREN, "0a1b2c"), None),)): "waiting for children",
        suspended(cli.path, {}, ((Wait(WaitKind.SIGNAL, "approved"), 1441 * MINUTE),)): (
            "waiting for signal approved, 1 d left"
        ),
    }

    lines = cli.ok("jobs", "--state", "pending").splitlines()

    for id, said in words.items():
        (line,) = [line for line in lines if line.startswith(id[-8:])]
        assert line.rstrip().endswith(f"  {said}")


def test_show_of_a_job_that_asks_says_how_to_answer_and_hides_the_record(cli: Cli):
    id = suspended(cli.path, {"ask:1a2b3c4d": {"question": '"Which?"', "schema": {}}})

    shown = cli.ok("show", id)

    assert f"  pending: waiting for a person's answer\n  answer it: holdfast ask {id[-8:]}\n" in shown
    assert "~wait" not in shown
    assert cli.json("show", id)["steps"] == []


# Undo.


def undoable(cli: Cli, event: Event | None) -> str:
    """A job that has made three things, and then ends so."""

    async def work(jobs: Jobs) -> str:
        await jobs.submit([JobRequest(type="rent", queue="orders")])
        (job,) = await jobs.engine.claim("w-1", ["orders"], 1)
        for n in (1, 2, 3):
            intent = replace(step(job, f"~undo/rent#{n}", '{"step":"rent"}'), state=StepState.STARTED, finished_at=None)
            await jobs.engine.record([intent, step(job, f"rent#{n}", '"gpu"')])
        if event is Event.CANCEL:
            await jobs.cancel(job.id)
        elif event is not None:
            await jobs.engine.commit([decide(job, event, await jobs.engine.now(), by="w-1", result="1")])
        return job.id

    return in_store(cli.path, work)


def test_show_counts_what_is_to_undo(cli: Cli):
    id = undoable(cli, None)

    assert "\n3 things to undo if it is cancelled or discarded\n" in cli.ok("show", id)
    assert "~undo" not in cli.ok("show", id)
    assert cli.json("show", id)["to_undo"] == ["rent#1", "rent#2", "rent#3"]
    assert "things to undo" not in cli.ok("show", undoable(cli, Event.COMPLETE))


def test_show_tells_who_undoes_and_what_an_undo_job_undoes(cli: Cli):
    id = undoable(cli, Event.CANCEL)
    (undo,) = [child["id"] for child in cli.json("show", id)["children"]]

    assert f"\n3 things to undo: job {undo[-8:]}, which is pending\n" in cli.ok("show", id)
    shown = cli.ok("show", undo)
    assert f"\nundoes what job {id[-8:]} made: rent, which is cancelled\n" in shown
    assert f"  pending: waiting for the owner of job {id[-8:]} to stop, " in shown
