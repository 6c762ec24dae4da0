"""The laws of the command line itself: lazy verbs, one-line errors, exit codes."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import __version__, cli
from holdfast.cli.main import VERBS, Verb, main

ERRORS = """
import click
from holdfast.core.errors import Invalid, NotFound

@click.command()
@click.argument("kind")
def stumble(kind):
    if kind == "invalid":
        raise Invalid("url 'ftp:': unknown kind of store;\\n  give sqlite:///x.db")
    if kind == "refused":
        raise NotFound("job 42: not found; see `holdfast jobs`")
    if kind == "silent":
        raise NotFound
"""


@pytest.fixture
def stumble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "verb_that_stumbles.py").write_text(ERRORS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(VERBS, "stumble", Verb("verb_that_stumbles", "stumble", "Fails as told."))


@pytest.mark.usefixtures("stumble")
@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("refused", 1, "holdfast: job 42: not found; see `holdfast jobs`\n"),
        ("silent", 1, "holdfast: NotFound\n"),
        ("invalid", 2, "holdfast: url 'ftp:': unknown kind of store; give sqlite:///x.db\n"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_an_exit_code(kind: str, code: int, line: str) -> None:
    result = CliRunner().invoke(main, ["stumble", kind])

    assert (result.exit_code, result.stdout, result.stderr) == (code, "", line)


@pytest.mark.parametrize("call", [["lifecycle", "--format", "nonsense"], ["no-such-verb"], ["--no-such-option"]])
def test_a_wrong_call_exits_with_2(call: list[str]) -> None:
    result = CliRunner().invoke(main, call)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert call[-1] in result.stderr


def test_a_verb_without_a_module_is_neither_listed_nor_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, "ghost", Verb("holdfast.cli.verbs.ghost", "ghost", "Not written yet."))

    assert "ghost" not in CliRunner().invoke(main, ["--help"]).stdout
    assert CliRunner().invoke(main, ["ghost"]).exit_code == 2
    assert CliRunner().invoke(main, ["lifecycle"]).exit_code == 0


def test_help_lists_every_verb_that_is_there_with_an_example() -> None:
    shown = CliRunner().invoke(main, ["--help"]).stdout

    for name, verb in VERBS.items():
        assert (verb.line in shown) == (find_spec(verb.module) is not None), name
    assert "Examples:\n    holdfast demo\n    holdfast lifecycle\n" in shown


def test_version_names_the_version_of_the_package() -> None:
    assert CliRunner().invoke(main, ["--version"], prog_name="holdfast").stdout == f"holdfast {__version__}\n"


@pytest.mark.parametrize("call", [["--help"], ["--version"], ["lifecycle"]])
def test_start_up_imports_neither_pydantic_nor_another_verb(call: list[str]) -> None:
    code = (
        "import sys; from holdfast.cli.main import VERBS, main; main(sys.argv[1:], standalone_mode=False); "
        "others = {verb.module for name, verb in VERBS.items() if name not in sys.argv}; "
        "print(*({'pydantic', 'asyncio', 'sqlite3'} | others) & set(sys.modules), file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code, *call], capture_output=True, text=True, check=True, timeout=60)

    assert done.stderr.split() == []


@pytest.mark.parametrize(
    "command", [[str(Path(sys.executable).with_name("holdfast"))], [sys.executable, "-m", cli.__name__]]
)
def test_the_console_script_and_the_module_are_the_same_command(command: list[str]) -> None:
    done = subprocess.run([*command, "lifecycle"], capture_output=True, text=True, check=True, timeout=60)
    wrong = subprocess.run([*command, "nonsense"], capture_output=True, text=True, check=False, timeout=60)

    assert "available" in done.stdout
    assert "\x1b" not in done.stdout
    assert wrong.returncode == 2
    assert wrong.stderr == "holdfast: there is no verb 'nonsense'; see holdfast --help\n"


def test_ctrl_c_while_modules_are_imported_shows_no_frames():
    code = """
import sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "holdfast.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
import holdfast.cli
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (1, "holdfast: interrupted\n")


@pytest.mark.parametrize("verb", ["worker tale:app", "status", "doctor tale:app", "review"])
def test_a_damaged_store_is_told_in_one_line_without_frames(verb: str, tmp_path: Path):
    (tmp_path / "tale.py").write_text("from holdfast import App\napp = App()\n")
    (tmp_path / "holdfast.db").write_bytes(b"not a database" * 1_000)
    command = [sys.executable, "-m", "holdfast.cli", *verb.split()]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert len([line for line in said.splitlines() if "not a readable SQLite database" in line]) == 1
    assert "Traceback" not in said
    assert 'File "' not in said
