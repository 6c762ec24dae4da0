"""Finding the user's App: `video:app`, or a file: `examples/video.py:app`. Must not open a store."""

import importlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import ModuleType, TracebackType

from holdfast.app.app import App
from holdfast.core.canonical import a_or_an
from holdfast.core.codec import Signature, canonical
from holdfast.core.errors import BadValue, Invalid
from holdfast.core.model import Job
from holdfast.engines import engine_for
from holdfast.worker.registry import STEPS

OURS = Path(__file__).resolve().parents[1]
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
INSTALLED = {"site-packages", "dist-packages"}
"""Whose code is not the user's: this package's, Python's own, and what lies in folders of these names."""


def load_app(target: str) -> App:
    """The App that MODULE:APP names, or Invalid with one line that says what is wrong with it."""
    place, _, name = target.rpartition(":")
    if not place:
        place, name = name, "app"
    if not place or not name:
        raise Invalid(f"{target!r}: give MODULE:APP, for example video:app or examples/video.py:app")
    module = _from_file(Path(place)) if place.endswith(".py") or "/" in place else _from_path(place)
    found = getattr(module, name, None)
    if found is None:
        apps = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f"; it has {', '.join(apps)}" if apps else "; it has no App at all"
        raise Invalid(f"{target}: {place} has no {name!r}{hint}")
    if not isinstance(found, App):
        raise Invalid(f"{target}: {name} is {a_or_an(type(found).__name__)}, not a holdfast.App")
    return found


def signature_in(app: App, target: str, job: Job) -> Signature:
    """What a job's function takes and gives, as the App that `target` names knows it."""
    spec = app.registry.get(job.type)
    if spec is None:
        known = ", ".join(app.registry.types()) or "none at all"
        raise Invalid(f"job {job.id}: {target} has no job of type {job.type}; it has {known}")
    return spec.signature


def check_step_result(target: str, name: str, result: object) -> None:
    """Refuse what a step can't have returned, by the type hint of the App's step; of several of a name, of all."""
    known = list(STEPS.get(name, {}).values())
    if not known:
        raise Invalid(f"{target} has no step {name!r}; leave out --app, and it is not checked")
    for spec in known:
        try:
            spec.signature.result.decode(canonical(result))
            return
        except BadValue:
            if spec is known[-1]:
                raise


def _from_path(path: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(error.name + ".")):
            raise Invalid(
                f"there is no module {path!r} here or among the installed packages; "
                "give its import path, or a file such as examples/video.py:app"
            ) from error
        raise _failed(path, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(path, error) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise Invalid(f"{path}: there is no such file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Invalid(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failed(str(path), error) from error
    return module


def _failed(place: str, error: BaseException) -> Invalid:
    """One line for what the user's module raised at import, beginning with their own file and line."""
    if isinstance(error, Invalid) and (trouble := _environment_trouble()) is not None:
        return trouble  # not their module's
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename is not None:
        where, text = f"{_shown(error.filename)}:{error.lineno}", error.msg
    else:
        frame = _own_frame(error.__traceback__)
        where = place if frame is None else f"{_shown(frame.filename)}:{frame.lineno}"
    what_now = "correct it and start again"
    if isinstance(error, ModuleNotFoundError):
        what_now = "install it, or correct the import, and start again"
    elif isinstance(error, SystemExit):
        what_now = "it ends the program: put that under if __name__ == '__main__'"
    return Invalid(f"{where}: {type(error).__name__}{f': {text}' if text else ''}; {what_now}")


def _environment_trouble() -> Invalid | None:
    """What is wrong with the store that the environment names, if something is."""
    try:
        if url := os.environ.get("HOLDFAST_URL"):
            engine_for(url)
    except Invalid as error:
        return Invalid(f"$HOLDFAST_URL: {error}")
    return None


def _own_frame(trace: TracebackType | None) -> FrameSummary | None:
    """The deepest frame in the user's own code; in an installed package's where they have none."""
    frames = [frame for frame in extract_tb(trace) if not frame.filename.startswith("<frozen")]
    others = [frame for frame in frames if not Path(frame.filename).is_relative_to(OURS)]
    own = [frame for frame in others if not _is_installed(Path(frame.filename))]
    return next(reversed(own or others or frames), None)


def _is_installed(path: Path) -> bool:
    return bool(INSTALLED & set(path.parts)) or path.is_relative_to(STANDARD_LIBRARY)


def _shown(filename: str) -> str:
    """A file as the user would name it here."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
