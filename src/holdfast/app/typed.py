"""The jobs of an App for a server: their types, and typed submits. Must not know HTTP."""

import inspect
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.app.app import App
from holdfast.app.job import DecoratedJob
from holdfast.core.codec import Signature
from holdfast.core.errors import BadValue, Invalid, NotFound
from holdfast.jobs.typed import JobType
from holdfast.worker.registry import check_fits


class AppJobs:
    """The jobs of an App, as `TypedJobs` describes them."""

    def __init__(self, app: App) -> None:
        self._app = app

    def types(self) -> list[JobType]:
        """Return the job types, with the JSON Schema of their arguments."""
        return [self._type(name) for name in self._app.registry.types()]

    def _type(self, name: str) -> JobType:
        spec = self._app.registry.get(name)
        assert spec is not None
        try:
            arguments = spec.signature.schema()
        except BadValue:  # a hint names a class that isn't defined yet
            arguments = {}
        return JobType(
            type=name,
            queue=spec.queue,
            stages=spec.options.stages,
            description=(inspect.getdoc(spec.function) or "").partition("\n")[0],
            arguments=arguments,
        )

    def signature(self, type: str) -> Signature | None:
        """Return the signature of a job type; None if the app doesn't have it."""
        spec = self._app.registry.get(type)
        return None if spec is None else spec.signature

    def check_step_args(self, step: str, args: str) -> None:
        """Refuse arguments that don't fit a step with this name. A step that the app doesn't have takes any."""
        check_fits(step, lambda spec: spec.signature.decode(args))

    async def submit(self, type: str, args: list[Any], kwargs: Mapping[str, Any], **options: Any) -> str:
        """Submit a job, and return its id. Arguments and options are checked as in Python."""
        spec = self._app.registry.get(type)
        if spec is None:
            raise NotFound(f"the loaded app has no job of type {type[:80]!r}")
        places, named = spec.signature.read_call(args, kwargs)
        job = DecoratedJob[Any, Any](self._app.open, spec)
        run = await job.submit(*places, **named, **{name: _read(name, value) for name, value in options.items()})
        return run.id


def _read(name: str, value: Any) -> Any:
    """Read a time that an option gives as text."""
    if name == "at" or (name == "expires" and "-" in str(value)):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise Invalid(f"{name}={value[:40]!r}: not a time; write it like 2026-03-01T09:00:00Z") from None
    return value
