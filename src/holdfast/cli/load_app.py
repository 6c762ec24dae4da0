"""Finds the user's App: `video:app`, or in a file `examples/video.py:app`. Must not open a store."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from holdfast.app.app import App
from holdfast.app.job import DecoratedJob
from holdfast.core.canonical import a_or_an
from holdfast.core.codec import Signature, canonical
from holdfast.core.errors import Invalid
from holdfast.core.model import Job
from holdfast.core.suggestions import suggest
from holdfast.engines import engine_for
from holdfast.tracebacks import Place, own_place, shown_path
from holdfast.worker.registry import STEPS, JobSpec, StepSpec, check_fits


def load_app(target: str) -> App:
    """Return the App that MODULE:APP names, or raise Invalid with one line that says what is wrong."""
    place, _, name = target.rpartition(":")
    if not place:
        place, name = name, "app"
    if not place or not name:
        raise Invalid(f"{target!r}: give MODULE:APP, for example video:app or examples/video.py:app")
    module = _from_file(Path(place)) if place.endswith(".py") or "/" in place else _from_path(place)
    found = getattr(module, name, None)
    apps = [key for key, value in vars(module).items() if isinstance(value, App)]
    if found is None:
        if not apps:
            raise Invalid(f"{place} defines no App; add app = App()")
        hint = suggest(name, apps) or f"; it has {', '.join(apps)}"
        raise Invalid(f"{target}: there is no {name!r} in {place}{hint}")
    if not isinstance(found, App):
        kind = "a job" if isinstance(found, DecoratedJob) else a_or_an(type(found).__name__)
        hint = f"; did you mean {place}:{apps[0]}?" if apps else ""
        raise Invalid(f"{target}: {name} is {kind}, not an App{hint}")
    return found


def signature_in(app: App, target: str, job: Job) -> Signature:
    """Return the signature of a job's function in the App that `target` names."""
    try:
        return spec_in(app, target, job.type).signature
    except Invalid as error:
        raise Invalid(f"job {job.id}: {error}") from None


def spec_in(app: App, target: str, type: str) -> JobSpec:
    """Return the job with this type in the App that `target` names, or raise Invalid with what was probably meant."""
    spec = app.registry.get(type)
    if spec is None:
        known = app.registry.types()
        listing = f"; it has {', '.join(known)}" if known else "; it has no jobs"
        raise Invalid(f"{target} has no job of type {type}{suggest(type, known) or listing}")
    return spec


def check_step_args(target: str, name: str, args: str) -> None:
    """Refuse arguments that don't fit the step. If several steps have the name, refuse what fits none."""
    _check_fits(target, name, lambda spec: spec.signature.decode(args))


def check_step_result(target: str, name: str, result: object) -> None:
    """Refuse a result that doesn't fit the step's type hint. If several steps have the name, refuse what fits none."""
    _check_fits(target, name, lambda spec: spec.signature.result.decode(canonical(result)))


def _check_fits(target: str, name: str, decode: Callable[[StepSpec], object]) -> None:
    if not STEPS.get(name):
        raise Invalid(
            f"{target} has no step {name!r}{suggest(name, sorted(STEPS)) or ';'} "
            "to give the value without a check, leave out --app"
        )
    check_fits(name, decode)


def _from_path(path: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(error.name + ".")):
            here = sorted(file.stem for file in Path.cwd().glob("*.py"))
            raise Invalid(
                f"there is no module {path!r} here or among the installed packages; "
                f"give its import path, or a file such as examples/video.py:app{suggest(path, here)}"
            ) from error
        raise _failed(path, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(path, error) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise Invalid(f"{path}: no such file")
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
    """Return one line about what the user's module raised at import, starting with the user's own file and line."""
    if isinstance(error, Invalid) and (trouble := _environment_trouble()) is not None:
        return trouble  # the module is not at fault
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename is not None:
        where, text = f"{shown_path(error.filename)}:{error.lineno}", error.msg
    else:
        frames = [Place(one.filename, one.lineno or 0, one.name) for one in extract_tb(error.__traceback__)]
        own = own_place(frames)
        where = place if own is None else f"{shown_path(own.filename)}:{own.line}"
    what_now = "correct it and start again"
    if isinstance(error, ModuleNotFoundError):
        what_now = "install it, or correct the import, and start again"
    elif isinstance(error, SystemExit):
        what_now = "the import ends the program; put that code under if __name__ == '__main__'"
    return Invalid(f"{where}: {type(error).__name__}{f': {text}' if text else ''}; {what_now}")


def _environment_trouble() -> Invalid | None:
    """Return what is wrong with the store that the environment names, or None."""
    try:
        if url := os.environ.get("HOLDFAST_URL"):
            engine_for(url)
    except Invalid as error:
        return Invalid(f"$HOLDFAST_URL: {error}")
    return None
