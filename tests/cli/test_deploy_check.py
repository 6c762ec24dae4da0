"""`holdfast doctor MODULE:APP` names the unfinished jobs that new code would break, before it is deployed."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.codec import canonical
from holdfast.core.keys import step_path
from holdfast.core.model import Presence, State, Step, StepState
from holdfast.core.references import is_kept_outside
from holdfast.jobs.checkup.check_code import check_app
from holdfast.jobs.checkup.finding import Finding, Level
from holdfast.jobs.requests import JobRequest
from holdfast.jobs.service import Jobs
from holdfast.worker import registry
from holdfast.worker.drift import arguments_key
from tests.cli.conftest import Cli
from tests.cli.stores import in_store

APP = """
from holdfast import App, step
app = App()

@step
async def draw(scene: int) -> {result}: ...

@app.job
async def make_video(brief: {brief}) -> None: ...
"""


def doctor(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, **types: str) -> tuple[int, str]:
    monkeypatch.delitem(registry.STEPS, "draw", raising=False)  # what other tests declared
    (folder / "newer.py").write_text(APP.format(**types))
    told = cli("doctor", "newer.py:app")
    return told.exit_code, told.stdout


def test_code_that_fits_is_fine(cli: Cli, ids: dict[State, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code, told = doctor(cli, tmp_path, monkeypatch, brief="dict[str, str]", result="str")

    assert code == 0
    assert "ok   arguments: this App can read the arguments of unfinished jobs" in told
    assert "ok   results: this App can read recorded results of unfinished jobs" in told


def test_a_changed_signature_is_named_with_its_jobs(
    cli: Cli, ids: dict[State, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code, told = doctor(cli, tmp_path, monkeypatch, brief="int", result="str")

    assert code == 1
    assert "fail arguments: 6 unfinished jobs (" in told
    assert "would break: this App can't read the arguments of make_video: argument 'brief' of make_video" in told
    assert "keep the old type readable, or let these jobs finish first" in told


def test_a_result_that_no_longer_decodes_is_named_with_its_jobs(
    cli: Cli, ids: dict[State, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code, told = doctor(cli, tmp_path, monkeypatch, brief="dict[str, str]", result="int")

    assert code == 1
    assert "fail results: 2 unfinished jobs (" in told
    assert ids[State.REVIEW][-8:] in told
    assert "this App can't read recorded results of draw: result of draw" in told


NEWER = """
from holdfast import App, step
app = App()

@step
async def sketched(scene: int{more}) -> str: ...

@app.job(queue="reels")
async def {name}() -> None: ...
"""


@pytest.fixture
def begun(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of two runs of type reel, each with one recorded call of sketched."""
    monkeypatch.delitem(registry.STEPS, "sketched", raising=False)

    async def work(jobs: Jobs) -> list[str]:
        await jobs.submit([JobRequest(type="reel", queue="reels") for _ in range(2)])
        held = await jobs.engine.claim("w-1", ["reels"], 2)
        for number, job in enumerate(held):
            path = step_path("", "sketched", arguments_key(f"[{number}]"))
            record = Step(
                job=job.id, epoch=1, path=path, name="sketched", state=StepState.DONE, result='"a"',
                started_at=0, finished_at=0,
            )  # fmt: skip
            await jobs.engine.record([record])
        return sorted(job.id for job in held)

    return in_store(cli.path, work)


def checked(cli: Cli, folder: Path, text: str) -> tuple[int, dict[str, Any]]:
    (folder / "newer.py").write_text(text)
    told = cli("doctor", "newer.py:app", "--json")
    return told.exit_code, {check["name"]: check for check in json.loads(told.stdout)["checks"]}


def test_runs_that_still_fit_are_fine(cli: Cli, begun: list[str], tmp_path: Path):
    code, found = checked(cli, tmp_path, NEWER.format(name="reel", more=", style: str = 'oil'"))

    assert code == 0
    assert {found[name]["level"] for name in ("app", "steps", "arguments", "results", "calls")} == {"ok"}


