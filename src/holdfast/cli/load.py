"""Finding the user's App: `video:app`, or a file: `examples/video.py:app`. Must not open a store."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from holdfast.app import App
from holdfast.core.errors import Invalid


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
        raise Invalid(f"{target}: {name} is a {type(found).__name__}, not a holdfast.App")
    return found


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
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return Invalid(f"{place} can't be imported: {type(error).__name__}: {error}{where}")
