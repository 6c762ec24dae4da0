"""Checks queues, the workers that serve them, and how many jobs need review. Must not repair anything."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.model import Presence, State
from holdfast.core.suggestions import suggest
from holdfast.engines.records import QUIET
from holdfast.jobs.checkup.finding import Finding, Level
from holdfast.jobs.service import Jobs
from holdfast.jobs.transfer.drain import OURS
from holdfast.jobs.views.overview import QueueSummary, lacking_words, type_words
from holdfast.jobs.views.text import name_some, one_line, plural


class Code(NamedTuple):
    """The App that a person checks: how it is named, and the queues of its jobs."""

    target: str
    queues: frozenset[str]


QUEUES_NAMED = 20
"""How many queues a suggested command lists, so that it stays on one line."""


def check_queues(queues: Sequence[QueueSummary], code: Code | None = None) -> list[Finding]:
    """Report paused queues with waiting jobs, and queues without a worker; with `code`, whether the App uses them."""
    findings: list[Finding] = []
    unserved: list[QueueSummary] = []
    for queue in queues:
        if queue.pause is not None and queue.waiting:
            waiting = plural(queue.waiting, "job waits", "jobs wait")
            text = f"{queue.name} is paused and {waiting}; to resume it: holdfast queues resume {queue.name}"
            findings.append(Finding("queue", Level.WARN, text))
        elif queue.waiting and not queue.workers:
            unserved.append(queue)
    if unserved:
        findings.append(_unserved(unserved, "MODULE:APP" if code is None else code.target))
        findings += [] if code is None else _unused(unserved, code)
    return findings or [Finding("queue", Level.OK, "every queue with waiting jobs has a worker")]


def _unused(queues: Sequence[QueueSummary], code: Code) -> list[Finding]:
    """Report queues that no job of the App uses: the name is probably misspelt."""
    return [
        Finding(
            "queue",
            Level.WARN,
            f"{queue.name}: no job of {code.target} uses this queue{suggest(queue.name, sorted(code.queues))}",
        )
        for queue in queues[:QUEUES_NAMED]
        if queue.name not in code.queues
    ]


def _unserved(queues: Sequence[QueueSummary], target: str) -> Finding:
    """Report all unserved queues in one finding, because one worker can serve them all."""
    waiting = plural(sum(queue.waiting for queue in queues), "job waits", "jobs wait")
    named = queues[:QUEUES_NAMED]
    start = f"holdfast worker {target} --queues {','.join(queue.name for queue in named)}"
    if len(queues) == 1:
        return Finding("queue", Level.WARN, f"{queues[0].name}: {waiting} and no worker serves this queue: {start}")
    names = [f"{queue.name}: {queue.waiting:,}" for queue in named]
    names += [f"and {len(queues) - len(named):,} more queues"] if len(queues) > len(named) else []
    text = f"{waiting} in queues that no worker serves ({', '.join(names)}): {start}"
    return Finding("queue", Level.WARN, text)


def check_types(queues: Sequence[QueueSummary]) -> list[Finding]:
    """Report types of waiting jobs that no worker of their queue knows, or has what they need for."""
    findings = [
        Finding(
            "types",
            Level.WARN,
            f"{queue.name}: no running worker knows {type_words(queue.unknown)}: start a worker whose App has the "
            "code, or cancel these jobs",
        )
        for queue in queues
        if queue.unknown
    ]
    findings += [
        Finding("needs", Level.WARN, f"{line}: start a worker that has it: holdfast worker MODULE:APP --has {words}")
        for queue in queues
        for line, words in zip(lacking_words(queue), map(",".join, queue.lacking.values()), strict=True)
    ]
    return findings or [Finding("types", Level.OK, "every queue's workers know the types of its waiting jobs")]


def check_workers(workers: Sequence[Presence]) -> list[Finding]:
    """Report workers whose status in the store can't be read."""
    names = [one.worker for one in workers if one.unreadable]
    if not names:
        return []
    named = name_some([one_line(name, 60) for name in names])
    text = (
        f"the status of {plural(len(names), 'worker')} ({named}) can't be read: a running worker overwrites it within "
        "seconds; if the worker is dead, another running worker takes over its jobs after its lease and removes "
        "the status"
    )
    return [Finding("workers", Level.WARN, text)]


async def check_drain(jobs: Jobs) -> list[Finding]:
    """Report workers that a drain keeps from claiming. An interrupted drain leaves them that way."""
    quiet = [record.name.removeprefix(QUIET) for record in await jobs.engine.records(QUIET) if record.value == OURS]
    if not quiet:
        return []
    text = (
        f"{plural(len(quiet), 'worker has', 'workers have')} stopped claiming because of a move "
        f"({', '.join(quiet[:3])}): if no move is running, repeat it, or give it up: "
        "holdfast move --from THIS-STORE --give-up"
    )
    return [Finding("drained", Level.WARN, text)]


def check_review(queues: Sequence[QueueSummary]) -> Finding:
    """Report how many jobs need review."""
    number = sum(queue.counts.get(State.REVIEW, 0) for queue in queues)
    if number:
        return Finding("review", Level.WARN, f"{plural(number, 'job needs', 'jobs need')} a person: holdfast review")
    return Finding("review", Level.OK, "no job needs a person")
