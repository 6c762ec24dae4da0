"""Hostile text: whatever users and stores hold, nothing of it reaches a terminal or a log that would obey it."""

import asyncio
import json
import logging
import re
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import App
from holdfast.app.items.words import Counts, Reporter
from holdfast.core.codec import canonical
from holdfast.core.lifecycle import decide
from holdfast.core.model import Error, Event, Options, Presence, Running, Step, StepState
from holdfast.jobs.service import LOG_PATH, JobRequest, Jobs
from holdfast.safe_text import UNSAFE, clean, escaped, logger
from tests.cli.conftest import Cli
from tests.cli.stores import in_store, step, suspended

HOSTILE = "[red]a\x1b[31mb\x1b]0;title\x07c\rd\x08e\x7ff\x9b2Jg\u202eh\u2066i\u200fj\u061ck\u2028l\ufeffm[/red] :smile:"
"""Escapes of both kinds, a bell, a carriage return, a backspace, C1, marks of direction; and what rich would obey."""

STYLES = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[\d*[AK]|\x1b\[2K|\r")
"""What rich itself writes on a terminal."""


def test_the_canary_sings():
    assert len(UNSAFE.findall(HOSTILE)) >= 12
    assert UNSAFE.search(clean(HOSTILE)) is None
    assert "\n" in clean("a\nb")
    assert json.loads(escaped(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE


@pytest.fixture
def ids(cli: Cli) -> dict[str, str]:
    """A store whose every text is hostile, as far as a store takes it."""

    async def fill(jobs: Jobs) -> dict[str, str]:
        engine, made = jobs.engine, {}
        options = Options(tags=(HOSTILE,), meta={HOSTILE: HOSTILE})
        for name in ("active", "stuck", "completed"):
            order = JobRequest(
                type="film", queue=name, args=canonical([HOSTILE]), key=f"{HOSTILE}{name}", options=options
            )
            await jobs.submit([order])
            (job,) = await engine.claim("w-1", [name], 1)
            made[name], now = job.id, await engine.now()
            error = Error(HOSTILE, HOSTILE, f"Traceback\n  {HOSTILE}\n{HOSTILE}")
            failed = replace(step(job, f"draw#{HOSTILE}", "1"), state=StepState.FAILED, result=None, error=error)
            log: Step = step(job, LOG_PATH, json.dumps([HOSTILE]))
            await engine.record([step(job, HOSTILE, canonical(HOSTILE)), failed, log])
            if name == "active":
                await jobs.signal(job.id, HOSTILE, HOSTILE, by=HOSTILE)
                running = Running(job.id, job.epoch, stage=HOSTILE, done=1, total=3, text=HOSTILE, since=now)
                await engine.beat(Presence("w-1", host=HOSTILE, slots=8, running=(running,), trouble=HOSTILE))
            elif name == "stuck":
                note = {HOSTILE: HOSTILE}
                await engine.commit([decide(job, Event.EXHAUST, now, by=HOSTILE, error=error, note=note)])
            else:
                result = canonical({HOSTILE: HOSTILE})
                await engine.commit([decide(job, Event.COMPLETE, now, by="w-1", result=result, note={})])
        await jobs.pause("stuck", by=HOSTILE, reason=HOSTILE)
        return made

    made = in_store(cli.path, fill)
    schema = {
        "properties": {HOSTILE: {"type": "string", "description": HOSTILE, "default": HOSTILE, "pattern": HOSTILE}},
        "type": "object",
    }
    refused = {"by": HOSTILE, "why": HOSTILE}
    info = {"question": canonical(HOSTILE), "schema": schema, "refused": refused}
    return made | {"asking": suspended(cli.path, {f"ask:{HOSTILE}": info})}


LOOKS = [
    *(("status",), ("jobs",), ("review",), ("queues",), ("workers",), ("ask",), ("doctor",)),
    *((verb, name) for verb in ("show", "status") for name in ("active", "stuck", "completed", "asking")),
    ("ask", "asking"),
]


def shown(text: str) -> str:
    """What is left of an output that a terminal would obey, apart from rich's own styles."""
    return "".join(UNSAFE.findall(STYLES.sub("", text)))


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("call", LOOKS, ids=" ".join)
def test_no_look_shows_what_a_terminal_obeys(
    call: tuple[str, ...], terminal: bool, cli: Cli, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")

    result = cli(*[ids.get(word, word) for word in call])

    assert result.exit_code in (0, 1)
    assert shown(result.stdout) == shown(result.stderr) == ""
    assert "[red]" in result.stdout or call[0] != "show", "no markup is obeyed either"


@pytest.mark.parametrize("call", [*LOOKS, ("export", "stuck"), ("export", "completed")], ids=" ".join)
def test_json_is_safe_to_show_and_means_the_same(call: tuple[str, ...], cli: Cli, ids: dict[str, str]):
    words = [ids.get(word, word) for word in call]
    result = cli(*words) if call[0] == "export" else cli(*words, "--json")

    told = json.loads(result.stdout)

    assert UNSAFE.search(result.stdout) is None
    if call[0] in ("show", "export") and call[1] != "asking":
        assert HOSTILE in texts(told)


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in texts(one)]
    return [text for one in value for text in texts(one)] if isinstance(value, list) else [value]


@pytest.mark.parametrize(
    "call",
    [
        ("signal", "active", HOSTILE, "--json", json.dumps(HOSTILE)),
        ("cancel", "active", "--reason", HOSTILE),
        ("ask", "asking", "--answer", json.dumps({HOSTILE: HOSTILE})),
        ("ask", "asking", "--name", HOSTILE),
        ("replay", "stuck", "--args", HOSTILE),
        ("replay", "stuck", "--reason", HOSTILE),
        ("resolve", "stuck", "--step", HOSTILE, "--again"),
        ("resolve", "completed", "--result", json.dumps(HOSTILE)),
        ("discard", "stuck", "--reason", HOSTILE),
        ("queues", "pause", HOSTILE),
        ("queues", "pause", "video", "--reason", HOSTILE),
        ("show", HOSTILE),
        ("jobs", "--state", HOSTILE),
        ("worker", f"{HOSTILE}:app"),
        (HOSTILE,),
    ],
    ids=lambda call: call[0][:8].encode("ascii", "replace").decode(),
)
def test_no_change_and_no_error_shows_what_a_terminal_obeys(call: tuple[str, ...], cli: Cli, ids: dict[str, str]):
    result = cli(*[ids.get(word, word) for word in call])

    assert shown(result.stdout) == shown(result.stderr) == ""
    assert result.stdout + result.stderr


def test_the_progress_of_run_items_shows_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]):
    reporter = Reporter(quiet=False)
    reporter.begin(HOSTILE, Counts(done=0, failed=0, pending=1, running=0, recovered=0))
    reporter.say(HOSTILE)

    out = capsys.readouterr().out

    assert "[red]" in out
    assert shown(out) == ""


def test_a_log_line_of_ours_is_safe_in_its_values_and_its_traceback(caplog: pytest.LogCaptureFixture):
    try:
        raise ValueError(f"{HOSTILE}\n2026-01-01 INFO forged")
    except ValueError as error:
        logger("holdfast.test").exception("job %s: %s after %d s", HOSTILE, error, 3)

    (record,) = caplog.records
    assert UNSAFE.search(caplog.text) is None
    assert record.getMessage().count("\n") == 0, "an error's text can't begin a line of its own"
    assert record.getMessage().endswith("forged after 3 s")


def test_all_loggers_of_ours_are_safe_ones():
    from holdfast.engines.file import engine as file_engine
    from holdfast.engines.postgres import engine as postgres_engine
    from holdfast.engines.redis import store as redis_store
    from holdfast.upkeep import keeper
    from holdfast.worker import worker as loop

    for module in (file_engine, postgres_engine, redis_store, keeper, loop):
        assert module.log.filters, module.__name__
    ours = [name for name in logging.root.manager.loggerDict if name.startswith("holdfast.")]
    used = [name for name in ours if isinstance(logging.root.manager.loggerDict[name], logging.Logger)]
    assert all(logging.getLogger(name).filters for name in used if name != "holdfast.engines"), used


def test_the_log_of_a_worker_is_safe_whatever_a_job_raises(cli: Cli, tmp_path):
    (tmp_path / "hostile_app.py").write_text(
        f"from holdfast import App\napp = App('sqlite:///jobs.db')\n"
        f"@app.job(retries=1)\nasync def film(n: int) -> int:\n    raise ValueError({HOSTILE!r})\n"
    )
    app = App(f"sqlite:///{cli.path}")

    async def submitted() -> None:
        await app.open()
        await app.jobs.submit([JobRequest(type="film", args="[1]")])
        await app.close()

    asyncio.run(submitted())
    command = [sys.executable, "-m", "holdfast.cli", "worker", "hostile_app:app", "--url", f"sqlite:///{cli.path}"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "tries again" in line or "needs a person" in line:
            break
    process.terminate()
    lines.append(process.communicate(timeout=30)[0])

    assert "ValueError: [red]a" in "".join(lines)
    assert UNSAFE.search("".join(lines)) is None
