"""A worker dies at every boundary of our own pipelines, and of each kind of effect: what the table of effects promises.

The transactional kind is shown where its database is.
"""

import asyncio
import importlib.util
import json
import sys
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast import App, current, step
from holdfast.core.model import Options, Retry, State
from holdfast.demo import video as demo_video
from holdfast.testing import Crash, Provider, crash_everywhere, in_memory
from tests.support.given import wait_until
from tests.support.worker_processes import Stage

EXAMPLES = Path(__file__).parents[2] / "examples"
BEFORE, BETWEEN, AFTER = "before the effect", "after the effect and before the record", "after the record"
INTENT = "after the intent and before the effect"

app = App("memory:")
to_charge = ""
"""Where the provider of the running test listens."""


@pytest.fixture
def provider() -> Iterator[Provider]:
    global to_charge
    with Provider() as one:
        to_charge = f"{one.url}/charges"
        yield one


def charge(usd: int, key: str | None = None) -> str:
    """What a payment provider's library does."""
    headers = {} if key is None else {"Idempotency-Key": key}
    request = urllib.request.Request(to_charge, json.dumps({"usd": usd}).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)["id"]


@step
async def pay(usd: int) -> str:
    return await asyncio.to_thread(charge, usd)


@step
def pay_in_a_thread(usd: int) -> str:
    return charge(usd)


@step
async def pay_with_key(usd: int) -> str:
    return await asyncio.to_thread(charge, usd, current().idempotency_key)


@step
def pay_with_key_in_a_thread(usd: int) -> str:
    return charge(usd, current().idempotency_key)


@step(effect="once", key=lambda usd: usd)
async def pay_once(usd: int) -> str:
    return await asyncio.to_thread(charge, usd)


@step(effect="once", key=lambda usd: usd)
def pay_once_in_a_thread(usd: int) -> str:
    return charge(usd)


@app.job
async def order(how: str) -> str:
    steps = {"default": pay, "key": pay_with_key, "once": pay_once}
    return await steps[how](5)


@app.job
def order_in_a_thread(how: str) -> str:
    steps = {"default": pay_in_a_thread, "key": pay_with_key_in_a_thread, "once": pay_once_in_a_thread}
    return steps[how](5)


def at_the_step(crashes: list[Crash]) -> dict[str, int]:
    """How many effects there were, by where the step's worker was killed."""
    return {crash.at.when: crash.effects for crash in crashes if crash.at.step}


# The table of effects.


@pytest.mark.parametrize("job", [order, order_in_a_thread], ids=["async", "def"])
def test_by_default_a_step_runs_at_least_once(provider: Provider, job: Any):
    crashes = crash_everywhere(job, "default", effects=provider, repeats=1)
    assert at_the_step(crashes) == {BEFORE: 1, BETWEEN: 2, AFTER: 1}
    assert all(crash.effects == 1 for crash in crashes if crash.at.when != BETWEEN)


@pytest.mark.parametrize("job", [order, order_in_a_thread], ids=["async", "def"])
def test_with_the_providers_key_the_effect_happens_once(provider: Provider, job: Any):
    crashes = crash_everywhere(job, "key", effects=provider)
    assert at_the_step(crashes) == {BEFORE: 1, BETWEEN: 1, AFTER: 1}
    lives = len(crashes) + 1
    assert (provider.begun, len(provider.effects)) == (lives + 1, lives), "one copy, which the provider dropped"
    assert len({call.key for call in provider.calls}) == lives, "one key for each job, before the kill and after it"


@pytest.mark.parametrize("job", [order, order_in_a_thread], ids=["async", "def"])
def test_effect_once_never_runs_again_by_itself(provider: Provider, job: Any):
    crashes = crash_everywhere(job, "once", effects=provider)
    assert at_the_step(crashes) == {BEFORE: 1, INTENT: 1, BETWEEN: 1, AFTER: 1}
    in_review = [crash.at.when for crash in crashes if crash.doubts]
    assert in_review == [INTENT, BETWEEN], "the store can't tell the two apart, so a person is asked"
    assert provider.begun == len(provider.effects) == len(crashes) + 1, "not even asked for twice"


def test_effect_once_happens_twice_only_if_a_person_says_so(provider: Provider):
    crashes = crash_everywhere(order, "once", effects=provider, doubt="again", repeats=1)
    assert at_the_step(crashes) == {BEFORE: 1, INTENT: 1, BETWEEN: 2, AFTER: 1}


# One charge, whatever happens to the job.


def test_the_key_stays_the_same_over_attempts_and_replays(provider: Provider):
    fragile = App("memory:")

    @fragile.job(name="fragile", retries=1)
    async def fragile_order(usd: int) -> str:
        return await pay_with_key(usd)

    provider.drop(2, after_effect=True)
    with in_memory(fragile) as test:
        run = fragile.sync.submit(fragile_order, 5)
        test.advance("1h")
        assert run.status().state is State.REVIEW, "both attempts broke off"
        run.replay(reason="the line is back")
        assert run.result(timeout=10)
    assert provider.begun == 3
    assert len({call.key for call in provider.calls}) == 1
    assert len(provider.effects) == 1


