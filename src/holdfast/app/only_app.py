"""The only App of this process: a flow of nothing belongs to it. Must not know what else an App is."""

from collections.abc import Awaitable
from typing import Protocol
from weakref import WeakSet

from holdfast.core.errors import Invalid
from holdfast.jobs.service import Jobs


class Opens(Protocol):
    """An App, as far as it is known here."""

    def open(self) -> Awaitable[Jobs]:
        """Open its store."""


APPS: WeakSet[Opens] = WeakSet()
"""The Apps of this process."""


def note_app(app: Opens) -> None:
    """Count an App of this process."""
    APPS.add(app)


async def open_only_app() -> Jobs:
    """Open the store of the only App; or raise Invalid if there are several, or none."""
    apps = list(APPS)
    if len(apps) != 1:
        raise Invalid(
            f"a flow of nothing belongs to no App, and this program has {len(apps) or 'none'}; leave it out, or "
            "add a job, for example the callback of a chord: chord(group(…), join.s())"
        )
    return await apps[0].open()
