"""What the arguments of a call say about its job: the limits that it uses, its fair key, its unique name.

Must not submit anything.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from holdfast.core.declared_limits import uses_of
from holdfast.core.fairness import fair_key
from holdfast.core.unique import unique_name
from holdfast.jobs.requests import NO_DEMANDS, Demands, JobRequest
from holdfast.worker.registry import JobSpec


def demands_of(spec: JobSpec, request: JobRequest, text: str, bound: Callable[[], Mapping[str, Any]]) -> Demands:
    """Return the demands of a call. `text` is its arguments as JSON; `bound` returns them by name."""
    if not (spec.limits or spec.fair or request.unique):
        return NO_DEMANDS
    name, facts = f"job {spec.type}", {"queue": request.queue, "type": spec.type}
    given = bound() if spec.limits or spec.fair else {}
    unique = request.unique
    return Demands(
        uses_of(name, spec.limits, given, facts) if spec.limits else (),
        fair_key(name, spec.fair, given) if spec.fair else "",
        None if unique is None else unique_name(unique, request, text, partial(spec.signature.plain, text)),
    )
