"""Reads one job as a page. The cost is bounded: of a job with many steps, only counts are read. Must not change it."""

from collections.abc import Mapping, Sequence

from holdfast.core.durations import in_words as duration_words
from holdfast.core.lifecycle import TERMINAL
from holdfast.core.model import PAGE_LIMIT, Entry, Event, Job, Running, State, Step, StepState, Time, Where
from holdfast.core.places import PLACES_PATH, places_in, still_used
from holdfast.core.spending import SPENT_PATH, Amounts, added, amounts_in, in_words, plain, stage_of, total_of
from holdfast.core.summaries import StepHead, StepSummary, summarize
from holdfast.jobs.consequences import UNDO_PATH, presence_of, running_of
from holdfast.jobs.limit_status import LimitWait
from holdfast.jobs.service import Jobs
from holdfast.jobs.status import TEXT_SHOWN, Status, count_of_done, retry_line, total_words
from holdfast.jobs.views.job import facts_of
from holdfast.jobs.views.pages.acts import job_acts
from holdfast.jobs.views.pages.items import Progressing, Usual, as_steps, item_tabs, stage_bars
from holdfast.jobs.views.pages.job import (
    CHILDREN_SHOWN,
    LOG_SHOWN,
    STORY_SHOWN,
    ChildrenTab,
    CostLine,
    JobPage,
    MadeFrom,
    StoryEntry,
    StoryPage,
)
from holdfast.jobs.views.pages.lines import as_sentence, job_line, job_lines, sentence_of, spoken, title_of
from holdfast.jobs.views.pages.log import log_lines_shown
from holdfast.jobs.views.pages.parts import Fact, error_shown, moment
from holdfast.jobs.views.pages.review_page import question_card, review_card
from holdfast.jobs.views.pages.story import cut_steps, losses_in, stage_ends, story_entries, why_line
from holdfast.jobs.views.pages.values import value_shown
from holdfast.jobs.views.remarks import count_lost_workers
from holdfast.jobs.views.step_names import name_steps
from holdfast.jobs.views.text import MOMENT_MS, one_line, plural, short_id, span
from holdfast.safe_text import clean

HEADS_READ = PAGE_LIMIT
"""Of a job with more steps, only counts are read."""

MADE = ("rerun", "fork")
"""How a run can be made from another one."""

LARGE_FACTS = {"arguments", "result"}
"""Facts that have a place of their own."""


async def view_job_page(jobs: Jobs, id: str, usual: Mapping[str, Usual], parameters: Sequence[str] = ()) -> JobPage:
    """Read a job with everything that its page shows. `parameters` are the names of its arguments, if known."""
    job = await jobs.get(id)
    engine = jobs.engine
    status, now = await jobs.status(id), await engine.now()
    (summary,) = await engine.summaries([id])
    history = await recent_history(jobs, job)
    heads = await _heads(jobs, job, summary)
    running = running_of(await presence_of(engine, job), job)
    called = await engine.steps_under(id, PLACES_PATH) if job.epoch else []
    summary, heads = _in_use(summary, heads, called)
    places = places_in(called)
    doubts = await _started(jobs, job, heads)
    one = Progressing(
        job=job,
        status=status,
        summary=summary,
        running=running,
        heads=heads,
        now=now,
        usual=usual,
        doubts=frozenset(doubts),
        begun={step.path: step.started_at for step in reversed(cut_steps(history))},
        places=places,
    )
    spent = await _spent_records(jobs, job, status, summary)
    to_undo = 0 if job.state in TERMINAL or not job.epoch else len(await engine.steps_under(id, UNDO_PATH))
    questions = await jobs.questions_among([job])
    story = _story(one, history, _names(job, history, heads, places), now)
    facts = [Fact(name, words) for name, words in facts_of(job, now).items() if name not in LARGE_FACTS]
    line = job_line(job, status)
    items = item_tabs(one)
    cells = {cell.path: cell.name for tab in items for cell in tab.cells}
    return JobPage(
        now=moment(now),
        title=title_of(line),
        job=line,
        sentence=sentence_for(one, history),
        why=why_of(one, history),
        facts=_facts(one, history, heads),
        stages=stage_bars(one),
        items=items,
        children=await _children(jobs, job),
        questions=tuple(question_card(job, question, now) for question in questions),
        review=await review_card(jobs, job, now) if job.state is State.REVIEW else None,
        story=tuple(story[:STORY_SHOWN]),
        story_before=max(0, job.version - sum(entry.version > 0 for entry in story[:STORY_SHOWN])),
        cost=_cost(spent, status),
        spent=status.spent,
        wasted=status.wasted,
        saved=status.saved,
        asked=(Fact("type", job.type), Fact("queue", job.queue), *facts, *_option_facts(job)),
        parameters=tuple(parameters),
        arguments=await value_shown(engine, job.args),
        result=None if job.result is None else await value_shown(engine, job.result),
        error=error_shown(job.error),
        log=log_lines_shown((await jobs.log(id))[-LOG_SHOWN:] if job.epoch else (), cells),
        undo=_undo(job, to_undo),
        made_from=_made_from(history),
        acts=job_acts(job, to_undo),
    )


