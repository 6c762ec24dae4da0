"""MODULE:APP that can't be loaded: one line, which points at the user's own file and line."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.load_app import load_app
from holdfast.core.errors import Invalid

HEAD = "from holdfast import App, step\n\n"

BROKEN = {
    "name": ("x + 1\n", "NameError: name 'x' is not defined; correct it and start again"),
    "below": ("def f():\n    return {}['a']\nf()\n", "KeyError: 'a'; correct it and start again"),
    "library": ("import json; json.loads('{')\n", "JSONDecodeError: Expecting property name enclosed in double quotes"),
    "ours": ("step(lambda x: x)\n", "Invalid: @step on a lambda"),
    "module": ("import nowhere_at_all\n", "No module named 'nowhere_at_all'; install it, or correct the import"),
    "syntax": ("def (\n", "SyntaxError: invalid syntax; correct it and start again"),
    "exit": (
        "raise SystemExit(3)\n",
        "SystemExit: 3; the import ends the program; put that code under if __name__ == '__main__'",
    ),
    "silent": ("raise RuntimeError\n", "RuntimeError; correct it and start again"),
}


def line_of(target: str) -> str:
    with pytest.raises(Invalid) as caught:
        load_app(target)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize("by", ["file", "module"])
@pytest.mark.parametrize("kind", BROKEN)
def test_an_error_in_the_users_module_is_told_with_its_file_and_line(kind: str, by: str, folder: Path):
    code, told = BROKEN[kind]
    name = f"broken_{kind}_{by}"
    (folder / f"{name}.py").write_text(HEAD + code)

    line = line_of(f"{name}:app" if by == "module" else f"{name}.py:app")

    number = 4 if kind == "below" else 3
    assert line.startswith(f"{name}.py:{number}: ")
    assert told in line


@pytest.mark.parametrize("code", ["undefined\n", "def (\n"])
def test_the_deepest_of_the_users_files_is_told(code: str, folder: Path):
    name = f"deep_{len(code)}"
    (folder / f"{name}_part.py").write_text("\n\n\n" + code)
    (folder / f"{name}.py").write_text(f"import {name}_part\n")

    assert line_of(f"{name}:app").startswith(f"{name}_part.py:4: ")


def test_a_file_elsewhere_is_told_by_its_whole_path(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    other = tmp_path_factory.mktemp("other") / "elsewhere_broken.py"
    other.write_text("oops\n")

    assert line_of(f"{other}:app").startswith(f"{other}:1: NameError")


def test_an_installed_package_that_breaks_is_told_where_it_breaks(folder: Path):
    package = folder / "lib" / "site-packages"
    package.mkdir(parents=True)
    (package / "installed_broken.py").write_text("\noops\n")
    sys.path.insert(0, str(package))

    assert line_of("installed_broken:app").startswith("lib/site-packages/installed_broken.py:2: NameError")


def test_a_module_that_is_not_there_and_a_name_that_is_not_in_it(folder: Path):
    (folder / "shop_there.py").write_text("from holdfast import App\nmine = App()\n")

    assert "there is no module 'nowhere_at_all'" in line_of("nowhere_at_all:app")
    assert line_of("shop_there:app") == "shop_there:app: there is no 'app' in shop_there; it has mine"


@pytest.mark.parametrize("url", ["sqlite://jobs.db", "redis://host:port/0", "nope://x", "sqlite:///"])
def test_a_bad_url_is_not_blamed_on_the_users_module(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "shop.py").write_text(f"{HEAD}app = App()\n")

    given = CliRunner().invoke(main, ["worker", "shop.py:app", "--url", url])
    monkeypatch.setenv("HOLDFAST_URL", url)
    named = CliRunner().invoke(main, ["worker", "shop.py:app"])

    assert (given.exit_code, named.exit_code) == (2, 2)
    assert "shop.py" not in given.output + named.output
    assert named.output.startswith("holdfast: $HOLDFAST_URL: ")


def test_an_apps_own_bad_url_is_the_modules_error(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///fine.db")
    (folder / "wrong_shop.py").write_text(f"{HEAD}app = App('sqlite://jobs.db')\n")

    assert line_of("wrong_shop.py:app").startswith("wrong_shop.py:3: Invalid: 'sqlite://jobs.db': write sqlite:///")


def test_what_is_no_app_is_named_with_its_article(folder: Path):
    (folder / "only_job.py").write_text(
        f"{HEAD}real = App('memory:')\n@real.job\nasync def app() -> int:\n    return 1\n"
    )

    assert "app is a job, not an App" in line_of("only_job.py:app")
