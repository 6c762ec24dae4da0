"""What to run for Holdfast's own jobs. Must not run them."""

from holdfast.core.model import Job
from holdfast.engines.contract import Engine
from holdfast.worker.bulk_acts import bulk_spec
from holdfast.worker.flow_runs import flow_spec
from holdfast.worker.registry import JobSpec, Registry
from holdfast.worker.undo import undo_spec


def built_in_spec(job: Job, engine: Engine, registry: Registry) -> JobSpec | None:
    """Return what to run for one of Holdfast's own jobs; None for any other type."""
    return undo_spec(job, engine, registry) or bulk_spec(job, engine) or flow_spec(job)
