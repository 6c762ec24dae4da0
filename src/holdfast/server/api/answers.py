"""The API's answers that are no page: what a submit and an act say. Must not make a sentence."""

from msgspec import Struct

from holdfast.jobs.typed import JobType
from holdfast.jobs.views.pages.parts import JobLine


class Submitted(Struct, frozen=True, kw_only=True):
    """The job that was submitted, or the one that had the same key or was the same by `unique`."""

    id: str
    is_new: bool
    job: JobLine


class Acted(Struct, frozen=True, kw_only=True):
    """What an act on a job did, and the job as it is now."""

    words: str
    job: JobLine


class ReplayPlan(Struct, frozen=True, kw_only=True):
    """What a replay of a job would do: which steps run again, which keep their results, what it costs."""

    words: str
    will_run: tuple[str, ...]
    recorded: tuple[str, ...]
    in_doubt: tuple[str, ...]
    children: tuple[str, ...]
    effects: tuple[str, ...]
    expected: dict[str, int]
    ms: int | None
    spent: dict[str, float]


class Done(Struct, frozen=True, kw_only=True):
    """What an act on a queue, a worker or a schedule did, and the job that it submitted, if it did."""

    words: str
    job: str | None = None


class JobTypes(Struct, frozen=True, kw_only=True):
    """The job types that can be submitted with typed arguments. Without a loaded app, the types that workers know."""

    is_typed: bool
    types: tuple[JobType, ...]
    known: tuple[str, ...]
