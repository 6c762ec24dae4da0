"""A job's status, for a person, as facts and as one sentence. Must not read a store.

The facts come from the job's row, its steps' counts and its worker's last heartbeat. `str(status)` is the sentence that
every caller shows: "draw, stage 3 of 7, 11 of 30, about 21 min left".
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.durations import in_words
from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import Error, Job, Retrying, Running, Spending, State, Step, StepState, Time, Wait
from holdfast.core.spending import closed, plain, spending_in, total_of
from holdfast.core.spending import in_words as in_currencies
from holdfast.core.summaries import StepCounts, StepSummary
from holdfast.jobs.budgets import Budget, BudgetWait
from holdfast.jobs.flows import FLOW_TYPE
from holdfast.jobs.limit_status import LimitWait
from holdfast.jobs.questions import waits_now
from holdfast.jobs.views.text import MOMENT_MS, ago, error_line, one_line, plural, span
from holdfast.jobs.views.waits import list_waits
from holdfast.safe_text import clean

PROGRESS_PATH = "~progress"
"""The record, next to a job's steps, of how far the job was when it last stopped running."""

SPENDING_PATH = f"{PROGRESS_PATH}/spending"
"""The record of what the job had spent then. Its path makes one read return both."""

TEXT_SHOWN = 60
"""How many characters of a job's own progress text are shown."""

RETRY_SHOWN = 300
"""How long the part about a step that is being retried may be."""

SOON_MS = 500
"""A shorter wait is shown as if it were over."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A job's status, for a person. Times are milliseconds: `…_at` since 1970, `…_ms` a duration."""

    id: str
    type: str
    queue: str
    state: State
    version: int
    stage: str
    stage_number: int | None
    stages: tuple[str, ...]
    done: int | None
    total: int | None
    made: int
    text: str
    attempt: int
    recoveries: int
    epoch: int
    worker: str | None
    steps: int
    error: Error | None
    waits: tuple[Wait, ...]
    run_at: Time | None
    created_at: Time
    finished_at: Time | None
    running_ms: int | None
    stage_ms: int | None
    read_at: Time
    """When it was read, by the store's clock."""
    trouble: str = ""
    """Why its worker can't write, such as a full disk. Until that is fixed, the job makes no progress."""
    retrying: Retrying | None = None
    """The step that failed last and is being retried, as reported by its worker."""
    retry_ms: int | None = None
    """The time until its next try; 0 if that has started or is about to."""
    limited: LimitWait | BudgetWait | None = None
    """The shared limit that it waits for, or its budget."""
    budget: Budget | None = None
    """The budget that it draws on."""
    failed: int = 0
    """How many items of a stopped job's stage failed. `done` doesn't count them."""
    spending: Spending = Spending()
    """What it has spent, in millionths: see `spent`, `wasted` and `saved`."""
    earlier: int = 0
    earlier_ms: int = 0
    """How many steps of the stage earlier attempts recorded, and how long they worked on it."""

    @property
    def spent(self) -> dict[str, float]:
        """Everything that the job has paid so far: `{"usd": 1.84, "tokens": 1200}`."""
        return plain(total_of(self.spending))

    @property
    def wasted(self) -> dict[str, float]:
        """The part of `spent` that went into tries that failed or were cut off."""
        return plain(self.spending.wasted)

    @property
    def saved(self) -> dict[str, float]:
        """What recorded steps saved after a crash, a retry or a replay, because they were not paid again."""
        return plain(self.spending.saved)

    @property
    def remaining_ms(self) -> int | None:
        """An estimate of the time left in this stage, from the average time per item in this attempt.

        As long as this attempt has made none, the items that earlier attempts recorded count.
        """
        made, worked_ms = (self.made, self.stage_ms) if self.made else (self.earlier, self.earlier_ms)
        if self.trouble or not made or self.done is None or self.total is None or self.stage_ms is None:
            return None
        return round((worked_ms or 0) / made * max(0, self.total - self.done))

    def progress(self) -> tuple[object, ...]:
        """Return the values that change when the job makes progress."""
        tries = None if self.retrying is None else (self.retrying.step, self.retrying.try_number)
        limited = self.limited.key if isinstance(self.limited, LimitWait) else self.limited
        waits = tuple(wait.name for wait in self.waits), limited
        return self.state, self.stage, self.done, self.total, self.text, self.steps, tries, waits, self.trouble

    @property
    def retry_words(self) -> str:
        """The retry in words: "try 2 of 4 of draw#13 after ProviderError: 429, next try in 8 s"."""
        one = self.retrying
        if one is None:
            return ""
        words = f"try {one.try_number} of {one.of} of {one.step} after {one.error}"
        if self.retry_ms:
            words += f", next try in {in_words(self.retry_ms)}"
        are = "is" if one.others == 1 else "are"
        return words + (f", and {one.others} more {are} being retried" if one.others else "")

    def __str__(self) -> str:
        """Return the status as one sentence: "draw, stage 3 of 7, 11 of 30, about 21 min left"."""
        return ", ".join(part for part in _sentence_parts(self) if part)


