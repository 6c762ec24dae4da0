"""The laws of `holdfast submit`: what is checked, what is stored, and what is said."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli.load_app import load_app
from tests.cli.conftest import Cli

APP = """
from datetime import date
from pydantic import BaseModel
from holdfast import App
app = App()

class Brief(BaseModel):
    title: str
    due: date | None = None

@app.job(queue="video")
async def make_film(brief: Brief, scenes: int = 3, *extra: int, voice: bytes = b"", **more: int) -> dict[str, int]:
    return {"scenes": scenes + sum(extra)}

@app.job(retries=0)
async def fail(why: str) -> None:
    raise RuntimeError(why)

@app.job
async def nothing_to_give() -> None: ...
"""


@pytest.fixture
def app(cli: Cli, tmp_path: Path) -> str:
    (tmp_path / "film_studio.py").write_text(APP)
    return str(tmp_path / "film_studio.py:app")


def refused(cli: Cli, *words: str) -> str:
    """The one line of a call that is refused as wrong, with nothing stored."""
    result = cli("submit", *words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert not cli.path.exists()
    return result.stderr.removeprefix("holdfast: ").rstrip()


def job_of(cli: Cli, *words: str) -> dict:
    return cli.json("submit", *words)["job"]


def test_it_stores_the_job_and_says_its_id_and_what_to_type_next(cli: Cli, app: str):
    said = cli.ok("submit", app, "make_film", "--args", '[{"title": "Sea"}, 5]').splitlines()

    (job,) = cli.json("jobs")["jobs"]
    assert said == [f"submitted make_film {job['id']}", f"next: holdfast status {job['id'][-8:]} --watch"]
    assert (job["args"], job["queue"], job["state"]) == ([{"due": None, "title": "Sea"}, 5], "video", "available")


def test_the_next_command_names_a_store_that_is_not_the_usual_one(cli: Cli, app: str, tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    said = cli.ok("submit", app, "nothing_to_give", "--url", url).splitlines()

    words = said[1].removeprefix("next: holdfast ").split()
    assert words[-2:] == ["--url", url]
    assert cli(*words[:2], *words[-2:]).exit_code == 0


def test_a_queue_that_nobody_uses_gets_a_hint(cli: Cli, app: str):
    mistyped = cli("submit", app, "nothing_to_give", "--queue", "vidoe")

    assert mistyped.exit_code == 0, "a new queue is allowed"
    assert "no job of this App uses the queue vidoe" in mistyped.stderr
    assert "did you mean video?" in mistyped.stderr
    assert cli("submit", app, "nothing_to_give", "--queue", "video").stderr == ""


def test_arguments_are_a_list_or_an_object(cli: Cli, app: str):
    listed = job_of(cli, app, "make_film", "--args", '[{"title": "Sea"}, 5, 6]')
    named = job_of(cli, app, "make_film", "--args", '{"scenes": 5, "brief": {"title": "Sea"}, "takes": 2}')

    assert listed["args"] == [{"due": None, "title": "Sea"}, 5, 6]
    assert named["args"] == [{"due": None, "title": "Sea"}, 5, {"**": {"takes": 2}}]
    assert job_of(cli, app, "nothing_to_give")["args"] == []


def test_arguments_are_read_by_their_hints_as_a_worker_reads_them(cli: Cli, app: str):
    job = job_of(cli, app, "make_film", "--args", '{"brief": {"title": "Sea", "due": "2026-03-01"}, "voice": "aGk="}')

    (_, kwargs) = load_app(app).registry.get("make_film").signature.decode(json.dumps(job["args"]))
    assert kwargs == {"voice": b"hi"}


def test_arguments_come_from_a_file_or_from_standard_input(cli: Cli, app: str, tmp_path: Path):
    (tmp_path / "brief.json").write_text('{"brief": {"title": "Meer"}}')

    assert job_of(cli, app, "make_film", "--args", "@brief.json")["args"] == [{"due": None, "title": "Meer"}]
    piped = cli("submit", app, "make_film", "--args", "-", "--json", input='[{"title": "Mare"}]')
    assert json.loads(piped.stdout)["job"]["args"] == [{"due": None, "title": "Mare"}]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["make_flim"], "{app} has no job of type make_flim; did you mean make_film?"),
        (["bake"], "{app} has no job of type bake; it has fail, make_film, nothing_to_give"),
        (["make_film"], "make_film needs the argument 'brief'; it takes brief"),
        (["nothing_to_give", "--args", "[1]"], "nothing_to_give: too many positional arguments; check its"),
        (["fail", "--args", '{"wy": "x"}'], "fail takes no argument 'wy'; did you mean why?"),
        (["fail", "--args", "[1]"], "argument 'why' of fail: Input should be a valid string"),
        (["make_film", "--args", '[{"titel": "Sea"}]'], "argument 'brief' of make_film: .title: Field required"),
        (["fail", "--args", "hello"], """--args hello: not JSON; put the text in quotes: --args '["hello"]'"""),
        (["fail", "--args", "7"], """--args: give a list or an object: --args '["first", 2]' or --args '{{"name":"""),
        (["fail", "--args", "@none.json"], "--args @none.json: can't read the file: No such file or directory"),
        (["fail", "--delay", "soon"], "--delay 'soon': not a duration; write it like 90s, 10m, 2h or 7d"),
        (["fail", "--at", "noon"], "--at 'noon': not a time; write it like 2026-03-01T09:00+01:00"),
        (["fail", "--at", "2026-03-01T09:00"], "--at '2026-03-01T09:00': add the time zone, as in 2026-03-01T09:00+"),
        (["fail", "--delay", "1h", "--at", "2026-03-01T09:00Z"], "submit: give --delay or --at, not both; see"),
        (["fail", "--meta", "customer"], "--meta 'customer': write it like customer=42"),
        (["fail", "--timeout", "1s"], "submit: --timeout is for --wait: give both; see holdfast submit --help"),
        (["fail", "--priority", "101"], "submit --priority: 101 is not in the range -100<=x<=100; see"),
        (["nothing_to_give", "--queue", "a b"], "'a b' can't be a queue's name; "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_call_gets_one_line_and_stores_nothing(cli: Cli, app: str, words: list[str], line: str):
    assert refused(cli, app, *words).startswith(line.format(app=app))


def test_the_options_reach_the_job(cli: Cli, app: str):
    options = "--queue urgent --priority 7 --key order-42 --key-for 1d --tag a --tag b --meta customer=42 --expires 2h"
    job = job_of(cli, app, "fail", "--args", '["x"]', *options.split(), "--delay", "1h")

    assert (job["queue"], job["priority"], job["key"], job["state"]) == ("urgent", 7, "order-42", "scheduled")
    assert (job["options"]["tags"], job["options"]["meta"]) == (["a", "b"], {"customer": "42"})
    assert job["created_at"] < job["run_at"] < job["expires_at"]
    timed = job_of(cli, app, "fail", "--args", '["x"]', "--at", "2126-03-01T09:00+01:00")
    assert timed["run_at"] == "2126-03-01T08:00:00.000Z"


def test_a_key_that_is_known_gives_the_job_that_has_it(cli: Cli, app: str):
    call = ["submit", app, "fail", "--args", '["x"]', "--key", "order-42"]
    first, second = cli.ok(*call).splitlines(), cli.ok(*call).splitlines()

    assert first[0].startswith("submitted fail ")
    assert second[0] == f"already {first[0]}".replace("submitted fail", "submitted: fail")
    other = cli("submit", app, "fail", "--args", '["y"]', "--key", "order-42")
    assert (other.exit_code, other.stderr.count("\n")) == (1, 1)


def test_another_store_is_named_with_the_url(cli: Cli, app: str, tmp_path: Path):
    cli.ok("submit", app, "nothing_to_give", "--url", f"sqlite:///{tmp_path}/other.db")

    assert not cli.path.exists()
    assert len(cli.json("jobs", "--url", f"sqlite:///{tmp_path}/other.db")["jobs"]) == 1
    in_memory = cli("submit", app, "nothing_to_give", "--url", "memory:")
    assert in_memory.exit_code == 2
    assert "a store in memory is lost when this command ends; name another with --url" in in_memory.stderr


@contextmanager
def working(target: str) -> Iterator[None]:
    """A worker for the App, in a thread of its own."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        app = load_app(target)
        async with app.worker():
            await stop.wait()
        await app.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=30)
        assert not thread.is_alive()
        loop.close()


def test_waiting_prints_the_result_alone_on_stdout(cli: Cli, app: str):
    with working(app):
        result = cli("submit", app, "make_film", "--args", '[{"title": "Sea"}, 5]', "--wait", "--timeout", "30s")

    assert (result.exit_code, result.stdout) == (0, '{"scenes":5}\n')
    assert result.stderr.startswith("submitted make_film ")


def test_waiting_for_a_job_that_fails_ends_with_1_and_its_error(cli: Cli, app: str):
    with working(app):
        plain = cli("submit", app, "fail", "--args", '["no paper"]', "--wait", "--timeout", "30s")
        as_json = cli("submit", app, "fail", "--args", '["no ink"]', "--wait", "--timeout", "30s", "--json")

    assert (plain.exit_code, plain.stdout) == (1, "")
    assert "RuntimeError: no paper" in plain.stderr.splitlines()[-1]
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["job"]["error"]["message"] == "no ink"


def test_waiting_has_an_end_and_leaves_the_job_in_its_queue(cli: Cli, app: str):
    result = cli("submit", app, "nothing_to_give", "--wait", "--timeout", "0.05s")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "0.05 s" in result.stderr.splitlines()[-1]
    assert [job["state"] for job in cli.json("jobs")["jobs"]] == ["available"]
