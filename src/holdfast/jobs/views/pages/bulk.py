"""An act on all jobs that match a filter: its preview, and how far it is. Must not change anything."""

import shlex

from msgspec import Struct

from holdfast.core.lifecycle import SETTLED
from holdfast.core.model import Job, Where
from holdfast.jobs.bulk_acts import NO_WORKER, PAGES_COUNTED, Act, Progress, act_progress, check_act, served_queues
from holdfast.jobs.replay_plans import preview_replays
from holdfast.jobs.selections import Selection, read_page
from holdfast.jobs.service import Jobs
from holdfast.jobs.views.pages import parts
from holdfast.jobs.views.pages.acts import stop_act
from holdfast.jobs.views.pages.lines import as_sentence, job_lines
from holdfast.jobs.views.pages.parts import JobLine, Moment, moment
from holdfast.jobs.views.shapes import time_text
from holdfast.jobs.views.text import one_line, plural

SAMPLE = 5
COUNTED = 1_000
"""How many jobs a preview counts, and how many it shows."""

IDS_NAMED = 100
"""How many ids the equal command lists at most."""

EFFECTS = {
    "cancel": "what they made is undone, where the code says how",
    "replay": "recorded steps keep their results",
    "discard": "they never run again",
    "resolve": "they complete with this result",
}


class BulkPreview(Struct, frozen=True, kw_only=True):
    """What a bulk act would do. `total` is exact, or at least so many (`is_least`)."""

    now: Moment
    act: str
    sentence: str
    """"Cancel 1,000+ jobs (queue video): what they made is undone."."""
    plan: str
    """What a replay runs again and keeps, its time and its cost; empty for other acts, and for too many jobs."""
    total: int
    is_least: bool
    sample: tuple[JobLine, ...]
    command: str
    """The command that does the same; empty if there is none."""


class BulkRefusal(Struct, frozen=True, kw_only=True):
    """A job on which the act was refused, and why."""

    job: str
    why: str


class BulkProgress(Struct, frozen=True, kw_only=True):
    """A bulk act under way or ended. It is a job of its own, which any worker continues."""

    now: Moment
    id: str
    act: str
    by: str
    reason: str
    state: str
    sentence: str
    """"1,200 jobs cancelled, 3 refused of 2,000 (queue video): active."."""
    total: int | None
    done: int
    refused: int
    refusals: tuple[BulkRefusal, ...]
    started_at: Moment
    ended_at: Moment | None
    acts: tuple[parts.Act, ...]


async def preview_bulk(jobs: Jobs, act: Act) -> BulkPreview:
    """Say what an act would do, and to how many jobs: exactly, or at least so many."""
    command, act = _command(act), check_act(act)
    chosen, now = act.chosen, await jobs.engine.now()
    found, total, is_least = await _concerned(jobs, chosen)
    number = f"{total:,}+ jobs" if is_least else plural(total, "job")
    words = f"{act.verb} {number} ({one_line(chosen.words())}): {EFFECTS[act.verb]}"
    if not await served_queues(jobs):
        words += f"; {NO_WORKER}"
    none = "none of the jobs looked at matches; the act looks at all of them" if is_least else "no job matches"
    return BulkPreview(
        now=moment(now),
        act=act.verb,
        sentence=as_sentence(words if total else f"{none} ({one_line(chosen.words())})"),
        plan=await _plan(jobs, act) if total and not is_least else "",
        total=total,
        is_least=is_least,
        sample=await job_lines(jobs, found[:SAMPLE]),
        command=command,
    )


async def _plan(jobs: Jobs, act: Act) -> str:
    """Say what a replay would do to all jobs together, without their number."""
    return str(await preview_replays(jobs, act.chosen)).partition("\n")[2] if act.verb == "replay" else ""


async def _concerned(jobs: Jobs, chosen: Selection) -> tuple[list[Job], int, bool]:
    """Return some of the jobs that match, how many match, and whether there may be more."""
    if chosen.ids:
        found = [job for job in await jobs.engine.get(chosen.ids[:COUNTED]) if job is not None]
        kept = [job for job in found if not chosen.states or job.state in chosen.states]
        return kept, len(kept), len(chosen.ids) > COUNTED
    if chosen.error or chosen.step or chosen.tag:
        return await _narrowed(jobs, chosen)
    where = Where(states=chosen.states, queue=chosen.queue, type=chosen.type, newest_first=True)
    if chosen.type is None:
        counts = await jobs.engine.count()
        total = sum(
            number
            for (queue, state), number in counts.items()
            if chosen.queue in (None, queue) and (not chosen.states or state in chosen.states)
        )
        return list((await jobs.engine.search(where, limit=SAMPLE)).jobs), total, False
    page = await jobs.engine.search(where, limit=COUNTED)
    return list(page.jobs), len(page.jobs), page.next is not None


async def _narrowed(jobs: Jobs, chosen: Selection) -> tuple[list[Job], int, bool]:
    """The same where the store can't tell by itself which jobs match."""
    found: list[Job] = []
    after: str | None = ""
    for _ in range(PAGES_COUNTED):
        page = await read_page(jobs.engine, chosen, after or "")
        found, after = [*found, *page.jobs], page.after
        if after is None or len(found) >= COUNTED:
            break
    return found, len(found), after is not None


def _command(act: Act) -> str:
    """Return the command that does the same, or "" if none does: no option of the command line selects by a tag."""
    chosen = act.chosen
    options: list[str] = []
    if chosen.ids:
        if chosen.states or len(chosen.ids) > (1 if act.verb == "resolve" else IDS_NAMED):
            return ""
        options += chosen.ids
    elif chosen.tag or (act.verb == "cancel" and (chosen.error or chosen.step)):
        return ""
    named = [("type", chosen.type), ("queue", chosen.queue), ("error", chosen.error), ("failed-in", chosen.step)]
    options += [f"--{name} {shlex.quote(value)}" for name, value in named if value]
    if act.verb == "cancel":  # the others concern jobs in review only
        every = () if options else check_act(act).chosen.states
        options += [f"--state {state.value}" for state in chosen.states or every]
    if not options:
        return ""
    if act.verb == "resolve":
        options.append(f"--result {shlex.quote(act.result)}")
    if act.reason:
        options.append(f"--reason {shlex.quote(act.reason)}")
    return f"holdfast {act.verb} {' '.join(options)}"


async def view_bulk(jobs: Jobs, id: str) -> BulkProgress:
    """Read how far a bulk act is, or raise NotFound."""
    progress, job = await act_progress(jobs, id), await jobs.get(id)
    return _progress(progress, job, await jobs.engine.now())


def _progress(one: Progress, job: Job, now: int) -> BulkProgress:
    outcome = one.outcome
    return BulkProgress(
        now=moment(now),
        id=one.id,
        act=one.act.verb,
        by=one_line(one.act.by, 60),
        reason=one_line(one.act.reason),
        state=one.state.value,
        sentence=as_sentence(str(one)),
        total=one.act.total or None,
        done=outcome.done,
        refused=outcome.refused,
        refusals=tuple(BulkRefusal(job=id, why=one_line(why)) for id, why in outcome.examples),
        started_at=moment(job.created_at),
        ended_at=time_text(job.finished_at),
        acts=() if one.state in SETTLED else (stop_act(one.id),),
    )