def progress_records(job: Job, running: Running | None, now: Time, *, lost: bool = True) -> tuple[Step, ...]:
    """Return records of how far a job is and what it has spent, for the change that stops it.

    There are none if its worker reported nothing. `lost=False` if the worker itself ends the lease.
    """
    found: list[Step] = []
    if running is not None and (running.done is not None or running.total is not None):
        found.append(_record(job, PROGRESS_PATH, {"done": running.done, "total": running.total}, now))
    if running is not None and running.spending is not None:
        found.append(_record(job, SPENDING_PATH, closed(running.spending, running.items, lost=lost), now))
    return tuple(found)


def _record(job: Job, path: str, told: object, now: Time) -> Step:
    return Step(
        job=job.id,
        epoch=job.epoch,
        path=path,
        name=path,
        state=StepState.STARTED,  # so that the next record can replace it
        result=msgspec.json.encode(told).decode(),
        started_at=now,
    )


def status_of(
    job: Job,
    summary: StepSummary,
    records: Sequence[Step],
    running: Running | None,
    now: Time,
    trouble: str = "",
    limited: LimitWait | BudgetWait | None = None,
    budget: Budget | None = None,
) -> Status:
    """Build a job's status from its row, the counts of its steps, and its worker's last report.

    `records` are the open waits of an active job, and the progress of any other (`record_reads.status_records`). A
    worker's report counts only while the job is active. Afterwards, the progress recorded when it stopped counts. For a
    completed job whose last attempt reported no progress, every step or item that ran counts.
    """
    steps = summary.total
    stage = running.stage if running is not None else ""
    if not stage and job.state is not State.COMPLETED:
        stage = summary.last.split("/")[0].split("#")[0]
    done, total = (running.done, running.total) if running is not None else (None, None)
    kept = next((step for step in records if step.path == PROGRESS_PATH), None)
    completed = job.state is State.COMPLETED
    if kept is not None and job.state is not State.ACTIVE and (not completed or kept.epoch == job.epoch):
        done, total = _read(kept)
    elif completed and steps.done:
        done, total = steps.done, steps.done + steps.failed
    failed = 0
    if job.state in SETTLED and not completed and done is not None:
        counts = summary.names.get(stage, StepCounts())
        if counts.failed and done == counts.done + counts.failed:  # a map counts what has ended
            done, failed = counts.done, counts.failed
    since = (running.since if running is not None else None) or job.claimed_at
    stages = job.options.stages
    retrying = running.retrying if running is not None and job.state is State.ACTIVE else None
    spending = running.spending if running is not None else None
    if spending is None:
        spending = next((spending_in(step) for step in records if step.path == SPENDING_PATH), Spending())
    return Status(
        id=job.id,
        type=job.type,
        queue=job.queue,
        state=job.state,
        version=job.version,
        stage=stage,
        stage_number=stages.index(stage) + 1 if stage in stages else None,
        stages=stages,
        done=done if done is not None else (steps.done or None),
        total=total,
        made=running.made if running is not None else 0,
        earlier=running.earlier if running is not None else 0,
        earlier_ms=running.earlier_ms if running is not None else 0,
        text=running.text if running is not None else "",
        attempt=job.attempt,
        recoveries=job.recoveries,
        epoch=job.epoch,
        worker=job.worker,
        steps=steps.done,
        error=job.error,
        waits=waits_now(job, records),
        run_at=job.run_at,
        created_at=job.created_at,
        finished_at=job.finished_at,
        running_ms=None if job.claimed_at is None else max(0, now - job.claimed_at),
        stage_ms=None if since is None or job.state is not State.ACTIVE else max(0, now - since),
        read_at=now,
        trouble=trouble if job.state is State.ACTIVE else "",
        retrying=retrying,
        retry_ms=None if retrying is None else _until(retrying.next_at, now),
        limited=limited,
        budget=budget,
        failed=failed,
        spending=spending,
    )


def _read(kept: Step) -> tuple[int | None, int | None]:
    """Read a record of progress. A damaged one gives nothing: it must not hide the rest of a status."""
    try:
        counts = msgspec.json.decode(kept.result or "{}", type=dict[str, int | None])
    except msgspec.MsgspecError:
        return None, None
    return counts.get("done"), counts.get("total")