async def recent_history(jobs: Jobs, job: Job) -> list[Entry]:
    """Read the newest entries of a job's history, up to a page."""
    return await jobs.engine.history(job.id, after=max(0, job.version - PAGE_LIMIT))


async def _heads(jobs: Jobs, job: Job, summary: StepSummary) -> tuple[StepHead, ...] | None:
    """Read the steps without their results; None if there are too many."""
    total = summary.total.started + summary.total.done + summary.total.failed
    if total > HEADS_READ:
        return None
    return tuple(await jobs.engine.steps_page(job.id)) if total else ()


def _in_use(
    summary: StepSummary, heads: tuple[StepHead, ...] | None, called: Sequence[Step]
) -> tuple[StepSummary, tuple[StepHead, ...] | None]:
    """Leave out the steps whose results a rerun has replaced, unless there are too many steps to know."""
    used = None if heads is None else set(still_used([head.path for head in heads], called))
    if heads is None or used is None or len(used) == len(heads):
        return summary, heads
    kept = tuple(head for head in heads if head.path in used)
    return summarize(summary.job, as_steps(kept)), kept


async def _started(jobs: Jobs, job: Job, heads: Sequence[StepHead] | None) -> list[str]:
    """Return the steps of a job in review that were started and not recorded."""
    if job.state is not State.REVIEW:
        return []
    if heads is not None:
        return [head.path for head in heads if head.state is StepState.STARTED]
    return [step.path for step in await jobs.engine.steps_under_each([job.id], "", StepState.STARTED)]


async def _spent_records(jobs: Jobs, job: Job, status: Status, summary: StepSummary) -> list[Step]:
    if not status.spending.kept or summary.total.done > HEADS_READ:
        return []
    return await jobs.engine.steps_under(job.id, SPENT_PATH)


def sentence_for(one: Progressing, history: Sequence[Entry]) -> str:
    """Say where a job stands; of one that has ended, how long it took and what it survived."""
    job, status = one.job, one.status
    if _goes_on(one):
        return _running_sentence(status, _worked_ms(one, history))
    if job.finished_at is None or job.state is not State.COMPLETED:
        return sentence_of(status)
    began = next((entry.at for entry in history if entry.event == Event.CLAIM), job.created_at)
    spent = total_words(status.spending)
    lost = count_lost_workers(history)
    words = f"completed in {span(job.finished_at - began)}" + (f" for {spent}" if spent else "")
    return as_sentence(words + (f"; {plural(lost, 'worker was', 'workers were')} lost on the way" if lost else ""))


def _goes_on(one: Progressing) -> bool:
    """Whether a job is being worked on: nothing holds it up, or no more than some of its steps."""
    status, items = one.status, () if one.running is None else one.running.items
    if one.job.state is not State.ACTIVE or status.trouble or status.waits:
        return False
    return status.limited is None or (isinstance(status.limited, LimitWait) and len(items) > status.limited.steps)


def why_of(one: Progressing, history: Sequence[Entry]) -> str:
    """Return the second line: the owner and the losses, then what holds up some steps and isn't in the sentence."""
    lines = [why_line(one.job, history, one.now, one.heads or ())]
    if _goes_on(one) and one.status.limited is not None:
        lines.append(as_sentence(str(one.status.limited)))
    if _goes_on(one) or one.job.state is not State.ACTIVE:
        lines.append(as_sentence(retry_line(one.status)))
    return " ".join(line for line in lines if line)


def _worked_ms(one: Progressing, history: Sequence[Entry]) -> int:
    """Return for how long an active job has been at its stage, or, before its first step, since its first claim.

    A lost worker or a hand-over doesn't start it anew.
    """
    status, running = one.status, one.running
    if running is not None and running.stage and status.stage_ms is not None:
        return status.stage_ms + status.earlier_ms
    began = one.now
    for entry in reversed(history):
        if entry.event == Event.CLAIM:
            began = entry.at
        elif entry.after is not State.ACTIVE and entry.event not in (Event.LAPSE, Event.RELEASE):
            break
    return one.now - began