PROGRAM = """
import asyncio, json, os, sys, time, urllib.request
from pathlib import Path
from holdfast import App, Settings, current, step

app = App(os.environ["TEST_URL"], settings=Settings(look_seconds=0.1))

def is_first(what):
    try:
        Path(what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

@step
def charge(usd: int) -> str:
    request = urllib.request.Request(
        Path("provider").read_text(),
        json.dumps({"usd": usd}).encode(),
        {"Idempotency-Key": current().idempotency_key},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        made = json.load(answer)["id"]
    if is_first("hung"):
        time.sleep(60)
    if is_first("failed") or is_first("failed again"):
        raise ConnectionError("the answer was lost")
    return made

@app.job
def order(usd: int) -> str:
    return charge(usd)

if __name__ == "__main__":
    from holdfast.cli.worker_process import run_worker
    asyncio.run(run_worker(app, None, 8))
"""


def test_one_charge_over_a_killed_process_two_attempts_and_a_replay(tmp_path: Path, store_url: str):
    numbers = count(1)
    with Provider(answer=lambda call: {"id": f"charge {next(numbers)}"}) as provider:
        one_charge(tmp_path, provider, store_url)


def one_charge(tmp_path: Path, provider: Provider, store_url: str) -> None:
    (tmp_path / "provider").write_text(f"{provider.url}/charges")
    stage = Stage(tmp_path, PROGRAM, store_url)
    try:
        victim = stage.worker()
        run = stage.submit("order", 5, options=Options(retry=Retry(retries=1, strategy="constant", initial_ms=10)))
        wait_until(lambda: (tmp_path / "hung").exists())
        assert len(provider.effects) == 1
        stage.worker()
        victim.kill()
        wait_until(lambda: stage.status(run).state is State.REVIEW)
        stage.do(run.replay())
        assert stage.do(run.result(30)) == "charge 1"
        events = [entry.event for entry in stage.history(run)]
    finally:
        stage.close()
    assert [event for event in events if event in ("lapse", "fail", "exhaust", "replay")] == [
        "lapse",
        "fail",
        "exhaust",
        "replay",
    ]
    assert (provider.begun, len({call.key for call in provider.calls})) == (4, 1)
    assert len(provider.effects) == 1


# Our own pipelines.


def test_the_film_survives_a_kill_at_every_boundary(monkeypatch: pytest.MonkeyPatch):
    """The demo's pipeline as it is, over HTTP, with fewer scenes."""
    scenes = 3
    monkeypatch.setattr(demo_video, "SCENES", scenes)
    with Provider(answer=lambda call: {"made": f"{call.body['stage']}-{call.body['item']}"}) as provider:
        monkeypatch.setenv(demo_video.PROVIDER, provider.url.rpartition(":")[2])
        crashes = crash_everywhere(
            demo_video.make_video, "The Lighthouse", effects=provider, repeats=demo_video.AT_ONCE
        )
    steps = 5 + 2 * scenes
    whens = [crash.at.when for crash in crashes if crash.at.step]
    assert {when: whens.count(when) for when in whens} == dict.fromkeys((BEFORE, BETWEEN, AFTER), steps)
    assert all(steps <= crash.effects <= steps + scenes for crash in crashes)
    single = [crash for crash in crashes if crash.at.step in ("script_analysis", "assembly", "publishing")]
    assert all(crash.effects == steps + (crash.at.when == BETWEEN) for crash in single)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as it is, but for how long its pretend providers take."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("agent_under_test", EXAMPLES / "agent.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    module.asyncio = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 100))  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("kinds", "repeats"), [({"mail"}, 0), ({"plan", "search", "summarise"}, 3)], ids=["mail", "model"]
)
def test_the_agent_survives_a_kill_at_every_boundary(agent: ModuleType, kinds: set[str], repeats: int):
    def effects() -> int:
        log = Path("agent.log")
        lines = log.read_text().splitlines() if log.exists() else []
        return sum(line.partition("\t")[0] in kinds for line in lines)

    signals = {"ask": lambda question: {"send": "kelp" in question["report"], "to": "ada@example.org"}}
    crashes = crash_everywhere(agent.research, "kelp", signals=signals, effects=effects, repeats=repeats)
    jobs = {crash.at.job for crash in crashes}
    assert jobs == {"research", "look_up"}
    assert {crash.at.when for crash in crashes if crash.doubts} == {INTENT, BETWEEN}
    assert {crash.at.step for crash in crashes if crash.doubts} == {"send_mail"}
