"""What a caller without an App may ask of the jobs that one declares: their types, and typed submits."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from holdfast.core.codec import Signature


class JobType(Struct, frozen=True, kw_only=True):
    """A job type of the loaded app, with the JSON Schema of its arguments."""

    type: str
    queue: str
    stages: tuple[str, ...]
    description: str
    arguments: dict[str, Any]


class TypedJobs(Protocol):
    """The jobs that an app declares."""

    def types(self) -> Sequence[JobType]:
        """Return the job types, with the JSON Schema of their arguments."""

    def signature(self, type: str) -> Signature | None:
        """Return the signature of a job type; None if the app doesn't have it."""

    def check_step_args(self, step: str, args: str) -> None:
        """Refuse arguments that don't fit a step with this name. A step that the app doesn't have takes any."""

    async def submit(self, type: str, args: list[Any], kwargs: Mapping[str, Any], **options: Any) -> str:
        """Submit a job, and return its id. Arguments and options are checked as in Python."""
