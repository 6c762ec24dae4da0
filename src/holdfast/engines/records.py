"""The names of the records that engines know, and the workers among them.

Must not know any store. The record `moved` is in `core.moves`.
"""

from holdfast.core.model import Presence, Record
from holdfast.core.unreadable import presence_of

BLOBS = "blobs"
"""The record that names the blob store that was configured, and this store's own folder in it."""

PAUSE = "pause/"
"""A record `pause/QUEUE` pauses that queue: a claim takes no jobs from it."""

QUIET = "quiet/"
"""A record `quiet/WORKER` tells that worker to claim no more jobs."""

WORKER = "worker/"
"""`records("worker/")` are the workers' statuses, from their last heartbeats."""


def worker_in(record: Record) -> Presence:
    """Return the worker of such a record, or a placeholder if the record can't be read."""
    return presence_of(record.value, record.name.removeprefix(WORKER), record.at)
