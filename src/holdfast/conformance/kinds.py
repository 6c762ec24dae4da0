"""Which engine a test runs on: a store's URL, or a class of somebody else's. Must not open anything."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from holdfast.core.errors import Invalid
from holdfast.engines import engine_class
from holdfast.engines.contract import Clock, Engine, system_clock

THIS_MACHINE = "this machine's"
"""What `guarantees.clock` says of an engine that goes by the clock it is given."""

NOTHING = "nothing"
"""What `guarantees.durable` says of an engine that forgets all when it is closed."""

_CLASS = re.compile(r"(?P<module>\w+(?:\.\w+)*):(?P<name>[A-Z]\w*)(?:=(?P<url>.+))?")


class Kind(Struct, frozen=True):
    """One engine under test: its class, the URL it was named with, and where the class is when it isn't ours."""

    engine: type[Engine]
    url: str
    place: str = ""

    def at(self, url: str, clock: Clock) -> Engine:
        """The engine for one store of this kind, not yet opened."""
        return self.engine.from_url(url, clock)

    def scratch(self, folder: Path) -> str:
        """The URL of an empty store of this kind."""
        return self.engine.scratch(self.url, folder)

    def text(self, url: str) -> str:
        """What `kind_of` reads as this kind at that URL, for another process."""
        return f"{self.place}={url}" if self.place else url


@cache
def kind_of(text: str) -> Kind:
    """The engine that `--engine` means, or Invalid."""
    kind = _kind_of(text)
    kind.at(kind.url, system_clock)  # an engine refuses a URL that it can't read, before anything is opened
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
        raise Invalid(f"{text}: that is no Engine; derive it from holdfast.engines.contract.Engine")
    return Kind(found, named["url"] or found.guarantees.url, f"{named['module']}:{named['name']}")