def _running_sentence(status: Status, worked_ms: int) -> str:
    """Say what a job is doing: "Video generation, 11 of 30, $1.84 spent. About 21 min left in this stage."."""
    spent = total_words(status.spending)
    parts = (
        spoken(clean(status.stage)) or "running",
        count_of_done(status),
        one_line(status.text, TEXT_SHOWN),
        f"for {span(worked_ms)}" if worked_ms >= MOMENT_MS else "",
        f"{spent} spent" if spent else "",
    )
    left = f" About {span(status.remaining_ms)} left in this stage." if status.remaining_ms else ""
    return as_sentence(", ".join(part for part in parts if part)) + left


def _facts(one: Progressing, history: Sequence[Entry], heads: Sequence[StepHead] | None) -> tuple[Fact, ...]:
    job, status = one.job, one.status
    facts = [_time_fact(one, history)]
    spending = status.spending
    budget = "" if status.budget is None else f"budget: {status.budget}"
    if spent := total_words(spending):
        facts.append(Fact("Spent", spent, budget))
    elif budget:
        facts.append(Fact("Spent", "$0.00", budget))
    if wasted := in_words(spending.wasted):
        facts.append(Fact("Wasted", wasted, "tries that failed or were cut off"))
    kept = sum(head.epoch < job.epoch and head.state is StepState.DONE for head in heads or ())
    if saved := in_words(spending.saved):
        facts.append(Fact("Saved by records", saved, f"{plural(kept, 'step')} not paid for again" if kept else ""))
    lost = len(losses_in(history))
    claims = plural(job.epoch, "claim") + (f", {plural(lost, 'worker')} lost" if lost else "")
    facts.append(_attempt_fact(job, claims if job.epoch else "not started yet"))
    return tuple(facts)


def _option_facts(job: Job) -> list[Fact]:
    """Return what the job may take and how long it is kept."""
    options = job.options
    found = [Fact("retries", f"{options.retry.retries:,}" if options.retry.retries else "none")]
    if options.timeout_ms is not None:
        found.append(Fact("timeout", duration_words(options.timeout_ms)))
    if options.keep_ms is not None:
        found.append(Fact("kept for", duration_words(options.keep_ms), "after its end"))
    return found


def _attempt_fact(job: Job, claims: str) -> Fact:
    """Return which attempt runs. If none does, a job's number of attempts is already the next one's."""
    most, is_over = job.options.retry.retries + 1, job.state in (State.REVIEW, State.RETRYABLE, *TERMINAL)
    of = f" of {most}" if most > 1 else ""
    if is_over and job.state is not State.COMPLETED and job.attempt > 1:
        return Fact("Attempts", f"{job.attempt - 1}{of} failed", claims)
    return Fact("Attempt", f"{job.attempt}{of if job.attempt <= most else ''}", claims)


