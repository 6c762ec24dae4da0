"""Where a job stands, for a person: put together from its row, its steps' counts and its worker's word. Pure."""

from collections.abc import Sequence

import msgspec

from holdfast.core.durations import in_words
from holdfast.core.model import Error, Job, Retrying, Running, State, Step, StepState, Time, Wait
from holdfast.core.summaries import StepSummary
from holdfast.jobs.questions import waits_now

PROGRESS_PATH = "~progress"
"""How far a job was when it last stopped running is kept under this, beside the records of its steps."""

SOON_MS = 500
"""What comes so soon is told as if it were here."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job stands, for a person. Times are milliseconds: `…_at` since 1970, `…_ms` a duration."""

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
    trouble: str = ""
    """Why its worker can't write what it does, such as a full disk: until that is over, the job stands still."""
    retrying: Retrying | None = None
    """The step that failed last and is tried again, as its worker last said."""
    retry_ms: int | None = None
    """How long it is until its next try; 0 when that has begun, or is about to."""

    @property
    def remaining_ms(self) -> int | None:
        """An estimate of what is left of this stage: as long for each item as those took that this attempt made."""
        if self.trouble or not self.made or self.done is None or self.total is None or self.stage_ms is None:
            return None
        return round(self.stage_ms / self.made * max(0, self.total - self.done))

    def progress(self) -> tuple[object, ...]:
        """What changes when the job gets on."""
        tries = None if self.retrying is None else (self.retrying.step, self.retrying.try_number)
        return self.state, self.stage, self.done, self.total, self.text, self.steps, tries

    @property
    def retry_words(self) -> str:
        """What is tried again, in words: "try 2 of 4 of draw#13 after ProviderError: 429, next try in 8 s"."""
        one = self.retrying
        if one is None:
            return ""
        words = f"try {one.try_number} of {one.of} of {one.step} after {one.error}"
        if self.retry_ms:
            words += f", next try in {in_words(self.retry_ms)}"
        are = "is" if one.others == 1 else "are"
        return words + (f", and {one.others} more {are} tried again" if one.others else "")

    def __str__(self) -> str:
        """In words: "drawing, stage 3 of 7, 12 of 30, for 2 min"."""
        words = [str(self.state)]
        if self.stage and self.state is State.ACTIVE:
            place = f"stage {self.stage_number} of {len(self.stages)}" if self.stage_number else "stage"
            words.append(f"{place}: {self.stage}")
        if self.done is not None and self.total is not None:
            words.append(f"{self.done} of {self.total}")
        if self.text:
            words.append(self.text)
        if self.retrying is not None:
            words.append(self.retry_words)
        if self.stage_ms is not None:
            words.append(f"for {in_words(self.stage_ms)}")
        if self.remaining_ms is not None:
            words.append(f"about {in_words(self.remaining_ms)} left")
        if self.trouble:
            words.append(f"stands still: {self.trouble}")
        return ", ".join(words)


def progress_record(job: Job, running: Running | None, now: Time) -> tuple[Step, ...]:
    """How far a job is, as a record that goes with the change by which it stops running; none if nobody said."""
    if running is None or (running.done is None and running.total is None):
        return ()
    told = msgspec.json.encode({"done": running.done, "total": running.total}).decode()
    step = Step(
        job=job.id,
        epoch=job.epoch,
        path=PROGRESS_PATH,
        name=PROGRESS_PATH,
        state=StepState.STARTED,  # so that the next one may take its place
        result=told,
        started_at=now,
    )
    return (step,)


def status_of(
    job: Job, summary: StepSummary, records: Sequence[Step], running: Running | None, now: Time, trouble: str = ""
) -> Status:
    """Put together where a job stands from its row, its steps' counts, and what its worker last said.

    `records` are its open waits while it is active, and its progress when it is not (`record_reads.status_records`).
    The worker's word ends with the job. Then counts how far it was when it stopped running. Of a job that completed
    and said nothing in its last attempt, each step or item that was run counts.
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
    since = (running.since if running is not None else None) or job.claimed_at
    stages = job.options.stages
    retrying = running.retrying if running is not None and job.state is State.ACTIVE else None
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
        trouble=trouble if job.state is State.ACTIVE else "",
        retrying=retrying,
        retry_ms=None if retrying is None else _until(retrying.next_at, now),
    )


def _read(kept: Step) -> tuple[int | None, int | None]:
    """What a record of progress says. A damaged one says nothing: it must not hide the rest of a status."""
    try:
        told = msgspec.json.decode(kept.result or "{}", type=dict[str, int | None])
    except msgspec.MsgspecError:
        return None, None
    return told.get("done"), told.get("total")


def _until(at: Time, now: Time) -> int:
    """How long it is until then. A worker's clock is ahead of its store's by the time that its claim took."""
    return at - now if at - now >= SOON_MS else 0