def _until(at: Time, now: Time) -> int:
    """Return the time from now until then. A worker's clock is ahead of its store's by the duration of its claim."""
    return at - now if at - now >= SOON_MS else 0


# In words.


def _sentence_parts(one: Status) -> list[str]:
    limited = "" if one.limited is None else str(one.limited)
    waits = list_waits(one.waits, limited, one.read_at)
    match one.state:
        case State.ACTIVE:
            return [stage_words(one) or "running", *progress_words(one), money_words(one), *waits, retry_line(one)]
        case State.REVIEW:
            return ["needs a person", error_line(one.error), money_words(one)]
        case State.PENDING if one.type == FLOW_TYPE and one.total is not None:
            return [f"{one.done:,} of {one.total:,} jobs done", budget_words(one)]
        case State.PENDING:
            return [*(waits or ["waiting"]), budget_words(one)]
        case State.SCHEDULED | State.RETRYABLE:
            due = waits or [f"due {ago(one.run_at, one.read_at)}"]
            return [str(one.state), *due, error_line(one.error)]
        case State.AVAILABLE:
            return [limited or "waiting for a worker", *progress_words(one), budget_words(one)]
        case _:
            return [f"{one.state} {_ended(one)}", error_line(one.error), money_words(one)]


def _ended(one: Status) -> str:
    """Say when a job ended: "just now", "12 min ago"."""
    when = ago(one.finished_at, one.read_at)
    return "just now" if when == "now" else when


def stage_words(one: Status) -> str:
    """Say what an active job is doing: "draw, stage 3 of 7". Empty before its first step."""
    place = f", stage {one.stage_number} of {len(one.stages)}" if one.stage_number else ""
    return f"{clean(one.stage)}{place}" if one.stage else ""


def doing_words(one: Status) -> str:
    """Say what an active job does: "draw, stage 3 of 7, 11 of 30, for 12 min", without time left, money and waits."""
    parts = (stage_words(one) or "running", count_of_done(one), one_line(one.text, TEXT_SHOWN), _elapsed_words(one))
    return ", ".join(part for part in parts if part)


def progress_words(one: Status) -> list[str]:
    """Say how far a job is: "11 of 30", its own words, "about 21 min left", and whether it is stalled."""
    parts = [count_of_done(one), one_line(one.text, TEXT_SHOWN), remaining_words(one) or _elapsed_words(one)]
    return [part for part in (*parts, f"stalled: {one_line(one.trouble)}" if one.trouble else "") if part]


def count_of_done(one: Status) -> str:
    """Say how much is done: "11 of 30", "2 of 3, 1 failed", or "3 steps recorded" if the total is unknown."""
    if one.done is not None and one.total:
        return f"{one.done:,} of {one.total:,}" + (f", {one.failed:,} failed" if one.failed else "")
    return f"{plural(one.steps, 'step')} recorded" if one.steps else ""


def remaining_words(one: Status) -> str:
    """Say about how long the stage will take: "about 21 min left"."""
    return f"about {span(one.remaining_ms)} left" if one.remaining_ms else ""


def _elapsed_words(one: Status) -> str:
    """Say for how long the stage has been running, with what earlier attempts worked on it."""
    worked_ms = 0 if one.stage_ms is None else one.stage_ms + one.earlier_ms
    return f"for {span(worked_ms)}" if worked_ms >= MOMENT_MS else ""


def total_words(spending: Spending) -> str:
    """Say what a job has spent, without the verb: "$1.84", "at least $1.84". Empty if it has spent nothing."""
    spent = in_currencies(total_of(spending))
    return f"at least {spent}" if spent and spending.is_least else spent


def spent_words(one: Status) -> str:
    """Say what a job has spent: "$1.84 spent, $0.20 of it wasted, $3.10 saved". Empty if it has spent nothing."""
    spending = one.spending
    spent, wasted, saved = total_words(spending), in_currencies(spending.wasted), in_currencies(spending.saved)
    parts = [f"{spent} spent" if spent else "", f"{wasted} of it wasted" if wasted else ""]
    return ", ".join(part for part in (*parts, f"{saved} saved" if saved else "") if part)


def money_words(one: Status) -> str:
    """Say what a job has spent, and how much of its budget that and its children's spending is."""
    return ", ".join(part for part in (spent_words(one), budget_words(one)) if part)


def budget_words(one: Status) -> str:
    """Say how much of its budget is spent, unless its wait for the budget says so: "budget: $4.20 of $5.00 spent"."""
    return "" if one.budget is None or isinstance(one.limited, BudgetWait) else f"budget: {one.budget}"


def retry_line(one: Status) -> str:
    """Say which step is being retried, after which error, and when."""
    return one_line(one.retry_words, RETRY_SHOWN)
