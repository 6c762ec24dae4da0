"""The types of Holdfast's own jobs, which every worker knows (`worker/built_in`). Must not know how they run."""

from holdfast.jobs.bulk_acts import BULK_TYPE
from holdfast.jobs.consequences import UNDO_TYPE
from holdfast.jobs.flows import FLOW_TYPE

BUILT_IN_TYPES = (BULK_TYPE, FLOW_TYPE, UNDO_TYPE)

OWN_QUEUE = "holdfast.own"
"""The queue of built-in jobs that every server runs, so that flows over HTTP need no other worker."""
