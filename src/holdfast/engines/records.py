"""The names of the records that engines know, and the workers among them.

Must not know any store. The record `moved` is in `core.moves`.
"""

from holdfast.core.model import Presence, Record
from holdfast.core.unreadable import presence_of

PAUSE = "pause/"
"""A record `pause/QUEUE` pauses that queue: a claim hands out nothing of it."""

QUIET = "quiet/"
"""A record `quiet/WORKER` tells that worker to claim nothing more."""

WORKER = "worker/"
"""`records("worker/")` are the workers' presences, as their beats told them."""


def worker_in(record: Record) -> Presence:
    """The worker that one of these records tells of; what stands for it if the record can't be read."""
    return presence_of(record.value, record.name.removeprefix(WORKER), record.at)
