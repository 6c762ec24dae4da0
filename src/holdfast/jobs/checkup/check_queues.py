"""Whether queues are served and workers are readable, and how much needs a person. Must not mend anything."""

from collections.abc import Sequence

from holdfast.core.model import Presence, State
from holdfast.engines.records import QUIET
from holdfast.jobs.checkup.finding import Finding, Level
from holdfast.jobs.service import Jobs
from holdfast.jobs.transfer.drain import OURS
from holdfast.jobs.views.overview import QueueSummary, type_words
from holdfast.jobs.views.text import name_some, one_line, plural

QUEUES_NAMED = 20
"""How many queues a suggested worker is given: a line stays a line."""


def check_queues(queues: Sequence[QueueSummary]) -> list[Finding]:
    findings: list[Finding] = []
    unserved: list[QueueSummary] = []
    for queue in queues:
        if queue.pause is not None and queue.waiting:
            waiting = plural(queue.waiting, "job waits", "jobs wait")
            text = f"{queue.name} is paused and {waiting}: holdfast queues resume {queue.name}"
            findings.append(Finding("queue", Level.WARN, text))
        elif queue.waiting and not queue.workers:
            unserved.append(queue)
    if unserved:
        findings.append(_unserved(unserved))
    return findings or [Finding("queue", Level.OK, "every queue with waiting jobs is served")]


def _unserved(queues: Sequence[QueueSummary]) -> Finding:
    """One finding, because one worker can serve them all."""
    waiting = plural(sum(queue.waiting for queue in queues), "job waits", "jobs wait")
    named = queues[:QUEUES_NAMED]
    start = f"holdfast worker MODULE:APP --queues {','.join(queue.name for queue in named)}"
    if len(queues) == 1:
        return Finding("queue", Level.WARN, f"{queues[0].name}: {waiting} and no worker serves it: {start}")
    told = [f"{queue.name}: {queue.waiting:,}" for queue in named]
    told += [f"and {len(queues) - len(named):,} queues more"] if len(queues) > len(named) else []
    text = f"{waiting} in queues that no worker serves ({', '.join(told)}): {start}"
    return Finding("queue", Level.WARN, text)


def check_types(queues: Sequence[QueueSummary]) -> list[Finding]:
    """Types that wait in a queue that is served, by workers of which none knows them."""
    findings = [
        Finding(
            "types",
            Level.WARN,
            f"{queue.name}: no living worker knows {type_words(queue.unknown)}: start a worker whose App has the code, "
            "or cancel these jobs",
        )
        for queue in queues
        if queue.unknown
    ]
    return findings or [Finding("types", Level.OK, "every type that waits in a served queue is known there")]


def check_workers(workers: Sequence[Presence]) -> list[Finding]:
    """Workers of which the store holds something that can't be read."""
    names = [one.worker for one in workers if one.unreadable]
    if not names:
        return []
    named = name_some([one_line(name, 60) for name in names])
    text = (
        f"what the store holds of {plural(len(names), 'worker')} ({named}) can't be read: a living worker writes it "
        "anew within seconds; after its lease the jobs of a dead one are taken over and its trace is removed, if a "
        "worker runs"
    )
    return [Finding("workers", Level.WARN, text)]


async def check_drain(jobs: Jobs) -> list[Finding]:
    """Workers that a drain keeps from claiming. One that was cut off leaves them so."""
    quiet = [record.name.removeprefix(QUIET) for record in await jobs.engine.records(QUIET) if record.value == OURS]
    if not quiet:
        return []
    text = (
        f"{plural(len(quiet), 'worker was', 'workers were')} told to claim nothing for a move "
        f"({', '.join(quiet[:3])}): if none is going on, repeat it, or take it back: "
        "holdfast move --from THIS-STORE --give-up"
    )
    return [Finding("drained", Level.WARN, text)]


def check_review(queues: Sequence[QueueSummary]) -> Finding:
    number = sum(queue.counts.get(State.REVIEW, 0) for queue in queues)
    if number:
        return Finding("review", Level.WARN, f"{plural(number, 'job needs', 'jobs need')} a person: holdfast review")
    return Finding("review", Level.OK, "no job needs a person")
