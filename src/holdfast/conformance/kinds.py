"""Which engine a test runs on: a store's URL, or the class of another package. Must not open anything."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from holdfast.core.errors import Invalid
from holdfast.engines import engine_class
from holdfast.engines.contract import Clock, Engine, system_clock

THIS_MACHINE = "this machine's"
"""The value of `guarantees.clock` for an engine that uses the clock it gets."""

NOTHING = "nothing"
"""The value of `guarantees.durable` for an engine that forgets everything when it is closed."""

_CLASS = re.compile(r"(?P<module>\w+(?:\.\w+)*):(?P<name>[A-Z]\w*)(?:=(?P<url>.+))?")


class Kind(Struct, frozen=True):
    """One engine under test: its class, the URL it was named with, and the path of the class if it isn't ours."""

    engine: type[Engine]
    url: str
    place: str = ""

    def at(self, url: str, clock: Clock) -> Engine:
        """Return the engine for one store of this kind, not yet opened."""
        return self.engine.from_url(url, clock)

    def scratch(self, folder: Path) -> str:
        """Return the URL of an empty store of this kind."""
        return self.engine.scratch(self.url, folder)

    def text(self, url: str) -> str:
        """Return the text that `kind_of` reads as this kind at that URL, for another process."""
        return f"{self.place}={url}" if self.place else url


@cache
def kind_of(text: str) -> Kind:
    """Return the engine that `--engine` means, or raise Invalid."""
    kind = _kind_of(text)
    kind.at(kind.url, system_clock)  # an engine refuses an invalid URL before anything is opened
    return kind


def _kind_of(text: str) -> Kind:
    try:
        return Kind(engine_class(text), text)
    except Invalid:
        named = _CLASS.fullmatch(text)
        if named is None:
            raise
    try:
        found = getattr(import_module(named["module"]), named["name"])
    except (ImportError, AttributeError) as error:
        raise Invalid(f"{text}: no such engine class: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise Invalid(f"{text}: not an Engine; derive it from holdfast.engines.contract.Engine")
    return Kind(found, named["url"] or found.guarantees.url, f"{named['module']}:{named['name']}")
