"""Jobs as lines of a list, with their names and where they stand. Must not change anything."""

import json
from collections.abc import Sequence
from typing import Any

from holdfast.core.model import Job, State, Time
from holdfast.core.spending import in_words, total_of
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import Status, doing_words
from holdfast.jobs.views.pages.parts import JobLine, moment
from holdfast.jobs.views.shapes import time_text
from holdfast.jobs.views.text import one_line, short_id

NAME_SHOWN = 80
ARGUMENTS_READ = 64 * 1024
"""Of larger arguments, none becomes a job's name."""

NAMING = ("title", "name")
"""The fields of an argument that can name its job."""


async def job_lines(jobs: Jobs, found: Sequence[Job]) -> tuple[JobLine, ...]:
    """Return these jobs as lines, with a few reads per page."""
    statuses = await jobs.statuses(found)
    return tuple(job_line(job, status) for job, status in zip(found, statuses, strict=True))


def job_line(job: Job, status: Status) -> JobLine:
    """Return a job as a line of a list."""
    return JobLine(
        id=job.id,
        short=short_id(job.id),
        name=name_of(job),
        type=job.type,
        queue=job.queue,
        state=job.state.value,
        where=str(status),
        doing=doing_words(status) if _is_plain(status) else str(status),
        key=job.key,
        parent=job.parent,
        stage=status.stage,
        stage_number=status.stage_number,
        stages=status.stages,
        done=status.done,
        total=status.total,
        remaining_ms=status.remaining_ms,
        worker=job.worker,
        attempt=job.attempt,
        recoveries=job.recoveries,
        spent=status.spent,
        spent_words=in_words(total_of(status.spending)) + ("+" if status.spending.is_least else ""),
        created_at=moment(job.created_at),
        started_at=time_text(job.claimed_at),
        finished_at=time_text(job.finished_at),
        took_ms=None if job.finished_at is None else max(0, job.finished_at - job.created_at),
        run_at=time_text(job.run_at),
        version=job.version,
    )


def _is_plain(status: Status) -> bool:
    """Whether a job runs, and nothing else has to be said of it."""
    return status.state is State.ACTIVE and not (status.trouble or status.limited or status.waits or status.retrying)


def name_of(job: Job) -> str:
    """Return a job's name: meta.name, its first text argument, its key, or its type and short id."""
    given = job.options.meta.get("name") or _first_text(job.args) or job.key or ""
    return one_line(given, NAME_SHOWN) or f"{job.type} {short_id(job.id)}"


def _first_text(args: str) -> str:
    """Return the first text argument, or the title or name of the first argument that has one."""
    if len(args) > ARGUMENTS_READ:
        return ""
    try:
        found = json.loads(args)
    except (ValueError, RecursionError):
        return ""
    texts = (text for one in found for text in _texts_in(one)) if isinstance(found, list) else iter(())
    return next((text for text in texts if text.strip()), "")


def _texts_in(argument: Any) -> list[str]:
    if isinstance(argument, str):
        return [argument]
    named = argument.get("**", argument) if isinstance(argument, dict) else {}
    if not isinstance(named, dict):
        return []
    if named is not argument:  # keyword arguments
        return [text for one in named.values() for text in _texts_in(one)]
    return [named[field] for field in NAMING if isinstance(named.get(field), str)]


def sentence_of(status: Status) -> str:
    """Return a status as a whole sentence."""
    return as_sentence(str(status))


def as_sentence(words: str) -> str:
    """Return words with a capital letter and a full stop. A name from code, as in send_invoice#1187, stays as it is."""
    if not words:
        return ""
    first = words.partition(" ")[0]
    begin = words[0] if "#" in first or "_" in first else words[0].upper()
    return f"{begin}{words[1:]}{'' if words.endswith(('.', '?', '!')) else '.'}"


def title_of(line: JobLine) -> str:
    """Return what a browser's tab shows: "11 of 30, The Lighthouse"."""
    if line.state == State.ACTIVE and line.done is not None and line.total:
        return f"{line.done:,} of {line.total:,}, {line.name}"
    return line.name if line.state == State.ACTIVE else f"{line.state}, {line.name}"


def waited_ms(job: Job, now: Time) -> int:
    """Return how long a job has waited for a worker."""
    return max(0, now - max(job.created_at, job.run_at or 0))
