"""Acts on many jobs as one durable job: what is asked, how far it is, how it is stopped.

An act is a job of a built-in type, which every worker knows and runs page by page (`worker/bulk_acts`), so it survives
a crash, shows its progress like any job, and is stopped by cancelling it. Must not act on a job itself.
"""

from collections import Counter
from typing import Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.codec import canonical, parse
from holdfast.core.errors import Invalid, NotFound
from holdfast.core.lifecycle import EVENT_ROWS
from holdfast.core.limits import REASON_CHARACTERS
from holdfast.core.model import Event, Job, Options, State
from holdfast.engines.records import QUIET
from holdfast.jobs.remote import RemoteJobs
from holdfast.jobs.requests import PRIORITY_LIMIT, JobRequest
from holdfast.jobs.selections import Selection, check_selection, count, read_all
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.text import one_line, plural

BULK_TYPE = "holdfast.bulk"
"""The type of the jobs that act on many jobs. Every worker knows it."""

KEPT_MS = 30 * 24 * 60 * 60_000
"""How long an act that has ended is kept."""

PAGES_COUNTED = 10
"""How many pages of jobs are looked at before an act is submitted. With more, its total is left open."""

EXAMPLES = 20
"""How many refusals an act's result lists."""

NO_WORKER = "no worker takes jobs now, so it starts once one does"

Verb = Literal["replay", "resolve", "discard", "cancel"]

PARTICIPLES: dict[str, str] = {
    "replay": "replayed",
    "resolve": "resolved",
    "discard": "discarded",
    "cancel": "cancelled",
}


class Act(Struct, frozen=True, omit_defaults=True):
    """What to do with which jobs, who asked for it and why. `result` is for a resolve: the same for every job."""

    verb: Verb
    chosen: Selection
    by: str = "person"
    reason: str = ""
    result: str = "null"
    total: int = 0
    """How many jobs matched when it was submitted; 0 if there were too many to count."""


class Outcome(Struct, frozen=True):
    """What an act has done: to how many jobs, and which ones refused, with the reasons of the first ones."""

    done: int = 0
    refused: int = 0
    examples: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: "Outcome") -> "Outcome":
        """The outcome of two parts together."""
        examples = (self.examples + other.examples)[:EXAMPLES]
        return Outcome(self.done + other.done, self.refused + other.refused, examples)

    def words(self, verb: str) -> str:
        """In words: "30 jobs replayed, 2 refused"."""
        refused = f", {self.refused:,} refused" if self.refused else ""
        return f"{plural(self.done, 'job')} {PARTICIPLES[verb]}{refused}"


def check_act(act: Act) -> Act:
    """Return an act if it is valid, with the states that its verb can change; or raise Invalid."""
    if act.verb not in get_args(Verb):
        raise Invalid(f"there is no bulk act {act.verb!r}; there are {', '.join(get_args(Verb))}")
    if len(act.reason) > REASON_CHARACTERS:
        raise Invalid(f"reason has {len(act.reason):,} characters, but the limit is {REASON_CHARACTERS:,}; shorten it")
    chosen = check_selection(act.chosen)
    possible = EVENT_ROWS[Event(act.verb)].sources
    if wrong := [state for state in chosen.states if state not in possible]:
        raise Invalid(
            f"jobs that are {wrong[0]} can't be {PARTICIPLES[act.verb]}; possible states: {', '.join(possible)}"
        )
    # Jobs in review wait for a person's decision, so a cancel takes them only if it names the state.
    usual = tuple(state for state in possible if act.verb != "cancel" or state is not State.REVIEW)
    return replace(act, chosen=replace(chosen, states=chosen.states or (() if chosen.ids else usual)))


async def count_concerned(jobs: Jobs, act: Act) -> Counter[str]:
    """Count the jobs that an act would concern, by type."""
    return await count(jobs.engine, check_act(act).chosen)


async def served_queues(jobs: Jobs) -> Counter[str]:
    """Return the queues that an act could run in now, each with how many workers take jobs of it."""
    now, workers = await jobs.engine.now(), await jobs.workers()
    quiet = {record.name.removeprefix(QUIET) for record in await jobs.engine.records(QUIET)}
    alive = [one for one in workers if not one.gone and now - one.beat_at <= one.lease_ms and one.worker not in quiet]
    paused = set(await jobs.paused())
    return Counter(queue for one in alive for queue in one.queues if queue not in paused)


async def submit_act(jobs: Jobs, act: Act) -> Job:
    """Submit an act. Raises NotFound if no job matches, unless there are too many jobs to look at now.

    It goes to the queue that its first job is in, or if no worker takes jobs of that one, to the queue of most workers:
    every worker knows how to run it.
    """
    if isinstance(jobs, RemoteJobs):
        return await jobs.start_bulk(act.verb, act.chosen, parse(act.result), act.reason)
    act, queue, total, read = check_act(act), "", 0, 0
    async for page in read_all(jobs.engine, act.chosen):
        total, read = total + len(page), read + 1
        queue = queue or (page[0].queue if page else "")
        if read >= PAGES_COUNTED:
            total, queue = 0, queue or act.chosen.queue or "default"
            break
    if not queue:
        raise NotFound(f"no job matches ({act.chosen.words()}), so there is nothing to {act.verb}")
    served = await served_queues(jobs)
    if queue not in served and served:
        queue = max(served, key=lambda name: (served[name], name))
    request = JobRequest(
        type=BULK_TYPE,
        queue=queue,
        args=canonical([msgspec.to_builtins(replace(act, total=total))]),
        priority=PRIORITY_LIMIT,
        options=Options(keep_ms=KEPT_MS, tags=(act.verb,)),
    )
    (accepted,) = await jobs.submit([request])
    return await jobs.get(accepted.id)


class Progress(Struct, frozen=True):
    """How far an act is. It is stopped by cancelling its job."""

    id: str
    state: State
    act: Act
    outcome: Outcome
    hint: str = ""
    """Why it doesn't start; empty if it has, or if a worker is there for it."""

    def __str__(self) -> str:
        """In words."""
        act, of = self.act, f" of {self.act.total:,}" if self.outcome.done < self.act.total else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.outcome.words(act.verb)}{of} ({one_line(act.chosen.words(), 200)}): {self.state}{hint}"


async def act_progress(jobs: Jobs, id: str) -> Progress:
    """Return how far an act is, or raise NotFound."""
    job = await jobs.get(id)
    if job.type != BULK_TYPE:
        raise NotFound(f"job {id} is of type {job.type}, not an act on many jobs")
    pages = await jobs.engine.steps_under(id, f"{ACT_STEP}#")  # those that choose are large
    outcomes = [msgspec.json.decode(step.result, type=Outcome) for step in pages if step.result is not None]
    waits = job.state is State.AVAILABLE and job.queue not in await served_queues(jobs)
    hint = f"no worker takes jobs of queue {job.queue} now; it starts once one does" if waits else ""
    return Progress(id, job.state, act_of(job), sum(outcomes, Outcome()), hint)


ACT_STEP = "act"
"""The name of the steps that an act records, one for each page."""


def act_of(job: Job) -> Act:
    """Read what an act's job was asked to do."""
    return msgspec.json.decode(job.args, type=tuple[Act])[0]
