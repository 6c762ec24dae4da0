"""Names that are probably misspelled: queues that a worker serves, and stages. Only a warning: they may be right."""

from collections.abc import Sequence

from holdfast.app.step import DecoratedStep
from holdfast.core.suggestions import suggest
from holdfast.safe_text import logger
from holdfast.worker.registry import JobSpec, Registry

log = logger("holdfast.app")


def warn_of_queues(queues: Sequence[str], known: Sequence[str]) -> None:
    """Warn of a queue that no job of the app is sent to, and whose name resembles one that some are."""
    for queue in queues:
        if queue not in known and (hint := suggest(queue, known)):
            log.warning("queue %s: no job of this app uses it%s", queue, hint)


def warn_of_stages(registry: Registry) -> None:
    """Warn of stages that no step has, and whose names resemble a step of the job's module. Others are free text."""
    for spec in map(registry.get, registry.types()):
        if spec is None or not spec.options.stages:
            continue
        known = _steps_beside(spec)
        for stage in spec.options.stages:
            if stage not in known and (hint := suggest(stage, known)):
                log.warning("job %s: stage %s isn't a step in its module%s", spec.type, stage, hint)


def _steps_beside(spec: JobSpec) -> set[str]:
    names = getattr(spec.function, "__globals__", {})
    return {one.name for one in names.values() if isinstance(one, DecoratedStep)}