def test_runs_of_a_type_that_is_gone_would_break(cli: Cli, begun: list[str], tmp_path: Path):
    code, found = checked(cli, tmp_path, NEWER.format(name="film", more=""))

    assert (code, found["app"]["level"]) == (1, "fail")
    assert "of type reel in queue reels would break: this App doesn't know the type" in found["app"]["text"]
    (reason,) = found["app"]["reasons"]
    assert (reason["why"], reason["count"], sorted(reason["jobs"])) == ("no job reel", 2, begun)


@pytest.mark.parametrize(
    ("claimed", "level"),
    [(("reel", "cut"), Level.WARN), (("reel", "film"), Level.FAIL)],
    ids=["another App", "this App"],
)
def test_a_running_worker_tells_whose_runs_they_are(claimed: tuple[str, ...], level: Level, cli: Cli, begun: list[str]):
    async def work(jobs: Jobs) -> Finding:
        await jobs.engine.beat(Presence(worker="w-9", queues=("reels",), slots=1, types=claimed))
        found = await check_app(jobs, ["film"], [], ["reels"])
        await jobs.engine.beat(Presence(worker="w-9", leaving=True))
        return found[0]

    assert in_store(cli.path, work).level is level


def test_recorded_steps_that_are_gone_would_run_again(cli: Cli, begun: list[str], tmp_path: Path):
    code, found = checked(cli, tmp_path, NEWER.format(name="reel", more="").replace("sketched", "painted"))

    assert (code, found["steps"]["level"]) == (1, "fail")
    (reason,) = found["steps"]["reasons"]
    assert (reason["why"], sorted(reason["jobs"])) == ("no step sketched", begun)


def test_a_step_that_needs_more_arguments_would_run_again(cli: Cli, begun: list[str], tmp_path: Path):
    code, found = checked(cli, tmp_path, NEWER.format(name="reel", more=", style: str, *, size: int"))

    assert (code, found["calls"]["level"]) == (1, "fail")
    (reason,) = found["calls"]["reasons"]
    assert reason["why"] == "sketched: it now needs 'style', 'size', and would run again"
    assert sorted(reason["jobs"]) == begun
    assert "give new parameters a default" in found["calls"]["text"]


def test_each_reason_is_told_with_its_jobs(cli: Cli, ids: dict[State, str], tmp_path: Path, monkeypatch):
    monkeypatch.delitem(registry.STEPS, "draw", raising=False)
    two = APP.format(brief="str", result="int").replace("brief: str", "brief: dict[str, int]")

    code, found = checked(cli, tmp_path, two)

    assert code == 1
    assert all(reason["jobs"] for reason in found["arguments"]["reasons"])
    assert sum(reason["count"] for reason in found["arguments"]["reasons"]) == 6


def test_large_values_that_no_longer_decode_are_found_too(cli: Cli, begun: list[str], tmp_path: Path):
    async def work(jobs: Jobs) -> str:
        (job,) = await jobs.submit([JobRequest(type="reel", queue="reels", args=canonical(["x" * 100_000]))])
        (held,) = await jobs.engine.claim("w-1", ["reels"], 1)
        text = await jobs.engine.blobs.keep(canonical("y" * 100_000), held.id)
        assert is_kept_outside(text)
        record = Step(
            job=held.id, epoch=1, path="sketched#large", name="sketched", state=StepState.DONE, result=text,
            started_at=0, finished_at=0,
        )  # fmt: skip
        await jobs.engine.record([record])
        assert held.id == job.id
        return job.id

    id = in_store(cli.path, work)

    code, found = checked(cli, tmp_path, NEWER.format(name="reel", more="").replace("-> str", "-> int"))

    assert code == 1
    assert id in found["arguments"]["reasons"][0]["jobs"]
    assert any(id in reason["jobs"] for reason in found["results"]["reasons"])