def _time_fact(one: Progressing, history: Sequence[Entry]) -> Fact:
    job, status, now = one.job, one.status, one.now
    if job.finished_at is not None:
        began = next((entry.at for entry in history if entry.event == Event.CLAIM), job.created_at)
        return Fact("Took", span(job.finished_at - began), f"{span(now - job.finished_at)} ago")
    until = min((wait.until for wait in status.waits if wait.until is not None), default=None)
    if job.state in (State.PENDING, State.SCHEDULED) and until is not None:
        return Fact("Time left", duration_words(max(0, until - now) // 1_000 * 1_000))
    if job.state is State.ACTIVE:
        ahead = [one.usual[name].stage_ms for name in status.stages[status.stage_number or 0 :] if name in one.usual]
        left = status.remaining_ms
        whole = f"about {span(left + sum(ahead))} for the whole job" if left is not None and ahead else ""
        words = f"about {span(left)}" if left is not None else "unknown"
        return Fact("Time left", words, whole or ("in this stage" if left is not None else ""))
    return (
        Fact("Waiting for", span(max(0, now - (job.run_at or job.created_at))))
        if job.state is State.AVAILABLE
        else (Fact("Age", span(max(0, now - job.created_at))))
    )


async def read_places(jobs: Jobs, job: Job) -> Mapping[str, int]:
    """Read the order of a job's calls, where that isn't the order of their records."""
    return places_in(await jobs.engine.steps_under(job.id, PLACES_PATH)) if job.epoch else {}


def _names(
    job: Job, history: Sequence[Entry], heads: Sequence[StepHead] | None, places: Mapping[str, int]
) -> Mapping[str, str]:
    """Return the names of the steps that losses cut."""
    cut = cut_steps(history)
    return name_steps(job, [*as_steps(heads or ()), *cut], places) if cut else {}


def _story(one: Progressing, history: Sequence[Entry], names: Mapping[str, str], now: Time) -> list[StoryEntry]:
    current = one.status.stage if one.job.state is State.ACTIVE else ""
    lines = [*story_entries(history, now, names), *stage_ends(one.job, one.heads or (), current, now)]
    return sorted(lines, key=lambda line: line.at)[::-1]  # of the same millisecond, too, the newest comes first


async def view_story(jobs: Jobs, id: str, before: int | None, limit: int) -> StoryPage:
    """Read a part of a job's story, the newest first."""
    job, now = await jobs.get(id), await jobs.engine.now()
    last = job.version if before is None else min(job.version, before - 1)
    first = max(0, last - limit)
    entries = [entry for entry in await jobs.engine.history(id, after=first, limit=limit) if entry.version <= last]
    heads = await jobs.engine.steps_page(id) if cut_steps(entries) else []
    shown = story_entries(entries, now, _names(job, entries, heads, await read_places(jobs, job)))
    return StoryPage(now=moment(now), entries=tuple(reversed(shown)), next=first + 1 if first else None)


def _cost(records: Sequence[Step], status: Status) -> tuple[CostLine, ...]:
    """Return what each stage cost, the dearest first."""
    kept: dict[str, dict[str, int]] = {}
    for record in records:
        name = stage_of(record.path.removeprefix(SPENT_PATH))
        kept[name] = added(kept.get(name, {}), amounts_in(record))
    wasted, whole = status.spending.wasted_by, total_of(status.spending)
    lines = [_cost_line(name, kept.get(name, {}), wasted.get(name, {}), whole) for name in {**kept, **wasted}]
    return tuple(sorted(lines, key=lambda line: -line.share))


def _cost_line(stage: str, kept: Amounts, wasted: Amounts, whole: Amounts) -> CostLine:
    amounts = added(kept, wasted)
    currency = "usd" if whole.get("usd") else "tokens"

    def share(part: Amounts) -> float:
        return min(1.0, round(part.get(currency, 0) / (whole.get(currency) or 1), 4))

    return CostLine(
        stage=clean(stage),
        spent=plain(amounts),
        wasted=plain(wasted),
        words=in_words(amounts) + (f", {in_words(wasted)} wasted" if wasted else ""),
        share=share(amounts),
        wasted_share=share(wasted),
    )


async def _children(jobs: Jobs, job: Job) -> ChildrenTab | None:
    if not job.epoch:
        return None
    found = await jobs.engine.find(Where(parent=job.id, newest_first=True), limit=CHILDREN_SHOWN + 1)
    if not found:
        return None
    more = len(found) > CHILDREN_SHOWN
    shown = found[:CHILDREN_SHOWN]
    done = sum(child.state is State.COMPLETED for child in shown)
    words = (
        f"{CHILDREN_SHOWN:,}+ children" if more else f"{done:,} of {plural(len(shown), 'child', 'children')} completed"
    )
    return ChildrenTab(words=words, total=len(shown), is_least=more, jobs=await job_lines(jobs, shown))


def _undo(job: Job, to_undo: int) -> str:
    return f"{plural(to_undo, 'thing')} to undo if it is cancelled or discarded" if to_undo else ""


def _made_from(history: Sequence[Entry]) -> MadeFrom | None:
    """Return the run that this one was made from, as its second entry says."""
    notes = (entry.note for entry in history if entry.event == Event.ACTIVATE)
    found = next(((how, note) for note in notes for how in MADE if isinstance(note.get(how), str)), None)
    if found is None:
        return None
    how, note = found
    id, at, reason = (one_line(str(note.get(name, ""))) for name in (how, "at", "reason"))
    where = f" {'at' if how == 'rerun' else 'before'} {at}" if at else ""
    words = f"a {how} of {short_id(id)}{where}{f': {reason}' if reason else ''}"
    return MadeFrom(job=id, short=short_id(id), how=how, words=as_sentence(words))


def running_words(running: Running, now: Time) -> str:
    """Say what a worker does for a job: "draw, 11 of 30, for 12 min"."""
    words = clean(running.stage) or "between steps"
    if running.done is not None and running.total:
        words += f", {running.done:,} of {running.total:,}"
    return words + (f", for {span(now - running.since)}" if running.since else "")
