"""Durable jobs and pipelines for long-running AI work, in plain Python."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app.app import App as App
    from holdfast.app.attaching import attach as attach
    from holdfast.app.callbacks import callback as callback
    from holdfast.app.flows import FlowSignature as FlowSignature
    from holdfast.app.flows import batch as batch
    from holdfast.app.flows import chain as chain
    from holdfast.app.flows import chord as chord
    from holdfast.app.flows import group as group
    from holdfast.app.items.run_items import run_items as run_items
    from holdfast.app.items.run_items import run_items_async as run_items_async
    from holdfast.app.run import Run as Run
    from holdfast.app.settings import Settings as Settings
    from holdfast.app.signatures import FollowUp as FollowUp
    from holdfast.app.signatures import JobSignature as JobSignature
    from holdfast.app.step import step as step
    from holdfast.app.waiting import ask as ask
    from holdfast.app.waiting import sleep as sleep
    from holdfast.app.waiting import wait_for as wait_for
    from holdfast.blobs.blob import Blob as Blob
    from holdfast.core.alerts import AlertEvent as AlertEvent
    from holdfast.core.declared_limits import Limit as Limit
    from holdfast.core.errors import AlreadyHappened as AlreadyHappened
    from holdfast.core.errors import BadValue as BadValue
    from holdfast.core.errors import BlobError as BlobError
    from holdfast.core.errors import BlobGone as BlobGone
    from holdfast.core.errors import BlobsAway as BlobsAway
    from holdfast.core.errors import Duplicate as Duplicate
    from holdfast.core.errors import EffectInDoubt as EffectInDoubt
    from holdfast.core.errors import HoldfastError as HoldfastError
    from holdfast.core.errors import Invalid as Invalid
    from holdfast.core.errors import ItemFailure as ItemFailure
    from holdfast.core.errors import ItemsFailed as ItemsFailed
    from holdfast.core.errors import JobCancelled as JobCancelled
    from holdfast.core.errors import JobError as JobError
    from holdfast.core.errors import JobFailed as JobFailed
    from holdfast.core.errors import KeyConflict as KeyConflict
    from holdfast.core.errors import LeaseLost as LeaseLost
    from holdfast.core.errors import Moved as Moved
    from holdfast.core.errors import NotAllowed as NotAllowed
    from holdfast.core.errors import NotFound as NotFound
    from holdfast.core.errors import Outrun as Outrun
    from holdfast.core.errors import QueueFull as QueueFull
    from holdfast.core.errors import Refused as Refused
    from holdfast.core.errors import StepFailed as StepFailed
    from holdfast.core.errors import StoreBusy as StoreBusy
    from holdfast.core.errors import StoreClosed as StoreClosed
    from holdfast.core.errors import StoreDamaged as StoreDamaged
    from holdfast.core.errors import StoreError as StoreError
    from holdfast.core.errors import StoreForeign as StoreForeign
    from holdfast.core.errors import StoreFull as StoreFull
    from holdfast.core.errors import StoreLost as StoreLost
    from holdfast.core.errors import StoreUnwritable as StoreUnwritable
    from holdfast.core.errors import UndoFailed as UndoFailed
    from holdfast.core.errors import UnknownOption as UnknownOption
    from holdfast.core.errors import Unstored as Unstored
    from holdfast.core.errors import WrongColour as WrongColour
    from holdfast.core.model import Retry as Retry
    from holdfast.core.throttling import Throttled as Throttled
    from holdfast.core.unique import Unique as Unique
    from holdfast.jobs.job_events import JobEvent as JobEvent
    from holdfast.jobs.schedule_views import ScheduleView as ScheduleView
    from holdfast.jobs.status import Status as Status
    from holdfast.worker.context import current as current
    from holdfast.worker.context import progress as progress
    from holdfast.worker.context import spend as spend
    from holdfast.worker.context import tx as tx
    from holdfast.worker.held_job import Suspended as Suspended

__version__ = "0.1.0"

# Names are imported on first use, so that the command line starts quickly.
_HOMES = {
    "App": "holdfast.app.app",
    "FlowSignature": "holdfast.app.flows",
    "batch": "holdfast.app.flows",
    "chain": "holdfast.app.flows",
    "chord": "holdfast.app.flows",
    "group": "holdfast.app.flows",
    "AlreadyHappened": "holdfast.core.errors",
    "BadValue": "holdfast.core.errors",
    "Blob": "holdfast.blobs.blob",
    "BlobError": "holdfast.core.errors",
    "BlobGone": "holdfast.core.errors",
    "BlobsAway": "holdfast.core.errors",
    "Duplicate": "holdfast.core.errors",
    "EffectInDoubt": "holdfast.core.errors",
    "HoldfastError": "holdfast.core.errors",
    "Invalid": "holdfast.core.errors",
    "ItemFailure": "holdfast.core.errors",
    "ItemsFailed": "holdfast.core.errors",
    "JobCancelled": "holdfast.core.errors",
    "JobError": "holdfast.core.errors",
    "JobFailed": "holdfast.core.errors",
    "KeyConflict": "holdfast.core.errors",
    "Limit": "holdfast.core.declared_limits",
    "LeaseLost": "holdfast.core.errors",
    "Moved": "holdfast.core.errors",
    "NotAllowed": "holdfast.core.errors",
    "NotFound": "holdfast.core.errors",
    "Outrun": "holdfast.core.errors",
    "QueueFull": "holdfast.core.errors",
    "Refused": "holdfast.core.errors",
    "StepFailed": "holdfast.core.errors",
    "StoreBusy": "holdfast.core.errors",
    "StoreClosed": "holdfast.core.errors",
    "StoreDamaged": "holdfast.core.errors",
    "StoreError": "holdfast.core.errors",
    "StoreForeign": "holdfast.core.errors",
    "StoreFull": "holdfast.core.errors",
    "StoreLost": "holdfast.core.errors",
    "StoreUnwritable": "holdfast.core.errors",
    "Throttled": "holdfast.core.throttling",
    "UndoFailed": "holdfast.core.errors",
    "Unique": "holdfast.core.unique",
    "UnknownOption": "holdfast.core.errors",
    "Unstored": "holdfast.core.errors",
    "WrongColour": "holdfast.core.errors",
    "Retry": "holdfast.core.model",
    "run_items": "holdfast.app.items.run_items",
    "run_items_async": "holdfast.app.items.run_items",
    "AlertEvent": "holdfast.core.alerts",
    "JobEvent": "holdfast.jobs.job_events",
    "ScheduleView": "holdfast.jobs.schedule_views",
    "Status": "holdfast.jobs.status",
    "Run": "holdfast.app.run",
    "Settings": "holdfast.app.settings",
    "FollowUp": "holdfast.app.signatures",
    "JobSignature": "holdfast.app.signatures",
    "step": "holdfast.app.step",
    "ask": "holdfast.app.waiting",
    "attach": "holdfast.app.attaching",
    "callback": "holdfast.app.callbacks",
    "sleep": "holdfast.app.waiting",
    "wait_for": "holdfast.app.waiting",
    "Suspended": "holdfast.worker.held_job",
    "current": "holdfast.worker.context",
    "progress": "holdfast.worker.context",
    "spend": "holdfast.worker.context",
    "tx": "holdfast.worker.context",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"holdfast has no {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
